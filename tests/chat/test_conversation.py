"""Chat: turns, caches, commands and interruptions, told to a scripted person."""

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat import conversation_store
from localspec.chat.answer import Answer, Piece
from localspec.chat.conversation import Chat
from localspec.chat.input_loop import handle, read_message, run
from localspec.chat.message import ROLES, Message
from localspec.chat.slash_commands import ALIASES, COMMANDS
from localspec.chat.stats import GenerationStats
from localspec.chat.window import visible
from localspec.core.errors import EngineError, FileProblem, LocalspecError, UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.loop import DraftStatus
from tests.support.toy.chat import ChatToy

Typed = str | type[BaseException]
LENGTHS: tuple[DraftTokens, ...] = (0, 1, 4, "auto")


@dataclass
class Person:
    """A ChatUI that types what is written here and remembers what it is shown.

    ``interrupt`` is how many pieces of an answer come before Ctrl-C, once.
    """

    script: list[Typed] = field(default_factory=list)
    interrupt: int | None = None
    streamed: str = ""
    answers: list[Answer] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    problems: list[LocalspecError] = field(default_factory=list)
    sums: list[GenerationStats] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    filled: list[float] = field(default_factory=list)
    compared: list[tuple[Answer, Answer]] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    followed: list[tuple[str, int]] = field(default_factory=list)
    expected: list[tuple[int | None, int | None]] = field(default_factory=list)
    traced: list[tuple[Path, list[Piece], Answer]] = field(default_factory=list)

    def read(self) -> str:
        if not self.script:
            raise EOFError
        typed = self.script.pop(0)
        if isinstance(typed, str):
            return typed
        raise typed

    def stream(self, piece: Piece) -> None:
        self.streamed += piece.text
        self.lengths.append(piece.draft_tokens)
        if self.interrupt is not None:
            self.interrupt -= 1
            if self.interrupt == 0:
                self.interrupt = None
                raise KeyboardInterrupt

    @contextmanager
    def follow(
        self, what: str, expected: int | None, limit: int | None
    ) -> Iterator[Callable[[Piece], None]]:
        self.followed.append((what, 0))
        self.expected.append((expected, limit))
        yield lambda piece: self.followed.append((what, piece.stats.tokens))

    def recall(self, answer: str) -> None:
        self.said += answer.splitlines()

    def end_answer(self, answer: Answer, filled: float) -> None:
        assert self.streamed == answer.text
        self.streamed = ""
        self.filled.append(filled)
        self.answers.append(answer)

    def show_stats(self, stats: GenerationStats, status: DraftStatus) -> None:
        self.sums.append(stats)

    def compare(self, drafted: Answer, plain: Answer, text: str) -> None:
        self.compared.append((drafted, plain))

    def trace(
        self, path: Path, pieces: Sequence[Piece], answer: Answer, question: str, models: str
    ) -> None:
        assert question
        self.traced.append((path, list(pieces), answer))

    def fold_thoughts(self, fold: bool) -> None:
        self.said.append(f"fold {fold}")

    def show_thoughts(self, thoughts: str) -> None:
        self.said.append(thoughts)

    def copy(self, text: str) -> None:
        self.copied.append(text)

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        self.said += [f"{label} {words}" for label, words in rows]

    def complain(self, problem: LocalspecError) -> None:
        assert problem.message and problem.hint
        self.streamed = ""
        self.problems.append(problem)


def made(
    *script: Typed, engine: ChatToy | None = None, length: DraftTokens = 3, **more: object
) -> tuple[Chat, Person, ChatToy]:
    person, engine = Person(list(script)), engine or ChatToy()
    kept = {
        name: more.pop(name)
        for name in ("system", "turns", "oldest", "file", "autosave")
        if name in more
    }
    settings = {"sampling": SamplingParams(seed=7), "max_tokens": 12} | more
    options = GenerateOptions(draft_tokens=length, **settings)  # type: ignore[arg-type]
    return Chat(engine, person, options, **kept), person, engine  # type: ignore[arg-type]


def talked(
    *script: Typed, engine: ChatToy | None = None, length: DraftTokens = 3, **more: object
) -> tuple[Chat, Person, ChatToy]:
    """A conversation that has run to its end, everything typed, nothing complained about."""
    chat, person, engine = made(*script, engine=engine, length=length, **more)
    run(chat)
    assert person.script == []
    return chat, person, engine


def said_turns(chat: Chat) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"]) for turn in chat.turns]


def refused(chat: Chat, person: Person, line: str) -> LocalspecError:
    """The problem that a line gives; the conversation goes on, unchanged."""
    before = (list(chat.turns), chat.system, chat.options, len(person.answers))
    person.script = [line]
    run(chat)
    assert (list(chat.turns), chat.system, chat.options, len(person.answers)) == before
    return person.problems.pop()


# -- turns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
def test_turns_are_kept_and_sent_again(length: DraftTokens) -> None:
    chat, person, engine = talked("one", "two", length=length, system="Be brief")
    first, second = (answer.text for answer in person.answers)
    assert first and second and not person.problems
    turns = [("user", "one"), ("assistant", first), ("user", "two"), ("assistant", second)]
    assert said_turns(chat) == turns
    system: Message = {"role": "system", "content": "Be brief"}
    assert engine.asked == [[system, *chat.turns[:1]], [system, *chat.turns[:3]]]
    plain, alone, _ = talked("one", "two", length=0, system="Be brief")
    assert said_turns(plain) == turns
    assert set(alone.lengths) == {0}
    assert length == "auto" or (max(person.lengths) > 0) == (length != 0)


