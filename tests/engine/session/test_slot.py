"""Slots on real contexts: each text is that of the pair alone, up to rounding that is shown."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.chat.answer import Answer, collect
from localspec.core.errors import EngineError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.engine.loading import pair
from localspec.engine.session.slot import Slot, one_at_a_time
from localspec.llama import llama_library
from localspec.llama.model import LlamaModel
from localspec.llama.row_kernels import RowKernels
from localspec.speculative.loop import TokenModel
from tests.support.files.tiny_models import write_tiny_model
from tests.support.llama.audit import shortfalls
from tests.support.llama.rounding import rounding
from tests.support.real_pair import (
    GREEDY,
    LENGTHS,
    Slots,
    TinyFiles,
    fresh,
    load_model,
    options,
    random_ids,
    slots_of,
    unfinished_passes,
)
from tests.support.toy.slots import together

pytestmark = pytest.mark.llama

HAS_OWN_CELLS = pair._has_own_cells
WARM = SamplingParams(temperature=0.8, seed=3)
QUESTIONS = (
    "Explain the class argparse.ArgumentParser.",
    "Explain the function shutil.copytree.",
    "Show me the source of os.path.join.",
    "How is random.choice implemented?",
)


def only_slot(engine: Engine) -> object:
    session = engine.open_session()
    assert len(session.slots()) == 1
    return session.run(0, lambda slot: slot).result()


@pytest.fixture(scope="module")
def alone(demo_files: tuple[Path, Path]) -> Iterator[Engine]:
    with Engine.load(*(options(path, ctx_size=512) for path in demo_files)) as engine:
        yield engine


@pytest.fixture(scope="module", params=[False, True], ids=["shared cells", "own cells"])
def own_cells(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether slots have cells of their own, as they have with row kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair, "_has_own_cells", lambda *given: request.param)
        yield request.param


@pytest.fixture(scope="module")
def slots(demo_files: tuple[Path, Path], own_cells: bool) -> Iterator[Slots]:
    """Three slots of the demo pair."""
    loaded = [options(path, ctx_size=512, parallel=3) for path in demo_files]
    with Engine.load(*loaded) as engine:
        assert engine.target.options.own_cells == own_cells
        yield slots_of(engine)


def at_once(
    slots: Slots,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    length: DraftTokens,
    size: int = 80,
) -> list[Answer]:
    """An answer to each prompt, by whichever slot is free."""
    waiting, found = list(enumerate(prompts)), dict[int, Answer]()

    def work(slot: Slot, number: int) -> None:
        while waiting:
            asked, prompt = waiting.pop(0)
            options = GenerateOptions(params, length, max_tokens=size)
            found[asked] = collect(stream_generate(slot, prompt, options))

    together(slots, slots.batcher, work)
    return [found[i] for i in range(len(prompts))]


@pytest.mark.parametrize("length", [0, 4, "auto"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_texts_are_those_of_the_pair_alone(
    alone: Engine, slots: Slots, params: SamplingParams, length: DraftTokens
) -> None:
    """Where rounding decides otherwise, no token falls short by more than rounding can explain."""
    prompts = [
        list(alone.encode_chat([{"role": "user", "content": question}])) for question in QUESTIONS
    ]
    for prompt, found in zip(prompts, at_once(slots, prompts, params, length), strict=True):
        plain = fresh(alone, prompt, params, max_tokens=80)
        if found.tokens != plain.tokens:
            explained = 2 * rounding(alone, prompt, found.tokens)
            assert explained < 0.5  # of logits that span some twenty
            assert 0 < max(shortfalls(alone, prompt, params, found.tokens)) <= explained


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_with_row_kernels_texts_are_those_of_the_pair_alone_to_the_last_bit(
    kernels: RowKernels,
    demo_files: tuple[Path, Path],
    params: SamplingParams,
    monkeypatch: pytest.MonkeyPatch,
    thorough: bool,
) -> None:
    monkeypatch.setattr(pair, "_has_own_cells", HAS_OWN_CELLS)
    size = 80 if thorough else 40
    loaded = [options(path, ctx_size=512, parallel=3) for path in demo_files]
    with Engine.load(*(options(path, ctx_size=512) for path in demo_files)) as one:
        assert one.target.rounds_alike
        prompts = [list(one.encode_chat([{"role": "user", "content": each}])) for each in QUESTIONS]
        plain = [fresh(one, prompt, params, max_tokens=size).tokens for prompt in prompts]
        for length in LENGTHS:
            found = [fresh(one, prompt, params, length, size).tokens for prompt in prompts]
            assert found == plain
    for exact in (False, True) if thorough else (True,):
        with Engine.load(*(replace(each, exact=exact) for each in loaded)) as several:
            assert several.notes == [] and several.draft is not None
            three = slots_of(several)
            assert len(three) == 3
            for length in LENGTHS:
                answers = at_once(three, prompts, params, length, size)
                assert [each.tokens for each in answers] == plain


def test_slots_share_passes(slots: Slots, alone: Engine) -> None:
    """Figures of an answer tell how wide the passes were."""
    prompts = [random_ids(20, seed) for seed in range(3)]
    answers = at_once(slots, prompts, SamplingParams(temperature=0, ignore_eos=True), 0)
    assert max(width for answer in answers for width in answer.stats.passes) == 3
    assert all(len(answer.tokens) == 80 for answer in answers)


def test_each_slot_carries_its_own_loss(slots: Slots) -> None:
    first, *others = slots
    before = [slot.loss_budget.may_spend(0.9, 1.0, 0.0) for slot in others]
    first.loss_budget.add(20.0, 1, 1.0)
    assert not first.loss_budget.may_spend(0.0, 1.0, 0.0)
    assert [slot.loss_budget.may_spend(0.9, 1.0, 0.0) for slot in others] == before == [True, True]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["verify", "verify", "read", "return"]),
        st.integers(0, 40),
        st.integers(0, 40),
    ),
    max_size=14,
)


def apply(step: str, model: TokenModel, count: int, kept: int) -> None:
    before = len(model.tokens)
    if before + count + 2 > 200:
        model.truncate(20)
    elif step == "verify":
        model.decode([9, *range(100, 100 + count)], count + 1)
        model.truncate(before + 1 + min(kept, count))
    elif step == "read" and count:
        model.decode([*range(50, 50 + count)], 0)
    elif step == "return":
        model.truncate(min(before, kept))


@pytest.fixture(scope="module", params=[0, 24], ids=["attention", "sliding window"])
def shared_and_alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, own_cells: bool
) -> Iterator[tuple[Slots, LlamaModel]]:
    """Slots of a tiny model in F32, and the model alone."""
    path = tmp_path_factory.mktemp("slots") / "floats.gguf"
    write_tiny_model(
        path, seed=1, layers=4, window=request.param, context_length=256, matrix_type=np.float32
    )
    exact = {"ctx_size": 256, "cache_type_k": "f32", "cache_type_v": "f32"}
    oracle = load_model(path, flash_attention="off", **exact)
    loaded = options(path, flash_attention="off", parallel=3, **exact)
    with Engine.load(loaded) as engine:
        yield slots_of(engine), oracle
    oracle.close()


@settings(
    max_examples=settings().max_examples // 5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_after_any_history_of_all_slots_each_one_s_state_is_right(
    shared_and_alone: tuple[Slots, LlamaModel], steps: list[tuple[int, str, int, int]]
) -> None:
    slots, oracle = shared_and_alone
    for slot in slots:
        slot.target.truncate(0)

    def work(slot: Slot, number: int) -> None:
        for of, step, count, kept in steps:
            if of == number:
                apply(step, slot.target, count, kept)

    together(slots, slots.batcher, work)
    for slot in slots:
        oracle.truncate(0)
        expected = oracle.decode([*slot.target.tokens, 7], 1)[0]
        found = slot.target.decode([7], 1)[0]
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
        assert slot.target.tokens == oracle.tokens


def test_a_slot_s_context_may_be_full_while_the_others_are(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target, ctx_size=256, parallel=3)) as engine:
        slots = slots_of(engine)
        endless = GenerateOptions(SamplingParams(temperature=0, ignore_eos=True), 0)

        def fill(slot: Slot, number: int) -> None:
            prompt = random_ids(200 + 20 * number, number)
            answer = collect(stream_generate(slot, prompt, endless))
            assert answer.finish_reason == "context"

        together(slots, slots.batcher, fill)
        assert all(len(slot.target.tokens) == 255 for slot in slots)


def test_who_asks_for_what_llama_cpp_refuses_is_alone_with_the_error(tiny: TinyFiles) -> None:
    """The others' logits are those of a pass without it."""
    with Engine.load(options(tiny.target, ctx_size=256, parallel=2)) as engine:
        slots = slots_of(engine)
        prompt = random_ids(9)
        expected = slots[0].target.decode(prompt, 1)[0].copy()
        slots[0].target.truncate(0)
        seen: dict[int, object] = {}

        def work(slot: Slot, number: int) -> None:
            model = slot.target
            model.decode(prompt, 1)
            if number:
                with pytest.raises(EngineError, match=r"could not decode 2 tokens .*code -1"):
                    model.decode([3, engine.target.n_vocab], 1)
            else:
                model.decode([3], 1)
            seen[number] = list(model.tokens)
            model.truncate(0)
            assert np.abs(model.decode(prompt, 1)[0] - expected).max() < 0.05

        together(slots, slots.batcher, work)
        assert seen == {0: [*prompt, 3], 1: prompt}


