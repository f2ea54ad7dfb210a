"""One GGUF model with its context on llama.cpp: loaded, decoded, rolled back, freed."""

import ctypes
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.core import machine
from localspec.core.config import MAX_DRAFT_TOKENS, LoadOptions
from localspec.core.errors import EngineError, UsageError
from localspec.core.interrupt import held_interrupt
from localspec.engine.llama import llama_library
from localspec.engine.memory.estimate import BATCH, tensor_bytes
from localspec.engine.memory.plan import default_ctx_size
from localspec.engine.memory.use import MemoryUse, read_buffers
from localspec.metadata.gguf_file import GGML_TYPES_BY_NAME
from localspec.metadata.header import ModelHeader
from localspec.metadata.model_checks import MAX_LAYERS
from localspec.speculative.loop import Logits

_FLASH = {"auto": -1, "off": 0, "on": 1}
_LOAD_AUTO, _LOAD_NONE, _LOAD_MMAP_MLOCK = -1, 0, 3
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # LLM_FFN_EXPS_REGEX in llama.cpp


class _TensorOverride(ctypes.Structure):
    """llama_model_tensor_buft_override, which the bindings leave out."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


class LlamaModel:
    """One GGUF model with its context: a TokenModel of the loop.

    Passes narrower than ``min_width`` tokens are filled up with others, taken back at once:
    llama.cpp's kernels round differently at different widths. ``memory`` is what llama.cpp
    allocated; of a ``weightless`` one, which can do nothing else, what it would allocate. Raises
    EngineError, with llama.cpp's own reason, when the model cannot be loaded.
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
        self.can_roll_back = True
        self.min_width = 2 if options.exact else 1
        self.memory = MemoryUse(weights=tensor_bytes(header) if weightless else 0)
        self._weightless = weightless
        self._model: Any = None
        self._context: Any = None
        self._batch: _Batch | None = None
        try:
            self._model = self._load()
            self._vocab = self._llama.llama_model_get_vocab(self._model)
            self.n_vocab: int = self._llama.llama_vocab_n_tokens(self._vocab)
            self.n_ctx = options.ctx_size or default_ctx_size(header)
            self._context = self._make_context()
            if weightless:
                return
            self._memory = self._llama.llama_get_memory(self._context)
            self._sliding: int = self._llama.llama_model_n_swa(self._model)
            self._batch = _Batch(self._llama, BATCH)
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

        Raises EngineError when llama.cpp refuses; the cache then holds what it held before.
        """
        if self._torn:
            self._rewind(len(self._tokens))
        self._torn = True  # until the list below agrees with llama.cpp's cache again
        position = len(self._tokens)
        for chunk, outputs in _chunks(tokens, rows):
            self._decode_chunk(chunk, position, outputs)
            position += len(chunk)
        self._tokens.extend(tokens)
        self._torn = False
        return self._logits(rows)

    def keep(self, length: int) -> None:
        """Forget every token at ``length`` and beyond."""
        if length < len(self._tokens):
            self._torn = True
            self._rewind(length)
            self._torn = False

    # -- vocabulary ------------------------------------------------------------------------

    @property
    def vocab(self) -> Any:
        """llama.cpp's handle of the vocabulary, valid until the model is closed."""
        return self._vocab

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``; ``add_special`` adds BOS where the model wants one."""
        data = text.encode("utf-8", "surrogatepass")
        size = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * size)()
            count = self._llama.llama_tokenize(
                self._vocab, data, len(data), buffer, size, add_special, parse_special
            )
            if count >= 0:
                return list(buffer[:count])
            size = -count

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; control tokens are empty unless ``special``."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self._llama.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

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
        options = self.options
        params = self._llama.llama_model_default_params()
        params.n_gpu_layers = -1 if options.gpu_layers is None else options.gpu_layers
        params.load_mode = _LOAD_MMAP_MLOCK if options.mlock else _LOAD_AUTO
        if self._weightless:
            params.no_alloc, params.load_mode = True, _LOAD_NONE  # others abort without weights
        if options.device is not None:
            self._devices = _device_list(options.device)
            params.devices = ctypes.addressof(self._devices)
        overrides = _tensor_overrides(options)
        if overrides:
            self._overrides = (_TensorOverride * (len(overrides) + 1))(*overrides)
            params.tensor_buft_overrides = ctypes.addressof(self._overrides)
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
        self.memory += read_buffers(llama_library.log.lines())
        return model

    def _make_context(self) -> Any:
        options = self.options
        params = self._llama.llama_context_default_params()
        params.n_ctx = self.n_ctx + (1 if options.exact else 0)  # a cell for the dummy row
        params.n_batch = params.n_ubatch = BATCH
        params.swa_full = False  # layers with a sliding window keep no more than that, and a batch
        params.n_outputs_max = params.n_outputs_max_per_seq = MAX_DRAFT_TOKENS + 2
        params.n_threads = self.threads
        params.n_threads_batch = options.threads_batch or self.threads
        params.flash_attn_type = _FLASH[options.flash_attention]
        params.type_k = GGML_TYPES_BY_NAME[options.cache_type_k].type_id
        params.type_v = GGML_TYPES_BY_NAME[options.cache_type_v].type_id
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
        code = self._llama.llama_decode(self._context, self._batch.native)
        if code != 0:
            raise EngineError(
                f"llama.cpp could not decode {len(tokens)} tokens at position {position} of "
                f"{self.header.path.name} (code {code}).",
                "Try a smaller --ctx-size, or see the log with --verbose.",
            )
        if added:
            self._forget(position + len(tokens))

    def _logits(self, rows: int) -> Logits:
        if rows == 0:
            return np.empty((0, self.n_vocab), np.float32)
        pointer = self._llama.llama_get_logits(self._context)
        array = (ctypes.c_float * (rows * self.n_vocab)).from_address(
            ctypes.addressof(pointer.contents)
        )
        return np.frombuffer(memoryview(array), np.float32).reshape(rows, self.n_vocab)


class _Batch:
    """A llama_batch of one sequence with numpy views on its arrays."""

    def __init__(self, llama: Any, size: int) -> None:
        self._llama = llama
        self.native = llama.llama_batch_init(size + 1, 0, 1)
        view = np.ctypeslib.as_array
        self._token = view(self.native.token, (size + 1,))
        self._position = view(self.native.pos, (size + 1,))
        self._wanted = view(self.native.logits, (size + 1,))
        view(self.native.n_seq_id, (size + 1,))[:] = 1
        for i in range(size + 1):
            self.native.seq_id[i][0] = 0

    def fill(self, tokens: Sequence[int], position: int, rows: int) -> None:
        """Tokens from ``position`` on; logits wanted of the last ``rows``."""
        count = len(tokens)
        self.native.n_tokens = count
        self._token[:count] = tokens
        self._position[:count] = np.arange(position, position + count)
        self._wanted[:count] = 0
        self._wanted[count - rows : count] = 1

    def free(self) -> None:
        """Give the arrays back to llama.cpp."""
        self._llama.llama_batch_free(self.native)


def _chunks(tokens: Sequence[int], rows: int) -> list[tuple[Sequence[int], int]]:
    """Cut into batches, each with the rows wanted of it: all rows come from the last one."""
    parts: list[tuple[Sequence[int], int]] = []
    start = 0
    while len(tokens) - start > BATCH:
        step = min(BATCH, len(tokens) - start - rows)
        parts.append((tokens[start : start + step], 0))
        start += step
    if start < len(tokens):
        parts.append((tokens[start:], rows))
    return parts


def _device_list(names: str) -> Any:
    chosen = llama_library.choose_devices(names)
    return (ctypes.c_void_p * (len(chosen) + 1))(*[device.handle for device in chosen])


def _tensor_overrides(options: LoadOptions) -> list[_TensorOverride]:
    """`--n-cpu-moe` and `--override-tensor PATTERN=BUFFER` as llama.cpp wants them."""
    pairs = [
        (rf"blk\.{i}{_EXPERTS}", "CPU") for i in range(min(options.cpu_moe_layers, MAX_LAYERS))
    ]
    for text in options.override_tensors:
        pattern, _, buffer = text.partition("=")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f"--override-tensor {text!r}: the pattern is no regular expression ({error}).",
                r"Expected PATTERN=BUFFER, such as blk\.1\..*=CPU.",
            ) from error
        pairs.append((pattern, buffer))
    known = llama_library.buffer_types() if pairs else {}
    overrides = []
    for pattern, buffer in pairs:
        if buffer not in known:
            raise UsageError(
                f"There is no buffer type {buffer!r}.",
                f"Expected PATTERN=BUFFER with one of: {', '.join(known)}.",
            )
        overrides.append(_TensorOverride(pattern.encode(), known[buffer]))
    return overrides


def _reason(errors: list[str]) -> str:
    """llama.cpp's own first complaint, without the function's name in front."""
    if not errors:
        return "it gave no reason."
    return re.sub(r"^\w+: ", "", errors[0]).rstrip(".") + "."
