"""--cache-ram: states of earlier conversations in RAM, restored for prompts that begin alike.

As `server_prompt_cache` of llama.cpp's server, for target and draft each.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.core.formatting import size
from localspec.engine.generate import TextEngine
from localspec.llama.cache.cached_text import CachedText
from localspec.llama.cache.copies import ReusableLengths
from localspec.llama.heads.head import Head, HeadState
from localspec.speculative.prefix import common_prefix

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORTH_KEEPING = 64  # tokens: fewer are read again as fast as a state is copied
_COPIED = 16  # tokens whose state is copied, out and in, in the time one is read; a low estimate
_MOST = 2**33  # bytes: llama-server's default
_UNKNOWN = 2**30  # bytes: if the system does not report free memory
_SHARE = 4  # one in so many bytes that are free


def default_limit(free: int | None) -> int:
    """The default bound in bytes, given the RAM that is free next to the models."""
    return _UNKNOWN if free is None else min(_MOST, free // _SHARE)


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A state of one model, the target or the draft (``role``), and the owner of its tokens.

    That of the ``head`` which reads along with the target is kept with it.
    """

    owner: str
    role: str
    tokens: list[int]
    state: "NDArray[np.uint8]"
    reach: ReusableLengths
    doubted: Callable[[], None] | None  # see `CachedText`
    head: HeadState | None

    @property
    def n_bytes(self) -> int:
        """Bytes in RAM, without the tokens."""
        return self.state.nbytes + self.reach.n_bytes + (self.head.n_bytes if self.head else 0)

    def serves(self, tokens: list[int]) -> int:
        """How many of these tokens need not be read after it is restored."""
        return _serves(self.tokens, self.reach, tokens)


