"""Slots that share one context: no more cells than there are, and each text as it is alone."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.core.errors import PromptTooLong, UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import MAX_ROWS, DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.caches.slot_files import SlotFiles
from localspec.engine.engine import Engine
from localspec.engine.session.cell_budget import CellBudget
from localspec.engine.session.job import GenerationRequest, Stream, as_completed
from localspec.engine.session.limits import Limits, QueueTimeout
from localspec.engine.session.seat import Seat
from localspec.engine.session.session import Session
from localspec.llama import llama_library
from tests.support.llama.today import WITH_MTP
from tests.support.real_pair import GREEDY, TinyFiles, fresh, options, random_ids
from tests.support.toy.engine import ToyEngine
from tests.support.toy.models import FakeClock
from tests.support.toy.slots import ToyContext, shared

ENDLESS = SamplingParams(temperature=0, ignore_eos=True)
PRECISE: Any = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
PATIENCE = 60.0
Asked = tuple[list[int], GenerateOptions]


def said(streams: Sequence[Stream]) -> list[list[int]]:
    for stream in as_completed(streams):
        assert stream.error is None
    return [list(stream.answer.tokens) for stream in streams]


# -- toys ----------------------------------------------------------------------------------------


def watched(context: ToyContext | None, cells: int) -> None:
    """Let a context refuse passes for which it would have no cells."""
    if context is None:
        return
    read = context.read

    def reading(entries: Sequence[Any]) -> Any:
        taken = sum(len(model.tokens) for model in context.models)
        assert taken + sum(len(entry.tokens) for entry in entries) <= cells
        return read(entries)

    context.read = reading  # type: ignore[method-assign]


requests = st.tuples(
    st.text("abc de", min_size=5, max_size=50).map(lambda text: list(text.encode())),
    st.sampled_from([GREEDY, SamplingParams(seed=9, repeat_penalty=1.3)]),
    st.one_of(st.none(), st.integers(0, 40)),
    st.booleans(),
    st.sampled_from(["", "a"]),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(requests, min_size=1, max_size=9),
    st.sampled_from([(None, 0), (0.3, 0), (0.3, 4), (0.3, "auto")]),
    st.integers(2, 4),
    st.integers(64, 130),
)
def test_each_text_is_what_it_is_alone_and_there_are_cells_for_every_pass(
    asked: list[tuple[list[int], SamplingParams, int | None, bool, str]],
    drafts: tuple[float | None, DraftTokens],
    count: int,
    cells: int,
) -> None:
    """Some are cancelled, and some belong to another owner."""
    quirk, length = drafts
    slots, batcher, target, draft = shared(count, quirk=quirk, n_ctx=64)
    candidates = {0: 0, 4: 5, "auto": MAX_ROWS}[length]
    for context in (target, draft):
        watched(context, cells + count * candidates)
    budget = CellBudget(cells, 64, count)
    session = Session(slots, batcher, prefixes=PrefixCache(2**16), budget=budget)
    try:
        jobs = session.submit(
            [
                GenerationRequest(
                    text, GenerateOptions(params, length, max_tokens=most), owner=owner
                )
                for text, params, most, _, owner in asked
            ]
        )
        for job, (*_, leaves, _) in zip(jobs, asked, strict=True):
            if leaves:
                job.cancel()
        texts = said([Stream(job) for job in jobs])
    finally:
        session.close()
    for tokens, (text, params, most, leaves, _) in zip(texts, asked, strict=True):
        plain = ToyEngine(n_ctx=64, quirk=None)
        pieces = plain.stream(text, GenerateOptions(params, 0, max_tokens=most))
        alone = [token for piece in pieces for token in piece.tokens]
        assert tokens == alone[: len(tokens)]
        assert leaves or len(tokens) == len(alone)


def test_the_answer_that_began_last_is_paused_and_may_be_cancelled_meanwhile() -> None:
    slots, batcher, *_ = shared(2, quirk=None, n_ctx=64, clock=FakeClock())
    session = Session(slots, batcher, budget=CellBudget(64, 64, 2))
    endless = GenerateOptions(ENDLESS, 0)
    paused = list[Seat]()
    try:
        pause = Seat.pause
        with pytest.MonkeyPatch.context() as patch:

            def noting(seat: Seat, cells: int) -> None:
                pause(seat, cells)
                paused.append(seat)
                assert seat.job is not None
                seat.job.cancel()

            patch.setattr(Seat, "pause", noting)
            jobs = session.submit([GenerationRequest([97] * 9, endless) for _ in range(2)])
            first, second = (Stream(job) for job in jobs)
            assert len(list(as_completed([first, second]))) == 2  # both may end before it looks
        assert len(first.answer.tokens) == 64 - 9 and len(second.answer.tokens) < 30
        assert [seat.engine for seat in paused] == [slots[1]]
    finally:
        session.close()


def test_a_request_that_waits_too_long_for_room_is_refused_with_figures() -> None:
    slots, batcher, target, _ = shared(2, quirk=None, n_ctx=64)
    late, read = threading.Event(), target.read
    target.read = lambda entries: late.wait(PATIENCE) and read(entries)  # type: ignore
    limits, given = Limits(queue_seconds=0.02), GenerateOptions(ENDLESS, 0)
    session = Session(slots, batcher, limits, budget=CellBudget(64, 64, 2))
    try:
        first, second = (session.stream(GenerationRequest([97] * n, given)) for n in (30, 50))
        with pytest.raises(QueueTimeout, match="No slot with room for 50 of 64 tokens was free"):
            next(second)
        late.set()
        assert len(said([first])[0]) == 34
    finally:
        late.set()
        session.close()


# -- llama.cpp -----------------------------------------------------------------------------------


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cells that each paused answer waits for."""
    found, pause = list[int](), Seat.pause

    def noting(seat: Seat, cells: int) -> None:
        found.append(cells)
        pause(seat, cells)

    monkeypatch.setattr(Seat, "pause", noting)
    return found


