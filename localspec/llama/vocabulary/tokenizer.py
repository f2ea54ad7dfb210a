"""Text to token ids, on a stack that is large enough for llama.cpp's regular expressions."""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from localspec.core.errors import EngineError, PromptTooLong
from localspec.core.interrupt import held_interrupt

# llama.cpp cuts text into words with std::regex if it has no code of its own for a vocabulary
# (`unicode_regex_split_stl`: deepseek, tekken, gpt-4o, llama4, falcon, bloom and others), and
# libstdc++ recurses once for each character of a match: 330 bytes of stack a character, whichever
# the pattern. A long row of letters, dashes or blanks overflows 8 MiB after about 26,000.
_BYTES_PER_CHARACTER = 1024
SHORT = 4096  # characters that any stack bears
MAX_CHARACTERS = 4 * 2**20

_sizing = threading.Lock()  # the size of new stacks is one figure for all threads


def tokenize(llama: Any, vocab: Any, text: str, *, add_special: bool, special: bool) -> list[int]:
    """Token ids of ``text`` by `llama_tokenize`; control tokens are parsed if ``special``.

    Long text is tokenized in a thread with a stack of its own, which costs 30 microseconds and no
    memory until it is used. Raises EngineError if the system does not provide such a stack.
    """
    data = text.encode("utf-8", "surrogatepass")

    def work() -> list[int]:
        size = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * size)()
            count = llama.llama_tokenize(vocab, data, len(data), buffer, size, add_special, special)
            if count >= 0:
                return list(buffer[:count])
            size = -count

    if len(text) <= SHORT:
        return work()
    return _on_stack(work, len(text) * _BYTES_PER_CHARACTER)


def written_text(write: Callable[[Any, int], int]) -> bytes:
    """The output of a function of llama.cpp, which returns its size, or minus the size it needs."""
    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        count = write(buffer, size)
        if count >= 0:
            return buffer.raw[:count]
        size = -count


def require_text_fits(text: str, n_ctx: int, longest: int) -> None:
    """Raise PromptTooLong for text that a context of ``n_ctx`` tokens cannot hold.

    ``longest`` is the length of the longest token, in bytes or more. Text refused here need not be
    tokenized first.
    """
    most = min(n_ctx * longest, MAX_CHARACTERS)
    if len(text) > most:
        raise PromptTooLong(
            f"The prompt has {len(text):,} characters; no more than {most:,} can fit here, in a "
            f"context of {n_ctx:,} tokens.",
            "Shorten the prompt, or enlarge the context with --ctx-size.",
        )


def _on_stack(work: Callable[[], list[int]], size: int) -> list[int]:
    """The result of ``work``, computed in a thread with a stack of ``size`` bytes."""
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    with held_interrupt():  # the vocabulary must not be freed while the thread reads it
        with _sizing:
            before = threading.stack_size(size)
            try:
                thread.start()
            except RuntimeError as error:
                raise EngineError(
                    f"There is no room for a stack of {size // 10**6} MB, which tokenizing so long "
                    "a text may take.",
                    "Shorten the prompt, or raise the limit of virtual memory (ulimit -v).",
                ) from error
            finally:
                threading.stack_size(before)
        thread.join()
    return found[0]
