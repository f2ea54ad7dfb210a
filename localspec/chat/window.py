"""The context window: which turns go into the prompt, so that an answer has room."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from localspec.chat.message import Message
from localspec.core.errors import PromptTooLong


def visible(turns: Sequence[Message], oldest: int) -> list[Message]:
    """The turns from index ``oldest`` on, and system messages from before it."""
    system = [turn for turn in turns[:oldest] if turn["role"] == "system"]
    return [*system, *turns[oldest:]]


def fit(
    turns: Sequence[Message],
    oldest: int,
    count: Callable[[int], int],
    n_ctx: int,
    max_tokens: int | None,
) -> int:
    """Index of the first turn in the prompt, ``oldest`` or later, at most the last question.

    ``count`` gives the tokens of the prompt from an index on. An answer gets a quarter of the
    context, or ``max_tokens`` if that is less. Without that room, turns are dropped until half
    of the context is free, so that not every later question rereads the whole prompt (llama.cpp's
    context shift frees half for the same reason). The last exchange stays if it leaves that room.
    """
    room = answer_room(n_ctx, max_tokens)
    questions = [i for i in range(oldest + 1, len(turns)) if turns[i]["role"] == "user"]
    if not questions or count(oldest) <= n_ctx - room:
        return oldest

    def first(most: int) -> int:
        """Index of the first question whose prompt fits the token limit; else of the last one."""
        found = bisect_left(questions, True, key=lambda start: count(start) <= most)
        return questions[min(found, len(questions) - 1)]

    generous = first(n_ctx // 2)
    return generous if generous < questions[-1] else first(n_ctx - room)


def answer_room(n_ctx: int, max_tokens: int | None) -> int:
    """Tokens reserved for an answer."""
    quarter = n_ctx // 4
    return quarter if max_tokens is None or max_tokens < 0 else min(max_tokens, quarter)


def require_prompt_fits(n_prompt: int, n_ctx: int) -> None:
    """Raise PromptTooLong if a context of ``n_ctx`` tokens leaves no room for an answer."""
    if n_prompt == 0:
        raise PromptTooLong("The prompt is empty.", "Give some text to continue.")
    if n_prompt >= n_ctx:
        raise PromptTooLong(
            # Agents know by llama-server's words that the context is full.
            f"The prompt has {n_prompt} tokens, which exceeds the available context size of "
            f"{n_ctx} tokens, answer included.",
            "Shorten the prompt, or enlarge the context with --ctx-size.",
            n_prompt=n_prompt,
            n_ctx=n_ctx,
        )