def sharing(path: Path, slots: int, ctx_size: int, **changes: Any) -> Any:
    return options(path, ctx_size=ctx_size, parallel=slots, kv_unified=True, **PRECISE | changes)


def alone(target: Path, asked: Sequence[Asked], ctx_size: int, **changes: Any) -> list[list[int]]:
    with Engine.load(options(target, ctx_size=ctx_size, **PRECISE | changes)) as engine:
        return [
            list(fresh(engine, prompt, given.sampling, 0, given.max_tokens).tokens)
            for prompt, given in asked
        ]


@pytest.mark.llama
@pytest.mark.parametrize("length", [0, 4, "auto"])
def test_many_small_requests_in_a_context_that_would_not_hold_all_at_their_longest(
    tiny: TinyFiles, length: DraftTokens
) -> None:
    given = GenerateOptions(ENDLESS, length, max_tokens=12)
    asked = [(random_ids(40 + i, i), given) for i in range(12)]
    expected = alone(tiny.floats, asked, 256)
    pair = sharing(tiny.floats, 4, 256), options(tiny.draft, **PRECISE)
    with Engine.load(*pair) as engine:
        llama = llama_library.library()
        assert llama.llama_n_ctx(engine.target.context) == 256 + 4 * MAX_ROWS
        assert engine.draft is not None and engine.target.n_ctx == 256
        assert llama.llama_n_ctx(engine.draft.context) == 256 + 4 * MAX_ROWS
        session = engine.open_session()
        most = 0
        streams = [session.stream(GenerationRequest(*each)) for each in asked]
        for _ in streams[0]:
            most = max(most, session.running)
        assert said(streams[1:]) == expected[1:]
        assert list(streams[0].answer.tokens) == expected[0]
        assert most == 4


@pytest.mark.llama
def test_a_long_request_waits_for_the_others_and_is_answered(tiny: TinyFiles) -> None:
    short, long = (GenerateOptions(ENDLESS, 0, max_tokens=n) for n in (60, 20))
    asked = [(random_ids(60, 1), short), (random_ids(60, 2), short), (random_ids(200, 3), long)]
    asked.append((random_ids(9, 4), long))  # it would fit, but came later
    expected = alone(tiny.floats, asked, 256)
    with Engine.load(sharing(tiny.floats, 4, 256)) as engine:
        session = engine.open_session()
        streams = [session.stream(GenerationRequest(*each)) for each in asked]
        next(streams[0])
        assert (session.running, session.waiting) == (2, 2)
        assert said(streams) == expected


@pytest.mark.llama
def test_a_short_text_after_a_long_one_gives_its_cells_to_others(tiny: TinyFiles) -> None:
    given = GenerateOptions(ENDLESS, 0, max_tokens=20)
    with Engine.load(sharing(tiny.floats, 2, 256)) as engine:
        session = engine.open_session()
        said([session.stream(GenerationRequest(random_ids(200, 1), given, slot=0))])
        short = session.stream(GenerationRequest(random_ids(20, 2), given, slot=0))
        other = session.stream(GenerationRequest(random_ids(150, 3), given))
        next(short)
        assert (session.running, session.waiting) == (2, 0)
        said([short, other])


@pytest.mark.llama
@pytest.mark.parametrize("length", [0, 4, "auto"])
def test_answers_that_outgrow_the_context_take_turns(
    tiny: TinyFiles, pauses: list[int], length: DraftTokens
) -> None:
    given = GenerateOptions(ENDLESS, length, max_tokens=180)
    asked = [(random_ids(20 + i, i), given) for i in range(4)]
    expected = alone(tiny.floats, asked, 256)
    with Engine.load(sharing(tiny.floats, 3, 256), options(tiny.draft, **PRECISE)) as engine:
        session = engine.open_session()
        assert said([session.stream(GenerationRequest(*each)) for each in asked]) == expected
    assert pauses and max(pauses) <= 256


