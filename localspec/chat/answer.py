"""An answer as it comes: pieces of text with their origin, rounds, and the whole of them."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from localspec.core.errors import LocalspecError
from localspec.chat.tools.tool import ToolCall
from localspec.chat.stats import GenerationStats
from localspec.speculative.loop import DraftStatus, FinishReason

if TYPE_CHECKING:  # `--help` imports this file, and need not wait for numpy
    from localspec.speculative.sampling.logprobs import TokenLogprob

Origin = Literal["draft", "suffix", "history", "forced", "corrected", "plain"]


class TextPiece(NamedTuple):
    """Text of one token, and where the token came from.

    "draft", "suffix", "history" and "forced": drafted by the draft model, by prompt lookup, out of
    an earlier answer or as the only token that a grammar allows, and accepted; "corrected": the
    target's own, where a drafted token was rejected; "plain": the target's own, where nothing was
    drafted. Text that was held back belongs to the token that released it.
    """

    text: str
    origin: Origin
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class GenerationResponse:
    """Text and tokens of one round, the figures so far, draft length and controller status.

    ``stats`` is live: the same object in every response of a stream. ``held`` is text that is not
    in any ``pieces`` yet, because it may begin a stop string or a character of several tokens: what
    an answer that ends here has still to show. ``logprobs``, where they were asked for, has one
    entry for each of ``tokens``; ``tool_calls`` are those that the round completed.
    """

    pieces: tuple[TextPiece, ...]
    tokens: tuple[int, ...]
    stats: GenerationStats
    finish_reason: FinishReason | None
    draft_tokens: int
    status: DraftStatus = DraftStatus.DRAFTING
    held: tuple[TextPiece, ...] = ()
    logprobs: tuple["TokenLogprob", ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def text(self) -> str:
        """The answer's part of the round's text."""
        return "".join([piece.text for piece in self.pieces if not piece.reasoning])

    @property
    def reasoning(self) -> str:
        """What the model thinks before it answers: the other part."""
        return "".join([piece.text for piece in self.pieces if piece.reasoning])


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
            "sources": {name: asdict(source) for name, source in stats.sources.items()},
            "estimated_speedup": stats.estimated_speedup,
            "rounds": stats.rounds,
            "draft_s": stats.draft_seconds,
            "verify_s": stats.verify_seconds,
        }


def collect(
    responses: Iterator[GenerationResponse],
    on_response: Callable[[GenerationResponse], None] = lambda response: None,
) -> Answer:
    """Put a stream together, passing each response on; Ctrl-C keeps what was said.

    After Ctrl-C or an error, text that was held back is passed on in a last response, which has no
    tokens.
    """
    answer, parts = Answer("", [], GenerationStats(), "cancelled"), list[str]()
    thoughts: list[str] = []
    last: GenerationResponse | None = None
    try:
        for response in responses:
            last = response
            parts.append(response.text)
            thoughts.append(response.reasoning)
            answer.tokens += response.tokens
            answer.tool_calls += response.tool_calls
            answer.stats, answer.status = response.stats, response.status
            on_response(response)
            if response.finish_reason is not None:
                answer.finish_reason = response.finish_reason
    except (KeyboardInterrupt, LocalspecError) as ended:
        if last is not None and last.held:
            rest = replace(last, pieces=last.held, tokens=(), held=(), logprobs=(), tool_calls=())
            parts.append(rest.text)
            thoughts.append(rest.reasoning)
            on_response(rest)
        if isinstance(ended, LocalspecError):
            raise
        answer.finish_reason = "cancelled"
    answer.text, answer.reasoning = "".join(parts), "".join(thoughts)
    return answer
