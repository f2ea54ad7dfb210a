"""First use on a device: what crashes in a child is left out, told, remembered; answers come."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from localspec.core import paths, worker
from localspec.core.options.load_options import LoadOptions, load_options
from localspec.core.worker import Ended
from localspec.engine.engine import Engine
from localspec.engine.loading import trial
from localspec.metadata.header import read_header
from tests.support.real_pair import TinyFiles, options

pytestmark = pytest.mark.llama
SEGFAULT = -11


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[list[LoadOptions]]:
    """What the child was asked to try, on a machine that seems to have a device."""
    asked: list[list[LoadOptions]] = []
    monkeypatch.setattr(trial, "uses_devices", lambda options: options.device != "none")
    return asked


def child_that(
    asked: list[list[LoadOptions]], code: Callable[[list[LoadOptions]], int | None]
) -> Callable[..., Ended]:
    real = worker.ask

    def ask(module: str, question: object, patience: float) -> Ended:
        if module != trial.__name__:  # the proof of a file
            return real(module, question, patience)
        assert isinstance(question, list)
        asked.append([load_options(each) for each in question])
        return Ended(code(asked[-1]), "", "")

    return ask


def branched(models: list[LoadOptions]) -> int | None:
    return SEGFAULT if models[0].branches != 1 else 0


def drafted(models: list[LoadOptions]) -> int | None:
    return SEGFAULT if len(models) > 1 else 0


@pytest.mark.parametrize(
    ("code", "tries", "told", "left"),
    [
        (lambda models: 0, 1, None, ("auto", True, None)),
        (lambda models: 1, 1, None, ("auto", True, None)),  # refused: it will be here, too
        (branched, 2, "without branches", (1, True, None)),
        (drafted, 3, "the draft is not used", (1, False, None)),
        (lambda models: SEGFAULT, 3, "the CPU is used", (1, True, "none")),
    ],
)
def test_the_first_way_that_survives_is_used(
    tiny: TinyFiles,
    tried: list[list[LoadOptions]],
    monkeypatch: pytest.MonkeyPatch,
    code: Callable[[list[LoadOptions]], int | None],
    tries: int,
    told: str | None,
    left: tuple[object, bool, str | None],
) -> None:
    monkeypatch.setattr(worker, "ask", child_that(tried, code))
    pair = options(tiny.target, branches="auto"), options(tiny.draft)
    for times in range(2):
        said: list[str] = []
        with Engine.load(*pair, say=said.append) as engine:
            loaded = engine.target.options
            assert (loaded.branches, engine.draft is not None, loaded.device) == left
        assert len(tried) == tries  # the second time nothing is tried
        assert ("process of its own" in said[0]) == (times == 0) if said else True
        crashed = [sentence for sentence in said if "crashed" in sentence]
        assert [told in sentence for sentence in crashed if told] == ([True] if told else [])
    (file,) = (paths.cache_folder() / "profiles").glob("*.trial")
    if told:
        assert "SIGSEGV" in crashed[0]
        assert str(file) in crashed[0]
        file.unlink()
        monkeypatch.setattr(worker, "ask", child_that(tried, lambda models: 0))
        with Engine.load(*pair) as engine:  # the driver was mended
            assert engine.target.options.branches == "auto"


@pytest.mark.parametrize("passing", [None, -9])  # too slow, killed from outside
def test_what_may_pass_is_tried_again_at_the_next_start(
    tiny: TinyFiles,
    tried: list[list[LoadOptions]],
    monkeypatch: pytest.MonkeyPatch,
    passing: int | None,
) -> None:
    endings = iter([passing, 0, 0])
    monkeypatch.setattr(worker, "ask", child_that(tried, lambda models: next(endings)))
    pair = options(tiny.target), options(tiny.draft)
    said: list[str] = []
    with Engine.load(*pair, say=said.append) as engine:
        assert engine.draft is None
    (sentence,) = [each for each in said if "did not finish" in each]
    assert "The next start tries again." in sentence and "crashed" not in sentence
    assert not [*(paths.cache_folder() / "profiles").glob("*.trial")]
    with Engine.load(*pair) as engine:
        assert engine.draft is not None
    assert [len(models) for models in tried] == [2, 1, 2]


def test_a_large_file_is_given_more_time(
    tiny: TinyFiles, tried: list[list[LoadOptions]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def ask(module: str, question: object, patience: float) -> Ended:
        given.append(patience)
        return Ended(0, "", "")

    monkeypatch.setattr(worker, "ask", ask)
    for n_bytes in (0, 200 * 10**9):
        monkeypatch.setattr(trial, "_n_bytes", lambda headers, n_bytes=n_bytes: n_bytes)
        monkeypatch.setattr(trial, "_read", lambda path: None)
        trial.survivable(options(tiny.target), None, [read_header(tiny.target)], [])
    assert given[0] >= 900 and given[1] >= given[0] + 200 * 10**9 / 1e8


def test_the_cpu_is_left_no_tensor_on_a_device(tiny: TinyFiles) -> None:
    placed = options(tiny.target, override_tensors=("attn_q=Vulkan0",), gpu_layers=3)
    *_, last = trial._variants(placed, placed)
    assert last.draft is not None
    for each in (last.target, last.draft):
        assert (each.gpu_layers, each.device, each.override_tensors) == (0, "none", ())


def test_what_is_kept_may_be_nonsense(
    tiny: TinyFiles, tried: list[list[LoadOptions]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ask", child_that(tried, lambda models: 0))
    Engine.load(options(tiny.target)).close()
    (file,) = (paths.cache_folder() / "profiles").glob("*.trial")
    for nonsense in ("", "[1]", '{"as asked": 0}', "[" * 4000):
        file.write_text(nonsense)
        Engine.load(options(tiny.target)).close()
    assert len(tried) == 5


def test_the_child_answers_with_the_pair(tiny: TinyFiles) -> None:
    for parallel in (1, 2):
        pair = options(tiny.target, branches="auto", parallel=parallel), options(tiny.draft)
        assert worker.ask(trial.__name__, [asdict(each) for each in pair], 120).code == 0
    assert [*(paths.cache_folder() / "profiles").glob("*.json")]  # measured, for the parent too


def test_the_child_refuses_as_the_parent_does(tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    assert worker.ask(trial.__name__, [asdict(options(missing))], 120).code == 1