PAIRS = [
    ("jamba", None), ("gemma4", None), ("qwen35", "llama"), ("llama", "eagle3"),
    ("llama", "dflash"),
    *(pair for pair in WITH_MTP if pair.target in ("qwen35-mtp", "step35-mtp3", "gemma4")),
]  # fmt: skip


@pytest.mark.llama
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(map(str, pair)))
def test_hybrids_windows_and_heads_take_turns_too(
    architecture: Callable[[str], Path], pauses: list[int], pair: tuple[str, str | None]
) -> None:
    name, draft = pair
    given = GenerateOptions(ENDLESS, 3, max_tokens=120)
    asked = [(random_ids(20 + i, i), given) for i in range(3)]
    expected = alone(architecture(name), asked, 192)
    heads = None
    if pair in WITH_MTP or draft is not None:
        heads = options(architecture(draft or name), load_heads=draft is None, **PRECISE)
    with Engine.load(sharing(architecture(name), 3, 192), heads) as engine:
        session = engine.open_session()
        assert said([session.stream(GenerationRequest(*each)) for each in asked]) == expected
    assert pauses


@pytest.mark.llama
def test_a_prompt_that_can_never_fit_is_refused_with_figures(tiny: TinyFiles) -> None:
    with Engine.load(sharing(tiny.floats, 2, 256)) as engine:
        with pytest.raises(PromptTooLong, match="300 tokens, .* context size of 256 tokens"):
            next(engine.stream(random_ids(300)))


@pytest.mark.llama
def test_one_slot_takes_no_more_than_the_model_was_trained_for(tiny: TinyFiles) -> None:
    with Engine.load(sharing(tiny.floats, 2, 1536)) as engine:
        assert (engine.target.n_ctx, engine.target.options.shared_ctx) == (1024, 1536)
        assert engine.notes == []
    with Engine.load(sharing(tiny.floats, 1, 1536)) as engine:
        assert (engine.target.n_ctx, engine.target.options.shared_ctx) == (1536, None)


@pytest.mark.llama
def test_conversations_of_idle_slots_come_back_from_the_prefix_cache(tiny: TinyFiles) -> None:
    given = GenerateOptions(ENDLESS, 0, max_tokens=4)
    asked = [(random_ids(150, i), given) for i in range(3)]
    with Engine.load(sharing(tiny.floats, 3, 256)) as engine:
        session = engine.open_session(prefixes=PrefixCache(2**26))
        for _ in range(2):
            for each in asked:
                stream = session.stream(GenerationRequest(*each))
                said([stream])
        assert stream.answer.stats.cached_tokens == 149


@pytest.mark.llama
def test_a_saved_slot_comes_back_if_there_is_room_for_it(tiny: TinyFiles, tmp_path: Path) -> None:
    given = GenerateOptions(ENDLESS, 0, max_tokens=4)
    with Engine.load(sharing(tiny.floats, 3, 256)) as engine:
        session, files = engine.open_session(), SlotFiles(tmp_path, engine)

        def change(slot: int, act: Callable[[Any, str], Any], name: str) -> Any:
            replaces = act == files.restore
            return session.run(slot, lambda each: act(each, name), replaces=replaces).result()

        said([session.stream(GenerationRequest(random_ids(150, 1), given, slot=0))])
        assert change(0, files.save, "long")[0] == 153
        said([session.stream(GenerationRequest(random_ids(60, 2), given, slot=1))])
        assert change(2, files.restore, "long")[0] == 153  # slot 0 was emptied for it
        assert [held(session, i) for i in range(3)] == [0, 63, 153]
        running = session.stream(
            GenerationRequest(random_ids(120, 3), replace(given, max_tokens=100), slot=0)
        )
        next(running)
        with pytest.raises(
            UsageError, match=r"holds 153 tokens, and the context has room for no more than \d+"
        ):
            change(1, files.restore, "long")
        said([running])


def held(session: Session, slot: int) -> int:
    return session.run(slot, lambda each: len(each.target.tokens)).result()


@pytest.mark.llama
def test_a_model_without_cells_shares_none(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.recurrent, ctx_size=256, parallel=2, kv_unified=True)) as engine:
        assert engine.target.options.shared_ctx is None
        assert any("--kv-unified has no effect" in note for note in engine.notes)


@pytest.mark.llama
def test_exact_slots_have_cells_of_their_own(tiny: TinyFiles) -> None:
    with pytest.raises(UsageError, match="--kv-unified"):
        Engine.load(sharing(tiny.floats, 2, 256, exact=True))
