"""Slots of recurrent and hybrid targets: rollback by sequence, in passes that others share."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from localspec.chat.answer import collect
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.engine import generate
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.engine.session import slot as slot_module
from localspec.engine.session.slot import Slot
from localspec.llama.heads.context import HeadContext, HeadRows
from localspec.llama.memory.layer_cache import SNAPSHOTS
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.speculative.drafters import Candidate
from localspec.speculative.prompt_lookup import PromptLookup
from tests.support.alike import alike, some_of
from tests.support.files.architectures.specs import write_architecture
from tests.support.llama.today import STATEFUL, TWIN, WAYS, WITH_MTP, HalfRight, Pair
from tests.support.real_pair import GREEDY, Slots, fresh, options, random_ids, slots_of
from tests.support.toy.slots import together

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]
PRECISE: Any = {
    "ctx_size": 256,
    "cache_type_k": "f32",
    "cache_type_v": "f32",
    "flash_attention": "off",
}


@pytest.fixture(
    scope="module", params=[(name, way) for name in STATEFUL for way in WAYS[name]], ids="-".join
)
def shared_and_alone(
    request: pytest.FixtureRequest, architecture: Files
) -> Iterator[tuple[Slots, LlamaModel]]:
    name, way = request.param
    path = architecture(name)
    oracle = LlamaModel(read_header(path), options(path, **PRECISE))
    loaded = options(path, parallel=4, **PRECISE)
    target = LlamaModel(read_header(path), loaded, strategies=(way,))
    assert target.rollback.name == way
    with Engine(target, None) as engine:
        yield slots_of(engine), oracle
    oracle.close()


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("twins")
    return functools.cache(lambda name: write_architecture(folder / f"{name}.gguf", name, 0.02))


def answer(slot: Slot, dice: Random) -> None:
    """Prompts, rounds of all widths, returns, in an order of its own."""
    model = slot.target
    for _ in range(dice.randrange(4, 12)):
        count, before = dice.choice((0, 0, 1, 2, 3, 4, 6, 9)), len(model.tokens)
        step = dice.choice(("verify", "verify", "verify", "read", "return", "end"))
        if before > 200:
            model.truncate(dice.randrange(100))
        elif step == "verify":
            model.decode([dice.randrange(256) for _ in range(count + 1)], count + 1)
            model.truncate(before + 1 + dice.randrange(count + 1))
        elif step == "read":
            model.decode(random_ids(dice.choice((1, 5, 30, 70)), before), 0)
        elif step == "return" and before:
            model.truncate(before - dice.randrange(1, min(before, 12) + 1))
        elif step == "end":
            model.truncate(0)


@pytest.mark.parametrize("seed", some_of(range(4), (2, 3)))
def test_after_any_history_of_all_slots_each_one_s_state_is_right(
    shared_and_alone: tuple[Slots, LlamaModel], seed: int
) -> None:
    slots, oracle = shared_and_alone

    def work(slot: Slot, number: int) -> None:
        answer(slot, Random(f"{seed} {number}"))

    together(slots, slots.batcher, work)
    for slot, more in itertools.product(slots, (1, 4)):
        tokens = [*slot.target.tokens, *range(more)]
        oracle.truncate(0)
        oracle.decode(tokens[:-more], 0)
        expected = oracle.decode(tokens[-more:], more)
        found = slot.target.decode([*range(more)], more)
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
        assert slot.target.tokens == tokens


class Told(HalfRight):
    """Half right about whichever of these texts is being written."""

    texts: ClassVar[list[list[int]]] = []

    def propose(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        begin = len(context)
        self.coming = next((text for text in self.texts if text[:begin] == context), ())
        return super().propose(context, ahead)


class ToldIndex(PromptLookup):
    """Proposes what will come, and sometimes not."""

    texts: ClassVar[list[list[int]]] = []

    def continuation(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        place, dice = len(context) + len(ahead), Random(len(context))
        coming = next((text for text in self.texts if text[: len(context)] == context), [])
        for token in coming[place : place + dice.randrange(9)]:
            yield Candidate(token if dice.random() < 0.9 else 3, 4.0, "lookup")


DRAFTED = [
    *(Pair(name, TWIN) for name in ("qwen35", "mamba", "falcon-h1", "lfm2")),
    Pair("qwen35", "llama"),
    Pair("llama", "mamba2"),
    Pair("rwkv7", "lfm2"),
    *WITH_MTP,
    *(Pair(name, "eagle3") for name in ("llama", "qwen35", "qwen3next", "gemma4")),
    *(Pair(name, "dflash") for name in ("llama", "qwen35", "qwen3next", "gemma4")),
    *(Pair("llama", draft) for draft in ("dspark", "dspark-bonus", "dspark-deepseek4", "dflash2")),
]
# Their targets share passes with other drafts above, and these drafts with other targets.
ALIKE = [Pair("qwen35", "eagle3"), Pair("qwen3next", "eagle3"), Pair("gemma4", "dflash")]
PROMPTS = [random_ids(length, seed) for seed, length in enumerate((40, 90, 12, 40, 130, 25))]
LENGTH = 16  # tokens of an answer


class Asked(NamedTuple):
    """A prompt, and what plain decoding says behind it."""

    prompt: list[int]
    told: list[int]


@functools.cache
def asked_of(path: Path) -> list[Asked]:
    """The prompts, and others that go on behind a part of an answer to them."""
    with Engine.load(options(path, **PRECISE)) as plain:

        def tell(prompts: Sequence[list[int]]) -> list[Asked]:
            return [Asked(each, fresh(plain, each, max_tokens=LENGTH).tokens) for each in prompts]

        first = tell(PROMPTS)
        return first + tell([[*prompt, *told[:9], 5, 6] for prompt, told in first])


def ask_all(slots: Slots, asked: Sequence[Asked], length: DraftTokens) -> int:
    """Compare the answers to all in whichever slot is free; how many candidates were accepted."""
    waiting, accepted = list(asked), list[int]()

    def work(slot: Slot, number: int) -> None:
        while waiting:
            prompt, told = waiting.pop(0)
            most = LENGTH - len(prompt) % 5
            stream = stream_generate(slot, prompt, GenerateOptions(GREEDY, length, max_tokens=most))
            if len(waiting) % 4 == 1:  # its reader leaves
                next(stream)
                stream.close()
                continue
            found = collect(stream)
            assert found.tokens == told[:most]
            accepted.append(found.stats.accepted)

    together(slots, slots.batcher, work)
    return sum(accepted)


@pytest.mark.parametrize(
    ("pair", "parallel"),
    [
        *(alike(pair, 4) if pair in ALIKE else (pair, 4) for pair in DRAFTED),
        *((pair, 2) if not i else alike(pair, 2) for i, pair in enumerate(DRAFTED[::4])),
    ],
    ids=lambda each: each if isinstance(each, int) else f"{each.target}-{each.draft}",
)
def test_texts_are_those_of_the_target_alone(
    architecture: Files,
    twin: Files,
    monkeypatch: pytest.MonkeyPatch,
    pair: Pair,
    parallel: int,
    thorough: bool,
) -> None:
    """Answers begin and end at different times; later prompts go on behind earlier answers."""
    name, draft = pair
    asked = asked_of(architecture(name))
    monkeypatch.setattr(Told, "texts", [[*prompt, *told] for prompt, told in asked])
    monkeypatch.setattr(generate, "ModelDrafter", Told)
    file = twin(name) if draft == TWIN else architecture(draft or name)
    loaded = options(file, load_heads=draft is None, **PRECISE)
    with Engine.load(options(architecture(name), parallel=parallel, **PRECISE), loaded) as engine:
        slots = slots_of(engine)
        assert len(slots) == parallel and slots[0].draft is not None
        for length in (3, 8) if thorough else (3,):
            assert ask_all(slots, asked, length) > 0
        ask_all(slots, asked, "auto")


@pytest.mark.parametrize("name", ["qwen35", "mamba", "granitehybrid"])
def test_texts_with_prompt_lookup_alone(
    architecture: Files, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Random models repeat little: the index is told the text."""
    asked = asked_of(architecture(name))
    monkeypatch.setattr(ToldIndex, "texts", [[*prompt, *told] for prompt, told in asked])
    monkeypatch.setattr(slot_module, "PromptLookup", ToldIndex)
    with Engine.load(options(architecture(name), parallel=3, **PRECISE)) as engine:
        slots = slots_of(engine)
        assert sum(ask_all(slots, asked, "auto") for _ in range(3)) > 0


