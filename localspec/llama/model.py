"""One GGUF model with its context on llama.cpp: loaded, decoded, rolled back, freed."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core import machine
from localspec.core.config import MAX_DRAFT_TOKENS, LoadOptions
from localspec.core.errors import EngineError
from localspec.core.interrupt import held_interrupt
from localspec.llama import llama_library
from localspec.llama.batch import AnyBatch, Batch, chunks, read_logits
from localspec.llama.cache.branches import LlamaTrees
from localspec.llama.cache.copies import (
    EVERY,
    LIVE,
    Copy,
    ReusableLengths,
    copy_state,
    restore_state,
)
from localspec.llama.cache.rollback import Fork, Rollback, Trim, make_rollback
from localspec.llama.memory.attention import with_attention
from localspec.llama.memory.plan import asked_ctx_size, default_ctx_size
from localspec.llama.parameters import context_parameters, has_branches, uses_devices
from localspec.llama.vocabulary.tokenizer import SHORT, require_fitting, tokenize
from localspec.llama.weights import Weights
from localspec.metadata.header import ModelHeader
from localspec.speculative.loop import ALONE, Logits

_LONGEST_REPLAY = 8  # tokens read again within a verification; more have a pass of their own
_ALIKE = 0.05  # of the greatest logit: a state that is wrong changes them far more


class LlamaModel:
    """One GGUF model with its context: a TokenModel of the loop.

    Passes narrower than ``min_width`` tokens are filled up with others, taken back at once:
    llama.cpp's kernels round differently at different widths. ``memory`` is what llama.cpp
    allocated; of a ``weightless`` one, which can do nothing else, what it would allocate.
    ``listener`` is called after each pass with its tokens and the position of the first, and when
    all that was read is replaced, with none and how many there are now; see `heads`.
    Raises EngineError, with llama.cpp's own reason, when the model cannot be loaded.
    """

    def __init__(
        self,
        header: ModelHeader,
        options: LoadOptions,
        *,
        strategies: Sequence[str] = (Fork.name,),
        weightless: bool = False,
    ) -> None:
        self._llama = llama_library.library()
        self.header = header
        self.n_ctx = asked_ctx_size(header, options.ctx_size) or default_ctx_size(header)
        on_device = uses_devices(options)
        self.options = with_attention(header, options, self.n_ctx, on_device=on_device)
        self.threads = options.threads or machine.physical_cores()
        self._tokens: list[int] = []
        self._held = 0  # so many of the tokens are in llama.cpp's cache
        self._torn = False  # true while our list and llama.cpp's cache may differ
        self._first_row = 0  # of the logits that were asked for, among those of the last pass
        self.listener: Callable[[Sequence[int], int], None] | None = None
        self.min_width = 2 if options.exact else 1
        self.keeps_prompts = False
        self._weightless = weightless
        self._context: Any = None
        self._batch: AnyBatch | None = None
        self._trees: LlamaTrees | None = None
        self._weights = Weights(header, self.options, weightless=weightless)
        self.memory = self._weights.memory
        self.n_vocab = self._weights.n_vocab
        try:
            self._batch = self.make_batch()
            self.rollback: Rollback = self._choose_rollback(strategies)
        except BaseException:
            self.close()
            raise

    # -- TokenModel ------------------------------------------------------------------------

    @property
    def tokens(self) -> list[int]:
        """The tokens in the cache; not to be changed."""
        return self._tokens

    block_size: int | None = None  # each token of a proposal costs a step
    reads_along = False
    batch_share = ALONE

    @property
    def tree(self) -> LlamaTrees | None:
        """How it verifies trees; None also where heads read along, whose texts are chains."""
        return self._trees if self.listener is None else None

    @property
    def can_roll_back(self) -> bool:
        """Whether the last tokens can be forgotten without reading all again."""
        return self.rollback.name != Rollback.name

    @property
    def gives_prompt_row(self) -> bool:
        """Where tokens are forgotten at no cost, unless rounding must not depend on the width.

        Nor where a file keeps the state (``keeps_prompts``): a sliding window that ends behind the
        prompt's last token cannot return to it.
        """
        trims = self.rollback.name == Trim.name
        return trims and self.min_width == 1 and not self.keeps_prompts

    @property
    def pending(self) -> int:
        """How many of the tokens the next pass reads again, because a rollback undid them."""
        return len(self._tokens) - self._held

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append ``tokens``; logits after the last ``rows``, valid until the next call.

        Raises EngineError when llama.cpp refuses; the cache then holds what it held before. After
        Ctrl-C, or Cancelled where `stopped_when` ends it, it also holds the batches that were read.
        """
        if self._torn:
            self._recover()
        if rows > 1 and self.pending > max(_LONGEST_REPLAY, self.min_width):
            self._read([], 0)
        if rows == 0:
            self.rollback.anchor(self._held)
        before = len(self._tokens)
        try:
            self._read(tokens, rows)
        except EngineError:
            self._torn = True
            del self._tokens[before:]
            raise
        if rows == 0:
            if not self.pending:
                self.rollback.anchor(self._held)
            self._llama.llama_synchronize(self._context)  # a GPU may be at work; logits wait for it
        return self._logits(rows)

    def checkpoint(self) -> None:
        """Expect that what is read from here on is taken back."""
        if not self.pending:
            self.rollback.checkpoint(self._held, self.n_ctx)

    def truncate(self, length: int) -> None:
        """Forget every token at ``length`` and beyond; those before may have to be read again."""
        if self._torn or length < len(self._tokens):
            with held_interrupt():
                held = None if self._torn else self._held
                self._torn = True
                del self._tokens[length:]  # first: an error leaves a cache that is torn, not short
                self._undo(len(self._tokens), held)
                self._torn = False

    def begin_tree(self) -> int:
        """Let `Branches` write behind the text, which is as long, until `adopt`, or else is undone.

        Raises EngineError as `decode` does.
        """
        if self._torn:
            self._recover()
        if self.pending:
            self._read([], 0)
        self._torn = True
        return self._held

    def decode_tree(self, batch: Any, position: int) -> Logits:
        """Decode a llama_batch in what was lent; logits of all its tokens, valid until the next."""
        self._decode_batch(batch, batch.n_tokens, position)
        self._first_row = 0
        return self._logits(batch.n_tokens)

    def commit_tree(self, tokens: Sequence[int]) -> None:
        """Count these as read: the cache holds them behind the text, and nothing else."""
        self._tokens += tokens
        self._held = len(self._tokens)
        self._torn = False

    def returns_to(self, length: int) -> int:
        """How many tokens need not be read again, at least, after `keep` with this length."""
        if self._torn:
            self._recover()
        if length >= self._held:
            return self._held
        return self.rollback.returns_to(length, self._held)

    def reusable_lengths(self) -> ReusableLengths:
        """To which lengths a copy of its `state` can return."""
        if self._torn:
            self._recover()
        return self.rollback.reusable_lengths(len(self._tokens))

    def state_bytes(self) -> int:
        """How large `state` is, but for tokens that it reads again first."""
        return int(self._llama.llama_state_seq_get_size(self._context, 0))

    def state(self) -> NDArray[np.uint8]:
        """llama.cpp's state of all tokens in the cache, as large as their part of the cache."""
        if self._torn:
            self._recover()
        if self.pending:
            self._read([], 0)
        return copy_state(self._llama, self._context, LIVE)

    def restore(
        self, tokens: Sequence[int], state: NDArray[np.uint8], copies: Sequence[Copy] = ()
    ) -> bool:
        """Hold ``tokens`` with what `state` said of them; False, and empty, if it does not fit.

        ``copies`` are those of `reach` when the state was taken. llama.cpp checks sizes and types
        (`state_read_meta`, `state_read_data`), and here is checked that there are cells up to the
        last token.
        """
        self._torn = True
        self._tokens.clear()
        self._undo(0, None)
        taken = restore_state(self._llama, self._context, LIVE, state, len(tokens))
        if taken and self.rollback.is_whole(len(tokens)):
            self._tokens.extend(tokens)
            self._held = len(tokens)
            self.rollback.restore_copies(copies)
            self.rollback.anchor(self._held)
        else:
            self._undo(0, None)
        self._torn = False
        if self.listener is not None:
            self.listener((), len(self._tokens))
        return bool(self._tokens)

    # -- vocabulary ------------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        """What was loaded, for the contexts of heads too."""
        return self._weights

    @property
    def overridden(self) -> frozenset[str]:
        """Keys whose values llama.cpp took from ``options.override_kv`` instead of the file."""
        return self._weights.overridden

    @property
    def context(self) -> Any:
        """llama.cpp's handle of the context, valid until this is closed."""
        return self._context

    @property
    def vocab(self) -> Any:
        """llama.cpp's handle of the vocabulary, valid until the model is closed."""
        return self._weights.vocab

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``; ``add_special`` adds BOS where the model wants one.

        Raises PromptTooLong, before it is tokenized, for text that no context could hold.
        """
        if len(text) > SHORT and self.header.vocab is not None:
            require_fitting(text, self.n_ctx, max(map(len, self.header.vocab.tokens)))
        return tokenize(
            self._llama, self.vocab, text, add_special=add_special, special=parse_special
        )

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; control tokens are empty unless ``special``."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self._llama.llama_token_to_piece(self.vocab, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def text_alone(self, token: int) -> bytes:
        """The bytes of a token that is a text by itself, markup included: `llama_detokenize`."""
        one, size = (ctypes.c_int32 * 1)(token), 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self._llama.llama_detokenize(self.vocab, one, 1, buffer, size, False, True)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def suppressed(self) -> list[int]:
        """Ids that the file says are never to be generated."""
        count = ctypes.c_int32()
        ids = self._llama.llama_vocab_get_suppress_tokens(self.vocab, ctypes.byref(count))
        return [ids[i] for i in range(count.value)]

    def is_stop(self, token: int) -> bool:
        """True for end-of-generation tokens."""
        return bool(self._llama.llama_vocab_is_eog(self.vocab, token))

    def special_text(self, token: int | None) -> str:
        """The text of a control token, empty for None."""
        return "" if token is None else self.piece(token, special=True).decode("utf-8", "replace")

    def settings(self) -> dict[str, object]:
        """What a result obtained with this model depends on, as plain data."""
        settings = self._weights.settings(self.n_ctx, self.threads)
        return settings | {"rollback": self.rollback.name, "branches": self.options.branches}

    def make_batch(self) -> AnyBatch:
        """What takes tokens into a context of this model, at most `LoadOptions.batch_size`."""
        return Batch(self._llama, self.options.batch_size)

    def by_id(self, rows: Logits) -> Logits:
        """Rows of llama.cpp's logits as rows of shape (rows, n_vocab), valid until the next call.

        The same, where each token has its row of the output matrix.
        """
        return rows

    def close(self) -> None:
        """Free context and model; harmless when called twice."""
        if self._batch is not None:
            self._batch.free()
        self._batch = None
        self._free_context()
        self._weights.close()

    # -- llama.cpp -------------------------------------------------------------------------

    def use_rollback(self, strategy: str) -> bool:
        """Change the rollback strategy, which empties the cache; whether it works here."""
        self.truncate(0)
        self._held = 0
        found = self._make_context(strategy)
        works = self._works(found)
        if not works:
            self.rollback = Rollback(self._llama, self._context)
        return works and found.name == strategy

    def _choose_rollback(self, strategies: Sequence[str]) -> Rollback:
        """The first strategy that works on a real context of this model; the context stays.

        A context for trees comes first, where they are wanted; where they do not work, none are.
        """
        if self._weights.is_stateful or self._weights.is_sliding:
            self.options = replace(self.options, branches=1)
        if has_branches(self.options, Trim.name):
            self.rollback = self._make_context(Trim.name)
            if self._weightless or self._trees_work():
                return self.rollback
            self.options = replace(self.options, branches=1)
        trim = () if self._weights.is_stateful else (Trim.name,)
        for strategy in (*trim, *strategies, Fork.name):
            found = self._make_context(strategy)
            if self._weightless or (found.name == strategy and self._works(found)):
                return found
        return Rollback(self._llama, self._context)

    def _works(self, strategy: Rollback) -> bool:
        """Whether it can undo tokens, as a few passes show; a list would go out of date.

        A cache that drops cells is believed; a state that came back must give the same logits.
        """
        self.rollback = strategy
        first, others = ([(7919 * i + 1) % self.n_vocab for i in pair] for pair in ((0, 1), (2, 3)))
        self.decode(first, 1)  # as an answer: a prompt's end would be copied to return to
        if strategy.name == Trim.name:
            self.truncate(1)
            works = self._held == 1
        else:
            before = self.decode(others, 2)[1].copy()
            self.truncate(3)
            works = self._held >= 2
            again = self.decode(others[1:], 1)[0]
            works = works and _alike(before, again)
        self.truncate(0)
        return works

    def _trees_work(self) -> bool:
        """Whether cells are dropped, and a row of a tree is what a chain gives in its place.

        Not all caches mask by sequence.
        """
        first, second, other, last = ((7919 * i + 1) % self.n_vocab for i in range(4))
        chain = self.decode([first, second, last], 1)[0].copy()
        self.truncate(1)
        works = self._held == 1
        assert self._trees is not None
        try:
            row = self._trees.decode([second, other, last], (0, 0))[2]
        except EngineError:
            return False
        finally:
            self.truncate(0)
        return works and _alike(chain, row)

    def _make_context(self, strategy: str) -> Rollback:
        """A new context in place of the present one."""
        self._free_context()
        params = context_parameters(self.options, self.n_ctx, self.threads, strategy)
        self._context, memory = self._weights.new_context(params)
        self.memory = self._weights.memory + memory
        sequence = LIVE
        if has_branches(self.options, strategy):
            self._trees = LlamaTrees(self, self._context, self.options.branches)
            sequence = EVERY
        return make_rollback(self._llama, self._weights.handle, self._context, strategy, sequence)

    def _free_context(self) -> None:
        if self._trees is not None:
            self._trees.free()
        self._trees = None
        if self._context:
            self._llama.llama_free(self._context)
        self._context = None

    def _read(self, tokens: Sequence[int], rows: int) -> None:
        """Read what is pending and ``tokens`` behind it.

        Ctrl-C ends a slow pass in the middle, and waits for the end of others: what a short pass
        computed is known then, and need not be read again.
        """
        unread = [*self._tokens[self._held :], *tokens]
        for chunk, outputs in chunks(unread, rows, self.options.batch_size):
            slow = len(chunk) > MAX_DRAFT_TOKENS + 1
            with nullcontext() if slow else held_interrupt():
                self._read_chunk(chunk, outputs, slow)

    def _read_chunk(self, chunk: Sequence[int], outputs: int, slow: bool) -> None:
        """One pass, of which all may be undone where Ctrl-C may end it."""
        self._torn = True  # until the list agrees with llama.cpp's cache again
        begin, added = self._held, max(0, self.min_width - len(chunk))
        if outputs != 1 or added:  # else nothing of it is taken back
            self.rollback.checkpoint(begin, len(chunk) if slow else max(0, outputs - 1, added))
        self._decode_chunk(chunk, begin, outputs, added)
        self._held += len(chunk)
        self._tokens += chunk[len(chunk) - max(0, self._held - len(self._tokens)) :]
        if added:
            self._undo(self._held, self._held + added)
        self._torn = False
        if self.listener is not None:
            self.listener(chunk, begin)

    def _undo(self, length: int, held: int | None) -> int:
        """Let llama.cpp's cache hold no more than ``length`` tokens; how many it holds."""
        if held is None or length < held:
            self._held = self.rollback.rewind(length, held)
        return self._held

    def _recover(self) -> None:
        """Agree with llama.cpp's cache again after an interrupted pass."""
        self._undo(len(self._tokens), None)
        self._torn = False

    def _decode_chunk(self, tokens: Sequence[int], position: int, rows: int, added: int) -> None:
        """One llama_decode, in which the last token is repeated so many times.

        The last layer is only as wide as the rows wanted of it: these too are no fewer than
        ``min_width``, with tokens read again in front and the added ones behind.
        """
        assert self._batch is not None
        filled = [*tokens, *[tokens[-1]] * added] if added else tokens
        outputs = max(rows + added, min(self.min_width, len(filled))) if rows else 0
        self._batch.fill(filled, position, outputs)
        self._first_row = outputs - added - rows
        slow = len(filled) > MAX_DRAFT_TOKENS + 1
        with llama_library.interruptible(self._context) if slow else nullcontext():
            self._decode_batch(self._batch.native, len(tokens), position)
        self.rollback.observe(len(filled))

    def _decode_batch(self, batch: Any, count: int, position: int) -> None:
        """One llama_decode; raises EngineError, which names so many tokens, where it fails."""
        code = self._llama.llama_decode(self._context, batch)
        if code != 0:
            raise EngineError(
                f"llama.cpp could not decode {count} tokens at position {position} of "
                f"{self.header.path.name} (code {code}).",
                "Try a smaller --ctx-size, or see the log with --verbose.",
            )

    def _logits(self, rows: int) -> Logits:
        if rows == 0:
            return np.empty((0, self.n_vocab), np.float32)
        every = self._first_row + rows
        found = read_logits(self._llama, self._context, every, self._weights.n_vocab)
        return self.by_id(found[self._first_row :])


def _alike(before: NDArray[np.float32], after: NDArray[np.float32]) -> bool:
    """Whether two rows differ by no more than rounding; some tokens may have no logit at all."""
    given = before > -np.inf
    before, after = before[given], after[given]
    return bool(np.abs(after - before).max() <= _ALIKE * np.abs(before).max())
