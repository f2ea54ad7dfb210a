"""Continuous batching: one pass for the slots that wait for one.

The answer of a slot is ordinary code in a greenlet, a coroutine that may switch in the middle of a
call. It switches to the session's loop if it needs a pass of a shared context, and continues with
the logits. All of them run on one thread, so shared data need no locks.
"""

import time
from collections.abc import Sequence

from greenlet import getcurrent, greenlet

from localspec.core.interrupt import held_interrupt
from localspec.engine.session.llama_context import BatchEntry, PassContext
from localspec.speculative.loop import ALONE, BatchShare, Clock, Logits

WIDE = 128  # tokens of a pass that reads a prompt while others wait for it
_LEAST = 32  # prompt tokens with rounds, however wide these are, where the time allows them
_GAP = 0.45  # seconds between two rounds of an answer while prompts are read: more is a pause


class SlotTask(greenlet):
    """A computation in a slot that switches to its parent, the loop, to wait.

    It switches with the `SequenceHandle` that waits for a pass, or with None to let the loop run
    others.
    """

    def wait(self, handle: "SequenceHandle | None" = None) -> None:
        """Switch to the loop, within the task, until the pass is made or others had a turn."""
        assert self.parent is not None
        self.parent.switch(handle)


def pause() -> None:
    """Let the loop run others, if a `SlotTask` calls this."""
    current = getcurrent()
    if isinstance(current, SlotTask):
        current.wait()


class SequenceHandle:
    """A slot's place in the batches; ``batch_share`` says how its last pass was batched."""

    def __init__(self, batcher: "Batcher") -> None:
        self._batcher = batcher
        self.batch_share = ALONE
        self.entry: BatchEntry  # to be read; while it waits for a pass
        self.found: Logits | Exception | None = None
        self.spent = 0.0  # seconds of the pass that are this slot's own

    def read(self, entry: BatchEntry) -> tuple[int, Logits]:
        """How many tokens of an entry one pass has read, and their logits.

        A prompt may be read in parts, without logits then. Outside a `SlotTask` nothing shares the
        pass. Raises the errors of the pass.
        """
        began = self._batcher.clock()
        prompts = self.batch_share.prompts - self._batcher.prompt_seconds
        self.entry, self.found = entry, None
        current = getcurrent()
        if isinstance(current, SlotTask):
            current.wait(self)
        else:
            self._batcher.make_pass([self], 1)
        waited = self.batch_share.waited + self._batcher.clock() - began - self.spent
        prompts += self._batcher.prompt_seconds - self.spent * self.entry.is_prompt
        self.batch_share = self.batch_share._replace(waited=waited, prompts=prompts)
        found = self.found
        assert found is not None
        if isinstance(found, Exception):
            raise found
        return len(self.entry.tokens), found


