"""The llama.cpp context of a head: made on a target, given tokens with states, freed."""

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.compute import COMPUTE
from localspec.core.errors import EngineError
from localspec.core.options.load_options import MAX_DRAFT_TOKENS, LoadOptions
from localspec.llama import llama_library
from localspec.llama.batch import read_logits, require_fits
from localspec.llama.cache.copies import TEXT_SEQUENCE, NativeSequence
from localspec.llama.cache.rollback import Trim
from localspec.llama.heads.hidden_states import States, unstable
from localspec.llama.model import LlamaModel
from localspec.llama.parameters import context_parameters
from localspec.llama.vocabulary.trimmed import KeptRows
from localspec.llama.weights import Weights
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import ModelHeader
from localspec.speculative.loop import ALONE, BatchShare, Logits

_HINT = "See the whole log with --verbose."
_OF_CONTEXT = ("flash_attention", "cache_type_k", "cache_type_v")  # the target's file has others


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Tokens of a sequence, states or both, to compute at positions; logits of the last outputs."""

    tokens: Sequence[int] | None
    positions: Sequence[int]
    states: States | None
    outputs: int
    sequence: int = TEXT_SEQUENCE


class HeadContext:
    """A context next to the target's, on the target's own file or on that of a sidecar.

    ``memory`` is what llama.cpp allocated for it. ``mtp``: it computes the MTP layers of the file,
    not the whole of it. The target must live longer. It has as many sequences as
    ``options.parallel``, which share their cells unless each has ``own_cells``; this one is on
    ``sequence``. Raises EngineError, with llama.cpp's reason, when it cannot be made.
    """

    sequence = TEXT_SEQUENCE

    @property
    def batch_share(self) -> BatchShare:
        """How the last pass was batched."""
        return ALONE

    def __init__(
        self,
        target: LlamaModel,
        header: ModelHeader | None,
        options: LoadOptions,
        *,
        mtp: bool,
        n_ctx: int,
        own_cells: bool = False,
    ) -> None:
        self._llama = llama_library.library()
        kernels = target.options.row_kernels  # one setting holds for the process
        changes: dict[str, Any] = {"exact": False, "row_kernels": kernels, "own_cells": False}
        self._options = replace(options, load_heads=mtp, **changes)
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
            if own_cells:
                params.kv_unified = False
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
            self._batch = self._llama.llama_batch_ext_init(self.handle)
            # DFlash2's logits are not read; an output would copy them from the device.
            self._selects = header is not None and draft_kind(header).selected > 0
            unstable().llama_set_embeddings_nextn(self.handle, True, not self._selects)
        except BaseException:
            self.close()
            raise

    def settings(self) -> dict[str, object]:
        """The file and how it is loaded, as plain data."""
        own = {name: getattr(self._options, name) for name in _OF_CONTEXT}
        return self._weights.settings(self._n_ctx, self._threads) | own

    def decode(self, rows: HeadRows) -> None:
        """One pass over rows of one sequence.

        Raises EngineError when llama.cpp refuses, KeyboardInterrupt after Ctrl-C, and Cancelled
        if `stopped_when` ends it; the cache may then hold a part of them.
        """
        self.compute([rows])

    def compute(self, parts: Sequence[HeadRows]) -> None:
        """One pass over rows of several sequences: all with tokens or none, and so with states.

        Raises the errors of `decode`.
        """
        self._fill(parts)
        self._process(self._llama.LLAMA_PROCESS_TYPE_DECODE, parts)

    def encode(self, features: States) -> States:
        """The encoder's output for each row, valid until the next pass: shape (rows, width)."""
        end = self._native.end
        places = range(end, end + len(features))  # it ignores them
        parts = [HeadRows(None, places, features, len(features), self.sequence)]
        self._fill(parts)
        self._process(self._llama.LLAMA_PROCESS_TYPE_ENCODE, parts)
        return HeadContext.own_states(self, len(features))  # a slot's are those of its last pass

    @property
    def _native(self) -> NativeSequence:
        return NativeSequence(self._llama, self.handle, self.sequence)

    def use_layer(self, layer: int) -> None:
        """Let this one of several heads compute the next passes."""
        unstable().llama_set_nextn_layer_offset(self.handle, layer)

    def logits(self, rows: int) -> Logits:
        """Of the first ``rows`` outputs of the last pass, by the target's ids, until the next.

        A trimmed vocabulary has -inf for the tokens without a row. DFlash2 has no logits at all.
        """
        if rows == 0 or self._selects:
            return np.empty((rows, 0 if self._selects else self.n_vocab), np.float32)
        found = read_logits(self._llama, self.handle, rows, self._weights.n_vocab)
        return found if self._kept is None else self._kept.by_id(found)

    def own_states(self, rows: int) -> States:
        """The head's own states of the first ``rows`` outputs of the last pass, until the next.

        Shape (rows, width). DSpark and DFlash2 give other numbers here, see `DFlashHead`.
        """
        if rows == 0:
            return np.empty((0, self.width), np.float32)
        first = unstable().llama_get_embeddings_nextn(self.handle)
        return np.ctypeslib.as_array(first, (rows, self.width))

    def synchronize(self) -> None:
        """Wait until all passes are computed, as reading logits or states does."""
        self._llama.llama_synchronize(self.handle)

    def state_bytes(self) -> int:
        return self._native.state_bytes()

    def state(self) -> NDArray[np.uint8]:
        return self._native.state()

    def restore(self, state: NDArray[np.uint8]) -> bool:
        """Let the empty sequence hold a `state`; whether llama.cpp took it."""
        return self._native.take_state(state)

    def clear(self) -> None:
        """Forget all sequences, and the contents of their cells; those that drafted read again."""
        self._llama.llama_memory_clear(self._native.memory, True)

    def forget(self, position: int) -> None:
        """Forget the tokens at ``position`` and beyond."""
        if not self._native.drop(position):
            raise EngineError(
                f"llama.cpp cannot drop the tokens after position {position} of this head.",
                "Run without a draft: --draft off.",
            )

    def close(self) -> None:
        """Free everything that is not the target's; harmless when called twice."""
        if self._batch:
            self._llama.llama_batch_ext_free(self._batch)
        if self.handle:
            self._llama.llama_free(self.handle)
        if self._loaded is not None:
            self._loaded.close()
        self.handle = self._batch = None

    def _fill(self, parts: Sequence[HeadRows]) -> None:
        self._llama.llama_batch_ext_clear(self._batch)
        begin = 0
        for part in parts:
            self._add(part, begin)
            begin += len(part.positions)

    def _add(self, part: HeadRows, begin: int) -> None:
        """Add rows to the batch; M-RoPE has four positions of a state without a token, else one."""
        llama, batch, count = self._llama, self._batch, len(part.positions)
        rows = None if part.states is None else np.ascontiguousarray(part.states, np.float32)
        for i, position in enumerate(part.positions):
            row = None if rows is None else _embedding(llama, rows[i])
            if part.tokens is None:
                index = llama.llama_batch_ext_add_embd(batch, part.sequence, row)
            else:
                token = part.tokens[i]
                read = token if self._read_as is None else int(self._read_as[token])
                index = llama.llama_batch_ext_add_token(batch, part.sequence, read)
                if row is not None and not llama.llama_batch_ext_set_embd_token(batch, index, row):
                    index = -1
            if index != begin + i:
                raise EngineError(
                    f"llama.cpp refuses token {begin + i} of a batch for this head.",
                    "The head may belong to another model: run without it, --draft off.",
                )
            where = (llama.llama_pos * 4)(position, position, position, 0)
            llama.llama_batch_ext_set_pos(batch, index, where)
            wanted = i >= count - part.outputs and not self._selects
            llama.llama_batch_ext_set_output_logits(batch, index, wanted)

    def _process(self, kind: int, parts: Sequence[HeadRows]) -> None:
        count = sum(len(part.positions) for part in parts)
        require_fits(self._llama, self.handle, count)
        slow = count > MAX_DRAFT_TOKENS + 1
        with llama_library.interruptible(self.handle) if slow else nullcontext():
            code = COMPUTE.call(lambda: self._llama.llama_process(self.handle, kind, self._batch))
        if code != 0:
            raise EngineError(
                f"llama.cpp could not compute the head at position {parts[0].positions[0]} "
                f"(code {code}).",
                "Run without it: --draft off, or see the log with --verbose.",
            )


def _embedding(llama: Any, row: States) -> Any:
    data = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return llama.llama_embd(data, 1, row.size)
