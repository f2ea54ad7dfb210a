"""The figures of an answer: the live meter, the last line, the comparison with plain decoding."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from localspec.chat.stats import GenerationStats
from localspec.core.formatting import number, percent
from localspec.display.console import make_console, note
from localspec.speculative.loop import DraftStatus

if TYPE_CHECKING:
    from localspec.chat.answer import Answer

_STATUS_WORDS = {
    DraftStatus.DRAFTING: "",
    DraftStatus.OFF: "",  # as requested: nothing to explain
    DraftStatus.RECENTLY_SLOWER: "recently slower than plain",
    DraftStatus.VERIFICATION_TOO_SLOW: "verification too slow here",
    DraftStatus.DRAFT_TOO_OFTEN_WRONG: "draft too often wrong",
    DraftStatus.ANSWER_TOO_SHORT: "answer too short for its prompt",
}
_STOPPED = {
    "context": "stopped at the end of the context (--ctx-size)",
    "length": "stopped at --max-tokens",
}


def figures(
    stats: GenerationStats,
    finish_reason: str,
    seed: int | None,
    status: DraftStatus = DraftStatus.DRAFTING,
    filled: float | None = None,
) -> None:
    """The last line of an answer, on stderr; ``status`` is that of its end.

    ``filled`` is the share of the context that prompt and answer take.
    """
    if stats.rounds == 0 and finish_reason == "cancelled":
        note("cancelled while reading the prompt")
        return
    parts = [*_generated(stats, status), _prompt(stats)]
    if stats.ttft_s is not None:
        parts.append(f"TTFT {stats.ttft_s:.2f} s")
    if seed is not None:
        parts.append(f"seed {seed}")
    if filled is not None:
        parts.append(f"context {percent(filled)}")
    if finish_reason != "stop":
        parts.append(_STOPPED.get(finish_reason, finish_reason))
    make_console(stderr=True).print(" · ".join(parts), style="dim", markup=False)


def _generated(stats: GenerationStats, status: DraftStatus) -> Iterator[str]:
    yield f"{stats.tokens} tokens"
    yield f"{number(stats.generation_tps)} tok/s"
    if stats.drafted:
        rate = percent(stats.acceptance_rate)
        yield f"acceptance {rate} ({stats.accepted} of {stats.drafted} drafted)"
        yield f"{number(stats.mean_accepted_length, 2)} tokens/round"
    if reason := status_words(status):
        yield f"draft off ({reason})"
    if stats.estimated_speedup is not None:
        yield f"about {stats.estimated_speedup:.2f}x plain"


def _prompt(stats: GenerationStats) -> str:
    speed = "" if stats.prompt_tps is None else f" at {number(stats.prompt_tps)} tok/s"
    cached = f", {stats.cached_tokens} cached" if stats.cached_tokens else ""
    return f"prompt {stats.prompt_tokens} tokens{speed}{cached}"


def only_thoughts(answer: "Answer") -> None:
    """A note where the model ended inside its thoughts, without an answer."""
    if not answer.reasoning or answer.text.strip() or answer.finish_reason == "cancelled":
        return
    cut = answer.finish_reason in ("length", "context")
    note(
        "The model was still thinking: there is no answer. Allow more with --max-tokens or "
        "--ctx-size, or less thinking with --no-think or --reasoning-effort, which some templates "
        "read."
        if cut
        else "The model ended inside its thoughts: there is no answer."
    )


def compared(answer: "Answer", plain: "Answer", seed_decides: bool = True) -> None:
    """The measured speed-up over plain decoding of the same prompt, on stderr."""
    ours, theirs = answer.stats, plain.stats
    if not (ours.tokens and theirs.tokens):
        return
    seconds = ours.seconds + ours.draft_prompt_seconds
    gain = (theirs.seconds / theirs.tokens) / (seconds / ours.tokens) if seconds else 0.0
    text = (
        "the same text" if answer.tokens == plain.tokens
        else "another text; localspec bench finds out why" if seed_decides
        else "another text, as rejection draws"
    )  # fmt: skip
    note(f"Without drafting {number(theirs.generation_tps)} tok/s: {gain:.2f}x, {text}.")


def status_words(status: DraftStatus) -> str:
    """Why drafting is off, in a few words; empty where there is nothing to explain."""
    return _STATUS_WORDS[status]


def meter(
    stats: GenerationStats,
    draft_tokens: int,
    width: int,
    status: DraftStatus = DraftStatus.DRAFTING,
) -> str:
    """The figures so far, on one line; shorter where they do not fit into ``width`` columns."""
    speed = f"{number(stats.generation_tps)} tok/s"
    draft = f"draft {draft_tokens or 'off'}"
    if reason := status_words(status):
        draft += f" ({reason})"
    if not stats.drafted:
        return f"{speed} · {draft}"
    rate, length = percent(stats.acceptance_rate), number(stats.mean_accepted_length, 2)
    full = f"{speed} · acceptance {rate} · {length} tokens/round · {draft}"
    return full if len(full) <= width else f"{speed} {rate} {length}/round {draft}"
