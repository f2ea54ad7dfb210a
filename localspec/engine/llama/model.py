"""One GGUF model with its context on llama.cpp: loaded, decoded, rolled back, freed."""

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core import machine
from localspec.core.config import MAX_DRAFT_TOKENS, LoadOptions
from localspec.core.errors import EngineError
from localspec.core.interrupt import held_interrupt
from localspec.engine.llama import llama_library
from localspec.engine.llama.batch import Batch, chunks
from localspec.engine.llama.parameters import context_parameters, model_parameters
from localspec.engine.llama.tokenizer import SHORT, require_fitting, tokenize
from localspec.engine.memory.estimate import tensor_bytes
from localspec.engine.memory.plan import asked_ctx_size, default_ctx_size
from localspec.engine.memory.use import MemoryUse, read_buffers
from localspec.metadata.header import ModelHeader
from localspec.speculative.loop import Logits

_OVERRIDE = re.compile(r"Using metadata override \( *\w+\) '(.+)' =")


class LlamaModel:
    """One GGUF model with its context: a TokenModel of the loop.

    Passes narrower than ``min_width`` tokens are filled up with others, taken back at once:
    llama.cpp's kernels round differently at different widths. ``overridden`` are the keys whose
    values llama.cpp took from ``options.override_kv`` instead of the file. ``memory`` is what
    llama.cpp allocated; of a ``weightless`` one, which can do nothing else, what it would allocate.
    ``listener`` is called after each pass with its tokens and the position of the first, and with
    none and 0 when all that was read is replaced; see `heads`.
    Raises EngineError, with llama.cpp's own reason, when the model cannot be loaded.
    """

    def __init__(
        self, header: ModelHeader, options: LoadOptions, *, weightless: bool = False
    ) -> None:
        self._llama = llama_library.library()
        self.header = header
        self.options = options
        self.threads = options.threads or machine.physical_cores()
        self._tokens: list[int] = []
        self._torn = False  # true while our list and llama.cpp's cache may differ
        self.listener: Callable[[Sequence[int], int], None] | None = None
        self.can_roll_back = True
        self.min_width = 2 if options.exact else 1
        self.overridden: frozenset[str] = frozenset()
        self.memory = MemoryUse(weights=tensor_bytes(header) if weightless else 0)
        self._weightless = weightless
        self._model: Any = None
        self._context: Any = None
        self._batch: Batch | None = None
        try:
            self._model = self._load()
            self._vocab = self._llama.llama_model_get_vocab(self._model)
            self.n_vocab: int = self._llama.llama_vocab_n_tokens(self._vocab)
            self.n_ctx = asked_ctx_size(header, options.ctx_size) or default_ctx_size(header)
            adapters = [] if weightless else [self._load_adapter(path) for path, _ in options.loras]
            self._context = self._make_context()
            if weightless:
                return
            self._apply(adapters)
            self._memory = self._llama.llama_get_memory(self._context)
            self._sliding: int = self._llama.llama_model_n_swa(self._model)
            self._batch = Batch(self._llama, options.batch_size)
            self.can_roll_back = self._probe_roll_back()
        except BaseException:
            self.close()
            raise

    # -- TokenModel ------------------------------------------------------------------------

    @property
    def tokens(self) -> list[int]:
        """The tokens in the cache; not to be changed."""
        return self._tokens

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append ``tokens``; logits after the last ``rows``, valid until the next call.

        Raises EngineError when llama.cpp refuses; the cache then holds what it held before. After
        Ctrl-C it also holds the batches that were read.
        """
        if self._torn:
            self._rewind(len(self._tokens))
        self._torn = True  # until the list agrees with llama.cpp's cache again
        before = len(self._tokens)
        try:
            for chunk, outputs in chunks(tokens, rows, self.options.batch_size):
                self._decode_chunk(chunk, len(self._tokens), outputs)
                self._tokens.extend(chunk)
        except EngineError:
            del self._tokens[before:]
            raise
        self._torn = False
        return self._logits(rows)

    def keep(self, length: int) -> None:
        """Forget every token at ``length`` and beyond."""
        if length < len(self._tokens):
            self._torn = True
            self._rewind(length)
            self._torn = False

    def state(self) -> NDArray[np.uint8]:
        """llama.cpp's state of all tokens in the cache, as large as their part of the cache."""
        if self._torn:
            self._rewind(len(self._tokens))
        state = np.empty(self._llama.llama_state_seq_get_size(self._context, 0), np.uint8)
        read = self._llama.llama_state_seq_get_data(self._context, _bytes(state), len(state), 0)
        return state[:read]

    def restore(self, tokens: Sequence[int], state: NDArray[np.uint8]) -> bool:
        """Hold ``tokens`` with what `state` said of them; False, and empty, if it does not fit.

        llama.cpp checks sizes and types (`state_read_meta`, `state_read_data`), and here is checked
        that there are cells up to the last token.
        """
        self.keep(0)
        self._torn = True
        with llama_library.log.watch():
            count = self._llama.llama_state_seq_set_data(
                self._context, _bytes(state), len(state), 0
            )
        last = self._llama.llama_memory_seq_pos_max(self._memory, 0)
        if count == len(state) and last == len(tokens) - 1 and self._window_is_whole(len(tokens)):
            self._tokens.extend(tokens)
        else:
            self._llama.llama_memory_clear(self._memory, True)
        self._torn = False
        if self.listener is not None:
            self.listener((), 0)
        return bool(self._tokens)

    # -- vocabulary ------------------------------------------------------------------------

    @property
    def model(self) -> Any:
        """llama.cpp's handle of the weights, valid until this is closed."""
        return self._model

    @property
    def context(self) -> Any:
        """llama.cpp's handle of the context, valid until this is closed."""
        return self._context

    @property
    def vocab(self) -> Any:
        """llama.cpp's handle of the vocabulary, valid until the model is closed."""
        return self._vocab

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``; ``add_special`` adds BOS where the model wants one.

        Raises PromptTooLong, before it is tokenized, for text that no context could hold.
        """
        if len(text) > SHORT and self.header.vocab is not None:
            require_fitting(text, self.n_ctx, max(map(len, self.header.vocab.tokens)))
        return tokenize(
            self._llama, self._vocab, text, add_special=add_special, special=parse_special
        )

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; control tokens are empty unless ``special``."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self._llama.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def text_alone(self, token: int) -> bytes:
        """The bytes of a token that is a text by itself, markup included: `llama_detokenize`."""
        one, size = (ctypes.c_int32 * 1)(token), 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self._llama.llama_detokenize(self._vocab, one, 1, buffer, size, False, True)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def suppressed(self) -> list[int]:
        """Ids that the file says are never to be generated."""
        count = ctypes.c_int32()
        ids = self._llama.llama_vocab_get_suppress_tokens(self._vocab, ctypes.byref(count))
        return [ids[i] for i in range(count.value)]

    def is_stop(self, token: int) -> bool:
        """True for end-of-generation tokens."""
        return bool(self._llama.llama_vocab_is_eog(self._vocab, token))

    def special_text(self, token: int | None) -> str:
        """The text of a control token, empty for None."""
        return "" if token is None else self.piece(token, special=True).decode("utf-8", "replace")

    def settings(self) -> dict[str, object]:
        """What a result obtained with this model depends on, as plain data."""
        options = self.options
        return {
            "file": str(self.header.path),
            "name": self.header.name,
            "parameters": self.header.parameters,
            "quantization": self.header.quantization,
            "device": options.device,
            "gpu_layers": options.gpu_layers,
            "cpu_moe_layers": options.cpu_moe_layers,
            "override_tensors": list(options.override_tensors),
            "tensor_split": list(options.tensor_split),
            "main_gpu": options.main_gpu,
            "split_mode": options.split_mode,
            "mmap": options.mmap,
            "batch_size": options.batch_size,
            "ubatch_size": options.ubatch_size,
            "rope": {k: v for k, v in asdict(options.rope).items() if v is not None},
            "lora": [{"file": str(path), "scale": scale} for path, scale in options.loras],
            "override_kv": dict(options.override_kv),
            "ctx_size": self.n_ctx,
            "threads": self.threads,
            "threads_batch": options.threads_batch or self.threads,
            "flash_attn": options.flash_attention,
            "cache_type_k": options.cache_type_k,
            "cache_type_v": options.cache_type_v,
            "exact": options.exact,
            "llama_cpp_python": llama_library.build().bindings,
        }

    def close(self) -> None:
        """Free context and model; harmless when called twice."""
        if self._batch is not None:
            self._batch.free()
        if self._context:
            self._llama.llama_free(self._context)
        if self._model:
            self._llama.llama_model_free(self._model)
        self._context = self._model = self._batch = None

    # -- llama.cpp -------------------------------------------------------------------------

    def _load(self) -> Any:
        self._params = params = model_parameters(self.options, weightless=self._weightless)
        path = os.fsencode(self.header.path)
        with held_interrupt() as pressed, llama_library.log.watch() as errors:
            go_on = self._llama.llama_progress_callback(lambda done, data: not pressed)
            params.progress_callback = go_on
            self._model = model = self._llama.llama_model_load_from_file(path, params)
        if not model:
            raise EngineError(
                f"llama.cpp cannot load {self.header.path}: {_reason(errors)}",
                "See the whole log with --verbose.",
            )
        log = llama_library.log.lines()
        self.memory += read_buffers(log)
        self.overridden = _overridden(log)
        return model

    def _load_adapter(self, path: Path) -> Any:
        """A LoRA adapter, freed with the model; it must be there before the context is made."""
        with llama_library.log.watch() as errors:
            adapter = self._llama.llama_adapter_lora_init(self._model, os.fsencode(path))
        if not adapter:
            raise EngineError(
                f"llama.cpp cannot load the LoRA adapter {path}: {_reason(errors)}",
                "See the whole log with --verbose.",
            )
        self.memory += read_buffers(llama_library.log.lines())
        return adapter

    def _apply(self, adapters: Sequence[Any]) -> None:
        if adapters:
            scales = [scale for _, scale in self.options.loras]
            handles = (self._llama.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
            given = (ctypes.c_float * len(scales))(*scales)
            self._llama.llama_set_adapters_lora(self._context, handles, len(adapters), given)

    def _make_context(self) -> Any:
        params = context_parameters(self.options, self.n_ctx, self.threads)
        with held_interrupt(), llama_library.log.watch() as errors:
            context = self._llama.llama_init_from_model(self._model, params)
            self._context = context
        if not context:
            raise EngineError(
                f"llama.cpp cannot make a context of {self.n_ctx} tokens for "
                f"{self.header.path.name}: {_reason(errors)}",
                "Try a smaller --ctx-size, fewer --n-gpu-layers, or the default cache types.",
            )
        self.memory += read_buffers(llama_library.log.lines())
        return context

    def _probe_roll_back(self) -> bool:
        """Whether the end of the cache can be removed, as `common_context_can_seq_rm` finds out.

        The list of recurrent architectures goes out of date; a decode of two tokens does not.
        """
        self._decode_chunk([0, 0], 0, 0)
        can = self._llama.llama_memory_seq_rm(self._memory, 0, 1, -1)
        self._llama.llama_memory_clear(self._memory, True)
        return bool(can)

    def _rewind(self, length: int) -> None:
        """Make llama.cpp's cache and our list hold the first ``length`` tokens."""
        if self.can_roll_back:
            del self._tokens[length:]  # first: Ctrl-C now leaves a cache that is torn, not short
            self._forget(length)
            if self._window_is_whole(length):
                return
        # A recurrent state has no past to return to, nor has a sliding window that has moved on:
        # read the beginning again.
        kept = self._tokens[:length]
        self._llama.llama_memory_clear(self._memory, True)
        self._tokens, self._torn = [], False
        if kept:
            self.decode(kept, 0)

    def _window_is_whole(self, length: int) -> bool:
        """Whether sliding layers still hold what the token at ``length`` attends to.

        llama.cpp removes the end of such a cache whether or not the cells before it are still
        there; its server checks as is done here (`pos_min_thold`).
        """
        if not self._sliding or length == 0:
            return True
        first = int(self._llama.llama_memory_seq_pos_min(self._memory, 0))
        return 0 <= first <= max(0, length - self._sliding)

    def _forget(self, length: int) -> None:
        if not self._llama.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise EngineError(
                f"llama.cpp cannot drop the tokens behind position {length} of "
                f"{self.header.path.name}.",
                "Run without a draft: --draft off.",
            )

    def _decode_chunk(self, tokens: Sequence[int], position: int, rows: int) -> None:
        """One llama_decode; below ``min_width`` the last token is repeated until the pass fits.

        The logits of what was added are asked for too, because the last layer is only as wide as
        the rows wanted of it; they come last, and are never read.
        """
        added = max(0, self.min_width - len(tokens)) if self.can_roll_back else 0
        assert self._batch is not None
        filled = [*tokens, *[tokens[-1]] * added] if added else tokens
        self._batch.fill(filled, position, rows + added if rows else 0)
        slow = len(filled) > MAX_DRAFT_TOKENS + 1
        with llama_library.stopped_by_ctrl_c(self._context) if slow else nullcontext():
            code = self._llama.llama_decode(self._context, self._batch.native)
        if code != 0:
            raise EngineError(
                f"llama.cpp could not decode {len(tokens)} tokens at position {position} of "
                f"{self.header.path.name} (code {code}).",
                "Try a smaller --ctx-size, or see the log with --verbose.",
            )
        if added:
            self._forget(position + len(tokens))
        if self.listener is not None:
            self.listener(tokens, position)

    def _logits(self, rows: int) -> Logits:
        if rows == 0:
            return np.empty((0, self.n_vocab), np.float32)
        pointer = self._llama.llama_get_logits(self._context)
        array = (ctypes.c_float * (rows * self.n_vocab)).from_address(
            ctypes.addressof(pointer.contents)
        )
        return np.frombuffer(memoryview(array), np.float32).reshape(rows, self.n_vocab)


def _bytes(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _overridden(log: Iterable[str]) -> frozenset[str]:
    """Keys whose replaced values llama.cpp says it took."""
    return frozenset(found[1] for line in log if (found := _OVERRIDE.search(line)))


def _reason(errors: list[str]) -> str:
    """llama.cpp's own first complaint, without the function's name in front."""
    if not errors:
        return "it gave no reason."
    return re.sub(r"^\w+: ", "", errors[0]).rstrip(".") + "."
