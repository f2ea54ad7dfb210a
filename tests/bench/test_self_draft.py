"""Making and measuring a self-draft, whole, with real llama.cpp on a target with silent layers."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import pytest

from localspec.bench import self_draft
from localspec.bench.self_draft import ANSWER_TOKENS, MadeDraft, judge, make_and_store, questions
from localspec.core.errors import IncompatiblePair, PromptTooLong
from localspec.core.options.load_options import LoadOptions
from localspec.engine.engine import Engine
from localspec.engine.profile_store import best_gain
from localspec.llama.model import LlamaModel
from localspec.metadata.gguf_writer import copied, write_copy
from localspec.metadata.header import read_header
from localspec.metadata.splits import read_part
from localspec.self_draft import store
from localspec.self_draft.make import LAYERS_KEY, make_draft
from localspec.self_draft.recipe import KEEP, Recipe, SelfDraftOptions
from localspec.speculative.control.costs import PassCosts
from tests.support.real_pair import TinyFiles, interrupt, options

pytestmark = pytest.mark.llama


def load(target: Path, draft: Path | None) -> tuple[LoadOptions, LoadOptions | None]:
    return options(target), None if draft is None else options(draft)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of few tokens, a verdict on few prompts, and no token counted but the prompts'."""
    monkeypatch.setattr(self_draft, "ANSWER_TOKENS", 8)
    monkeypatch.setattr(self_draft, "VERDICT_BUDGET", 0.0)
    monkeypatch.setattr(self_draft, "COUNT_BUDGET", 0.0)


def made(
    target: Path, asked: SelfDraftOptions, output: Path
) -> tuple[MadeDraft, list[str], list[tuple[str, int, int]]]:
    said: list[str] = []
    shown: list[tuple[str, int, int]] = []
    found = make_and_store(
        target, asked, output, load, said.append, lambda: nullcontext(lambda *at: shown.append(at))
    )
    return found, said, shown


def test_a_draft_is_made_and_measured(silent_target: Path, tmp_path: Path) -> None:
    output = tmp_path / "draft.gguf"
    found, said, shown = made(silent_target, SelfDraftOptions(4, KEEP), output)
    assert read_header(output).values[LAYERS_KEY] == (0, 1, 2, 3)
    assert found.recipe == Recipe(4) and found.n_bytes == output.stat().st_size
    assert found.verdict is not None and found.verdict.text in ("same", "rounding")
    assert found.verdict.acceptance_rate in (None, 1)  # its last layers change nothing
    assert "first 4 of 6 layers" in said[0] and "2 minutes" not in said[0] and "Ctrl-C" in said[0]
    assert shown[0] == ("making the draft", 0, 1)
    assert shown[-1][0] == "measuring the draft" and shown[-1][1] == shown[-1][2]
    left = [path.name for path in store.folder().iterdir() if path.name.startswith(".")]
    assert left == []


def test_output_rows_go(silent_target: Path, tmp_path: Path) -> None:
    output = tmp_path / "draft.gguf"
    found, said, shown = made(silent_target, SelfDraftOptions(2, KEEP, vocab=64), output)
    trimmed = read_header(output).trimmed
    assert trimmed is not None and len(trimmed.ids) == 64 and found.recipe == Recipe(2, KEEP, 64)
    assert found.verdict is not None and found.verdict.text in ("same", "rounding")
    assert ("trimming", 0, 1) in shown and "counting the target's tokens" in said[0]


def test_a_draft_that_is_given_is_trimmed_and_stays(silent_target: Path, tmp_path: Path) -> None:
    draft, output = tmp_path / "small.gguf", tmp_path / "trimmed.gguf"
    part = read_part(silent_target)
    tensors = [copied(part, t) for t in part.tensors if not t.name.startswith("blk.5.")]
    write_copy(draft, part, {"llama.nextn_predict_layers": 1}, tensors)
    before = draft.read_bytes()
    found, _, _ = made(silent_target, SelfDraftOptions(vocab=128, source=draft), output)
    assert found.source.path == draft and found.stored is None
    assert found.recipe == Recipe(5, KEEP, 128)  # heads are no layers
    assert draft.read_bytes() == before and {*tmp_path.glob("*.gguf")} == {draft, output}