class Batcher:
    """Makes passes for waiting slots, as many in one as fit.

    Rounds come first on ``contexts[0]``, the draft's if there is one, so that all draft in step,
    then on the target's. Prompts are read in the same passes, a chunk in each; if they cannot
    be, as on the draft's context while no slot drafts, they take turns with rounds.

    A chunk is as wide as the time between two rounds of the target allows, by what a token took in
    the last such pass: `_GAP`, or as long as leaves prompts a third of it where drafts take more.
    With ``prompt_share``, as long as gives them this share.
    """

    def __init__(
        self,
        contexts: Sequence[PassContext],
        clock: Clock = time.perf_counter,
        prompt_share: float | None = None,
    ) -> None:
        self._contexts = contexts
        self.clock = clock
        self.prompt_seconds = 0.0  # of all passes so far, the share of prompts in them
        self._prompt_share = prompt_share
        self._prompt_next = False
        self._token_seconds = dict.fromkeys(map(id, contexts), 0.0)  # of a pass with a prompt
        self._reading = self._rest = 0.0  # seconds of prompts since the last round, and of others
        self._last_rest = 0.0  # seconds of the drafts and the round before those, without prompts

    def make_pass(
        self, waiting: Sequence[SequenceHandle], answering: int
    ) -> Sequence[SequenceHandle]:
        """One pass for as many entries as fit; returns their handles, which can continue.

        ``waiting`` has the oldest first; ``answering`` is the number of slots that answer, these
        included.
        """
        with held_interrupt():
            chosen = self._choose(waiting, answering)
            began = self.clock()
            _read(chosen)
            seconds = self.clock() - began
            _account(chosen, seconds, answering)
            self._learn(chosen, seconds)
        return chosen

    def _learn(self, chosen: Sequence[SequenceHandle], seconds: float) -> None:
        """Measure what a token costs, and the time between two rounds of the target."""
        context = chosen[0].entry.context
        reading = sum(handle.spent for handle in chosen if handle.entry.is_prompt)
        if reading or not self._token_seconds[id(context)]:
            self._token_seconds[id(context)] = seconds / _width(chosen)
        self.prompt_seconds += reading
        self._reading, self._rest = self._reading + reading, self._rest + seconds - reading
        if context is self._contexts[-1] and not chosen[0].entry.is_prompt:
            self._last_rest, self._rest, self._reading = self._rest, 0.0, 0.0

    def _choose(self, waiting: Sequence[SequenceHandle], answering: int) -> list[SequenceHandle]:
        """The next batch: the rounds of one context with prompts, or prompts alone.

        All rounds of the target carry prompts, but only the first draft step before each does.
        """
        prompts = [handle for handle in waiting if handle.entry.is_prompt]
        rounds = [handle for handle in waiting if not handle.entry.is_prompt]
        for context in self._contexts:
            of_context = [handle for handle in rounds if handle.entry.context is context]
            if not of_context:
                continue
            is_target = context is self._contexts[-1]
            reads = prompts if is_target or self._prompt_next else []
            chunk = self._chunk(context, _width(of_context))
            chosen = self._fitting(context, of_context, reads, chunk)
            if is_target and self._prompt_next and prompts and prompts[0] not in chosen:
                break
            self._prompt_next = is_target or (self._prompt_next and len(chosen) <= len(of_context))
            return chosen
        self._prompt_next = False
        entry = prompts[0].entry
        if rounds:
            return self._fitting(entry.context, [], prompts, self._chunk(entry.context, 0))
        self._reading = 0.0  # no answer waited for it
        chunk = entry.step if answering == 1 else min(WIDE, entry.context.prompt_step)
        return self._fitting(entry.context, [], prompts, chunk)

    def _fitting(
        self,
        context: PassContext,
        rounds: Sequence[SequenceHandle],
        prompts: Sequence[SequenceHandle],
        chunk: int,
    ) -> list[SequenceHandle]:
        """As many as fit into a pass, at least one; prompts are cut to a chunk."""
        tokens, rows = context.most_tokens, context.most_rows
        chosen: list[SequenceHandle] = []
        for handle in rounds:
            entry = handle.entry
            tokens, rows = tokens - len(entry.tokens), rows - entry.rows
            if chosen and min(tokens, rows) < 0:
                return chosen
            chosen.append(handle)
        tokens = min(tokens, chunk)
        for handle in prompts:
            entry = handle.entry
            if entry.context is not context:
                continue
            entry = entry.beginning(tokens)
            if not entry.tokens or entry.rows > rows:
                break
            handle.entry = entry
            tokens, rows = tokens - len(entry.tokens), rows - entry.rows
            chosen.append(handle)
        return chosen

    def _chunk(self, context: PassContext, width: int) -> int:
        """Most prompt tokens in a pass with rounds of this width, or just before such a pass."""
        share, most = self._prompt_share, max(_LEAST, WIDE - width)
        if share == 1:
            return most
        rest, cost = self._last_rest, max(self._token_seconds[id(context)], 1e-9)
        longest = max(_GAP, 1.5 * rest) if share is None else rest / (1 - share)
        return max(1, int(min(most, (longest - rest - self._reading) / cost)))


def _read(chosen: Sequence[SequenceHandle]) -> None:
    """Make the pass; if it fails, one for each entry."""
    entries = [handle.entry for handle in chosen]
    try:
        for handle, found in zip(chosen, entries[0].context.read(entries), strict=True):
            handle.found = found
    except Exception as error:
        if len(chosen) == 1:
            chosen[0].found = error
            return
        for handle in chosen:
            _read([handle])
            if not isinstance(handle.found, Exception) and handle.found is not None:
                handle.found = handle.found.copy()  # before the next one's pass


def _width(handles: Sequence[SequenceHandle]) -> int:
    return sum(len(handle.entry.tokens) for handle in handles)


def _account(chosen: Sequence[SequenceHandle], seconds: float, answering: int) -> None:
    """Record how the pass was batched, and each handle's own share of its seconds.

    A round is charged for all rounds of the pass, as costs are learnt by their width. Prompts and
    rounds share a mixed pass by their tokens.
    """
    rounds = [handle for handle in chosen if not handle.entry.is_prompt]
    entries = [handle.entry for handle in rounds]
    level = entries[0].context.filled(entries) if entries else 0
    width = sum(max(level, len(entry.tokens)) for entry in entries)
    filled = entries[0].context.widest_filled if level else 0
    every = width + _width(chosen) - _width(rounds)
    drafting = sum(entry.rows > 1 for entry in entries)
    mixed = 0 < len(rounds) < len(chosen)
    for handle in chosen:
        own, waited = len(handle.entry.tokens), handle.batch_share.waited
        if handle.entry.is_prompt:
            handle.batch_share, handle.spent = (
                BatchShare(1, 0, waited, mixed, answering=answering),
                seconds * own / every,
            )
        else:
            others = drafting - (handle.entry.rows > 1)
            handle.batch_share = BatchShare(
                len(rounds), width - own, waited, mixed, filled, others, answering
            )
            handle.spent = seconds * width / every