def test_a_slot_that_forgets_all_leaves_the_others_what_they_hold(
    slots: Slots, alone: Engine
) -> None:
    first, second = slots[0].target, slots[1].target
    text = random_ids(40)
    for model in (first, second, alone.target):
        model.truncate(0)
        model.decode(text, 0)
    expected = alone.target.decode([7], 1)[0]
    second.truncate(0)
    second.decode([1, 2, 3], 0)
    assert np.abs(first.decode([7], 1)[0] - expected).max() < 0.05


def test_a_pass_that_fails_halfway_leaves_the_caches_as_they_were(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where llama.cpp computes some of it and then runs out of memory."""
    model = slots[0].target
    model.truncate(0)
    model.decode(random_ids(20), 0)
    expected = model.decode([7], 1)[0].copy()
    llama = llama_library.library()
    decode = llama.llama_decode
    with monkeypatch.context() as patched:
        patched.setattr(llama, "llama_decode", lambda *given: decode(*given) or -3)
        with pytest.raises(EngineError, match="code -3"):
            model.decode([8, 9], 1)
    model.truncate(20)
    assert np.abs(model.decode([7], 1)[0] - expected).max() < 0.05


def test_passes_that_only_read_are_over_when_they_return(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else on a GPU their seconds would be counted as those of the next round."""
    unfinished = unfinished_passes(monkeypatch)
    for model in (slots[0].target, slots[0].draft):
        assert model is not None
        model.truncate(0)
        model.decode(random_ids(200), 0)
        assert not unfinished


def test_a_state_goes_from_one_slot_to_another(slots: Slots) -> None:
    first, second = slots[0].target, slots[1].target
    for model in (first, second):
        model.truncate(0)
    text = random_ids(40)
    first.decode(text, 0)
    state = first.state()
    expected = first.decode([7], 1)[0].copy()
    second.decode([1, 2, 3], 0)
    assert second.restore(text, state) and second.tokens == text
    assert np.abs(second.decode([7], 1)[0] - expected).max() < 0.05
    assert not second.restore(text[:-1], state) and second.tokens == []
    assert first.tokens == [*text, 7]


def test_one_slot_is_the_engine_itself(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target, ctx_size=256)) as engine:
        assert only_slot(engine) is engine


def test_why_passes_cannot_be_shared_is_said(tiny: TinyFiles) -> None:
    assert one_at_a_time(options(tiny.target)) is None
    assert "--exact" in (one_at_a_time(options(tiny.target, exact=True)) or "")
    assert one_at_a_time(options(tiny.target, exact=True, own_cells=True)) is None


def test_exact_slots_whose_passes_round_apart_answer_one_after_the_other(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "_has_own_cells", lambda *given: True)
    monkeypatch.setattr(LlamaModel, "rounds_alike", False)
    loaded = options(tiny.target, ctx_size=256, parallel=2, exact=True)
    with Engine.load(loaded) as engine:
        assert only_slot(engine) is engine
        assert any("--exact demands passes" in note for note in engine.notes)


def test_what_cannot_be_rolled_back_answers_one_after_the_other(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaModel, "can_roll_back", False)
    with Engine.load(options(tiny.recurrent, ctx_size=256, parallel=2)) as engine:
        assert only_slot(engine) is engine
        assert any("one after the other" in note for note in engine.notes)
