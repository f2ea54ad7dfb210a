"""PrefixCache: the same text with less to read, in bounded memory, for any kind of model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.chat.answer import collect
from localspec.core.interrupt import Cancelled
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens, LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.caches.prefix_cache import WORTH_KEEPING, PrefixCache, default_limit
from localspec.engine.engine import Engine
from localspec.engine.generate import TextEngine, stream_generate
from localspec.llama.cache.cached_text import CachedText
from localspec.llama.cache.copies import Copy, ReusableLengths
from localspec.llama.cache.rollback import STRATEGIES
from localspec.llama.heads.head import Head
from localspec.llama.heads.opening import open_head
from localspec.llama.memory.estimate import estimate_run
from localspec.llama.model import LlamaModel
from localspec.llama.pass_class import PassClass
from localspec.metadata.header import read_header
from localspec.speculative.prefix import common_prefix
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import GREEDY, fresh, generate, options, random_ids, slots_of
from tests.support.toy.engine import ToyEngine
from tests.support.toy.models import ReplayingToy

PLENTY = 2**30
NOISY = SamplingParams(temperature=0.8, seed=3)


class KeepingToy(ReplayingToy):
    """A toy whose state is its tokens, four bytes each; it returns to any length, or to none."""

    doubted: Callable[[], None] | None = None
    make_room: Callable[[int], int] | None = None
    room_for = CachedText.room_for

    def __init__(self, *, whole: bool, **toy: Any) -> None:
        super().__init__(**toy)
        self._whole = whole
        self.copied = 0  # states

    def returns_to(self, length: int) -> int:
        if length >= self._held:
            return self._held
        return 0 if self._whole else length

    def doubt(self, report: Callable[[], None]) -> None:
        self.doubted = report

    def reusable_lengths(self) -> ReusableLengths:
        return ReusableLengths(len(self.tokens) if self._whole else 0)

    def state_bytes(self) -> int:
        return 4 * len(self.tokens)

    def state(self) -> NDArray[np.uint8]:
        self.copied += 1
        return np.array(self.tokens, np.int32).view(np.uint8)

    def restore(
        self, tokens: Sequence[int], state: NDArray[np.uint8], copies: Sequence[Copy]
    ) -> bool:
        assert state.view(np.int32).tolist() == list(tokens) and not copies
        self._cache[:] = tokens
        self._held, self._marked = len(self._cache), 0
        return True

    def truncate(self, length: int) -> None:
        if not self._whole:  # attention: nothing is read again
            self._held = min(self._held, length)
            self._marked = min(self._marked, length)
            del self._cache[length:]
        else:
            super().truncate(length)


CachedText.register(KeepingToy)


def toy_engine(*, whole: bool = False, draft: bool = True) -> ToyEngine:
    engine = ToyEngine(n_ctx=1024, quirk=None)
    engine.target = KeepingToy(whole=whole, n_vocab=257, n_ctx=1024)
    if draft:
        engine.draft = KeepingToy(whole=whole, n_vocab=257, n_ctx=1024, quirk=0.3)
    return engine


def say(
    cache: PrefixCache, engine: Any, prompt: list[int], length: DraftTokens = 2, most: int = 8
) -> tuple[list[int], int]:
    """An answer's tokens, and how many of the prompt's were not read for it."""
    cache.restore_best(engine, prompt)
    answer = generate(engine, prompt, GREEDY, length, most)
    return answer.tokens, answer.stats.cached_tokens


def alone(prompt: list[int], most: int) -> list[int]:
    """An answer's tokens without any cache."""
    responses = stream_generate(
        toy_engine(draft=False), prompt, GenerateOptions(GREEDY, 0, max_tokens=most)
    )
    return collect(responses).tokens


def text(kind: str, length: int) -> list[int]:
    """A conversation's beginning; those of one kind begin alike."""
    return [(7 * i + ord(kind)) % 250 for i in range(length)]