def test_nothing_typed_asks_nothing() -> None:
    chat, person, engine = talked("", "  \n ", "\t")
    assert engine.asked == [] and chat.turns == [] and person.said == []


def test_max_tokens_and_stop_hold_for_each_answer() -> None:
    chat, person, _ = talked("one", "two", max_tokens=5)
    assert [(len(a.tokens), a.finish_reason) for a in person.answers] == [(5, "length")] * 2
    text = person.answers[0].text
    _, stopped, _ = talked("one", max_tokens=5, stop=(text[2:4],))
    assert stopped.answers[0].text == text[: text.index(text[2:4])]
    assert stopped.answers[0].finish_reason == "stop"


def test_sums_of_the_conversation() -> None:
    chat, person, _ = talked("/stats", "one", "/stats", "two", "/clear", "/stats")
    assert person.said[0] == "There are no answers yet."
    first, second = (answer.stats for answer in person.answers)
    assert person.sums[0] is person.sums[1] is chat.total
    assert chat.total.answers == 2
    assert chat.total.tokens == first.tokens + second.tokens == 24
    assert chat.total.rounds == first.rounds + second.rounds
    assert chat.total.ttft_s == first.ttft_s


# -- the cache between turns ---------------------------------------------------------------


def read_tokens(engine: ChatToy, act: Callable[[], object]) -> int:
    """How many tokens of prompts the target reads while something happens."""
    before = len(engine.target.calls)
    act()
    return sum(count for count, rows in engine.target.calls[before:] if rows == 0)


def test_a_turn_reads_only_what_is_new() -> None:
    chat, person, engine = made()
    assert read_tokens(engine, lambda: handle(chat, "x" * 100)) == len("U\nA") + 100 - 1
    # The answer's last token was never decoded; the last one of the prompt stays pending.
    assert read_tokens(engine, lambda: handle(chat, "two")) == 1 + len("\nUtwo\nA") - 1
    stats = person.answers[1].stats
    assert stats.cached_tokens == len("U\nA") + 100 + 12 - 1
    assert stats.prompt_tokens == 103 + 12 + len("\nUtwo\nA")


@pytest.mark.parametrize("length", [0, 4])
def test_what_is_asked_again_is_not_read_again(length: DraftTokens, tmp_path: Path) -> None:
    chat, person, engine = made(length=length)
    handle(chat, "x" * 100)
    assert read_tokens(engine, lambda: handle(chat, "/regen")) == 0
    handle(chat, "y" * 50)
    handle(chat, f"/save {tmp_path / 'talk.json'}")
    assert read_tokens(engine, lambda: handle(chat, "/undo")) == 0
    assert read_tokens(engine, lambda: handle(chat, "z")) == len("Uz\nA") - 2  # U is still there
    handle(chat, "/clear")
    # "U" is what a forgotten conversation shares with a new one.
    assert read_tokens(engine, lambda: handle(chat, "w" * 30)) == len("w\nA") + 29 - 1
    handle(chat, f"/load {tmp_path / 'talk.json'}")
    assert read_tokens(engine, lambda: handle(chat, "more")) > 150  # long gone from the cache
    handle(chat, f"/load {tmp_path / 'talk.json'}")
    # As many as answer and question differ from those just given, and no more.
    assert read_tokens(engine, lambda: handle(chat, "less")) == len("less\nA") - 1
    assert not person.problems


@pytest.mark.parametrize("length", LENGTHS)
def test_a_warm_cache_says_what_a_cold_one_says(length: DraftTokens) -> None:
    chat, person, engine = made(length=length)
    handle(chat, "one")
    for line in ("two", "/undo", "three", "/regen", "/undo", "four"):
        handle(chat, line)
        if line.startswith("/undo"):
            continue
        asked = chat.turns[:-1]
        cold, alone, _ = made(length=0)
        cold.options = chat.options
        cold.answer(list(asked))
        assert cold.turns == chat.turns
    assert not person.problems


# -- interruptions and ends ----------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
def test_ctrl_c_keeps_what_was_said(length: DraftTokens) -> None:
    chat, person, engine = made(length=length, max_tokens=40)
    person.interrupt = 3
    person.script = ["one", "two"]
    run(chat)
    first, second = person.answers
    assert (first.finish_reason, second.finish_reason) == ("cancelled", "length")
    assert 0 < len(first.tokens) < 40
    assert said_turns(chat)[:3] == [("user", "one"), ("assistant", first.text), ("user", "two")]
    whole, alone, _ = talked("one", length=0, max_tokens=40)
    assert alone.answers[0].text.startswith(first.text)
    assert second.stats.cached_tokens >= len("Uone\nA") + len(first.tokens) - 1
    assert chat.total.tokens == len(first.tokens) + 40


def interrupt_once(monkeypatch: pytest.MonkeyPatch, thing: object, name: str) -> None:
    """Let the next call of this method raise KeyboardInterrupt."""
    method = getattr(thing, name)

    def interrupted(*arguments: object) -> None:
        monkeypatch.setattr(thing, name, method)
        raise KeyboardInterrupt

    monkeypatch.setattr(thing, name, interrupted)


def test_ctrl_c_while_the_prompt_is_read_forgets_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat, person, engine = made()
    interrupt_once(monkeypatch, engine.target, "decode")
    person.script = ["one", "two"]
    run(chat)
    assert [answer.finish_reason for answer in person.answers] == ["cancelled", "length"]
    assert said_turns(chat) == [("user", "two"), ("assistant", person.answers[1].text)]


