"""One GGUF model with its context on llama.cpp: loaded, decoded, rolled back, freed."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core import machine
from localspec.core.errors import EngineError, NotNumbers
from localspec.core.interrupt import held_interrupt
from localspec.core.options.load_options import MAX_DRAFT_TOKENS, MAX_ROWS, LoadOptions
from localspec.llama import llama_library, row_kernels
from localspec.llama.batch import (
    AnyBatch,
    Batch,
    are_numbers,
    chunks,
    decode,
    read_logits,
    with_unknown_rows,
)
from localspec.llama.cache.branches import LlamaTrees
from localspec.llama.cache.cached_text import CachedText, CacheSequence
from localspec.llama.cache.copies import EVERY, NativeSequence, StateCheckpoints
from localspec.llama.cache.rollback import Fork, Rollback, Snapshots, Trim
from localspec.llama.memory.attention import with_attention
from localspec.llama.memory.layer_cache import ANCHORS, window_cells
from localspec.llama.memory.plan import asked_ctx_size, default_ctx_size
from localspec.llama.parameters import (
    FILLED_PASSES,
    SINGLE_STEPS,
    context_parameters,
    has_branches,
    prompt_step,
    uses_devices,
    width_remedies,
)
from localspec.llama.pass_class import NATURAL, PassClass, Rounding
from localspec.llama.vocabulary.control_tokens import ControlTokens
from localspec.llama.vocabulary.tokenizer import SHORT, require_text_fits, tokenize, written_text
from localspec.llama.weights import Weights
from localspec.metadata.header import ModelHeader
from localspec.pairing import CONTROL, UNKNOWN
from localspec.speculative.loop import ALONE, Logits

_CONTROL_ATTRIBUTES = 1 << 3 | 1 << 0  # LLAMA_TOKEN_ATTR_CONTROL and _UNKNOWN
_FIM = ("pre", "suf", "mid", "rep", "sep")
_ALIKE = 0.05  # of the greatest logit: a state that is wrong changes them far more


class LlamaModel(CachedText):
    """One GGUF model with its context, which holds one text.

    Passes are padded to a multiple of ``min_width``; the padding is rolled back immediately. They
    are no wider than ``max_width``: llama.cpp's kernels round differently at different widths; see
    `pass_class`. Prompts are read in passes of about ``prompt_step`` tokens. ``memory`` is what
    llama.cpp allocated; of a ``weightless`` one, which cannot decode, what it would allocate.
    ``context`` and ``vocab`` are llama.cpp's handles, valid until this is closed; ``overridden``
    are the keys whose values it took from ``options.override_kv`` instead of the file.
    ``rounding`` shows whether passes of all widths round alike, if that was measured.
    ``rollback`` is the first of the ``strategies`` that works, after `Trim`.
    The first ``_alike`` tokens were read in passes of the class.
    Only the compute thread calls it, for one owner: an engine with one slot, or a SharedContext,
    which takes the context over for good. ``weights`` that are given belong to another model.

    Raises EngineError, with llama.cpp's own reason, when the model cannot be loaded.
    """

    batch_share = ALONE
    doubted: Callable[[], None] | None = None

    def __init__(
        self,
        header: ModelHeader,
        options: LoadOptions,
        *,
        strategies: Sequence[str] = (Fork.name,),
        weightless: bool = False,
        weights: Weights | None = None,
    ) -> None:
        super().__init__()
        self._llama = llama_library.library()
        self.header = header
        self.n_ctx = asked_ctx_size(header, options.ctx_size) or default_ctx_size(header)
        options = row_kernels.effective(options)
        self.options = with_attention(
            header,
            options,
            self.n_ctx,
            on_device=uses_devices(options),
            row_kernels=options.row_kernels,
        )
        self.remedies = width_remedies(options)
        self.threads = options.threads or machine.physical_cores()
        self.prompt_step = prompt_step(header, options, self.threads)
        self._first_row = 0  # of the logits that were asked for, among those of the last pass
        self.passes = NATURAL
        self.rounding: Rounding | None = None
        self.min_width, self.max_width = 1, options.batch_size
        self._alike = 0  # tokens at the beginning that were read in passes of the class
        self.keeps_prompts = False
        self._weightless = weightless
        self.context: Any = None
        self._batch: AnyBatch | None = None
        self._trees: LlamaTrees | None = None
        self._owns_weights = weights is None
        self.weights = weights or Weights(header, self.options, weightless=weightless)
        self.memory = self.weights.memory
        self.n_vocab = self.weights.n_vocab
        self.vocab = self.weights.vocab
        self.overridden = self.weights.overridden
        try:
            self._batch = self.make_batch()
            self._choose_rollback(strategies)
        except BaseException:
            self.close()
            raise

    # -- TokenModel ------------------------------------------------------------------------

    @property
    def tree(self) -> LlamaTrees | None:
        """How it verifies trees; None also if heads read along, whose texts are chains."""
        return self._trees if self.listener is None else None

    @property
    def can_roll_back(self) -> bool:
        """Whether the last tokens can be forgotten without reading all again, for drafts."""
        return self.rollback.name != Rollback.name and not self.passes.alone

    @property
    def rollback(self) -> Rollback:
        return self.cells.end

    @property
    def fills_passes(self) -> bool:
        """Whether verifications may be padded: tokens are forgotten at no cost, at any width."""
        return FILLED_PASSES in self.remedies and self.trims and self.passes == NATURAL

    @property
    def reusable(self) -> int:
        """How many of the tokens a prompt may find in the cache.

        With ``exact`` and tokens decoded one at a time, those read in passes of the class.
        """
        if self.passes.alone:
            return self._alike if self.passes.step else 0
        return len(self.tokens)

    @property
    def window_cells(self) -> int:
        """How many cells sliding layers have and reuse; 0 if they have all of the context.

        As `llama_kv_cache_iswa` has them; with ``exact`` they have all.
        """
        window = (
            0 if self.options.exact else int(self._llama.llama_model_n_swa(self.weights.handle))
        )
        cells, ubatch = self._llama.llama_n_ctx_seq(self.context), self.options.ubatch_size
        shared = 1 if cells < self._llama.llama_n_ctx(self.context) else self.options.parallel
        found = window_cells(cells, window, shared, ubatch)
        return found if window and found < cells else 0

    @property
    def rounds_alike(self) -> bool:
        return self.rounding is not None and self.rounding.alike

    def use_class(self, passes: PassClass) -> None:
        """Make all later passes of a class, for ``exact``."""
        self.passes = passes
        self.min_width = max(1, passes.step)
        self.max_width = min(passes.widest, self.options.batch_size)
        if passes != NATURAL:  # a micro-batch is a pass of its own
            self.max_width = min(self.max_width, self.options.ubatch_size)

    @property
    def gives_prompt_row(self) -> bool:
        """Whether the prompt's last chunk may include its last token.

        It may if rollback is free and the width of a pass need not be fixed, but not if a file
        stores the state (``keeps_prompts``): a sliding window that ends after the prompt's last
        token cannot return to it.
        """
        fixed = self.min_width > 1 or (self.options.exact and not self.rounds_alike)
        return self.trims and not (fixed or self.keeps_prompts)

    @property
    def most_tokens(self) -> int:
        """Most tokens of a pass: a small context bounds the batch."""
        return int(self._llama.llama_n_batch(self.context))

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append ``tokens``; logits after the last ``rows``, valid until the next call.

        Raises EngineError when llama.cpp refuses; the cache is then as before. After Ctrl-C, or
        Cancelled if `stopped_when` ends it, it also holds the batches that were read.

        A NaN may stay in a freed cell and spoil every later text. If logits are not numbers, the
        cache is cleared and the tokens are decoded again: all of them if a state came from a file,
        else without the last ``rows`` - 1, which may be wrong candidates; their rows are then NaN.
        Raises NotNumbers, and leaves no tokens, if that does not help.
        """
        logits = self._decode(tokens, rows)
        if are_numbers(logits):
            return logits
        text, is_from_file = self.drop_all()
        if is_from_file:
            return self.decode(text, rows)
        return with_unknown_rows(self.decode_anew(text[: len(text) - rows + 1]), rows)

    def drop_all(self) -> tuple[list[int], bool]:
        """Empty all cells; returns the tokens, and whether a file's state was among them."""
        report, tokens = self.doubted, [*self.tokens]
        self.truncate(0)
        if report is not None:
            report()
        return tokens, report is not None

    def decode_anew(self, tokens: Sequence[int]) -> Logits:
        """Logits after ``tokens``, shape (1, n_vocab), decoded into an empty cache.

        Raises NotNumbers as `decode` does.
        """
        row = self._decode(tokens, 1)
        if not are_numbers(row):
            self.truncate(0)
            self.require_numbers(row[0])
        return row

    def _decode(self, tokens: Sequence[int], rows: int) -> Logits:
        self._recover()
        if rows > self.max_width:
            return self._decode_in_parts(tokens, rows)
        begin = self.cells.held
        logits = super()._decode(tokens, rows)
        if rows == 0:
            if self._alike == begin:
                self._alike = self.cells.held
            self._llama.llama_synchronize(self.context)  # a GPU may be at work; logits wait for it
        return logits

    def _decode_in_parts(self, tokens: Sequence[int], rows: int) -> Logits:
        """`decode` in passes that are no wider than ``max_width``."""
        begin = len(tokens) - rows
        if begin:
            self.decode(tokens[:begin], 0)
        parts = [tokens[i : i + self.max_width] for i in range(begin, len(tokens), self.max_width)]
        return np.concatenate([self.decode(part, len(part)).copy() for part in parts])

    def begin_tree(self) -> int:
        """Let `LlamaTrees` write after the text until `commit_tree`, or else that is undone.

        Returns the length of the text; raises EngineError as `decode` does.
        """
        self._read_pending()
        self.cells.is_torn = True
        return self.cells.held

    def decode_tree(self, batch: Any, position: int) -> Logits:
        """Decode a llama_batch after the text; logits of all its tokens, valid until the next."""
        code = decode(self._llama, self.context, batch)
        self._require_decoded(code, batch.n_tokens, position)
        self._first_row = 0
        return self._logits(batch.n_tokens)

    def commit_tree(self, tokens: Sequence[int]) -> None:
        """Count these as read: the cache holds them after the text, and nothing else."""
        self.tokens += tokens
        self.cells.held, self.cells.is_torn = len(self.tokens), False

    def doubt(self, report: Callable[[], None]) -> None:
        self.doubted = report

    # -- vocabulary ------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``; ``add_special`` adds BOS if the model wants one.

        Raises PromptTooLong, before it is tokenized, for text that no context could hold.
        """
        if len(text) > SHORT and self.header.vocab is not None:
            require_text_fits(text, self.n_ctx, max(map(len, self.header.vocab.tokens)))
        return tokenize(
            self._llama, self.vocab, text, add_special=add_special, special=parse_special
        )

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; control tokens are empty unless ``special``."""
        to_piece = self._llama.llama_token_to_piece
        return written_text(
            lambda buffer, size: to_piece(self.vocab, token, buffer, size, 0, special)
        )

    def text_alone(self, token: int) -> bytes:
        """The bytes of a token that is a text by itself, markup included: `llama_detokenize`."""
        one, detokenize = (ctypes.c_int32 * 1)(token), self._llama.llama_detokenize
        return written_text(
            lambda buffer, size: detokenize(self.vocab, one, 1, buffer, size, False, True)
        )

    def suppressed(self) -> list[int]:
        """Ids that are never to be generated, by the file."""
        count = ctypes.c_int32()
        ids = self._llama.llama_vocab_get_suppress_tokens(self.vocab, ctypes.byref(count))
        return [ids[i] for i in range(count.value)]

    def is_stop(self, token: int) -> bool:
        return bool(self._llama.llama_vocab_is_eog(self.vocab, token))

    def fim_tokens(self) -> dict[str, int]:
        """Tokens of fill-in-the-middle prompts: pre, suf, mid, rep, sep, if the model has them.

        llama.cpp finds them by their ids in the file, or by their texts.
        """
        get = {n: getattr(self._llama, f"llama_vocab_fim_{n}") for n in _FIM}
        return {name: token for name in _FIM if (token := get[name](self.vocab)) >= 0}

    def control_tokens(self) -> ControlTokens:
        """The texts that ``parse_special`` makes control tokens.

        llama.cpp adds known marks, such as ``<|im_end|>``, whatever the file says; to ask it for
        each of a quarter million tokens takes 0.1 s.
        """
        vocab = self.header.vocab
        if vocab is None:
            return ControlTokens([])
        ids = {i for i, text in enumerate(vocab.tokens) if text[-1:] in (b">", b"]")}
        ids.update(*(vocab.ids_of_type(kind) for kind in (UNKNOWN, CONTROL)))
        attribute = self._llama.llama_vocab_get_attr
        found = [vocab.tokens[i] for i in ids if attribute(self.vocab, i) & _CONTROL_ATTRIBUTES]
        return ControlTokens(text.decode("utf-8", "replace") for text in found)

    def special_text(self, token: int | None) -> str:
        """The text of a control token, empty for None."""
        return "" if token is None else self.piece(token, special=True).decode("utf-8", "replace")

    def settings(self) -> dict[str, object]:
        """The settings that a result obtained with this model depends on, as plain data."""
        settings = self.weights.settings(self.n_ctx, self.threads)
        if self.options.exact or self.rounds_alike:  # states of other passes must not be used
            settings |= {"passes": str(self.passes), "build": llama_library.identity()}
        return settings | {"rollback": self.rollback.name, "branches": self.options.branches}

    def make_batch(self) -> AnyBatch:
        """A new batch for a context of this model, of at most `LoadOptions.batch_size` tokens."""
        return Batch(self._llama, self.options.batch_size)

    def by_id(self, rows: Logits) -> Logits:
        """Rows of the output matrix as rows of shape (rows, n_vocab), valid until the next call."""
        return rows

    def close(self) -> None:
        """Free context and model; harmless when called twice."""
        if self._batch is not None:
            self._batch.free()
        self._batch = None
        self._free_context()
        if self._owns_weights:
            self.weights.close()

    def second(self) -> "LlamaModel":
        """The same weights with a context of its own, to be closed before this one.

        It rounds as this one does. Raises EngineError.
        """
        made = LlamaModel(self.header, self.options, weights=self.weights)
        made.use_class(self.passes)
        made.rounding = self.rounding
        return made

    # -- rollback --------------------------------------------------------------------------

    def _choose_rollback(self, strategies: Sequence[str]) -> None:
        """Take the first strategy that works on a real context of this model; the context stays.

        A context for trees comes first, if they are wanted; if they do not work, none are used.
        """
        if self.weights.is_stateful or self.weights.is_sliding:
            self.options = replace(self.options, branches=1)
        if has_branches(self.options, Trim.name):
            self._make_context(Trim.name)
            if self._weightless or self._trees_work():
                return
            self.options = replace(self.options, branches=1)
        trim = () if self.weights.is_stateful else (Trim.name,)
        for strategy in (*trim, *strategies, Fork.name):
            self._make_context(strategy)
            if self._weightless or (self.rollback.name == strategy and self._works()):
                return
        self.cells.end = Rollback(NativeSequence(self._llama, self.context))

    def _works(self) -> bool:
        """Whether it can undo tokens, as a few passes show; a list would go out of date.

        Dropping cells needs no further test; a restored state is tested by comparing logits.
        """
        first, others = ([(7919 * i + 1) % self.n_vocab for i in pair] for pair in ((0, 1), (2, 3)))
        # As an answer: a prompt's end would be copied to return to.
        self.require_numbers(self.decode(first, 1)[0])
        if self.trims:
            self.truncate(1)
            works = self.cells.held == 1
        else:
            before = self.decode(others, 2)[1].copy()
            self.truncate(3)
            works = self.cells.held >= 2
            again = self.decode(others[1:], 1)[0]
            works = works and _alike(before, again)
        self.truncate(0)
        return works

    def _trees_work(self) -> bool:
        """Whether cells are dropped, and a row of a tree equals that of a chain in its place.

        Not all caches mask by sequence.
        """
        first, second, other, last = ((7919 * i + 1) % self.n_vocab for i in range(4))
        chain = self.decode([first, second, last], 1)[0].copy()
        self.require_numbers(chain)
        self.truncate(1)
        works = self.cells.held == 1
        assert self._trees is not None
        try:
            row = self._trees.decode([second, other, last], (0, 0))[2]
        except EngineError:
            return False
        finally:
            self.truncate(0)
        return works and _alike(chain, row)

    def require_numbers(self, row: NDArray[np.float32]) -> None:
        """Raise NotNumbers if no token can be chosen from a row of logits."""
        if not np.isfinite(row.max()):  # a token may have no logit: -inf
            adapters = " and ".join(str(path) for path, _ in self.options.loras)
            raise NotNumbers(
                f"{self.header.path}{adapters and ' with '}{adapters} returned logits that are "
                "not numbers.",
                "Run without --lora." if adapters else "Get the file again, or convert it again.",
            )

    def _make_context(self, strategy: str) -> None:
        self._free_context()
        params = context_parameters(self.options, self.n_ctx, self.threads, strategy)
        self.context, memory = self.weights.new_context(params)
        self.memory = self.weights.memory + memory
        text = end = NativeSequence(self._llama, self.context)
        if has_branches(self.options, strategy):
            self._trees = LlamaTrees(self, self.context, self.options.branches)
            end = NativeSequence(self._llama, self.context, EVERY)
        self.cells = CacheSequence(text, self.make_rollback(strategy, end))

    def make_rollback(self, strategy: str, sequence: NativeSequence) -> Rollback:
        """A strategy for a sequence of the context, which was configured for it.

        Copies of sliding windows take no more memory than the sequence's part of the cache.
        Architectures without snapshots set `n_rs_seq` to 0: `llm_arch_supports_rs_rollback`.
        """
        sliding = int(self._llama.llama_model_n_swa(self.weights.handle))
        if strategy == Trim.name:
            limit = self.memory.kv // self.options.parallel if self.options.copies_windows else 0
            most = ANCHORS if limit and self.window_cells else 0
            return Trim(sequence, sliding, StateCheckpoints(sequence, most, limit))
        if strategy == Fork.name:
            return Fork(sequence, sliding)
        if strategy == Snapshots.name and self._llama.llama_n_rs_seq(self.context):
            return Snapshots(sequence)
        return Rollback(sequence)

    def _free_context(self) -> None:
        if self._trees is not None:
            self._trees.free()
        self._trees = None
        if self.context:
            self._llama.llama_free(self.context)
        self.context = None

    # -- passes ----------------------------------------------------------------------------

    def _read_passes(self, tokens: Sequence[int], rows: int) -> Logits:
        """See `CachedText`.

        Ctrl-C ends a slow pass in the middle, and waits for the end of others: the results of a
        short pass are known then, and need not be computed again.
        """
        for chunk, outputs in self._chunks(tokens, rows):
            slow = len(chunk) > MAX_DRAFT_TOKENS + 1
            with nullcontext() if slow else held_interrupt():
                self._read_chunk(chunk, outputs, slow)
        return self._logits(rows)

    def _chunks(self, tokens: Sequence[int], rows: int) -> list[tuple[Sequence[int], int]]:
        """Passes of these tokens, with the rows wanted of each.

        If forgetting tokens has a cost, only the last pass is padded: a padded pass is read again
        as a whole. With `SINGLE_STEPS`, a draft that was accepted whole reads its two
        unread tokens in passes of the same shape as all its steps.
        """
        if rows == 1 and len(tokens) == 2 and SINGLE_STEPS in self.remedies:
            return [(tokens[:1], 1), (tokens[1:], 1)]
        most, step = map(self._filled, (min(self.max_width, self.most_tokens), self.prompt_step))
        most = max(rows, most)
        whole = (len(tokens) - rows) // self.min_width * self.min_width
        if self.min_width == 1 or self.trims or whole in (0, len(tokens)):
            return chunks(tokens, rows, most, step)
        return chunks(tokens[:whole], 0, most, step) + [(tokens[whole:], rows)]

    def _filled(self, width: int) -> int:
        """The widest pass up to ``width`` that needs no padding."""
        return width // self.min_width * self.min_width or width

    def _added(self, width: int, rows: int) -> int:
        """How many tokens pad a pass of ``width``."""
        if self.passes.alone and (rows or not self.passes.step):
            return 0
        added = min(-width % self.min_width, self.most_tokens - width)
        return min(added, max(0, MAX_ROWS - rows)) if rows else added

    def _read_chunk(self, chunk: Sequence[int], outputs: int, slow: bool) -> None:
        """One pass; all of it may be undone if Ctrl-C may end it."""
        self.cells.is_torn = True  # until the list agrees with llama.cpp's cache again
        begin, added = self.cells.held, self._added(len(chunk), outputs)
        if outputs != 1 or added:  # else nothing of it is rolled back
            most = len(chunk) if slow else max(0, outputs - 1, added)
            self.rollback.checkpoint(begin, most)
        self._decode_chunk(chunk, begin, outputs, added)
        self._take(chunk, begin)
        self.cells.read(len(chunk), added)
        if added:
            self._rewind(self.cells.held)
        if self.listener is not None:
            self.listener(chunk, begin, outputs)

    def _rewind(self, length: int) -> None:
        super()._rewind(length)
        if not self.cells.held:
            self.doubted = None
        self._alike = min(self._alike, self.cells.held)

    def _decode_chunk(self, tokens: Sequence[int], position: int, rows: int, added: int) -> None:
        """One llama_decode, in which the last token is repeated ``added`` times.

        The last layer is only as wide as the rows wanted of it: these too are a multiple of
        ``min_width``, with earlier tokens of the pass before them and the added ones after them.
        """
        if self._batch is None:
            raise EngineError("The model is closed.", "Load it again.")
        filled = [*tokens, *[tokens[-1]] * added] if added else tokens
        wanted, step = rows + added, 1 if self.passes.alone else self.min_width
        outputs = min(len(filled), MAX_ROWS, -(-wanted // step) * step) if rows else 0
        self._batch.fill(filled, position, outputs)
        self._first_row = outputs - added - rows
        slow = len(filled) > MAX_DRAFT_TOKENS + 1
        with llama_library.interruptible(self.context) if slow else nullcontext():
            code = decode(self._llama, self.context, self._batch.native)
        self._require_decoded(code, len(tokens), position)  # after Ctrl-C was raised

    def _require_decoded(self, code: int, count: int, position: int) -> None:
        """Raise EngineError if llama.cpp's code of a pass reports a failure."""
        if code != 0:
            raise EngineError(
                f"llama.cpp could not decode {count} tokens at position {position} of "
                f"{self.header.path.name} (code {code}).",
                "Try a smaller --ctx-size, or see the log with --verbose.",
            )

    def _logits(self, rows: int) -> Logits:
        if rows == 0:
            return np.empty((0, self.n_vocab), np.float32)
        every = read_logits(self._llama, self.context, self._first_row + rows, self.weights.n_vocab)
        return self.by_id(every[self._first_row :])


def _alike(before: NDArray[np.float32], after: NDArray[np.float32]) -> bool:
    """Whether two rows differ by no more than rounding; some tokens may have no logit at all."""
    given = before > -np.inf
    before, after = before[given], after[given]
    return bool(np.abs(after - before).max() <= _ALIKE * np.abs(before).max())
