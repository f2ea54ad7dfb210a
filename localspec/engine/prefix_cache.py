"""States of earlier conversations in host memory, taken up where a prompt begins as one did.

As `server_prompt_cache` of llama.cpp's server (`--cache-ram`), for target and draft each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from localspec.core.formatting import size
from localspec.engine.generate import TextEngine
from localspec.llama.cache.copies import Copy, ReusableLengths
from localspec.speculative.prefix import common_prefix

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORTH_KEEPING = 64  # tokens: fewer are read again as soon as a state is copied
# Tokens whose state is copied, out and in, in the time one is read, or fewer. An 8B model has
# 128 KiB for each, 0.1 ms at a few GB/s; a GPU reads one in a fraction of a millisecond, a CPU in
# ten. Of the bundled target, which reads at 2,000 a second on one core, 68 are copied.
_COPIED = 16
_MOST = 2**33  # bytes: llama-server's default
_UNKNOWN = 2**30  # bytes: where the system does not say what is free
_SHARE = 4  # one in so many bytes that are free


def default_limit(free: int | None) -> int:
    """The bytes that a `PrefixCache` may take of the RAM that is free beside the models."""
    return _UNKNOWN if free is None else min(_MOST, free // _SHARE)


@runtime_checkable
class Restorable(Protocol):
    """A TokenModel that can leave what it read, and return to it: no head; see `LlamaModel`."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def tokens(self) -> list[int]: ...

    def returns_to(self, length: int) -> int:
        """How many tokens need not be read again, at least, after `keep` with this length."""

    def reusable_lengths(self) -> ReusableLengths:
        """To which lengths a copy of its `state` can return."""

    def state_bytes(self) -> int:
        """How large `state` is."""

    def state(self) -> "NDArray[np.uint8]":
        """The state of all its tokens."""

    def restore(
        self, tokens: Sequence[int], state: "NDArray[np.uint8]", copies: Sequence[Copy]
    ) -> bool:
        """Hold ``tokens`` again, or nothing: whether it does."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """What one of the models of a pair, its ``role``, had read."""

    role: str
    tokens: list[int]
    state: "NDArray[np.uint8]"
    reach: ReusableLengths

    @property
    def n_bytes(self) -> int:
        """Of host memory, but for the tokens."""
        return self.state.nbytes + self.reach.n_bytes

    def serves(self, tokens: list[int]) -> int:
        """How many of these tokens need not be read with it."""
        return _serves(self.tokens, self.reach, tokens)


class PrefixCache:
    """Keeps the states that answers to other prompts would overwrite, up to ``limit_bytes``.

    What a model holds stays the first choice. The states used longest ago are dropped first; while
    two are exchanged, the one that is taken up is no longer counted. Serves any number of slots of
    the same models, one at a time. ``say`` hears once of states that are too large to be kept.
    """

    def __init__(self, limit_bytes: int, say: Callable[[str], None] | None = None) -> None:
        self._limit = limit_bytes
        self._say = say
        self._kept: list[_Kept] = []  # the one that was used longest ago comes first

    @property
    def n_bytes(self) -> int:
        """Of all states that are kept."""
        return sum(kept.n_bytes for kept in self._kept)

    @property
    def n_states(self) -> int:
        """Of target and draft, each counted."""
        return len(self._kept)

    def take_up(self, engine: TextEngine, prompt: list[int]) -> None:
        """Let the models hold as much of the prompt as is known, and keep what they held instead.

        To be called before an answer, in the thread of the slot. Raises EngineError and Cancelled
        as a pass does: a state may have to be read again before it can be kept.
        """
        models = list[tuple[str, Restorable]]()
        for role, model in (("target", engine.target), ("draft", engine.draft)):
            # A draft whose context is shorter sees a window of the prompt, and no prefix.
            if isinstance(model, Restorable) and len(prompt) <= model.n_ctx:
                models.append((role, model))
        while models:
            self._take_up(models, prompt[:-1])  # the last token is always read
            del models[0]

    def _take_up(self, models: Sequence[tuple[str, Restorable]], wanted: list[int]) -> None:
        """Let the first of the models hold what is known of ``wanted``."""
        role, model = models[0]
        stays = model.returns_to(common_prefix(model.tokens, wanted))
        best = max(self._of(role), key=lambda kept: kept.serves(wanted), default=None)
        if best is not None and not _pays(best.serves(wanted) - stays, len(best.tokens)):
            best = None
        if best is not None:
            self._kept.remove(best)
        try:
            if _pays(len(model.tokens) - stays, len(model.tokens)):
                self._keep(models)
        except BaseException:
            self._add(best)
            raise
        if best is None:
            return
        taken = model.restore(best.tokens, best.state, best.reach.copies)
        if taken and best.serves(wanted) < len(best.tokens):  # another conversation's too
            self._add(best)

    def _keep(self, models: Sequence[tuple[str, Restorable]]) -> None:
        """Copy what the first of the models holds, unless that is kept already, or too large."""
        sizes = [model.state_bytes() + model.reusable_lengths().n_bytes for _, model in models]
        role, model = models[0]
        if sum(sizes) > self._limit:
            self._tell(len(model.tokens), sum(sizes))
        if sizes[0] > self._limit:
            return
        reach = model.reusable_lengths()
        for kept in self._of(role):
            if kept.serves(model.tokens) == len(model.tokens):
                self._kept.remove(kept)
                self._kept.append(kept)
                return
            if _serves(model.tokens, reach, kept.tokens) == len(kept.tokens):
                self._kept.remove(kept)  # the new one serves as well
        self._make_room(sizes[0])
        state = model.state()  # which may read tokens that a rollback left to be read again
        self._add(_Kept(role, list(model.tokens), state, model.reusable_lengths()))

    def _tell(self, tokens: int, n_bytes: int) -> None:
        """Say once that a conversation is larger than the limit."""
        if self._say is None:
            return
        say, self._say = self._say, None
        say(
            f"A conversation of {tokens:,} tokens takes {size(n_bytes)} of memory, which exceeds "
            f"--cache-ram {self._limit >> 20}: when it is continued after another one, its prompt "
            f"is read again. To avoid this, restart with --cache-ram {-(-n_bytes >> 20)} or more, "
            "a smaller --ctx-size, or smaller cache types (--cache-type-k, --cache-type-v)."
        )

    def _add(self, kept: _Kept | None) -> None:
        if kept is not None:
            self._kept.append(kept)
            self._make_room(0)

    def _make_room(self, n_bytes: int) -> None:
        while self._kept and self.n_bytes + n_bytes > self._limit:
            del self._kept[0]

    def _of(self, role: str) -> list[_Kept]:
        return [kept for kept in self._kept if kept.role == role]


def _serves(held: list[int], reach: ReusableLengths, wanted: list[int]) -> int:
    """How many tokens need not be read where a state of ``held`` can return to ``reach``."""
    return reach.last(common_prefix(held, wanted))


def _pays(tokens: int, copied: int) -> bool:
    """Whether reading so many tokens takes longer than copying a state of ``copied``."""
    return tokens >= max(WORTH_KEEPING, copied // _COPIED)