def test_retry_asks_a_question_again_that_was_stopped_before_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat, _, engine = talked("one")
    chat.attached = "text of a file: "
    interrupt_once(monkeypatch, engine.target, "decode")
    handle(chat, "two")
    handle(chat, "/retry")
    assert [turn for role, turn in said_turns(chat) if role == "user"] == [
        "one",
        "text of a file: two",
    ]
    assert not chat.attached
    handle(chat, "/retry")  # of one with an answer, as ever
    assert [turn for role, turn in said_turns(chat) if role == "user"] == [
        "one",
        "text of a file: two",
    ]
    interrupt_once(monkeypatch, engine.target, "decode")
    handle(chat, "three")
    handle(chat, "/undo")
    handle(chat, "/retry")  # the stopped one belonged to other turns
    assert [turn for role, turn in said_turns(chat) if role == "user"] == ["one"]


def test_ctrl_c_outside_of_an_answer_does_not_end_the_chat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat, person, engine = made("one", "two")
    interrupt_once(monkeypatch, engine, "encode_chat")
    run(chat)
    assert [role for role, _ in said_turns(chat)] == ["user", "assistant"]
    assert len(person.answers) == 1 and person.script == []


def test_ctrl_c_at_the_prompt_hints_and_leaves_the_second_time() -> None:
    chat, person, _ = made(KeyboardInterrupt, KeyboardInterrupt, "never read")
    run(chat)
    assert person.script == ["never read"]
    (hint,) = person.said
    assert "/exit" in hint and "Ctrl-D" in hint
    chat, person, _ = made(KeyboardInterrupt, "one", KeyboardInterrupt, "/set", KeyboardInterrupt)
    run(chat)
    assert person.script == [] and len(person.answers) == 1  # the end of input, not Ctrl-C
    assert sum("/exit" in sentence for sentence in person.said) == 3


def test_how_many_lines_failed() -> None:
    assert run(made("one", "/stats")[0]) == 0
    assert run(made("/what", "one", "/load", "/exit", "/what")[0]) == 2
    assert run(made("/what", KeyboardInterrupt, KeyboardInterrupt)[0]) == 1


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye", " /exit"])
def test_ways_to_leave(word: str) -> None:
    chat, person, engine = made(word, "never read")
    run(chat)
    left = word.startswith("/")  # a blank in front makes it a message
    assert person.script == (["never read"] if left else [])
    assert len(engine.asked) == (0 if left else 2)


def test_a_prompt_too_long_is_told_and_changes_nothing() -> None:
    engine = ChatToy(n_ctx=64)
    chat, person, _ = talked("one", engine=engine)
    before = list(chat.turns)
    assert "available context size of 64" in refused(chat, person, "x" * 80).message
    handle(chat, "two")
    assert chat.turns[:2] == before and len(chat.turns) == 4


def test_an_answer_that_filled_the_context_is_left_out_of_the_next_prompt() -> None:
    chat, person, engine = talked(
        "one", "two", "three", engine=ChatToy(n_ctx=64), max_tokens=None, system="Be"
    )
    assert not person.problems and person.filled == [1.0, 1.0, 1.0]
    assert [answer.finish_reason for answer in person.answers] == ["context"] * 3
    assert [re.split("[:.]", sentence)[0] for sentence in person.said] == [
        "The answer filled the context",
        "The context of 64 tokens is full",
    ] * 2 + ["The answer filled the context"]
    assert person.said[1].endswith("The model no longer sees the oldest question and its answer.")
    system: Message = {"role": "system", "content": "Be"}
    assert engine.asked[-1] == [system, {"role": "user", "content": "three"}]
    assert len(chat.turns) == 6  # nothing is lost


def test_a_long_conversation_goes_on() -> None:
    script = [f"question {i}" for i in range(100)]
    chat, person, engine = talked(*script, engine=ChatToy(n_ctx=200), max_tokens=20)
    assert len(person.answers) == 100 and not person.problems and len(chat.turns) == 200
    assert max(person.filled) <= 1.0
    # Not at every question, because all that is left is read again then.
    assert 10 < len(person.said) < 40
    again = sum(answer.stats.cached_tokens < 20 for answer in person.answers[1:])
    assert again == len(person.said)
    # The last answer is that to the newest turns alone.
    alone, fresh, _ = made(engine=ChatToy(n_ctx=200), max_tokens=20)
    alone.answer(visible(chat.turns[:-1], chat.oldest))
    assert fresh.answers[0].text == person.answers[-1].text


@pytest.mark.parametrize("length", LENGTHS)
def test_what_is_left_out_does_not_depend_on_the_draft(length: DraftTokens) -> None:
    script = [f"question {i}" for i in range(12)]
    plain, _, _ = talked(*script, engine=ChatToy(n_ctx=128), length=0)
    drafted, _, _ = talked(*script, engine=ChatToy(n_ctx=128), length=length)
    assert drafted.turns == plain.turns and drafted.oldest == plain.oldest > 0


def test_a_message_too_long_alone_leaves_nothing_out() -> None:
    chat, person, engine = talked("one", "two", engine=ChatToy(n_ctx=64))
    problem = refused(chat, person, "x" * 80)
    assert (
        "has 83 tokens, which exceeds the available context size of 64" in problem.message
        and not person.said
    )
    assert chat.oldest == 0


