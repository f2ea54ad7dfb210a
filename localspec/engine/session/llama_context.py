"""SharedContext: one llama.cpp context with several sequences, and the entries of its batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from localspec.core.errors import EngineError
from localspec.core.options.load_options import MAX_ROWS
from localspec.llama import llama_library
from localspec.llama.batch import are_numbers, decode, longest, read_logits
from localspec.llama.cache.cached_text import CacheSequence
from localspec.llama.cache.copies import NativeSequence
from localspec.llama.heads.hidden_states import States, Tap
from localspec.llama.model import LlamaModel
from localspec.speculative.loop import Logits

_STEP = 8  # tokens that a round reads at most in addition to those whose logits it needs


class CacheEmptied(EngineError):
    """A sequence must be read again: a bad state may have spoilt it, or a pass that failed."""


class PassContext(ABC):
    """A context that makes passes of several sequences, each of `BatchEntry`s of its own kind.

    A pass has at most ``most_tokens`` tokens and ``most_rows`` rows of logits; a prompt that is
    read alone takes passes of about ``prompt_step``.
    """

    most_tokens: int
    most_rows = MAX_ROWS
    prompt_step: int
    widest_filled = 1  # width up to which the rounds of a pass may be padded

    @abstractmethod
    def read(self, entries: Sequence[Any]) -> list[Logits]:
        """Read all entries; for each its rows of logits, valid until the next call."""

    def filled(self, entries: Sequence[Any]) -> int:
        """Width to which shorter ones of these rounds are padded; 0 for none."""
        return 0

    def close(self) -> None:  # noqa: B027
        """Free the batch, not the model."""


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """Tokens of one sequence to read, from ``position`` on, with logits of the last ``rows``.

    ``is_rest`` where passes have read tokens before these.
    """

    context: PassContext
    sequence: int
    tokens: Sequence[int]
    position: int
    rows: int
    is_rest: bool

    @property
    def is_prompt(self) -> bool:
        """Whether it may be read in several passes, together with the rounds of others."""
        most = 0 if self.is_rest else _STEP
        count = len(self.tokens)
        return not self.rows or count - self.rows > most or count > self.context.most_tokens

    @property
    def step(self) -> int:
        """How many of its tokens one pass reads if it shares it with no other entry."""
        step, count = self.context.prompt_step, len(self.tokens)
        return step if count > longest(step) else count

    def beginning(self, count: int) -> "BatchEntry":
        """Its first ``count`` tokens or fewer, without logits if that is not all of it."""
        if count >= len(self.tokens):
            return self
        return replace(self, tokens=self.tokens[: min(count, len(self.tokens) - self.rows)], rows=0)


class SharedContext(PassContext):
    """The sequences of a model's context; the model itself is not used any more.

    All share their cells (`kv_unified`), so that a pass with different numbers of tokens is a
    single one; else `llama_kv_cache::init_batch` would make one for each length. With
    ``own_cells`` it does: a text then has the bits that it has alone.

    A NaN in one sequence's cells, even in those that it left, spoils the passes of others (0 * NaN
    is NaN). If logits are not numbers, all cells are emptied, and each sequence that had any is a
    suspect: its text is read again alone, with logits of every pass, until the wanted ones are
    numbers, or else NotNumbers ends it.

    Recurrent layers compute sequences together that read equally many tokens, and others one after
    the other (`llama_batch_allocr::split_equal`). If snapshots undo tokens at no cost, rounds
    are therefore padded to the same width. Passes of one sequence follow them, which move no
    other one's state, so that the snapshots of all stay in place.

    With a ``tap``, ``states`` holds the hidden states of the tokens that a sequence read last.
    """

    tap: Tap | None = None

    def __init__(self, model: LlamaModel) -> None:
        self._llama = llama_library.library()
        self._model = model
        self._context = model.context
        self.n_ctx = model.n_ctx
        self.n_vocab = model.n_vocab
        self.most_tokens = model.most_tokens
        self.prompt_step = model.prompt_step
        self._ubatch = int(self._llama.llama_n_ubatch(self._context))
        self._doubted: dict[int, Callable[[], None]] = {}  # by the sequence that was restored
        self._suspects: set[int] = set()
        self.states: dict[int, States] = {}
        self._batch = model.make_batch()
        model.truncate(0)
        strategy = model.rollback.name
        numbers = range(model.options.parallel)
        natives = [NativeSequence(self._llama, self._context, i) for i in numbers]
        self.sequences = [
            CacheSequence(native, model.make_rollback(strategy, native)) for native in natives
        ]
        self.widest_filled = self.sequences[0].end.widest_filled
        self._empty_bytes = self.sequences[0].state_bytes()

    def read(self, entries: Sequence[BatchEntry]) -> list[Logits]:
        """Read all entries; for each its rows of logits, valid until the next call.

        Raises EngineError if llama.cpp refuses; the caches then hold the same tokens as before, or
        fewer. Raises CacheEmptied for an entry after tokens that its sequence does not hold, and
        if all sequences were emptied; NotNumbers for a text whose logits are not numbers.
        """
        self._settle(entries)
        if any(entry.position != self.sequences[entry.sequence].held for entry in entries):
            raise CacheEmptied("The text must be read again.")
        if len(entries) > 1 and any(entry.sequence in self._suspects for entry in entries):
            raise EngineError("A suspect is read alone.")  # as after any pass that failed
        wanted = [entry.rows for entry in entries]
        if self._suspects and len(entries) == 1:  # a chunk of a prompt shows its last row too
            entries = [replace(entries[0], rows=max(1, wanted[0]))]
        found: dict[int, Logits] = {}
        passes = self._passes(entries)
        for each, width in passes:
            rows = self._decode(each, width, entries)
            for entry, own in zip(each, rows, strict=True):
                found[entry.sequence] = own if each is passes[-1][0] else own.copy()
        every = [found[entry.sequence] for entry in entries]
        if not all(map(are_numbers, every)):
            self._distrust(entries, every)
        self._suspects -= {entry.sequence for entry, n in zip(entries, wanted, strict=True) if n}
        return [rows[len(rows) - n :] for rows, n in zip(every, wanted, strict=True)]

    def _distrust(self, entries: Sequence[BatchEntry], every: Sequence[Logits]) -> NoReturn:
        """Empty all sequences; raises NotNumbers for a suspect that was read alone.

        Unless a state from a file may be to blame: that is gone with the tokens.
        """
        is_guilty = not self._doubted and entries[0].sequence in self._suspects
        self._suspects |= {i for i, each in enumerate(self.sequences) if each.held}
        self._empty()
        if is_guilty:
            for row in every[0]:
                self._model.require_numbers(row)
        raise CacheEmptied("Logits were not numbers: the text must be read again.")

    def filled(self, entries: Sequence[BatchEntry]) -> int:
        return self._passes(entries)[0][1]

    def _settle(self, entries: Sequence[BatchEntry]) -> None:
        """Undo the padding of passes: in the sequences to be read, or in all if they may move."""
        read = {entry.sequence for entry in entries}
        for i, sequence in enumerate(self.sequences):
            if len(read) > 1 or i in read:
                sequence.settle()

    def _passes(self, entries: Sequence[BatchEntry]) -> list[tuple[list[BatchEntry], int]]:
        """The entries of each pass, and the width to which each of them is padded."""
        entries = sorted(entries, key=lambda entry: entry.sequence)  # in the order of their states
        widest = self.widest_filled
        if widest == 1:
            return [(entries, 0)]
        narrow = [entry for entry in entries if entry.rows and len(entry.tokens) <= widest]
        width = max((len(entry.tokens) for entry in narrow), default=0)
        if len(narrow) < 2 or len(narrow) * width > min(self._ubatch, self.most_tokens):
            return [([entry], 0) for entry in entries]
        return [(narrow, width), *(([entry], 0) for entry in entries if entry not in narrow)]

    def _decode(
        self, entries: Sequence[BatchEntry], width: int, every: Sequence[BatchEntry]
    ) -> list[Logits]:
        """One llama_decode, in which each entry has at least ``width`` tokens.

        If it fails, the sequences of ``every`` entry are as they were before, or shorter.
        """
        self._batch.clear()
        for entry in entries:
            added = max(0, width - len(entry.tokens))
            sequence = self.sequences[entry.sequence]
            if entry.rows > 1 or added:
                sequence.end.checkpoint(entry.position, len(entry.tokens) + added - 1)
            self._batch.add(entry.tokens, entry.position, entry.rows, entry.sequence)
            if added:
                end = entry.position + len(entry.tokens)
                self._batch.add([entry.tokens[-1]] * added, end, 0, entry.sequence)
            sequence.is_torn = True
        code = decode(self._llama, self._context, self._batch.native)
        if code != 0:
            for entry in every:
                self.rewind(entry.sequence, entry.position)
            raise EngineError(
                f"llama.cpp could not decode {sum(len(entry.tokens) for entry in entries)} tokens "
                f"of {len(entries)} sequences with {self._model.header.path.name} (code {code}).",
                "Try a smaller --ctx-size, or see the log with --verbose.",
            )
        for entry in entries:
            count = len(entry.tokens)
            self.sequences[entry.sequence].read(count, max(0, width - count))
        if len(entries) > 1:
            self._disturb(entries)
        if self.tap is not None:
            self._keep_states(self.tap, entries, width)
        return self._logits([entry.rows for entry in entries])

    def _keep_states(self, tap: Tap, entries: Sequence[BatchEntry], width: int) -> None:
        """Copy the hidden states of each entry, which the next pass overwrites."""
        counts = [len(entry.tokens) for entry in entries]
        widths = [max(width, count) for count in counts]
        rows = np.split(tap.rows(sum(widths)), np.cumsum(widths)[:-1])
        for entry, own, count in zip(entries, rows, counts, strict=True):
            self.states[entry.sequence] = own[:count].copy()

    def _disturb(self, entries: Sequence[BatchEntry]) -> None:
        """Record that a pass may have moved the sequences without an entry."""
        read = {entry.sequence for entry in entries}
        for i, sequence in enumerate(self.sequences):
            if i not in read:
                sequence.end.disturb()

    def doubted(self, sequence: int) -> Callable[[], None] | None:
        """The report for a sequence's state, or for another one that may have spoilt it."""
        return self._doubted.get(sequence) or next(iter(self._doubted.values()), None)

    def doubt(self, sequence: int, report: Callable[[], None]) -> None:
        """Call ``report`` when a pass gives no numbers: the sequence has a state from a file."""
        self._doubted[sequence] = report

    def sweep(self, sequence: int) -> None:
        """Clear the cache if a sequence without tokens has cells, left by a file's state."""
        if self.sequences[sequence].state_bytes() != self._empty_bytes:
            self._empty()

    def _empty(self) -> None:
        """Clear the cache of all sequences, and report the states that came from files."""
        reports, self._doubted = self._doubted, {}
        for sequence in self.sequences:
            sequence.rewind(0)
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), True)
        for report in dict.fromkeys(reports.values()):  # of two slots it may be one file
            report()

    def rewind(self, sequence: int, length: int) -> None:
        if not self.sequences[sequence].rewind(length) and self._doubted:
            self.sweep(sequence)

    def close(self) -> None:
        self._batch.free()

    def _logits(self, rows: Sequence[int]) -> list[Logits]:
        """Views of the last pass's logits, split by the given numbers of rows."""
        every = sum(rows)
        if not every:
            self._llama.llama_synchronize(self._context)  # a GPU may be at work; logits wait for it
            return [np.empty((0, self.n_vocab), np.float32) for _ in rows]
        found = read_logits(self._llama, self._context, every, self._model.weights.n_vocab)
        return np.split(self._model.by_id(found), np.cumsum(rows)[:-1])
