"""Speculative decoding for GGUF pairs on llama.cpp: the library's public names.

All but the errors are imported when they are first used, since llama.cpp takes a while to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from localspec.core.errors import DownloadProblem as DownloadProblem
from localspec.core.errors import EngineError as EngineError
from localspec.core.errors import FileProblem as FileProblem
from localspec.core.errors import GrammarError as GrammarError
from localspec.core.errors import HubProblem as HubProblem
from localspec.core.errors import IncompatiblePair as IncompatiblePair
from localspec.core.errors import LocalspecError as LocalspecError
from localspec.core.errors import MissingFile as MissingFile
from localspec.core.errors import ModelClosed as ModelClosed
from localspec.core.errors import NotAGGUF as NotAGGUF
from localspec.core.errors import NotEnoughMemory as NotEnoughMemory
from localspec.core.errors import PromptTooLong as PromptTooLong
from localspec.core.errors import TemplateError as TemplateError
from localspec.core.errors import TemplateLimitExceeded as TemplateLimitExceeded
from localspec.core.errors import UnknownPair as UnknownPair
from localspec.core.errors import UsageError as UsageError
from localspec.core.errors import WorkerLost as WorkerLost

if TYPE_CHECKING:
    from localspec.api import Model as Model
    from localspec.api import load as load
    from localspec.chat.answer import Answer as Answer
    from localspec.chat.answer import Piece as Piece
    from localspec.chat.answer import Progress as Progress
    from localspec.chat.stats import GenerationStats as GenerationStats
    from localspec.chat.tools.tool import ToolCall as ToolCall
    from localspec.core.options.generate_options import GenerateOptions as GenerateOptions
    from localspec.core.options.load_options import LoadOptions as LoadOptions
    from localspec.core.options.sampling_params import SamplingParams as SamplingParams
    from localspec.engine.engine import Engine as Engine
    from localspec.engine.generate import stream_generate as stream_generate
    from localspec.engine.session.job import Stream as Stream
    from localspec.speculative.sampling.logprobs import TokenLogprob as TokenLogprob

__version__ = "0.1.0"

_HOMES = {
    "Answer": "localspec.chat.answer",
    "Engine": "localspec.engine.engine",
    "GenerationStats": "localspec.chat.stats",
    "GenerateOptions": "localspec.core.options.generate_options",
    "LoadOptions": "localspec.core.options.load_options",
    "Model": "localspec.api",
    "Piece": "localspec.chat.answer",
    "Progress": "localspec.chat.answer",
    "SamplingParams": "localspec.core.options.sampling_params",
    "Stream": "localspec.engine.session.job",
    "TokenLogprob": "localspec.speculative.sampling.logprobs",
    "ToolCall": "localspec.chat.tools.tool",
    "load": "localspec.api",
    "stream_generate": "localspec.engine.generate",
}
_ERRORS = [name for name, value in globals().items() if hasattr(value, "exit_code")]
__all__ = [*_HOMES, *_ERRORS]


if not TYPE_CHECKING:  # which then refuses other names

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__])