def test_ctrl_c_while_the_prompt_is_read_leaves_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat, person, engine = talked("one", engine=ChatToy(n_ctx=64))
    before = list(chat.turns)
    interrupt_once(monkeypatch, engine.target, "decode")
    handle(chat, "x" * 50)
    assert person.answers[-1].finish_reason == "cancelled"
    assert (chat.turns, chat.oldest) == (before, 0)
    handle(chat, "two")
    assert [turn["content"] for turn in engine.asked[-1][::2]] == ["one", "two"]


def test_what_was_left_out_can_come_back(tmp_path: Path) -> None:
    chat, person, engine = talked("one", "x" * 50, engine=ChatToy(n_ctx=64), max_tokens=None)
    assert chat.oldest == 2 and len(chat.turns) == 4
    handle(chat, f"/save {tmp_path / 'talk.json'}")
    handle(chat, "/regen")
    assert chat.oldest == 2 and len(chat.turns) == 4
    handle(chat, "/undo")
    assert chat.oldest == 0 and len(chat.turns) == 2
    other, person, _ = made(f"/load {tmp_path / 'talk.json'}", "y" * 30, engine=ChatToy(n_ctx=64))
    run(other)
    assert "2 questions and their answers" in person.said[-1] and other.oldest == 4
    handle(other, "/clear")
    assert other.oldest == 0


def test_how_full_the_context_is() -> None:
    chat, person, _ = talked(
        "/context", "one", "/context", "/system Be brief", "/context", engine=ChatToy(n_ctx=64)
    )
    used = len("Uone\nA") + 12
    assert person.filled == [used / 64]
    assert person.said == [
        "Context of 64 tokens: system message 0, turns and template 3, free 61 (95%).",
        "Context of 64 tokens: system message 0, "
        f"turns and template {used + 4}, free {60 - used} (66%).",
        "System message: Be brief",
        "Context of 64 tokens: system message 8, "
        f"turns and template {used + 6}, free {50 - used} (50%).",
    ]
    chat.system = None
    handle(chat, "x" * 40)
    handle(chat, "/context")
    assert "no longer sees the oldest question and its answer" in person.said[-1]


def test_model_alone_shows_the_pair() -> None:
    chat, person, _ = made(length=0)
    chat.pair = {"model": "big.gguf", "draft": "small.gguf"}
    handle(chat, "/model")
    assert person.said == [
        "big.gguf + small.gguf. /model NAME continues with another pair or model."
    ]


def test_a_template_with_a_system_message_of_its_own_is_no_negative_count() -> None:
    class Talkative(ChatToy):
        def encode_chat(self, messages: Sequence[Message]) -> list[int]:
            own: Message = {"role": "system", "content": "You are a helpful assistant."}
            given = messages[0]["role"] == "system"
            return super().encode_chat(messages if given else [own, *messages])

    _, person, _ = talked("/context", "/system Be brief", "/context", engine=Talkative(n_ctx=64))
    assert [said.partition(": ")[2] for said in person.said[::2]] == [
        "system message 0, turns and template 33, free 31 (48%).",
        "system message 8, turns and template 5, free 51 (80%).",
    ]


def test_an_engine_that_fails_in_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    chat, person, engine = made(length=0)
    decode, calls = engine.target.decode, iter(range(100))

    def failing(tokens: list[int], rows: int) -> object:
        if next(calls) == 3:
            raise EngineError("It broke.", "Mend it.")
        return decode(tokens, rows)

    monkeypatch.setattr(engine.target, "decode", failing)
    person.script = ["one", "two"]
    run(chat)
    assert [problem.message for problem in person.problems] == ["It broke."]
    assert [content for role, content in said_turns(chat) if role == "user"] == ["two"]


# -- commands ------------------------------------------------------------------------------


def test_help_names_every_command() -> None:
    _, person, engine = talked("/help", "/?")
    assert person.said[: len(person.said) // 2] == person.said[len(person.said) // 2 :]
    for name in COMMANDS:
        assert sum(sentence.startswith(name + " ") for sentence in person.said) == 2
    assert any('"""' in sentence for sentence in person.said)
    # It fits a small terminal, its question and the next prompt included.
    assert len(person.said) // 2 <= 22 and max(map(len, person.said)) <= 80
    assert engine.asked == []
    assert set(ALIASES.values()) <= set(COMMANDS) and not set(ALIASES) & set(COMMANDS)


@pytest.mark.parametrize("line", ["/", "/nothing", "/EXIT", "/set-temperature 1", "/clear/undo"])
def test_no_such_command(line: str) -> None:
    chat, person, engine = talked("one")
    problem = refused(chat, person, line)
    assert line.split()[0] in problem.message and "/help" in problem.hint
    assert "Did you mean /help?" in refused(chat, person, "/hlep").hint
    assert "Did you mean /compare?" in refused(chat, person, "/comp").hint
    assert "Did you mean temperature?" in refused(chat, person, "/set temprature 1").hint
    assert len(engine.asked) == 1


def test_clear() -> None:
    chat, person, engine = talked("one", "/clear", "two", system="Be brief")
    assert [content for role, content in said_turns(chat) if role == "user"] == ["two"]
    assert engine.asked[-1] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "two"},
    ]


