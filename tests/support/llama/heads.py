"""Heads on tiny targets: pairs to test, opened and closed together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.llama.heads.head import Head
from localspec.llama.heads.opening import open_head
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.speculative.prefix import common_prefix
from tests.support.real_pair import options

Row = NDArray[np.float32]

# A target and the file of its heads, None for its own: each kind of head, and each kind of memory.
PAIRS = (
    ("glm4moe-mtp", None),
    ("qwen35-mtp", None),
    ("qwen35", "mtp-qwen35"),
    ("step35-mtp3", None),
    ("gemma4", "gemma4-assistant"),
    ("llama", "eagle3"),
    ("llama", "eagle3-reduced"),
    ("llama", "dflash"),
    ("qwen3next", "dflash"),
    ("llama", "dspark"),
    ("llama", "dflash2"),
)


@dataclass(frozen=True)
class HeadPair:
    """A target, and heads that listen to it."""

    target: LlamaModel
    head: Head

    def restart(self) -> None:
        """Let both hold nothing, and the head read prompts, as one that was asked lately."""
        self.target.truncate(0)
        self.head.truncate(0)
        self.head._unasked = 0

    def draft(self, context: Sequence[int], drafted: Sequence[int]) -> list[Row]:
        """The head's logits behind a context, and behind each token that is drafted then.

        The target has read all of the context but its last token.
        """
        context = list(context)
        self.head.truncate(min(common_prefix(self.head.tokens, context), len(context) - 1))
        rows = [self.head.decode(context[len(self.head.tokens) :], 1)[0].copy()]
        return rows + [self.head.decode([token], 1)[0].copy() for token in drafted]


@contextmanager
def head_pair(
    file: Callable[[str], Path], target: str, heads: str | None, **changes: object
) -> Iterator[HeadPair]:
    """Open a pair by the names of its files; without flash attention, and with an F32 cache."""
    changes = {
        "ctx_size": 1024,
        "cache_type_k": "f32",
        "cache_type_v": "f32",
        "flash_attention": "off",
    } | changes
    path = file(target)
    model = LlamaModel(read_header(path), options(path, load_heads=heads is None, **changes))
    try:
        header = None if heads is None else read_header(file(heads))
        own = options(path if heads is None else file(heads), **changes)
        head = open_head(model, header, own)
        try:
            yield HeadPair(model, head)
        finally:
            head.close()
    finally:
        model.close()
