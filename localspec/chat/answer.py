"""An answer: the pieces of its stream, all of them collected, and two answers compared."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from localspec.chat.stats import GenerationStats
from localspec.chat.tools.tool import ToolCall, ToolCallDelta
from localspec.core.errors import LocalspecError
from localspec.core.formatting import one_line
from localspec.core.options.generate_options import GenerateOptions
from localspec.speculative.loop import DraftStatus, FinishReason
from localspec.speculative.prefix import common_prefix

if TYPE_CHECKING:  # `--help` imports this file, and need not wait for numpy
    from localspec.speculative.sampling.logprobs import TokenLogprob

_NEAR = 1.0  # logits: rows of passes of other widths differ by less; 0.46 was the most seen
_LONGEST = 20  # characters of a word that is shown


class TextPart(NamedTuple):
    """Text of one token, and where the token came from: a name of `core.origins.ORIGINS`.

    Text that was held back belongs to the token that released it; ``place`` is the index of the
    token in its round.
    """

    text: str
    origin: str
    reasoning: bool = False
    place: int = 0


class Progress(NamedTuple):
    """How many tokens of a prompt are read, ``cached`` of them without a pass, in how long."""

    total: int
    cached: int
    read: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds for the rest of the prompt; None before the first pass."""
        new = self.read - self.cached
        return self.seconds / new * (self.total - self.read) if new > 0 else None