# -- toys ------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_conversations_that_take_turns_each_find_their_own(whole: bool) -> None:
    cache, engine = PrefixCache(PLENTY), toy_engine(whole=whole)
    talks = {kind: text(kind, 300) for kind in "abc"}
    for turn in range(4):
        for kind, talk in talks.items():
            tokens, cached = say(cache, engine, talk)
            assert tokens == alone(talk, 8)
            assert cached >= len(talk) - 20 if turn else cached == 0
            talks[kind] = [*talk, *tokens, *text("z", 10)]
    assert len(cache._states) == 2 * 2  # the third is where it was used, in target and draft


def test_what_the_slot_holds_comes_first_and_nothing_is_copied() -> None:
    cache, engine = PrefixCache(PLENTY), toy_engine(draft=False)
    talk = text("a", 300)
    for _ in range(3):
        tokens, _ = say(cache, engine, talk)
        talk = [*talk, *tokens, *text("z", 10)]
    say(cache, engine, talk[:-40])  # asked again: a little is lost
    assert isinstance(engine.target, KeepingToy) and engine.target.copied == 0


@pytest.mark.parametrize("draft", [True, False])
def test_owners_share_no_state(draft: bool) -> None:
    cache, engine = PrefixCache(PLENTY), cast(Any, toy_engine(draft=draft))
    talk, owner = text("a", 300), ""
    read = []
    for asking in ("me", "you", "me", "you", "you"):
        if asking != owner:
            cache.vacate(engine, owner)
            assert engine.target.tokens == [] == (engine.draft.tokens if engine.draft else [])
            owner = asking
        cache.restore_best(engine, talk, owner)
        answer = generate(engine, talk, GREEDY, 2, 8)
        assert answer.tokens == alone(talk, 8)
        read.append(answer.stats.cached_tokens)
    assert read == [0, 0, 299, 299, 299]


def test_one_owner_drops_its_own_states_only() -> None:
    engine = cast(Any, toy_engine(draft=False))
    cache = PrefixCache(3 * 4 * 330)  # three states
    for owner, kinds in (("me", "a"), ("you", "bcdef")):
        for kind in kinds:
            cache.restore_best(engine, text(kind, 300), owner)
            generate(engine, text(kind, 300), GREEDY, 2, 8)
        cache.vacate(engine, owner)
    cache.restore_best(engine, text("a", 300), "me")
    assert generate(engine, text("a", 300), GREEDY, 2, 8).stats.cached_tokens == 299


def test_what_fails_to_be_saved_is_forgotten_all_the_same() -> None:
    cache, engine = PrefixCache(PLENTY), toy_engine()
    say(cache, engine, text("a", 300))

    def fail() -> None:
        raise Cancelled

    engine.target.state = fail  # type: ignore[attr-defined]
    with pytest.raises(Cancelled):
        cache.vacate(engine, "")
    assert engine.target.tokens == [] == (engine.draft.tokens if engine.draft else [])


@pytest.mark.parametrize("lost", [WORTH_KEEPING - 1, WORTH_KEEPING])
def test_a_few_tokens_are_not_worth_a_copy(lost: int) -> None:
    cache, engine = PrefixCache(PLENTY), toy_engine(draft=False)
    engine.target.decode(text("a", 200 + lost), 0)
    cache.restore_best(engine, [*text("a", 200), 255, 255])
    assert len(cache._states) == (lost == WORTH_KEEPING)


def test_nor_is_a_small_part_of_a_long_text() -> None:
    cache, engine = PrefixCache(PLENTY), toy_engine(draft=False)
    engine.target = KeepingToy(whole=False, n_vocab=257, n_ctx=4096)
    engine.target.decode(text("a", 3200), 0)
    cache.restore_best(engine, [*text("a", 3001), 255, 255])  # 199 of 3200 would be lost
    assert len(cache._states) == 0
    cache.restore_best(engine, [*text("a", 3000), 255, 255])
    assert len(cache._states) == 1