def said_by_head(target: Any, head: Any, prompt: list[int]) -> list[np.ndarray]:
    """What a head says of three tokens behind a prompt, before and behind a round."""
    drafted, rows = random_ids(3, seed=len(prompt)), []
    target.truncate(0)
    target.decode(prompt[:-1], 0)
    assert len(target.tokens) - len(head.tokens) <= 16  # it read the prompt, but for a short end
    for _ in range(2):
        unread = prompt[len(head.tokens) :]
        for tokens in (unread, *([token] for token in drafted[:2])):
            rows.append(head.decode(tokens, 1)[0].copy())
            if head.confidences is not None:
                rows.append(np.array(head.confidences[:1]))
        target.decode([prompt[-1], *drafted], 4)
        prompt = [*prompt, *drafted[:2]]
        target.truncate(len(prompt) - 1)
        head.truncate(len(prompt) - 1)
    return rows


@pytest.mark.parametrize(
    "pair",
    [
        *WITH_MTP,
        *(Pair(name, draft) for name in ("llama", "qwen35") for draft in ("eagle3", "dflash")),
        *(Pair("llama", draft) for draft in ("dspark", "dspark-bonus", "dflash2")),
    ],
    ids=lambda pair: f"{pair.target}-{pair.draft}",
)
def test_heads_say_in_shared_passes_what_they_say_alone(
    architecture: Files, monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    name, draft = pair
    loaded = options(architecture(draft or name), load_heads=draft is None, **PRECISE)
    prompts = [random_ids(length, seed) for seed, length in enumerate((40, 7, 90))]
    expected = []
    for prompt in prompts:
        with Engine.load(options(architecture(name), **PRECISE), loaded) as engine:
            expected.append(said_by_head(engine.target, engine.draft, prompt))
    with Engine.load(options(architecture(name), parallel=3, **PRECISE), loaded) as engine:
        slots, widths = slots_of(engine), list[int]()
        compute = HeadContext.compute

        def noting(context: HeadContext, parts: Sequence[HeadRows]) -> None:
            widths.append(len(parts))
            compute(context, parts)

        monkeypatch.setattr(HeadContext, "compute", noting)
        found = dict[int, list[np.ndarray]]()

        def work(slot: Slot, number: int) -> None:
            found[number] = said_by_head(slot.target, slot.draft, prompts[number])

        together(slots, slots.batcher, work)
    assert max(widths) >= 2
    for number, rows in enumerate(expected):
        for alone, shared in zip(rows, found[number], strict=True):
            largest = np.abs(alone[np.isfinite(alone)]).max()
            assert largest > 0
            np.testing.assert_allclose(shared, alone, rtol=0, atol=1e-3 * max(1, largest))


@pytest.mark.parametrize("draft", ["dspark", "dflash2"])
def test_a_review_and_a_block_take_passes_of_their_own(architecture: Files, draft: str) -> None:
    """llama.cpp ends the process for blocks of several widths in one pass."""
    loaded, prompt = options(architecture(draft), **PRECISE), random_ids(20)
    with Engine.load(options(architecture("llama"), parallel=2, **PRECISE), loaded) as engine:
        slots, found = slots_of(engine), dict[int, np.ndarray]()

        def drafted(slot: Slot, number: int) -> np.ndarray:
            assert slot.draft is not None
            slot.draft.truncate(0)
            return slot.draft.decode(prompt, 1 + 2 * number).copy()

        def work(slot: Slot, number: int) -> None:
            slot.target.decode(prompt[:-1], 0)
            found[number] = drafted(slot, number)

        together(slots, slots.batcher, work)
        for number, rows in found.items():
            np.testing.assert_allclose(rows, drafted(slots[0], number), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("counts", "others", "drafting"),
    [
        ((1, 1, 1), [2, 2, 2], [0, 0, 0]),
        ((1, 4, 2), [11, 8, 10], [2, 1, 1]),
        ((2, 12, 1), [14, 4, 15], [1, 1, 2]),  # the widest takes a pass of its own
    ],
)
def test_rounds_are_filled_up_to_the_widest(
    architecture: Files,
    counts: Sequence[int],
    others: list[int],
    drafting: list[int],
) -> None:
    path = architecture("qwen35")
    load = options(path, parallel=3, **PRECISE)
    with Engine(LlamaModel(read_header(path), load, strategies=("snapshots",)), None) as engine:
        slots = slots_of(engine)

        def work(slot: Slot, number: int) -> None:
            slot.target.decode(random_ids(counts[number]), counts[number])

        together(slots, slots.batcher, work)
        shares = [slot.target.batch_share for slot in slots]
        assert [share.filled for share in shares] == [1 + SNAPSHOTS] * 3
        assert [share.others for share in shares] == others
        assert [share.drafting for share in shares] == drafting
