"""Chats on real targets of every memory: each answer is that of an engine that read nothing yet."""

import itertools
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.chat.answer import Answer
from localspec.chat.conversation import Chat
from localspec.chat.input_loop import handle
from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.loading import pair as loading
from localspec.llama import llama_library
from localspec.llama.model import LlamaModel
from localspec.speculative.prefix import common_prefix
from tests.chat.test_conversation import Person
from tests.support.real_pair import GREEDY, options

pytestmark = pytest.mark.llama

# Target, its draft (None: heads of its own), the way it rolls back.
PAIRS = [
    ("qwen35-mtp", None, "fork"),
    ("qwen35-mtp", None, "snapshots"),
    ("falcon-h1", "mamba2", "fork"),
    ("lfm2", "llama", "snapshots"),
    ("gemma4", "gemma4-assistant", "trim"),
    ("qwen3next", "dflash", "fork"),
]
# What Ctrl-C comes before or behind.
CALLS = (
    "llama_decode",
    "llama_process",
    "llama_memory_seq_rm",
    "llama_memory_seq_cp",
    "llama_state_seq_get_data_ext",
    "llama_state_seq_set_data_ext",
)
# With less rounding, a token hardly ever changes with the width of the passes before it.
EXACT: dict[str, Any] = {
    "ctx_size": 320,
    "cache_type_k": "f32",
    "cache_type_v": "f32",
    "flash_attention": "off",
}
Files = Callable[[str], Path]


class Interruption:
    """Raises Ctrl-C before or behind one of the next calls of llama.cpp, and counts its tokens."""

    def __init__(self) -> None:
        self.left = 0
        self.behind = False
        self.fired = False

    def wrap(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if not self.left:
                return real(*arguments)
            self.left -= 1
            if self.left:
                return real(*arguments)
            self.fired = True
            if self.behind:
                real(*arguments)
            raise KeyboardInterrupt

        return call


@pytest.fixture(scope="module")
def interruption() -> Iterator[Interruption]:
    found = Interruption()
    with pytest.MonkeyPatch.context() as patch:
        llama = llama_library.library()
        for name in CALLS:
            patch.setattr(llama, name, found.wrap(getattr(llama, name)))
        yield found


@contextmanager
def opened(architecture: Files, target: str, draft: str | None, way: str) -> Iterator[Engine]:
    def load(model: Any, *, drafted: bool) -> LlamaModel:
        return LlamaModel(*model, strategies=(way,))

    path = architecture(target)
    file = path if draft is None else architecture(draft)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_target", load)
        engine = Engine.load(
            options(path, **EXACT),
            options(file, load_heads=draft is None, **EXACT),
            lenient=True,
        )
    with engine:
        assert engine.target.rollback.name == way
        yield engine


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: " ".join(map(str, pair)))
def engines(request: pytest.FixtureRequest, architecture: Files) -> Iterator[tuple[Engine, Engine]]:
    """An engine that chats, and the same, which reads every prompt from its beginning."""
    with opened(architecture, *request.param) as engine:
        with opened(architecture, *request.param) as oracle:
            yield engine, oracle


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "/regen", "/undo", "/clear"]),
        st.integers(1, 40),  # letters of a question
        st.sampled_from([0, 1, 3, 7]),  # draft length
        st.one_of(st.none(), st.integers(1, 30)),  # the call that Ctrl-C comes at
        st.booleans(),  # behind it
    ),
    max_size=8,
)


@settings(
    max_examples=settings().max_examples // 6,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_every_answer_is_that_of_a_fresh_engine(
    engines: tuple[Engine, Engine],
    interruption: Interruption,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[str, int, int, int | None, bool]],
) -> None:
    engine, oracle = engines
    seeds = itertools.count(5)
    monkeypatch.setattr(secrets, "randbelow", lambda most: next(seeds))
    ui = Person()
    chat = Chat(
        engine, ui, GenerateOptions(SamplingParams(temperature=0.8, seed=3), 0, max_tokens=14)
    )
    for step, size, length, call, behind in [*steps, ("ask", 5, 3, None, False)]:
        chat.options = replace(chat.options, draft_tokens=length)
        said = len(ui.answers)
        question = "the quick brown fox jumps over lazy dogs"[-size:]
        interruption.left, interruption.behind, interruption.fired = call or 0, behind, False
        try:
            handle(chat, question if step == "ask" else step)
        except UsageError:  # nothing to undo
            pass
        except KeyboardInterrupt:
            assert interruption.fired
        interruption.left = 0
        ui.streamed = ""
        if len(ui.answers) > said:
            assert_right(chat, oracle, ui.answers[-1])