def test_the_one_used_longest_ago_is_dropped() -> None:
    engine = toy_engine(draft=False)
    cache = PrefixCache(2 * 4 * 320)
    for kind in "abcb":  # b is used again, so that a, then c are the oldest
        say(cache, engine, text(kind, 300))
    assert say(cache, engine, text("d", 300))[1] == 0
    assert say(cache, engine, text("b", 300))[1] == 299
    assert say(cache, engine, text("a", 300))[1] == 0


def test_what_is_larger_than_the_bound_is_never_copied_which_is_said_once() -> None:
    heard = list[str]()
    engine, cache = toy_engine(draft=False), PrefixCache(4 * 300, heard.append)
    for kind in "abab":
        assert say(cache, engine, text(kind, 400))[1] == 0
    assert isinstance(engine.target, KeepingToy)
    assert (engine.target.copied, len(cache._states), cache.n_bytes) == (0, 0, 0)
    assert len(heard) == 1 and heard[0].startswith("A conversation of 407 tokens takes 2 kB of")
    assert "exceeds --cache-ram 0:" in heard[0] and "restart with --cache-ram 1 or" in heard[0]


def test_nor_is_a_shorter_state_dropped_for_it() -> None:
    engine, cache = toy_engine(draft=False), PrefixCache(4 * 350)
    for kind, length in (("a", 300), ("b", 300), ("a", 400), ("b", 300)):
        say(cache, engine, text(kind, length))
    assert say(cache, engine, text("a", 300))[1] == 299


@pytest.mark.parametrize(("limit", "sentences"), [(0, 1), (4 * 450, 1), (4 * 900, 0)])
def test_target_and_draft_must_fit_together(limit: int, sentences: int) -> None:
    """Else the state of one would take the room of the other's."""
    heard = list[str]()
    engine, cache = toy_engine(), PrefixCache(limit, heard.append)
    for kind in "abab":
        say(cache, engine, text(kind, 400))
    assert len(heard) == sentences


@pytest.mark.parametrize(
    ("free", "limit"), [(None, 2**30), (0, 0), (2**32, 2**30), (2**35, 2**33), (2**40, 2**33)]
)
def test_the_default_is_a_share_of_what_is_free(free: int | None, limit: int) -> None:
    assert default_limit(free) == limit


def test_a_prefix_serves_several_and_is_not_kept_twice() -> None:
    engine, cache = toy_engine(draft=False), PrefixCache(PLENTY)
    system = text("s", 400)
    for kind in "abc":
        _, cached = say(cache, engine, [*system, *text(kind, 200)])
        assert cached == (0 if kind == "a" else 400)
    # Another text in between, then one that begins as they do: any of them serves it.
    assert say(cache, engine, text("x", 100))[1] == 0
    assert say(cache, engine, [*system, *text("d", 200)])[1] == 400
    assert len(cache._states) == 4
    for kind in "abc":
        assert say(cache, engine, [*system, *text(kind, 300)])[1] == 600


def test_what_a_longer_state_covers_is_not_kept_beside_it() -> None:
    cache, (first, second) = PrefixCache(PLENTY), (toy_engine(draft=False), toy_engine(draft=False))
    for slot, prompt in ((second, text("a", 280)), (first, text("a", 300)), (first, text("b", 9))):
        say(cache, slot, prompt, most=1)
    assert cache.n_bytes == 4 * 300  # hardly more than the second slot holds
    for slot, prompt in ((second, text("a", 500)), (second, text("c", 300))):
        say(cache, slot, prompt, most=1)
    assert cache.n_bytes == 4 * 500


def test_room_is_made_before_a_state_is_copied() -> None:
    cache, engine = PrefixCache(2 * 4 * 320), toy_engine(draft=False)
    target = engine.target
    assert isinstance(target, KeepingToy)
    copy, seen = target.state, list[int]()

    def state() -> NDArray[np.uint8]:
        seen.append(cache.n_bytes + target.state_bytes())
        return copy()

    target.state = state  # type: ignore[method-assign]
    for kind in "abcde":
        say(cache, engine, text(kind, 300))
    assert len(seen) == 4 and max(seen) <= 2 * 4 * 320


