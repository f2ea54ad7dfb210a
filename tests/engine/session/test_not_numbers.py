"""A model, or a draft, whose logits are not numbers after some texts: others are answered."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.answer import Answer, collect
from localspec.core.errors import NotNumbers
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.engine import generate
from localspec.engine.engine import Engine
from localspec.engine.generate import TextEngine, stream_generate
from localspec.engine.session.slot import Slot
from localspec.speculative.drafters import Candidate, ModelDrafter
from localspec.speculative.loop import DraftStatus
from tests.support.alike import alike
from tests.support.files.tiny_models import with_bad_token, write_tiny_model
from tests.support.real_pair import GREEDY, TinyFiles, options, random_ids, slots_of
from tests.support.toy.slots import together

pytestmark = pytest.mark.llama

BAD = 200
SAMPLING = replace(GREEDY, logit_bias=(f"{BAD}-inf",))  # no model writes it by itself
GOOD = [[token for token in random_ids(90, seed) if token != BAD] for seed in range(3)]
BROKEN = [*GOOD[0][:60], BAD, *GOOD[1]]
Files = Callable[[str], Path]


def ask(slot: TextEngine, prompt: Sequence[int], length: DraftTokens = 0) -> Answer:
    return collect(stream_generate(slot, prompt, GenerateOptions(SAMPLING, length, max_tokens=12)))


def refused(slot: TextEngine, prompt: Sequence[int], length: DraftTokens = 0) -> None:
    with pytest.raises(NotNumbers, match="not numbers"):
        ask(slot, prompt, length)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory, architecture: Files) -> Files:
    """A copy, with the bad token, of a model by its name."""
    folder = tmp_path_factory.mktemp("spoilt")

    def make(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            new = write_tiny_model(folder / "good.gguf", seed=1)
            with_bad_token(new if name == "tiny" else architecture(name), path, BAD)
        return path

    return make


@pytest.mark.parametrize("attention", ["on", "off"])
@pytest.mark.parametrize("parallel", [1, alike(2), 3])
@pytest.mark.parametrize("name", ["tiny", "step35", "qwen35", "mamba", "qwen35-mtp"])
def test_one_bad_prompt_spoils_no_slot(
    spoilt: Files, name: str, parallel: int, attention: str
) -> None:
    given = options(spoilt(name), parallel=parallel, ctx_size=512, flash_attention=attention)
    heads = options(given.path, ctx_size=512, load_heads=True) if name == "qwen35-mtp" else None
    length = 0 if heads is None else 3
    with Engine.load(given, heads, trial=False) as engine:
        slots = slots_of(engine)
        expected = [ask(slots[0], prompt, length).tokens for prompt in GOOD]
        for slot in slots:
            refused(slot, BROKEN, length)
            assert slot.target.tokens == []
            for other in slots:
                assert [ask(other, prompt, length).tokens for prompt in GOOD] == expected
        refused(slots[0], BROKEN[:61], length)  # its last token is the first of a round
        assert ask(slots[-1], GOOD[0], length).tokens == expected[0]


@pytest.mark.parametrize("name", ["tiny", "qwen35"])
def test_an_answer_in_company_is_right(spoilt: Files, name: str) -> None:
    """Whether the others were begun before or after, and as often as the bad prompt comes."""
    with Engine.load(options(spoilt(name), parallel=3, ctx_size=512), trial=False) as engine:
        slots = slots_of(engine)
        expected = [ask(slots[0], prompt).tokens for prompt in GOOD]
        waiting = [BROKEN, GOOD[0], GOOD[1], GOOD[2], BROKEN, GOOD[0], BROKEN, GOOD[1]]

        def work(slot: Slot, number: int) -> None:
            while waiting:
                prompt = waiting.pop(0)
                if prompt is BROKEN:
                    refused(slot, prompt)
                else:
                    assert ask(slot, prompt).tokens == expected[GOOD.index(prompt)]

        together(slots, slots.batcher, work)
        for slot in slots:
            ask(slot, GOOD[0])
        assert not slots[0].target._context._suspects


@pytest.mark.parametrize("length", [4, "auto"])
@pytest.mark.parametrize("parallel", [1, 2])
def test_a_draft_ends_with_its_numbers_and_the_text_is_the_target_s(
    tiny: TinyFiles, tmp_path: Path, parallel: int, length: DraftTokens
) -> None:
    draft = with_bad_token(tiny.draft, tmp_path / "draft.gguf", BAD)
    given = options(tiny.target, parallel=parallel, ctx_size=512)
    with Engine.load(given, options(draft, ctx_size=512), trial=False) as engine:
        slots = slots_of(engine)
        for slot in slots:
            plain = ask(slot, BROKEN).tokens
            found = ask(slot, BROKEN, length)
            assert found.tokens == plain
            if length != "auto":  # which may not ask it
                assert found.status is DraftStatus.DRAFT_NOT_NUMBERS and not found.stats.drafted
        for slot in slots:
            after = ask(slot, GOOD[0], 4)
            assert after.status is DraftStatus.DRAFTING and after.stats.drafted


class Misled(ModelDrafter):
    """Proposes the bad token second, or first."""

    def propose(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        for i, candidate in enumerate(super().propose(context, ahead)):
            yield candidate._replace(token=BAD) if i == len(context) % 2 else candidate


@pytest.mark.parametrize(("parallel", "branches"), [(1, 1), (1, 2), (2, 1)])
def test_a_wrong_candidate_ends_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: int, branches: int
) -> None:
    target = write_tiny_model(tmp_path / "target.gguf", seed=1)
    draft = write_tiny_model(tmp_path / "draft.gguf", seed=1, noise=0.01)
    bad = with_bad_token(target, tmp_path / "bad.gguf", BAD)
    given = options(bad, parallel=parallel, branches=branches, ctx_size=512)
    with Engine.load(given, options(draft, ctx_size=512), trial=False) as engine:
        (slot, *_) = slots_of(engine)
        assert (slot.target.tree is not None) == (branches > 1)
        plain = ask(slot, GOOD[0]).tokens
        monkeypatch.setattr(generate, "ModelDrafter", Misled)
        found = ask(slot, GOOD[0], 4)
        assert found.tokens == plain and found.stats.drafted
