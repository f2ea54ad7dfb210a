"""Today's architectures with every kind of draft: the text is that of plain decoding."""

import functools
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

import localspec
from localspec.chat.answer import collect
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine import generate
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.engine.loading import pair as loading_pair
from localspec.speculative.drafters import Candidate
from localspec.speculative.prompt_lookup import PromptLookup
from tests.support.alike import alike
from tests.support.files.architectures.specs import write_architecture
from tests.support.llama.today import (
    TWIN,
    WAYS,
    WITH_DFLASH,
    WITH_EAGLE3,
    WITH_MODEL,
    WITH_MTP,
    HalfRight,
    Pair,
)
from tests.support.real_pair import options, random_ids
from tests.support.toy.engine import ToyProfile
from tests.support.toy.models import FakeClock

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]
PARAMS = {"greedy": SamplingParams(temperature=0), "warm": SamplingParams(temperature=0.8, seed=5)}
LENGTH = 20  # tokens of an answer
TURNS = ("first", "next", "branch", "other")
CASES = [
    (pair, way)
    for pair in (*WITH_MODEL, *WITH_MTP, *WITH_EAGLE3, *WITH_DFLASH)
    for way in WAYS[pair.architecture]
]
# Twins of targets that other kinds of draft draft for, and one of two that read the same states.
ALIKE = [
    *(
        Pair(name, TWIN)
        for name in ("qwen35moe", "nemotron_h", "qwen3next", "mamba2", "glm4moe", "step35")
    ),
    *(Pair(name, "eagle3") for name in ("qwen35", "qwen3next", "nemotron_h", "lfm2")),
    *(Pair(name, "dflash") for name in ("llama", "qwen35moe", "nemotron_h_moe", "gemma4")),
]


class Truth:
    """What plain decoding says behind each prompt, of files without heads."""

    def __init__(self, file: Files) -> None:
        self._file = file
        self._engines: dict[str, Engine] = {}

    @functools.cache  # noqa: B019  one for the module
    def prompt(self, name: str, turn: str) -> list[int]:
        """A prompt: the next turn goes on behind a part of the first answer."""
        first = random_ids(40)
        if turn == "next":
            return [*first, *self.answer(name, "first", "greedy")[:9], *random_ids(8, seed=1)]
        if turn == "branch":
            return [*first[:25], *random_ids(12, seed=2)]
        return first if turn == "first" else random_ids(30, seed=3)

    @functools.cache  # noqa: B019
    def answer(self, name: str, turn: str, params: str) -> list[int]:
        """Tokens, read from an empty cache."""
        if name not in self._engines:
            self._engines[name] = Engine.load(loading(self._file(name)))
        engine = self._engines[name]
        engine.target.truncate(0)
        stream = stream_generate(
            engine, self.prompt(name, turn), GenerateOptions(PARAMS[params], 0, max_tokens=LENGTH)
        )
        return [token for response in stream for token in response.tokens]

    def close(self) -> None:
        """Free all models."""
        for engine in self._engines.values():
            engine.close()


def loading(path: Path, **more: object) -> Any:
    """Options under which only a tie could be decided by rounding."""
    precise = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
    return options(path, ctx_size=128, **(precise | more))


@pytest.fixture(scope="module")
def truth(architecture: Files) -> Iterator[Truth]:
    known = Truth(architecture)
    yield known
    known.close()


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("twins")
    return functools.cache(lambda name: write_architecture(folder / f"{name}.gguf", name, 0.02))