class PrefixCache:
    """An LRU cache of states that other prompts would overwrite, up to ``limit_bytes``.

    A state serves its owner alone, and of the owner whose states are largest the least recently
    used one is dropped first. Any number of slots of the same models share it, one at a time.
    ``say`` gets one note about states that are too large.
    """

    def __init__(self, limit_bytes: int, say: Callable[[str], None] | None = None) -> None:
        self._limit = limit_bytes
        self._say = say
        self._states: list[_State] = []  # least recently used first

    @property
    def n_bytes(self) -> int:
        return sum(state.n_bytes for state in self._states)

    def restore_best(self, engine: TextEngine, prompt: list[int], owner: str = "") -> None:
        """Restore the owner's best states for the prompt, and save those that they replace.

        The engine's caches must be the owner's too: see `vacate`. To be called before an answer,
        on the compute thread. Raises EngineError and Cancelled as a pass does: pending tokens
        are read before a state is copied.
        """
        models, head = _restorable(engine, len(prompt)), _head(engine)
        while models:
            self._take_up(models, head, prompt[:-1], owner)  # the last token is always read
            del models[0]

    def vacate(self, engine: TextEngine, owner: str) -> None:
        """Save an engine's caches for their owner, and empty them, for another owner.

        To be called, and raises, as `restore_best`; the caches are empty then too.
        """
        models = _restorable(engine, len(engine.target.tokens))
        try:
            while models:
                if _pays(len(models[0][1].tokens), 0):
                    self._save(models, _head(engine), owner)
                del models[0]
        finally:
            engine.prompt_lookup.update([])
            engine.conversations.clear()
            for model in (engine.draft, engine.target):
                if model is not None:
                    model.truncate(0)

    def _take_up(
        self,
        models: Sequence[tuple[str, CachedText]],
        head: Head | None,
        wanted: list[int],
        owner: str,
    ) -> None:
        """Restore the best state for ``wanted`` in the first of the models."""
        role, model = models[0]
        stays = model.returns_to(common_prefix(model.tokens, wanted))
        best = max(self._of(owner, role), key=lambda state: state.serves(wanted), default=None)
        if best is not None and not _pays(best.serves(wanted) - stays, len(best.tokens)):
            best = None
        if best is not None and model.room_for(len(best.tokens)) < len(best.tokens):
            best = None
        if best is not None:
            self._states.remove(best)
        try:
            if _pays(len(model.tokens) - stays, len(model.tokens)):
                self._save(models, head, owner)
        except BaseException:
            self._add(best)
            raise
        if best is None:
            return
        taken = model.restore(best.tokens, best.state, best.reach.copies)
        if taken and head is not None and best.head is not None:
            head.restore(best.head)
        if taken and best.doubted is not None:
            model.doubt(best.doubted)
        if taken and best.serves(wanted) < len(best.tokens):  # another conversation's too
            self._add(best)

    def _save(
        self, models: Sequence[tuple[str, CachedText]], head: Head | None, owner: str
    ) -> None:
        """Save the first model's state, unless a saved one covers it, or it is too large."""
        sizes = [model.state_bytes() + model.reusable_lengths().n_bytes for _, model in models]
        role, model = models[0]
        sizes[0] += head.state_bytes() if head is not None else 0
        if sum(sizes) > self._limit:
            self._tell(len(model.tokens), sum(sizes))
        if sizes[0] > self._limit:
            return
        reach = model.reusable_lengths()
        for saved in self._of(owner, role):
            if saved.serves(model.tokens) == len(model.tokens):
                self._states.remove(saved)
                self._states.append(saved)
                return
            if _serves(model.tokens, reach, saved.tokens) == len(saved.tokens):
                self._states.remove(saved)  # the new one serves as well
        self._make_room(sizes[0])
        state = model.state()  # this may read pending tokens first
        reach, tokens = model.reusable_lengths(), list(model.tokens)
        known = None if head is None else head.state()
        self._add(_State(owner, role, tokens, state, reach, model.doubted, known))

    def _tell(self, tokens: int, n_bytes: int) -> None:
        """Note once that a conversation is larger than the limit."""
        if self._say is None:
            return
        say, self._say = self._say, None
        say(
            f"A conversation of {tokens:,} tokens takes {size(n_bytes)} of memory, which exceeds "
            f"--cache-ram {self._limit >> 20}: when it is continued after another one, its prompt "
            f"is read again. To avoid this, restart with --cache-ram {-(-n_bytes >> 20)} or more, "
            "a smaller --ctx-size, or smaller cache types (--cache-type-k, --cache-type-v)."
        )

    def _add(self, state: _State | None) -> None:
        if state is not None:
            self._states.append(state)
            self._make_room(0)

    def _make_room(self, n_bytes: int) -> None:
        """Drop states of the owner who has most: no owner can push out another's."""
        while self._states and self.n_bytes + n_bytes > self._limit:
            held = Counter[str]()
            for state in self._states:
                held[state.owner] += state.n_bytes
            largest = held.most_common(1)[0][0]
            self._states.remove(next(each for each in self._states if each.owner == largest))

    def _of(self, owner: str, role: str) -> list[_State]:
        return [each for each in self._states if (each.owner, each.role) == (owner, role)]


def _restorable(engine: TextEngine, length: int) -> list[tuple[str, CachedText]]:
    """The models whose states are kept, with their roles, for a text of this length."""
    found = list[tuple[str, CachedText]]()
    for role, model in (("target", engine.target), ("draft", engine.draft)):
        # A draft whose context is shorter sees a window of the prompt, and no prefix.
        if isinstance(model, CachedText) and length <= model.n_ctx:
            found.append((role, model))
    return found


def _head(engine: TextEngine) -> Head | None:
    """The head whose state is kept with the target's: one with a cache of its own."""
    draft = engine.draft
    return draft if isinstance(draft, Head) and draft.has_cache else None


def _serves(held: list[int], reach: ReusableLengths, wanted: list[int]) -> int:
    """How many tokens need not be read after a state of ``held`` tokens is restored."""
    return reach.last(common_prefix(held, wanted))


def _pays(tokens: int, copied: int) -> bool:
    """Whether reading ``tokens`` takes longer than copying a state of ``copied``."""
    return tokens >= max(WORTH_KEEPING, copied // _COPIED)