def test_models_that_keep_nothing_are_left_alone() -> None:
    cache, engine = PrefixCache(PLENTY), ToyEngine(n_ctx=1024)
    for kind in "aba":
        assert say(cache, engine, text(kind, 300))[1] == 0
    assert len(cache._states) == 0


def test_a_draft_that_sees_a_window_is_left_alone() -> None:
    cache, engine = PrefixCache(PLENTY), toy_engine()
    draft = engine.draft = KeepingToy(whole=False, n_vocab=257, n_ctx=100)
    for kind in "abab":
        tokens, cached = say(cache, engine, text(kind, 300))
        assert tokens == alone(text(kind, 300), 8)
    assert cached == 299 and draft.copied == 0


def test_a_state_stays_until_there_is_room_for_it() -> None:
    cache, engine = PrefixCache(PLENTY), toy_engine(draft=False)
    target = cast(KeepingToy, engine.target)
    long, other = text("a", 300), text("b", 80)
    say(cache, engine, long)
    say(cache, engine, other)
    target.make_room = lambda tokens: min(tokens, 150)
    assert say(cache, engine, long[:120])[1] == 0
    say(cache, engine, other)
    target.make_room = None
    assert say(cache, engine, long[:120])[1] == 119


def test_a_state_that_is_not_taken_is_forgotten() -> None:
    cache, engine = PrefixCache(PLENTY), toy_engine(draft=False)
    for kind in "ab":
        say(cache, engine, text(kind, 300))

    def refuse(*arguments: object) -> bool:
        engine.target.truncate(0)
        return False

    engine.target.restore = refuse  # type: ignore[attr-defined]
    tokens, cached = say(cache, engine, text("a", 300))
    assert cached == 0 and tokens == alone(text("a", 300), 8)
    assert len(cache._states) == 1  # of "b"


def test_a_copy_that_fails_loses_nothing() -> None:
    """As where the asker goes away while tokens are read again for it."""
    cache, engine = PrefixCache(PLENTY), toy_engine(draft=False)
    for kind in "ab":
        say(cache, engine, text(kind, 300))

    def state() -> NDArray[np.uint8]:
        raise Cancelled

    copied, engine.target.state = engine.target.state, state  # type: ignore[attr-defined]
    with pytest.raises(Cancelled):
        say(cache, engine, text("a", 300))
    assert len(cache._states) == 1
    engine.target.state = copied  # type: ignore[attr-defined]
    assert say(cache, engine, text("a", 300))[1] == 299
    assert say(cache, engine, text("b", 300))[1] == 299


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 400), st.sampled_from("bxy"),
                       st.integers(1, 200), st.integers(0, 1)), max_size=12),
    st.sampled_from([0, 700, 3000, PLENTY]),
    st.booleans(),
)  # fmt: skip
def test_the_text_is_the_same_and_the_bytes_are_bounded(
    asked: list[tuple[str, int, str, int, int]], limit: int, whole: bool
) -> None:
    cache = PrefixCache(limit)
    slots = [toy_engine(whole=whole), toy_engine(whole=whole)]
    for first, length, second, more, slot in asked:
        prompt = [*text(first, length), *text(second, more)]
        tokens, _ = say(cache, slots[slot], prompt, 3, 6)
        assert tokens == alone(prompt, 6)
        assert cache.n_bytes <= limit
        kept = cache._states
        for a in kept:
            others = [b for b in kept if b is not a and b.role == a.role]
            assert not any(b.serves(a.tokens) == len(a.tokens) for b in others)


# -- llama.cpp -------------------------------------------------------------------------------


