"""The llama.cpp context of a head: made on a target, given tokens with states, freed."""

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from localspec.core.compute import COMPUTE
from localspec.core.errors import EngineError
from localspec.core.options.load_options import MAX_DRAFT_TOKENS, LoadOptions
from localspec.llama import llama_library
from localspec.llama.batch import read_logits, require_fits
from localspec.llama.cache.rollback import Trim
from localspec.llama.heads.hidden_states import States, unstable
from localspec.llama.model import LlamaModel
from localspec.llama.parameters import context_parameters
from localspec.llama.vocabulary.trimmed import KeptRows
from localspec.llama.weights import Weights
from localspec.metadata.header import ModelHeader
from localspec.speculative.loop import Logits

_HINT = "See the whole log with --verbose."
_OF_CONTEXT = ("flash_attention", "cache_type_k", "cache_type_v")  # the target's file has others


class HeadContext:
    """A context beside the target's, on the target's own file or on that of a sidecar.

    ``memory`` is what llama.cpp allocated for it. ``mtp``: what it computes are the MTP layers of
    the file, not the whole of it. The target must live longer. Raises EngineError, with llama.cpp's
    reason, when it cannot be made.
    """

    def __init__(
        self,
        target: LlamaModel,
        header: ModelHeader | None,
        options: LoadOptions,
        *,
        mtp: bool,
        n_ctx: int,
    ) -> None:
        self._llama = llama_library.library()
        self._options = replace(options, exact=False, load_heads=mtp)
        self._threads = options.threads or target.threads
        self._loaded = None if header is None else Weights(header, self._options)
        self._weights = self._loaded or target.weights
        self.header = self._weights.header
        self.handle: Any = None  # of llama.cpp
        self._batch: Any = None
        try:
            self._n_ctx = n_ctx
            params = context_parameters(self._options, n_ctx, self._threads, Trim.name)
            params.ctx_other = target.context
            if mtp:
                params.ctx_type = self._llama.LLAMA_CONTEXT_TYPE_MTP
            self.handle, self.memory = self._weights.new_context(params)
            if self._loaded is not None:
                self.memory += self._loaded.memory
            self.size = int(self._llama.llama_n_ubatch(self.handle))  # most tokens of a pass
            self.n_vocab = self._weights.n_vocab
            self._kept: KeptRows | None = None
            trimmed = None if header is None else header.trimmed
            if trimmed is not None:
                self.n_vocab, self._kept = trimmed.size, KeptRows(trimmed)
            self._read_as = None if trimmed is None else trimmed.read_as
            self.width: int = self._llama.llama_model_n_embd_out(self._weights.handle)
            self._memory = self._llama.llama_get_memory(self.handle)
            self._batch = self._llama.llama_batch_ext_init(self.handle)
            unstable().llama_set_embeddings_nextn(self.handle, True, True)
        except BaseException:
            self.close()
            raise

    def settings(self) -> dict[str, object]:
        """Which file is loaded, and how, as plain data."""
        own = {name: getattr(self._options, name) for name in _OF_CONTEXT}
        return self._weights.settings(self._n_ctx, self._threads) | own

    def decode(
        self,
        tokens: Sequence[int] | None,
        positions: Sequence[int],
        states: States | None,
        outputs: int,
    ) -> None:
        """One pass over tokens, states or both; logits of the last ``outputs`` of them.

        Raises EngineError when llama.cpp refuses, KeyboardInterrupt after Ctrl-C, and Cancelled
        where `stopped_when` ends it; the cache may then hold a part of them.
        """
        self._fill(tokens, positions, states, outputs)
        self._process(self._llama.LLAMA_PROCESS_TYPE_DECODE, positions)

    def encode(self, features: States) -> States:
        """What the encoder makes of each row, valid until the next pass: shape (rows, width)."""
        end = self._llama.llama_memory_seq_pos_max(self._memory, 0) + 1  # it looks at no positions
        positions = range(end, end + len(features))
        self._fill(None, positions, features, len(features))
        self._process(self._llama.LLAMA_PROCESS_TYPE_ENCODE, positions)
        rows = unstable().llama_get_embeddings_nextn(self.handle)
        return np.ctypeslib.as_array(rows, (len(features), self.width))

    def logits(self, rows: int) -> Logits:
        """Of the first ``rows`` outputs of the last pass, by the target's ids, until the next.

        A trimmed vocabulary has -inf for the tokens without a row.
        """
        if rows == 0:
            return np.empty((0, self.n_vocab), np.float32)
        found = read_logits(self._llama, self.handle, rows, self._weights.n_vocab)
        return found if self._kept is None else self._kept.by_id(found)

    def own_state(self, index: int) -> States:
        """The head's own state behind the token at ``index`` of the last pass; a copy."""
        row = unstable().llama_get_embeddings_nextn_ith(self.handle, index)
        return np.ctypeslib.as_array(row, (self.width,)).copy()

    def synchronize(self) -> None:
        """Wait until all passes are computed, as reading logits or states does."""
        self._llama.llama_synchronize(self.handle)

    def forget(self, position: int) -> None:
        """Forget what is at ``position`` and beyond."""
        if not self._llama.llama_memory_seq_rm(self._memory, 0, position, -1):
            raise EngineError(
                f"llama.cpp cannot drop the tokens behind position {position} of this head.",
                "Run without a draft: --draft off.",
            )

    def close(self) -> None:
        """Free everything but what is the target's; harmless when called twice."""
        if self._batch:
            self._llama.llama_batch_ext_free(self._batch)
        if self.handle:
            self._llama.llama_free(self.handle)
        if self._loaded is not None:
            self._loaded.close()
        self.handle = self._batch = None

    def _fill(
        self,
        tokens: Sequence[int] | None,
        positions: Sequence[int],
        states: States | None,
        outputs: int,
    ) -> None:
        """Write the batch; M-RoPE has four positions of a state without a token, all others one."""
        llama, batch = self._llama, self._batch
        llama.llama_batch_ext_clear(batch)
        rows = None if states is None else np.ascontiguousarray(states, np.float32)
        for i, position in enumerate(positions):
            row = None if rows is None else _embedding(llama, rows[i])
            if tokens is None:
                index = llama.llama_batch_ext_add_embd(batch, 0, row)
            else:
                read = tokens[i] if self._read_as is None else int(self._read_as[tokens[i]])
                index = llama.llama_batch_ext_add_token(batch, 0, read)
                if row is not None and not llama.llama_batch_ext_set_embd_token(batch, index, row):
                    index = -1
            if index != i:
                raise EngineError(
                    f"llama.cpp refuses token {i} of a batch for this head.",
                    "The head may belong to another model: run without it, --draft off.",
                )
            where = (llama.llama_pos * 4)(position, position, position, 0)
            llama.llama_batch_ext_set_pos(batch, i, where)
            llama.llama_batch_ext_set_output_logits(batch, i, i >= len(positions) - outputs)

    def _process(self, kind: int, positions: Sequence[int]) -> None:
        require_fits(self._llama, self.handle, len(positions))
        slow = len(positions) > MAX_DRAFT_TOKENS + 1
        with llama_library.interruptible(self.handle) if slow else nullcontext():
            code = COMPUTE.call(lambda: self._llama.llama_process(self.handle, kind, self._batch))
        if code != 0:
            raise EngineError(
                f"llama.cpp could not compute the head at position {positions[0]} (code {code}).",
                "Run without it: --draft off, or see the log with --verbose.",
            )


def _embedding(llama: Any, row: States) -> Any:
    data = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return llama.llama_embd(data, 1, row.size)
