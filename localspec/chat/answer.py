"""An answer as it comes: pieces of text with their origin, rounds, and the whole of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from localspec.chat.stats import GenerationStats
from localspec.chat.tools.tool import ToolCall
from localspec.core.errors import LocalspecError
from localspec.speculative.loop import DraftStatus, FinishReason

if TYPE_CHECKING:  # `--help` imports this file, and need not wait for numpy
    from localspec.speculative.sampling.logprobs import TokenLogprob

Origin = Literal["draft", "lookup", "history", "forced", "corrected", "plain"]


class TextPart(NamedTuple):
    """Text of one token, and where the token came from.

    "draft", "lookup", "history" and "forced": drafted by the draft model, by prompt lookup, out of
    an earlier answer or as the only token that a grammar allows, and accepted; "corrected": the
    target's own, where a drafted token was rejected; "plain": the target's own, where nothing was
    drafted. Text that was held back belongs to the token that released it.
    """

    text: str
    origin: Origin
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Text and tokens of one round, the figures so far, draft length and controller status.

    ``held`` is text that is not in any ``parts`` yet, because it may begin a stop string or a
    character of several tokens: what an answer that ends here has still to show. ``logprobs``,
    where they were asked for, has one entry for each of ``tokens``; ``tool_calls`` are those that
    the round completed.
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

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The answer's part of the round's text."""
        return "".join([part.text for part in self.parts if not part.reasoning])

    @property
    def reasoning(self) -> str:
        """What the model thinks before it answers: the other part."""
        return "".join([part.text for part in self.parts if part.reasoning])


@dataclass(slots=True)
class Answer:
    """A stream put together; ``finish_reason`` is "cancelled" when Ctrl-C ended it.

    ``status`` says why nothing was drafted in the end, if that was so; ``reasoning`` are the
    model's thoughts before it answered, ``tool_calls`` its calls of tools.
    """

    text: str
    tokens: list[int]
    stats: GenerationStats
    finish_reason: FinishReason | Literal["cancelled"]
    status: DraftStatus = DraftStatus.DRAFTING
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, object]:
        """Plain data: seconds end in ``_s``, tokens per second in ``_tps``."""
        stats = self.stats
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "tokens": stats.tokens,
            "token_ids": self.tokens,
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


def collect(
    pieces: Iterator[Piece],
    on_piece: Callable[[Piece], None] = lambda piece: None,
) -> Answer:
    """Put a stream together, passing each piece on; Ctrl-C keeps what was said.

    After Ctrl-C or an error, text that was held back is passed on in a last piece, which has no
    tokens.
    """
    answer, parts = Answer("", [], GenerationStats(), "cancelled"), list[str]()
    thoughts: list[str] = []
    last: Piece | None = None
    try:
        for piece in pieces:
            last = piece
            parts.append(piece.text)
            thoughts.append(piece.reasoning)
            answer.tokens += piece.tokens
            answer.tool_calls += piece.tool_calls
            answer.stats, answer.status = piece.stats, piece.status
            on_piece(piece)
            if piece.finish_reason is not None:
                answer.finish_reason = piece.finish_reason
    except (KeyboardInterrupt, LocalspecError) as ended:
        if last is not None and last.held:
            rest = replace(last, parts=last.held, tokens=(), held=(), logprobs=(), tool_calls=())
            parts.append(rest.text)
            thoughts.append(rest.reasoning)
            on_piece(rest)
        if isinstance(ended, LocalspecError):
            raise
        answer.finish_reason = "cancelled"
    answer.text, answer.reasoning = "".join(parts), "".join(thoughts)
    return answer