class HalfRightIndex(PromptLookup):
    """Proposes up to eight tokens, mostly right ones, since random models repeat little."""

    coming: Sequence[int] = ()

    def continuation(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """As if all of it had been in the text before."""
        begin = len(context) + len(ahead)
        dice = Random(begin)
        for i in range(begin, begin + dice.randrange(9)):
            told = i < len(self.coming) and dice.random() < 0.8
            yield Candidate(self.coming[i] if told else 7, 2.0, "lookup 16+")


@contextmanager
def ctrl_c(line: int) -> Iterator[None]:
    """Interrupt what the block does at a line of this program that computes: 0 for none."""
    folder, left = str(Path(localspec.__file__).parent), [line]
    watched = tuple(f"{folder}/{each}" for each in ("llama/", "speculative/"))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(watched):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    if line:
        sys.settrace(trace)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


@dataclass(frozen=True)
class Event:
    """An answer: to which prompt, drafted how, left after how many rounds, or interrupted."""

    turn: str = "first"
    params: str = "greedy"
    length: DraftTokens = 4
    suffix_alone: bool = False
    rounds: int = LENGTH
    line: int = 0


EVENTS = st.builds(
    Event,
    st.sampled_from(TURNS),
    st.sampled_from([*PARAMS]),
    st.sampled_from([0, 1, 2, 3, 5, 9, "auto", "auto"]),
    st.booleans(),
    st.sampled_from([1, 2, 3, 4, 6, LENGTH]),
    st.one_of(st.just(0), st.just(0), st.integers(1, 1500)),
)
EVERYTHING = [
    Event(params="warm", length="auto"),
    Event(length="auto", suffix_alone=True, rounds=3),
    Event("next"),
    Event("branch", "warm", length=9, line=700),
    Event(length=1, rounds=2),
]


class Talk:
    """Answers of one engine, one behind the other, each compared with the plain one."""

    def __init__(self, engine: Engine, name: str, truth: Truth, patch: pytest.MonkeyPatch) -> None:
        self._engine, self._draft = engine, engine.draft
        self._name, self._truth = name, truth
        self._index = HalfRightIndex()
        self._clock = FakeClock()
        self.drafted = self.accepted = 0
        for model, seconds in ((engine.target, 10.0), (engine.draft, 1.0)):
            patch.setattr(model, "decode", self._timed(model.decode, seconds))  # type: ignore[union-attr]

    def _timed(self, decode: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def timed(*arguments: object) -> Any:
            self._clock.advance(seconds)
            return decode(*arguments)

        return timed

    def answer(self, event: Event) -> None:
        """Let one event happen."""
        prompt = self._truth.prompt(self._name, event.turn)
        expected = self._truth.answer(self._name, event.turn, event.params)
        engine, index = self._engine, self._index
        engine.profile = ToyProfile()  # type: ignore[assignment]
        engine.prompt_lookup, index.coming = index, [*prompt, *expected]
        HalfRight.coming = index.coming
        engine.draft = None if event.suffix_alone else self._draft
        length, said = "auto" if event.suffix_alone else event.length, list[int]()
        stream = stream_generate(
            engine,
            prompt,
            GenerateOptions(PARAMS[event.params], length, max_tokens=LENGTH),
            clock=self._clock,
        )
        stats = None
        with ctrl_c(event.line):
            for _, response in zip(range(event.rounds), stream, strict=False):
                said += response.tokens
                stats = response.stats
        stream.close()
        if stats is not None:
            self.drafted += stats.drafted
            self.accepted += stats.accepted
        assert said == expected[: len(said)]
        assert event.line or event.rounds < LENGTH or len(said) == LENGTH


@pytest.mark.parametrize(
    ("pair", "way", "exact"),
    [
        (alike if pair in ALIKE else pytest.param)(pair, way, bool(i % 2))
        for i, (pair, way) in enumerate(CASES)
    ],
    ids=lambda value: f"{value.target} {value.draft}" if isinstance(value, Pair) else str(value),
)
def test_the_text_is_that_of_plain_decoding(
    architecture: Files,
    twin: Files,
    truth: Truth,
    monkeypatch: pytest.MonkeyPatch,
    pair: Pair,
    way: str,
    exact: bool,
    thorough: bool,
) -> None:
    name, draft = pair
    monkeypatch.setattr(loading_pair, "STRATEGIES", (way,))
    if pair not in WITH_MODEL:
        monkeypatch.setattr(generate, "ModelDrafter", HalfRight)
    target = loading(architecture(name), exact=exact)
    file = architecture(draft or name) if draft != TWIN else twin(name)
    with Engine.load(target, loading(file, exact=exact, load_heads=draft is None)) as engine:
        assert engine.target.rollback.name == way
        talk = Talk(engine, pair.architecture, truth, monkeypatch)

        @seed(zlib.crc32(repr((pair, way)).encode()))  # else all pairs get the same examples
        @settings(max_examples=8 if thorough else 1)
        @given(st.lists(EVENTS, min_size=1, max_size=5))
        @example(EVERYTHING)
        def history(events: list[Event]) -> None:
            engine.target.truncate(0)
            for event in (*events, Event(length=0)):
                talk.answer(event)

        history()
        assert 0 < talk.accepted < talk.drafted


@pytest.mark.parametrize(
    "pair",
    [WITH_MODEL[0], WITH_MTP[0], WITH_EAGLE3[0], WITH_DFLASH[0]],
    ids=lambda pair: f"{pair.target} {pair.draft}",
)
def test_a_grammar_and_its_forced_tokens(architecture: Files, twin: Files, pair: Pair) -> None:
    """Heads have no states of the target for what is forced: they do not go on behind it."""
    name, draft = pair
    file = architecture(draft or name) if draft != TWIN else twin(name)
    grammar = 'root ::= "{\\"name\\": \\"" [a-c]{3,6} "\\", \\"and a longer name\\": " [0-9]{2} "}"'
    with Engine.load(
        loading(architecture(name)), loading(file, load_heads=draft is None)
    ) as engine:
        texts, forced = set(), 0
        for length in (0, 1, 4, "auto"):
            engine.target.truncate(0)
            stream = stream_generate(
                engine,
                random_ids(30),
                GenerateOptions(PARAMS["warm"], length, max_tokens=60, grammar=grammar),
            )
            answer = collect(stream)
            texts.add(tuple(answer.tokens))
            forced += "forced" in answer.stats.sources
        assert len(texts) == 1 and answer.finish_reason == "stop" and forced >= 2
