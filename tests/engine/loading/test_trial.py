"""First use on a device: what crashes in a child is left out, told, remembered; answers come."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from localspec.core import child, paths
from localspec.core.child import Ended
from localspec.core.options.load_options import LoadOptions, load_options
from localspec.engine.engine import Engine
from localspec.engine.loading import trial
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
    real = child.ask

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
        (lambda models: None, 3, "the CPU is used", (1, True, "none")),  # it hung
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
    monkeypatch.setattr(child, "ask", child_that(tried, code))
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
        assert ("SIGSEGV" in crashed[0]) != ("no answer in time" in crashed[0])
        assert str(file) in crashed[0]
        file.unlink()
        monkeypatch.setattr(child, "ask", child_that(tried, lambda models: 0))
        with Engine.load(*pair) as engine:  # the driver was mended
            assert engine.target.options.branches == "auto"


def test_the_cpu_is_left_no_tensor_on_a_device(tiny: TinyFiles) -> None:
    placed = options(tiny.target, override_tensors=("attn_q=Vulkan0",), gpu_layers=3)
    *_, last = trial._variants(placed, placed)
    assert last.draft is not None
    for each in (last.target, last.draft):
        assert (each.gpu_layers, each.device, each.override_tensors) == (0, "none", ())


def test_what_is_kept_may_be_nonsense(
    tiny: TinyFiles, tried: list[list[LoadOptions]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "ask", child_that(tried, lambda models: 0))
    Engine.load(options(tiny.target)).close()
    (file,) = (paths.cache_folder() / "profiles").glob("*.trial")
    for nonsense in ("", "[1]", '{"as asked": 0}', "[" * 4000):
        file.write_text(nonsense)
        Engine.load(options(tiny.target)).close()
    assert len(tried) == 5


def test_the_child_answers_with_the_pair(tiny: TinyFiles) -> None:
    for parallel in (1, 2):
        pair = options(tiny.target, branches="auto", parallel=parallel), options(tiny.draft)
        assert child.ask(trial.__name__, [asdict(each) for each in pair], 120).code == 0
    assert [*(paths.cache_folder() / "profiles").glob("*.json")]  # measured, for the parent too


def test_the_child_refuses_as_the_parent_does(tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    assert child.ask(trial.__name__, [asdict(options(missing))], 120).code == 1