def take_turns(
    engine: Engine, params: SamplingParams, length: DraftTokens, begins: Sequence[list[int]]
) -> list[list[int]]:
    """Conversations that take turns, each with the text it has alone; what was read of prompts."""
    cache, read = PrefixCache(PLENTY), [list[int]() for _ in begins]
    talks, history = [list(begin) for begin in begins], list[tuple[list[int], list[int]]]()
    for turn in range(3):
        for i, talk in enumerate(talks):
            cache.restore_best(engine, talk)
            answer = generate(engine, talk, params, length)
            history.append((talk, answer.tokens))
            read[i].append(answer.stats.read_tokens)
            talks[i] = [*talk, *answer.tokens, *random_ids(5, seed=10 * turn + i)]
    for talk, tokens in history:
        assert fresh(engine, talk, params, length).tokens == tokens
    return read


@pytest.mark.llama
@pytest.mark.parametrize("length", [0, 4, "auto"])
@pytest.mark.parametrize("params", [GREEDY, NOISY])
def test_a_pair(engine: Engine, params: SamplingParams, length: DraftTokens) -> None:
    begins = [random_ids(300, seed=seed) for seed in (1, 2)]
    for first, *later in take_turns(engine, params, length, begins):
        assert first == 300 and all(read <= 5 + 1 for read in later)


@pytest.mark.llama
def test_the_draft_of_a_pair_reads_nothing_again_either(engine: Engine) -> None:
    cache, read = PrefixCache(PLENTY), list[int]()
    assert isinstance(engine.draft, LlamaModel)
    engine.draft.listener = lambda tokens, position, rows: read.append(len(tokens))
    for seed in (1, 2, 1):
        read.clear()
        say(cache, engine, random_ids(300, seed=seed), 4, 16)
    engine.draft.listener = None
    assert len(read) > 2 and max(read) < 10


@pytest.mark.llama
def test_models_that_cannot_go_back(forgetful: Engine) -> None:
    begins = [random_ids(700, seed=seed) for seed in (1, 2)]
    for first, *later in take_turns(forgetful, GREEDY, 0, begins):
        assert first == 700 and all(read <= 5 + 1 for read in later)


@pytest.mark.llama
@pytest.mark.parametrize("length", [1, 400, 650, 695, 699, 700])
def test_where_a_state_can_return_to_is_known_beforehand(forgetful: Engine, length: int) -> None:
    target = forgetful.target
    target.truncate(0)
    for part in (random_ids(400), random_ids(300, seed=1)):
        target.decode(part, 0)
    tokens, state, reach = list(target.tokens), target.state(), target.reusable_lengths()
    expected = target.returns_to(length)
    for returns in (expected, reach.last(length)):
        target.truncate(length)
        assert len(target.tokens) - target.pending == returns
        assert target.restore(tokens, state, reach.copies)


@pytest.mark.llama
@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("way", STRATEGIES)
def test_a_hybrid_returns_to_the_ends_of_its_prompts(
    architecture: Callable[[str], Path], way: str, heads: bool
) -> None:
    """As where the thoughts of an answer are left out of the conversation."""
    path = architecture("qwen35-mtp")
    given = options(path, ctx_size=1024, cache_type_k="f32", cache_type_v="f32", load_heads=heads)
    target = LlamaModel(read_header(path), given, strategies=(way,))
    with Engine(target, open_head(target, None, given) if heads else None) as engine:
        cache, length = PrefixCache(PLENTY), 3 if heads else 0
        talks = [random_ids(200, seed=seed) for seed in (1, 2)]
        history = list[tuple[list[int], list[int]]]()
        for turn in range(3):
            for i, talk in enumerate(talks):
                tokens, cached = say(cache, engine, talk, length, 70)
                history.append((talk, tokens))
                assert len(talk) - cached <= (21 + 1 if turn else 200)
                talks[i] = [*talk, *tokens[60:61], *random_ids(20, seed=10 * turn + i)]
        for talk, tokens in history:
            assert fresh(engine, talk, GREEDY, 0, 70).tokens == tokens