@pytest.mark.parametrize("word", ["/regen", "/regenerate"])
def test_regen_answers_again_with_another_seed(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter([7, 8])
    monkeypatch.setattr(secrets, "randbelow", lambda bound: next(seeds))
    chat, person, engine = talked("zero", "one", word, word, max_tokens=30)
    first, same, other = (answer.text for answer in person.answers[1:])
    assert same == first and other != first
    assert len(chat.turns) == 4 and chat.turns[-1]["content"] == other
    assert engine.asked[1] == engine.asked[2] == engine.asked[3]
    assert chat.options.sampling.seed == 8 and chat.total.answers == 4


def test_regen_at_temperature_zero_says_that_nothing_changes() -> None:
    chat, person, _ = talked(
        "/set temperature 0", "one", "/regen", "/set temperature 0.8", "/regen"
    )
    first, again, _ = (answer.text for answer in person.answers)
    assert first == again and len(person.said) == 3
    assert "/retry 0.8" in person.said[1]


def test_retry_at_a_temperature_once() -> None:
    chat, person, _ = talked("/set temperature 0", "one", "/retry 5", max_tokens=30)
    first, other = (answer.text for answer in person.answers)
    assert first != other and len(chat.turns) == 2
    assert chat.options.sampling.temperature == 0
    assert "'hot'" in refused(chat, person, "/retry hot").message


def test_compare_answers_twice_and_leaves_the_conversation() -> None:
    chat, person, engine = talked("one", "/compare")
    ((drafted, plain),) = person.compared
    assert person.expected == [(len(drafted.tokens), 12)] * 2
    followed = [(what, at) for what, at in person.followed if at == 0 or at == len(plain.tokens)]
    assert [what for what, _ in followed[:1] + followed[-1:]] == ["drafted", "plain"]
    assert dict(followed) == {"drafted": len(drafted.tokens), "plain": len(plain.tokens)}
    assert drafted.tokens == plain.tokens == person.answers[0].tokens
    assert drafted.stats.drafted and not plain.stats.drafted
    assert len(chat.turns) == 2 and chat.total.answers == 1
    person.script, chat.options = ["/compare"], replace(chat.options, draft_tokens=0)
    run(chat)
    assert len(person.compared) == 2 and chat.options.draft_tokens == 0


def test_compare_takes_no_text() -> None:
    chat, person, _ = talked("one")
    assert "takes no text" in refused(chat, person, "/compare two").message
    assert not person.compared


def test_compare_of_a_stopped_answer_ends_where_it_was_stopped() -> None:
    chat, person, _ = made(max_tokens=40)
    person.interrupt = 3
    person.script = ["one", "/compare"]
    run(chat)
    stopped, ((drafted, plain),) = person.answers[0], person.compared
    assert stopped.finish_reason == "cancelled"
    assert drafted.tokens == plain.tokens == stopped.tokens and chat.options.max_tokens == 40
    assert drafted.finish_reason == "cancelled"  # and no limit that nobody gave


def test_set_max_tokens_limits_the_next_answers() -> None:
    chat, person, _ = talked("/set max_tokens 5", "one", "/set max_tokens", max_tokens=40)
    assert len(person.answers[0].tokens) == 5 and person.said[-1].startswith("max_tokens 5: ")
    assert "'many'" in refused(chat, person, "/set max_tokens many").message
    assert refused(chat, person, "/set max_tokens -9")
    assert chat.options.max_tokens == 5
    for most in ("0", "-1"):
        handle(chat, f"/set max_tokens {most}")
        assert person.said[-1].startswith(f"max_tokens {most}: ")


def test_trace_keeps_the_rounds_of_the_answer_on_the_screen(tmp_path: Path) -> None:
    chat, person, _ = talked("one", f"/trace {tmp_path / 'a.html'}")
    ((path, pieces, answer),) = person.traced
    assert answer is person.answers[0] and person.followed == []
    assert "".join(piece.text for piece in pieces) == answer.text


def test_trace_of_an_older_answer_answers_again(tmp_path: Path) -> None:
    chat, person, _ = talked("one", "two", "/undo", f"/trace {tmp_path / 'a.html'}")
    ((path, pieces, answer),) = person.traced
    assert path == tmp_path / "a.html" and answer.tokens == person.answers[0].tokens
    assert [token for piece in pieces for token in piece.tokens] == answer.tokens
    assert len(answer.logprobs) == len(answer.tokens)
    assert len(chat.turns) == 2 and chat.total.answers == 2
    assert "ends in .html" in refused(chat, person, "/trace notes.txt").hint


def test_read_begins_the_next_message(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("\ufeffsome \x1b[2Jnotes\n", encoding="utf-8")
    chat, person, engine = talked(f"/read {file}", "what?", "and?")
    asked = [content for role, content in said_turns(chat) if role == "user"]
    assert asked == ["notes.txt:\n\nsome \u241b[2Jnotes\n\nwhat?", "and?"]
    chat, person, _ = talked(f"/read {file}", "/context", "/read off", "/context", engine=engine)
    assert chat.attached == ""
    waiting = len("notes.txt:\n\nsome \u241b[2Jnotes\n\n")
    full, rest = person.said[1], person.said[3]
    assert f"template 3, files of /read for the next message {waiting}, free" in full
    assert "/read" not in rest and rest.startswith("Context of")
    chat, person, _ = talked(f"/read {file}", "/clear", engine=engine)
    assert chat.attached == ""
    for data in (b"\xff", b"a\0b", b"long words" * 100):
        file.write_bytes(data)
        assert refused(chat, person, f"/read {file}") and chat.attached == ""
    assert "directory" in refused(chat, person, f"/read {tmp_path}").message.lower()


@pytest.mark.parametrize("written", ["{}", "'{}'", '"{}"', "{} "])
@pytest.mark.parametrize("blank", [" ", "\\ "])
def test_files_are_named_as_terminals_paste_dropped_ones(
    tmp_path: Path, written: str, blank: str
) -> None:
    if blank != " " and not written.startswith("{"):
        pytest.skip("no escapes within quotes")
    file = tmp_path / "my notes.txt"
    file.write_text("some notes")
    name = written.format(str(file).replace(" ", blank))
    chat, person, _ = talked(f"/read {name}", f"/save {name.replace('.txt', '.json')}")
    assert chat.attached == "my notes.txt:\n\nsome notes\n\n", person.problems
    assert chat.file == tmp_path / "my notes.json"
    odd = tmp_path / "'notes'"
    odd.write_text("some notes")
    assert talked(f"/read {odd}")[0].attached.startswith("'notes':")


def test_copy() -> None:
    chat, person, _ = made()
    assert "no answer" in refused(chat, person, "/copy").message
    text = "```py\none\n```\n\n~~~\ntwo\n```\n~~~\nend"
    chat.turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
    person.script = ["/copy", "/copy code"]
    run(chat)
    assert person.copied == [text, "two\n```\n"]
    assert "all" in refused(chat, person, "/copy all").message


def test_regen_and_undo_of_nothing() -> None:
    chat, person, _ = made()
    for command in ("/regen", "/compare"):
        assert "nothing to answer" in refused(chat, person, command).message
    assert "nothing to undo" in refused(chat, person, "/undo").message


def test_a_regen_that_fails_keeps_the_answer() -> None:
    chat, person, _ = talked("one", engine=ChatToy(n_ctx=64))
    before = list(chat.turns)
    chat.system = "x" * 80
    person.script = ["/regen"]
    run(chat)
    assert "available context size of 64" in person.problems[-1].message and chat.turns == before


def test_undo_takes_back_one_question_each() -> None:
    chat, person, _ = talked("one", "two", "/undo")
    assert [content for role, content in said_turns(chat) if role == "user"] == ["one"]
    chat.turns.append({"role": "user", "content": "unanswered"})
    for left in (2, 0):
        handle(chat, "/undo")
        assert len(chat.turns) == left
    assert "nothing to undo" in refused(chat, person, "/undo").message


@pytest.mark.parametrize(
    ("rest", "length", "shown"),
    [("5", 5, "5"), ("auto", "auto", "auto"), ("off", 0, "off"), ("0", 0, "off"), ("", 3, "3")],
)
def test_draft_length(rest: str, length: DraftTokens, shown: str) -> None:
    chat, person, _ = talked(f"/draft {rest}")
    assert chat.options.draft_tokens == length and person.said[-1] == f"Draft length: {shown}."
    assert person.said[:-1] == (["Measuring."] if length == "auto" else [])


def test_the_draft_length_holds_from_the_next_answer_on() -> None:
    chat, person, engine = made(length=0)
    assert engine.draft is not None
    handle(chat, "one")
    assert engine.draft.calls == []
    handle(chat, "/draft 4")
    handle(chat, "two")
    assert engine.draft.calls and person.answers[-1].stats.drafted
    calls = len(engine.draft.calls)
    handle(chat, "/draft off")
    handle(chat, "three")
    assert len(engine.draft.calls) == calls


@pytest.mark.parametrize("rest", ["many", "-1", "1.5", "2,3", "3,", "63", "99999999999", "a b"])
def test_a_draft_length_that_is_none(rest: str) -> None:
    chat, person, _ = made()
    assert isinstance(refused(chat, person, f"/draft {rest}"), UsageError)


def test_a_draft_length_without_a_draft() -> None:
    chat, person, _ = made(engine=ChatToy(quirk=None), length=0)
    assert "No draft model" in refused(chat, person, "/draft 3").message
    for rest in ("off", "auto"):  # auto can do without a model: what the text repeats
        handle(chat, f"/draft {rest}")
    assert person.said == ["Draft length: off.", "Measuring.", "Draft length: auto."]


def test_auto_is_off_where_neither_a_draft_nor_lookups_can_be_used() -> None:
    engine = ChatToy(quirk=None)
    engine.can_roll_back = False
    chat, person, _ = made(engine=engine, length=0)
    handle(chat, "/draft auto")
    assert chat.options.draft_tokens == 0 and person.said == ["Draft length: off."]


def test_system() -> None:
    chat, person, engine = talked(
        "/system", "/system Be  brief ", "one", "/system", "/system off", "two"
    )
    assert person.said == [
        "System message: none",
        "System message: Be  brief",
        "System message: Be  brief",
        "System message: none",
    ]
    assert [asked[0]["role"] for asked in engine.asked] == ["system", "user"]
    assert all(turn["role"] != "system" for turn in chat.turns)


def test_set_alone_lists_what_is_used_most_in_a_window_of_24_rows() -> None:
    chat, person, _ = talked("/set")
    *usual, rest = person.said
    names = [each.split()[0] for each in usual]
    assert names == ["temperature", "top_k", "top_p", "min_p", "seed"] and "/set all" in rest
    changed = ("/set dry_multiplier 0.8", f"/set logit_bias {' '.join(['5+1'] * 99)}", "/set")
    chat, person, _ = talked(*changed)
    assert "dry_multiplier 0.8 · logit_bias 5+1 5+1" in person.said[-2]
    assert sum(1 + len(each) // 70 for each in person.said[2:]) <= 22  # of 80 columns
    chat, person, _ = talked("/set all")
    listed = [*usual, *person.said[-1].split(" · ")]
    assert {each.split()[0] for each in listed} == {*SamplingParams.__dataclass_fields__}


def test_set() -> None:
    chat, person, _ = talked("/set temp 0.5", "/set parameter top-k 3", "/set seed  9", "/set")
    assert (
        chat.options.sampling.temperature,
        chat.options.sampling.top_k,
        chat.options.sampling.seed,
    ) == (0.5, 3, 9)
    assert person.said[:3] == ["temperature 0.5", "top_k 3", "seed 9"]
    _, alone, _ = talked("/set top_p", "/set acceptance")
    assert alone.said[0].startswith("top_p 0.95 ") and "0 to 1" in alone.said[0]
    assert "coupled, match, rejection" in alone.said[1]
    greedy, person, _ = talked("/set temperature 0", "one", "/regen", max_tokens=30)
    assert len({answer.text for answer in person.answers}) == 1


@pytest.mark.parametrize(
    "rest",
    ["warmth 1", "temperature hot", "temperature nan", "temperature -1",
     "top_k 1.5", "seed -2", "top_p 2", "temperature 1 2", "greedy 1", "__class__ 1",
     "logit_bias 999+1"],
)  # fmt: skip
def test_a_setting_that_is_none(rest: str) -> None:
    chat, person, _ = made()
    assert isinstance(refused(chat, person, f"/set {rest}"), UsageError)
    problem = refused(chat, person, "/set temperature 500")
    assert problem.message == "temperature is 500.0, expected a value from 0 to 100."
    assert problem.hint == "The default is 0.8."  # and no flag


# -- saved conversations -------------------------------------------------------------------


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a talk.json"
    chat, person, _ = talked("one", "two", f"/save {path}", system="Gr\u00f6\u00dfe\n\u2028")
    assert person.said == [f"4 messages saved to {path}."]
    other, person, engine = talked("zero", f"/load {path}", "three")
    assert not person.problems
    assert other.turns[:4] == chat.turns and len(other.turns) == 6
    assert other.system == chat.system == engine.asked[-1][0]["content"]
    handle(chat, "three")
    assert chat.turns == other.turns


@given(st.lists(st.tuples(st.sampled_from(ROLES), st.text())), st.one_of(st.none(), st.text()))
def test_every_conversation_survives_a_file(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[str, str]], system: str | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.unlink(missing_ok=True)
    chat, person, engine = made(system=system)
    chat.turns = [{"role": role, "content": content} for role, content in turns]
    handle(chat, f"/save {path}")
    other, _, _ = made()
    handle(other, f"/load {path}")
    assert (other.turns, other.system) == (chat.turns, system)


def test_a_home_folder_is_understood(home: Path) -> None:
    chat, _, _ = talked("one", "/save ~/talk.json", "/clear", "/load ~/talk.json")
    assert (home / "talk.json").is_file() and len(chat.turns) == 2


@pytest.mark.parametrize("command", ["/save", "/load"])
@pytest.mark.parametrize(
    "name",
    ["", "FOLDER", "FOLDER/none/talk.json", "~nobody-of-that-name/talk.json", "a\0b", "x" * 300],
)
def test_files_that_cannot_be(command: str, name: str, tmp_path: Path) -> None:
    chat, person, _ = talked("one")
    problem = refused(chat, person, f"{command} {name.replace('FOLDER', str(tmp_path))}".strip())
    assert isinstance(problem, FileProblem if name else UsageError)


def test_half_a_character_cannot_be_saved(tmp_path: Path) -> None:
    chat, person, _ = made(system="\udcff")
    assert isinstance(refused(chat, person, f"/save {tmp_path / 'talk.json'}"), FileProblem)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]  # no half of a file


def test_saving_replaces_only_what_is_ones_own(tmp_path: Path) -> None:
    path, letter = tmp_path / "talk.json", tmp_path / "letter.txt"
    letter.write_text("Dear all")
    chat, person, _ = made("one", f"/save {path}", "two", f"/save {path}")
    run(chat)
    assert not person.problems and person.said[-1].startswith("4 messages")
    other, person, _ = made("three")
    run(other)
    for file in (path, letter):
        assert "exists already" in refused(other, person, f"/save {file}").message
    assert letter.read_text() == "Dear all"
    handle(chat, "/clear")
    with pytest.raises(FileProblem, match="exists already"):
        handle(chat, f"/save {path}")
    handle(other, f"/load {path}")
    handle(other, "four")
    handle(other, f"/save {path}")
    assert person.said[-1] == f"6 messages saved to {path}."


GOOD = '{"system": null, "messages": [{"role": "user", "content": "one"}]}'


@pytest.mark.parametrize(
    "text",
    ["", "{", GOOD[:-1], "null", "[]", "{}", "3", '"text"', '{"messages": {}}', "\ufeff{}",
     '{"messages": ["one"]}', '{"messages": [{"role": "user"}]}', '{"messages": [{}]}',
     '{"messages": [{"role": "robot", "content": "x"}]}',
     '{"messages": [{"role": ["user"], "content": "x"}]}',
     '{"messages": [{"role": "user", "content": 3}]}',
     '{"messages": [{"role": "user", "content": null}]}',
     '{"system": 3, "messages": []}', '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}",
     '{"messages": ' + "9" * 5000 + "}", GOOD.encode("utf-16")],
    ids=lambda text: str(text[:40]),
)  # fmt: skip
def test_files_that_hold_no_conversation(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    chat, person, _ = talked("one", system="Be brief")
    problem = refused(chat, person, f"/load {path}")
    assert isinstance(problem, FileProblem) and str(path) in problem.message
    path.write_text(GOOD, encoding="utf-8")
    handle(chat, f"/load {path}")
    assert said_turns(chat) == [("user", "one")] and chat.system is None


def test_huge_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    with path.open("wb") as file:
        file.truncate(conversation_store.MAX_BYTES + 1)
    chat, person, _ = talked("one")
    assert "too large" in refused(chat, person, f"/load {path}").message
    if Path("/dev/zero").exists():
        assert "pipe or a device" in refused(chat, person, "/load /dev/zero").message


# -- messages of several lines -------------------------------------------------------------


def reader(*lines: str) -> tuple[Callable[[bool], str], list[bool]]:
    """A read_line over lines, and what it was told at each."""
    rest: Iterator[str] = iter(lines)
    told: list[bool] = []

    def read_line(continued: bool) -> str:
        told.append(continued)
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    return read_line, told


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["text"], "text"),
        ([""], ""),
        (["  text  "], "  text  "),
        (['say """ twice """'], 'say """ twice """'),
        (['"""text"""'], "text"),
        (['  """ text """  '], " text "),
        (['""""""'], ""),
        (['"""', "one", "", "two", '"""'], "one\n\ntwo"),
        (['"""one', '  two"""'], "one\n  two"),
        (['"""', "", "one", "", '"""'], "one"),
        (['"""', '"one"', '"""'], '"one"'),
        (['"""/clear', "that", '"""'], "//clear\nthat"),  # a message: see the next test
        (['"""', "//", '"""'], "///"),
        (['"""', "one\\", '"""'], "one\\"),
        (['"""one"'], 'one"'),
        (['"""', "one"], "one"),
        (['"""'], ""),
        (["one\\", "two\\", "three"], "one\ntwo\nthree"),
        (["one\\", "", "two"], "one\n"),
        (["one\\", '"""'], 'one\n"""'),
        (["one\\\\", "two"], "one\\\ntwo"),
        (["one\\"], "one"),
        (["one\\", "two\\"], "one\ntwo"),
        # Pasted: several lines at once, or one with its end.
        (["one\n\n  two\n"], "one\n\n  two"),
        (["one\n"], "one"),
        (["/stats\n"], "/stats"),
        (["one\ntwo\\"], "one\ntwo\\"),
        (["one\\", "two\nthree"], "one\ntwo\nthree"),
        (["/* C */\nint i;"], "//* C */\nint i;"),
        (["// C++\nint i;"], "/// C++\nint i;"),
        (["/system You\nare brief"], "/system You\nare brief"),
        (["/system\nYou\nare brief"], "/system\nYou\nare brief"),
        (['"""A docstring."""\n\nimport x'], '"""A docstring."""\n\nimport x'),
        (['"""\none\ntwo\n"""\n'], "one\ntwo"),
        (['"""', 'one\ntwo\n"""'], "one\ntwo"),
    ],
)
def test_messages_from_lines(lines: list[str], message: str) -> None:
    read_line, told = reader(*lines)
    assert read_message(read_line) == message
    assert told[0] is False and all(told[1:])