def test_ctrl_c_in_the_measurement_keeps_the_draft(
    silent_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*arguments: object, **more: object) -> object:
        interrupt(monkeypatch, 30)
        return judge(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(self_draft, "judge", pressed)
    found, _, _ = made(silent_target, SelfDraftOptions(2, KEEP), tmp_path / "draft.gguf")
    assert found.verdict is None and found.stored is not None
    assert found.stored == store.find(read_header(silent_target))


def test_a_target_that_cannot_roll_back_is_refused(
    silent_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tmp_path / "draft.gguf"
    make_draft(read_header(silent_target), Recipe(1), draft)
    monkeypatch.setattr(LlamaModel, "can_roll_back", False)
    with pytest.raises(IncompatiblePair, match="silent.gguf"):
        self_draft._measured(self_draft._pair(load, silent_target, draft), lambda *at: None)


def test_all_ways_answer_the_same_prompts(tiny: TinyFiles) -> None:
    heard: list[tuple[int, int]] = []
    with Engine.load(options(tiny.target), options(tiny.draft)) as pair:
        asked = {f"prompt {i}": pair.encode_text("ab" * (i + 9)) for i in range(6)}
        alone = Engine(pair.target, None)
        found = judge(pair, alone, asked, budget=0.0, on_answer=lambda *at: heard.append(at))
        assert pair.draft is not None and found.draft_memory == pair.draft.memory.total
        assert found.ceiling == best_gain(pair.profile.learnt(float))[0]
    assert found.prompts == 4  # as few as an interval needs
    assert heard[-1] == (3 * 4, 3 * 4)
    assert found.text in ("same", "rounding") and found.speedup > 0 and found.over_lookup > 0
    assert found.speedup_interval is not None and found.over_lookup_interval is not None


def test_prompts_and_repeats_are_as_many_as_the_time_allows() -> None:
    asked = {str(i): [0] * 10 for i in range(8)}
    costs = PassCosts()
    costs.observe(1, 0, 1.0)
    costs.observe(17, 0, 17.0)
    each = 3 * (10 * 1.0 + 8 * 1.0)  # seconds, three ways
    for budget, prompts, repeats in (
        (0, 4, 1),
        (5 * each, 5, 1),
        (8 * each, 8, 1),
        (17 * each, 8, 2),
        (1e9, 8, 3),
    ):
        found, times = self_draft._affordable(asked, costs, budget + 0.1)
        assert (len(found), times) == (prompts, repeats)


def tasks(names: Iterable[str]) -> list[str]:
    return sorted(name.rpartition(" ")[0] for name in names)


def test_the_shortest_prompt_of_each_task_comes_first(demo_files: tuple[Path, Path]) -> None:
    with Engine.load(options(demo_files[0])) as engine:
        asked = questions(engine)
    first, others = list(asked)[:7], list(asked)[7:]
    assert len(asked) == 14 and tasks(first) == tasks(others) == sorted(set(tasks(asked)))
    for part in (first, others):
        lengths = [len(asked[name]) for name in part]
        assert lengths == sorted(lengths)
    for name in first:
        task = name.rpartition(" ")[0]
        same = (len(ids) for other, ids in asked.items() if other.rpartition(" ")[0] == task)
        assert len(asked[name]) == min(same)


def test_prompts_that_do_not_fit_are_left_out(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target, ctx_size=400)) as engine:
        asked = questions(engine)
        assert 0 < len(asked) < 14
        assert all(len(ids) + ANSWER_TOKENS < 400 for ids in asked.values())
    with (
        Engine.load(options(tiny.target, ctx_size=70)) as engine,
        pytest.raises(PromptTooLong, match="70 tokens"),
    ):
        questions(engine)
