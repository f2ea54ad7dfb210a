"""Speculative decoding for GGUF pairs on llama.cpp: the library's public names.

They are imported when they are first used, since llama.cpp takes a while to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.core.config import LoadOptions as LoadOptions
    from localspec.core.generate_options import GenerateOptions as GenerateOptions
    from localspec.core.sampling_params import SamplingParams as SamplingParams
    from localspec.engine.engine import Engine as Engine
    from localspec.engine.generate import stream_generate as stream_generate

__version__ = "0.1.0"

_HOMES = {
    "Engine": "localspec.engine.engine",
    "GenerateOptions": "localspec.core.generate_options",
    "LoadOptions": "localspec.core.config",
    "SamplingParams": "localspec.core.sampling_params",
    "stream_generate": "localspec.engine.generate",
}
__all__ = ["Engine", "GenerateOptions", "LoadOptions", "SamplingParams", "stream_generate"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