@pytest.mark.parametrize(
    ("lines", "content"),
    [
        (["//usr/bin is full"], "/usr/bin is full"),
        (['"""/usr/bin', 'is full"""'], "/usr/bin\nis full"),
        (['"""//"""'], "//"),
        ([" /clear"], " /clear"),
        (["/* C */\nint i;"], "/* C */\nint i;"),
        (["// C++\nint i;"], "// C++\nint i;"),
    ],
)
def test_messages_that_begin_with_a_slash(lines: list[str], content: str) -> None:
    chat, person, _ = made(read_message(reader(*lines)[0]))
    run(chat)
    assert not person.problems and said_turns(chat)[0] == ("user", content)


def test_a_pasted_command_takes_all_lines() -> None:
    chat, _, _ = made()
    for pasted in ("/system You\nare brief\n", "/system\nYou\nare brief"):
        chat.system = None
        handle(chat, read_message(reader(pasted)[0]))
        assert chat.system == "You\nare brief"


def test_the_end_of_input_before_a_message() -> None:
    with pytest.raises(EOFError):
        read_message(reader()[0])


@pytest.mark.parametrize(
    ("first", "then"), [("x" * 11, ""), ('"""', "y"), ("a\\", "a\\"), ('"""x', "")]
)
def test_a_message_without_end_is_refused(
    first: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.chat.input_loop.MAX_CHARACTERS", 10)
    with pytest.raises(FileProblem, match="more than 10 characters"):
        read_message(lambda continued: then if continued else first)
    assert read_message(lambda continued: "x" * 10) == "x" * 10


def test_the_next_message_begins_behind_the_last() -> None:
    read_line, _ = reader('"""', "one", '"""', "two\\", "three", '"""four"""', "five")
    messages = ["one", "two\nthree", "four", "five"]
    assert [read_message(read_line) for _ in messages] == messages


@given(st.text('"\\ab \n\u00e9\u3042').filter(lambda text: '"""' not in text), st.booleans())
def test_any_text_without_triple_quotes_survives_a_block(text: str, inline: bool) -> None:
    text = text.strip("\n")
    if inline and text.endswith('"'):
        text += "."  # the block would end a quote too early
    lines = f'"""{text}"""' if inline else f'"""\n{text}\n"""'
    read_line, _ = reader(*lines.split("\n"), "next")
    assert read_message(read_line) == text
    assert read_line(False) == "next"