@dataclass(frozen=True, slots=True)
class Piece:
    """Text and tokens of one round, the figures so far, draft length and controller status.

    ``held`` is text that is held back because it may begin a stop string or a character of several
    tokens; if the answer ends here, it follows. ``logprobs``, if requested, has one entry for each
    of ``tokens``; ``tool_calls`` are those that the round completed, and ``tool_deltas`` the parts
    of calls that it brought, in their order. ``stop_text`` is the stop string that ended the
    answer, of the request or of the chat template. With ``logprobs``, ``rejected`` is the text that
    the draft proposed in place of the last token, if that is another. A piece with ``progress``
    precedes those of the answer: so far the prompt is read.
    """

    parts: tuple[TextPart, ...]
    tokens: tuple[int, ...]
    stats: GenerationStats
    finish_reason: FinishReason | None
    draft_tokens: int
    status: DraftStatus = DraftStatus.DRAFTING
    held: tuple[TextPart, ...] = ()
    logprobs: tuple["TokenLogprob", ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_deltas: tuple[ToolCallDelta, ...] = ()
    stop_text: str | None = None
    progress: "Progress | None" = None
    rejected: str = ""

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The text of the answer in this round."""
        return "".join([part.text for part in self.parts if not part.reasoning])

    @property
    def reasoning(self) -> str:
        """The text of the reasoning in this round."""
        return "".join([part.text for part in self.parts if part.reasoning])


@dataclass(slots=True)
class Answer:
    """A collected stream.

    ``finish_reason`` is "stop" at the end of the answer, "tool_calls" if it ends with calls,
    "length" at ``max_tokens``, "context" at the end of the context, "cancelled" after Ctrl-C.
    ``status`` is the reason if nothing was drafted at the end; ``reasoning`` precedes the answer.
    ``logprobs``, if requested, has one entry for each of ``tokens``. ``seed`` gives
    this text again.
    """

    text: str
    tokens: list[int]
    stats: GenerationStats
    finish_reason: FinishReason | Literal["tool_calls", "cancelled"]
    status: DraftStatus = DraftStatus.DRAFTING
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    logprobs: list["TokenLogprob"] = field(default_factory=list)
    seed: int | None = None

    def __repr__(self) -> str:
        shown = f"{self.text[:60]}{'…' * (len(self.text) > 60)}"
        return f"<Answer {shown!r}, {len(self.tokens)} tokens, {self.finish_reason}>"

    if not TYPE_CHECKING:  # names of other libraries

        def __getattr__(self, name: str) -> object:
            from localspec.core.options.names import member_here

            raise AttributeError(f"An Answer has no {name}. {member_here(name)}")

    def __str__(self) -> str:
        return self.text

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message in OpenAI's form, with its tool calls: the next prompt has it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.as_json() for call in self.tool_calls]
        return message

    def as_json(self) -> dict[str, object]:
        """Plain data: seconds end in ``_s``, tokens per second in ``_tps``."""
        stats = self.stats
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "tool_calls": [call.as_json() for call in self.tool_calls],
            "tokens": stats.tokens,
            "token_ids": self.tokens,
            "logprobs": [asdict(entry) for entry in self.logprobs],
            "finish_reason": self.finish_reason,
            "status": self.status.value,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "prompt_tps": stats.prompt_tps,
            "generation_tps": stats.generation_tps,
            "ttft_s": stats.ttft_s,
            "slowest_round_s": stats.slowest_round,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "branched": stats.branched,
            "acceptance_rate": stats.acceptance_rate,
            "mean_accepted_length": stats.mean_accepted_length,
            "accepted_at": stats.accepted_at,
            "sources": {name: source._asdict() for name, source in stats.sources.items()},
            "estimated_speedup": stats.estimated_speedup,
            "rounds": stats.rounds,
            "draft_s": stats.draft_seconds,
            "verify_s": stats.verify_seconds,
        }


def called_or(
    reason: FinishReason, calls: Sequence[ToolCall]
) -> FinishReason | Literal["tool_calls"]:
    """Why an answer with these calls ended: with a call, rather than by itself."""
    return "tool_calls" if reason == "stop" and calls else reason


class Collector:
    """An answer as far as its pieces have come: `add` takes each, ``answer`` has all of them."""

    def __init__(self) -> None:
        self._answer = Answer("", [], GenerationStats(), "cancelled")
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self.last: Piece | None = None

    def add(self, piece: Piece) -> None:
        if piece.progress is not None:
            return
        answer, self.last = self._answer, piece
        self._texts.append(piece.text)
        self._thoughts.append(piece.reasoning)
        answer.tokens += piece.tokens
        answer.tool_calls += piece.tool_calls
        answer.logprobs += piece.logprobs
        answer.stats, answer.status = piece.stats, piece.status
        if piece.finish_reason is not None:
            answer.finish_reason = called_or(piece.finish_reason, answer.tool_calls)

    def take_held(self) -> Piece | None:
        """Take the text that the last piece held back, as a piece without tokens; None for none."""
        last = self.last
        if last is None or not last.held:
            return None
        rest = replace(last, parts=last.held, tokens=(), held=(), logprobs=())
        rest = replace(rest, tool_calls=(), tool_deltas=(), finish_reason=None)
        self.add(rest)
        return rest

    @property
    def answer(self) -> Answer:
        """The answer so far; its ``finish_reason`` is "cancelled" until the last piece."""
        self._answer.text, self._answer.reasoning = "".join(self._texts), "".join(self._thoughts)
        return self._answer


def collect(
    pieces: Iterator[Piece], on_piece: Callable[[Piece], None] = lambda piece: None
) -> Answer:
    """Collect a stream, passing each piece on; Ctrl-C ends and closes it, and the part is returned.

    After Ctrl-C or an error, held text is passed on in a last piece without tokens.
    """
    collector = Collector()
    try:
        for piece in pieces:
            collector.add(piece)
            on_piece(piece)
    except (KeyboardInterrupt, LocalspecError) as ended:
        getattr(pieces, "close", lambda: None)()  # as generators and streams have it
        if (rest := collector.take_held()) is not None:
            on_piece(rest)
        if isinstance(ended, LocalspecError):
            raise
        collector.answer.finish_reason = "cancelled"
    return collector.answer


Stream = Callable[[Sequence[int], GenerateOptions], Iterator[Piece]]


def agreement(
    stream: Stream, prompt: Sequence[int], options: GenerateOptions, drafted: Answer, plain: Answer
) -> str:
    """A clause on both texts; ``stream`` decodes once more to measure how near a tie was."""
    if drafted.tokens == plain.tokens:
        return "the same text"
    if not options.sampling.text_independent_of_draft:
        return "another text, as rejection draws"
    other, words = (f"{each.reasoning} {each.text}".split() for each in (drafted, plain))
    same = common_prefix(other, words)
    found = " for ".join(_quoted(each[same : same + 1]) for each in (other, words))
    context = [*prompt, *plain.tokens[: common_prefix(drafted.tokens, plain.tokens)]]
    return f"another text from word {same + 1} on, {found}: {_reason(stream, context, options)}"


def _quoted(words: list[str]) -> str:
    return f'"{one_line(words[0])[:_LONGEST]}"' if words else "its end"


def _reason(stream: Stream, context: list[int], options: GenerateOptions) -> str:
    """Why the token after ``context`` differs; the noise of sampling is not known here."""
    if not options.sampling.greedy:
        return "probably a near tie, which --exact prevents"
    once = replace(options, draft_tokens=0, max_tokens=1, logprobs=2)
    for each in collect(stream(context, once)).logprobs:
        apart = each.top[0][1] - each.top[1][1]
        if apart > _NEAR:
            return f"no near tie ({apart:.2g} logits apart); localspec bench finds out why"
        return f"a near tie ({apart:.2g} logits apart), which --exact prevents"
    return "probably a near tie, which --exact prevents"  # the text ends there
