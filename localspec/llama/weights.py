"""The weights of one GGUF file on llama.cpp, with its adapters: loaded, asked about, freed."""

import ctypes
import errno
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localspec.core.errors import EngineError
from localspec.core.interrupt import held_interrupt
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.option import options
from localspec.llama import llama_library, row_kernels
from localspec.llama.memory.estimate import tensor_bytes
from localspec.llama.memory.use import MemoryUse, read_buffers
from localspec.llama.parameters import model_parameters
from localspec.metadata.header import ModelHeader

_WITHOUT_HEADS = (
    "A part of its prediction heads may be missing: run without them, --draft off, or see the "
    "whole log with --verbose."
)
_OVERRIDE = re.compile(r"Using metadata override \( *\w+\) '(.+)' =")


class Weights:
    """A file as llama.cpp loaded it, for any number of contexts.

    ``handle`` and ``vocab`` are llama.cpp's, valid until this is closed. ``overridden`` are the
    keys whose values llama.cpp took from ``options.override_kv`` instead of the file. ``memory`` is
    what it allocated; of ``weightless`` ones, what it would allocate. Raises EngineError, with
    llama.cpp's own reason, when the file cannot be loaded.
    """

    def __init__(
        self, header: ModelHeader, options: LoadOptions, *, weightless: bool = False
    ) -> None:
        self._llama = llama_library.library()
        self.header = header
        self.options = options
        self.memory = MemoryUse(weights=tensor_bytes(header) if weightless else 0)
        self.handle: Any = None
        try:
            log = self._load(weightless)
            self.memory += read_buffers(log)
            taken = map(_OVERRIDE.search, log)
            self.overridden = frozenset(found[1] for found in taken if found)
            self.vocab = self._llama.llama_model_get_vocab(self.handle)
            self.n_vocab: int = self._llama.llama_vocab_n_tokens(self.vocab)
            # An adapter is freed with the model, and must be there before a context is made.
            paths = () if weightless else [path for path, _ in options.loras]
            self._adapters = [self._load_adapter(path) for path in paths]
        except BaseException:
            self.close()
            raise

    @property
    def is_stateful(self) -> bool:
        """Whether layers keep a state in place of keys and values, by llama.cpp."""
        is_recurrent = self._llama.llama_model_is_recurrent(self.handle)
        return bool(is_recurrent or self._llama.llama_model_is_hybrid(self.handle))

    @property
    def is_sliding(self) -> bool:
        return bool(self._llama.llama_model_n_swa(self.handle))

    def new_context(self, params: Any) -> tuple[Any, MemoryUse]:
        """A context with the adapters, and the memory that llama.cpp allocated for it.

        Raises EngineError, with llama.cpp's reason.
        """
        with held_interrupt(), llama_library.log.watch() as errors:
            context = self._llama.llama_init_from_model(self.handle, params)
        if not context:
            raise EngineError(
                f"llama.cpp cannot make a context of {params.n_ctx} tokens for "
                f"{self.header.path.name}: {_reason(errors)}",
                "Try a smaller --ctx-size, fewer --n-gpu-layers, or the default cache types.",
            )
        memory = read_buffers(llama_library.log.lines())
        if self._adapters:
            scales = [scale for _, scale in self.options.loras]
            handles = (self._llama.llama_adapter_lora_p_ctypes * len(scales))(*self._adapters)
            given = (ctypes.c_float * len(scales))(*scales)
            self._llama.llama_set_adapters_lora(context, handles, len(scales), given)
        return context, memory

    def settings(self, n_ctx: int, threads: int) -> dict[str, object]:
        """The file and how it is run, as plain data."""
        header, load = self.header, self.options
        settings: dict[str, object] = {
            "file": str(header.path),
            "name": header.name,
            "parameters": header.parameters,
            "quantization": header.quantization,
            "rpc": [str(server) for server in load.rpc],
            "rope": {k: v for k, v in asdict(load.rope).items() if v is not None},
            "loras": [{"file": str(path), "scale": scale} for path, scale in load.loras],
            "override_kv": dict(load.override_kv),
            "ctx_size": n_ctx,
            "threads": threads,
            "threads_batch": load.threads_batch or threads,
            "llama_cpp_python": llama_library.build().bindings,
        }
        for name, row in options(LoadOptions).items():
            if row.affects_speed and hasattr(load, name):
                settings.setdefault(name, getattr(load, name))
        return settings

    def close(self) -> None:
        """Free the model, after its contexts; harmless when called twice."""
        if self.handle:
            self._llama.llama_model_free(self.handle)
        self.handle = None

    def _load(self, weightless: bool) -> list[str]:
        """Load the file; llama.cpp's log of that."""
        row_kernels.switch(row_kernels.in_use(self.options))
        self._params = params = model_parameters(self.options, weightless=weightless)
        paths = [os.fsencode(path) for path in self.header.paths]
        listed = (ctypes.c_char_p * len(paths))(*paths)  # parts may have names that it does not try
        with held_interrupt() as pressed, llama_library.log.watch() as errors:
            go_on = self._llama.llama_progress_callback(lambda done, data: not pressed)
            params.progress_callback = go_on
            self.handle = handle = self._llama.llama_model_load_from_splits(
                listed, len(paths), params
            )
        if not handle:
            reason = _reason(errors)
            hint = (
                _WITHOUT_HEADS if self.options.load_heads else "See the whole log with --verbose."
            )
            if os.strerror(errno.ENODEV) in reason:
                hint = "Its file system maps no files into memory: add --no-mmap."
            raise EngineError(f"llama.cpp cannot load {self.header.path}: {reason}", hint)
        return llama_library.log.lines()

    def _load_adapter(self, path: Path) -> Any:
        with llama_library.log.watch() as errors:
            adapter = self._llama.llama_adapter_lora_init(self.handle, os.fsencode(path))
        if not adapter:
            raise EngineError(
                f"llama.cpp cannot load the LoRA adapter {path}: {_reason(errors)}",
                "Give one that was made for this model; the whole log: --verbose.",
            )
        self.memory += read_buffers(llama_library.log.lines())
        return adapter


def _reason(errors: Sequence[str]) -> str:
    """llama.cpp's own first complaint, without the function's name in front."""
    if not errors:
        return "it gave no reason."
    return re.sub(r"^\w+: ", "", errors[0]).rstrip(".") + "."