@pytest.mark.llama
@pytest.mark.parametrize("way", STRATEGIES)
@pytest.mark.parametrize("exact", [False, True])
def test_a_hybrid_reads_a_document_once_for_several_questions(
    architecture: Callable[[str], Path], way: str, exact: bool
) -> None:
    path = architecture("qwen35-mtp")
    given = options(path, ctx_size=1024, cache_type_k="f32", cache_type_v="f32", exact=exact)
    target = LlamaModel(read_header(path), given, strategies=(way,))
    if exact:
        target.use_class(PassClass(16, 48))
    with Engine(target, None) as engine:
        cache, document = PrefixCache(PLENTY), random_ids(400)
        prompts = [[*document, *random_ids(20 + 9 * i, seed=i)] for i in range(3)]
        answers = [say(cache, engine, prompt, 0) for prompt in prompts]
        assert answers[0][1] == 0
        assert all(400 - 96 <= cached <= 400 for _, cached in answers[1:])
        for prompt, (tokens, _) in zip(prompts, answers, strict=True):
            assert fresh(engine, prompt, GREEDY, 0, 8).tokens == tokens


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three of its four layers see 64 tokens back."""
    path = tmp_path_factory.mktemp("sliding") / "sliding.gguf"
    return write_tiny_model(path, seed=2, layers=4, window=64, context_length=4096)


def sliding_options(path: Path, **changes: Any) -> LoadOptions:
    floats = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
    small = {"ctx_size": 2048, "batch_size": 64, "ubatch_size": 64}
    return options(path, **floats | small | changes)


@pytest.mark.llama
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("drafted", [False, True])
def test_a_sliding_window_reads_a_document_once_for_several_questions(
    sliding: Path, count: int, drafted: bool
) -> None:
    """The first guess is before the last 96 tokens; what two prompts share is known exactly."""
    given = sliding_options(sliding, parallel=count)
    with Engine.load(given, given if drafted else None) as engine:
        slot, cache, document = slots_of(engine)[-1], PrefixCache(PLENTY), random_ids(700)
        asked = [(700, 60), (700, 80), (700, 70), (500, 150), (500, 160), (700, 65)]
        prompts = [
            [*document[:shared], *random_ids(length, seed=10 + i)]
            for i, (shared, length) in enumerate(asked)
        ]
        answers = [say(cache, slot, prompt, 3 * drafted, 140) for prompt in prompts]
        # The last one goes on from a state in the cache.
        assert [cached for _, cached in answers] == [0, 760 - 96, 700, 0, 500, 700]
        for prompt, (tokens, _) in zip(prompts, answers, strict=True):
            assert fresh(cast(Any, slot), prompt, GREEDY, 0, 140).tokens == tokens


@pytest.mark.llama
def test_copies_of_windows_take_no_more_than_is_planned(sliding: Path) -> None:
    given = sliding_options(sliding, parallel=2)
    planned = estimate_run(read_header(sliding), given.ctx_size or 0, given)
    with Engine.load(given) as engine:
        slots = slots_of(engine)
        for slot in slots:
            for i in range(12):
                generate(cast(Any, slot), random_ids(60 * (3 + i), seed=1), GREEDY, 0, 3)
        held = [slot.target.reusable_lengths() for slot in slots]
    copied = sum(each.n_bytes for each in held)
    assert 0 < copied <= 1.02 * planned.anchors <= 1.02 * sum(planned.kv)
    assert copied > 0.5 * planned.anchors


@pytest.mark.llama
@pytest.mark.parametrize("without", [{"exact": True}, {"window_copies": False}])
def test_windows_are_not_copied_where_that_is_not_wanted(
    sliding: Path, without: dict[str, bool]
) -> None:
    """For ``exact``, restored cells lie in another order, in which sums are rounded differently."""
    with Engine.load(sliding_options(sliding, **without)) as engine:
        generate(engine, random_ids(700), GREEDY, 0, 3)
        assert not engine.target.reusable_lengths().copies


@pytest.mark.llama
@pytest.mark.parametrize("way", STRATEGIES)
def test_a_hybrid_keeps_the_end_of_what_two_prompts_share(
    architecture: Callable[[str], Path], way: str
) -> None:
    """Their questions are so long that no copy was made in front of the first one."""
    path = architecture("qwen35-mtp")
    given = options(path, ctx_size=1024, cache_type_k="f32", cache_type_v="f32")
    target = LlamaModel(read_header(path), given, strategies=(way,))
    with Engine(target, None) as engine:
        cache, document = PrefixCache(PLENTY), random_ids(400)
        prompts = [[*document, *random_ids(200 + 9 * i, seed=i)] for i in range(3)]
        answers = [say(cache, engine, prompt, 0) for prompt in prompts]
        assert [cached for _, cached in answers] == [0, 0, 400]
        for prompt, (tokens, _) in zip(prompts, answers, strict=True):
            assert fresh(engine, prompt, GREEDY, 0, 8).tokens == tokens


@pytest.mark.llama
@pytest.mark.parametrize("way", STRATEGIES)
def test_a_hybrid_knows_where_it_can_return_to(
    architecture: Callable[[str], Path], way: str
) -> None:
    path = architecture("qwen35-mtp")
    target = LlamaModel(read_header(path), options(path, ctx_size=512), strategies=(way,))
    for length in (100, 200, 202, 205):
        target.truncate(0)
        target.decode(random_ids(200), 0)
        target.decode(random_ids(5, seed=1), 5)
        returns = target.returns_to(length)
        assert returns == length or length == 100 or (way, returns) == ("fork", 200)
        target.truncate(length)
        assert returns == len(target.tokens) - target.pending
    target.close()


@pytest.mark.llama
def test_an_engine_of_llama_cpp_keeps_prefixes(engine: Engine) -> None:
    """The members that `PrefixCache` looks for."""
    whole: TextEngine = engine
    cache = PrefixCache(PLENTY)
    engine.target.decode(random_ids(200), 0)
    cache.restore_best(whole, random_ids(9, seed=5))
    assert len(cache._states) == 1 and 0 < cache.n_bytes <= engine.target.memory.kv


@pytest.mark.llama
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(
    ("target", "heads"),
    [("glm4moe-mtp", None), ("qwen35-mtp", None), ("step35-mtp3", None)]
    + [("qwen35", "mtp-qwen35"), ("llama", "eagle3"), ("llama", "dflash")]
    + [("llama", "dspark"), ("llama", "dflash2")],
)
def test_heads_draft_after_a_swap_as_if_the_conversation_had_stayed(
    architecture: Callable[[str], Path], target: str, heads: str | None, slots: int
) -> None:
    """Another request came between two turns: the head reads what is new, and nothing more."""
    loaded: dict[str, Any] = {
        "ctx_size": 512,
        "cache_type_k": "f32",
        "cache_type_v": "f32",
        "flash_attention": "off",
    }
    draft = options(architecture(heads or target), load_heads=heads is None, **loaded)
    first, title = random_ids(150, seed=1), random_ids(200, seed=2)
    longer = [*first, *random_ids(60, seed=3)]
    rows = list[NDArray[np.float32]]()
    with Engine.load(options(architecture(target), parallel=slots, **loaded), draft) as engine:
        slot = slots_of(engine)[-1] if slots > 1 else engine
        head = cast("Head", slot.draft)
        for between in ([], [title]):
            PrefixCache(PLENTY).vacate(slot, "")
            cache = PrefixCache(PLENTY)
            for prompt in (first, *between, longer):
                cache.restore_best(slot, prompt)
                slot.target.truncate(common_prefix(slot.target.tokens, prompt))
                slot.target.decode(prompt[len(slot.target.tokens) : -1], 0)
                head.truncate(common_prefix(head.tokens, prompt[:-1]))
                rows.append(head.decode(prompt[len(head.tokens) :], 1)[0].copy())
    stayed, swapped = rows[1], rows[-1]
    assert np.abs(stayed[np.isfinite(stayed)]).max() > 0.05
    np.testing.assert_allclose(swapped, stayed, atol=2e-3)