def assert_right(chat: Chat, oracle: Engine, answer: Answer) -> None:
    """Compare the last answer, as far as it came, with one to the same prompt."""
    oracle.target.truncate(0)
    again = replace(chat, engine=oracle, ui=Person(), options=replace(chat.options, draft_tokens=0))
    turns = [*chat.turns]
    if turns and turns[-1]["role"] == "assistant" and answer.tokens:
        turns.pop()
    if not answer.tokens:
        return
    again.answer(turns)
    assert isinstance(again.ui, Person)
    expected = again.ui.answers[-1].tokens
    assert answer.tokens == expected[: len(answer.tokens)]
    assert answer.finish_reason == "cancelled" or answer.tokens == expected


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: " ".join(map(str, pair)))
@pytest.mark.parametrize("length", [0, 3])
def test_nothing_is_read_twice_that_is_not_new(
    architecture: Files, pair: tuple[str, str | None, str], length: int
) -> None:
    """Behind /regen, /undo, thoughts that are left out, and Ctrl-C in an answer."""
    with opened(architecture, *pair) as engine:
        letters = "root ::= [qxz]*"  # of which tokens become text, and the same tokens again
        options = GenerateOptions(GREEDY, length, max_tokens=12, grammar=letters)
        chat = Chat(engine, Person(), options)
        known = [0]  # lengths at which the state is at hand

        def ask(text: str) -> None:
            held, turns = list(engine.target.tokens), chat.turns
            turns = turns[:-1] if text == "/regen" else [*turns, {"role": "user", "content": text}]
            prompt = chat.encode(turns, chat.oldest)
            shared = min(common_prefix(held, prompt), len(prompt) - 1)
            whole = [] if engine.target.pending else [len(held)]
            best = max(length for length in [*known, *whole] if length <= shared)
            assert isinstance(chat.ui, Person)
            handle(chat, text)
            stats = chat.ui.answers[-1].stats
            if not stats.prompt_tokens:  # Ctrl-C came before any piece
                return
            assert stats.cached_tokens >= best
            assert stats.prompt_tokens == len(prompt)
            states = [length for length in known if length <= shared]  # the others are undone
            known[:] = [*states, len(prompt) - 1]

        ask("the first question of all")
        ask("/regen")
        assert isinstance(chat.ui, Person)
        assert chat.ui.answers[-1].stats.read_tokens == 1
        ask("and another")
        handle(chat, "/undo")
        ask("no, this one")
        chat.turns[-1]["content"] = ""  # it was a thought
        ask("what then?")
        ask("/regen")
        with pytest.MonkeyPatch.context() as patch:
            press_in_decode(patch, engine, 4)
            ask("stopped in the middle")
        assert chat.ui.answers[-1].finish_reason == "cancelled"
        ask("and on")
        with pytest.MonkeyPatch.context() as patch:
            press_in_decode(patch, engine, 1)
            handle(chat, "a question that nobody has read to its end")
        assert chat.ui.answers[-1].stats.rounds == 0
        ask("and to the end")


def press_in_decode(patch: pytest.MonkeyPatch, engine: Engine, call: int) -> None:
    """Press Ctrl-C, as a terminal does, in a pass of the target behind its prompt."""
    llama = llama_library.library()
    real, calls = llama.llama_decode, iter(range(1, 10_000))

    def decode(context: object, batch: object) -> object:
        if context == engine.target.context and next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return real(context, batch)

    patch.setattr(llama, "llama_decode", decode)
