"""Opening heads: which kind a file holds, whether it fits the target, the head itself."""

from localspec.core.config import LoadOptions
from localspec.core.errors import EngineError
from localspec.engine.llama import llama_library
from localspec.engine.llama.heads.context import HeadContext
from localspec.engine.llama.heads.head import ROOM, Head
from localspec.engine.llama.heads.mtp import CHAINED, ChainedHead, MtpHead, SharedHead
from localspec.engine.llama.heads.taps import LastState
from localspec.engine.llama.heads.unstable import unstable
from localspec.engine.llama.model import LlamaModel
from localspec.metadata.header import ModelHeader

_SHARED = "gemma4-assistant"
_HINT = "Run without them: --draft off, or with an ordinary draft model."
# Architectures whose graph says the state that MTP heads read (`t_h_nextn`).
TAPPED = frozenset(
    "bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 gemma4 glm-dsa glm4moe glm5-next hy-v3 "
    "mimo2 nemotron_h nemotron_h_moe gpt-oss qwen35 qwen35moe qwen3next step35".split()
)


def open_head(target: LlamaModel, header: ModelHeader | None, options: LoadOptions) -> Head:
    """The heads of the file ``header`` describes, or of the target's own file where it is None.

    ``options`` say how the heads are loaded. The head must be closed before the target. Raises
    EngineError for heads that are not there, do not fit the target, or cannot be computed by this
    build of llama.cpp.
    """
    unstable()
    return _open_mtp(target, header, options)


def _open_mtp(target: LlamaModel, header: ModelHeader | None, options: LoadOptions) -> Head:
    source = header or target.header
    layers = _layers(source)
    if target.header.architecture not in TAPPED:
        raise EngineError(
            f"llama.cpp cannot draft with MTP heads for {target.header.architecture} models.", _HINT
        )
    shared = source.architecture == _SHARED
    context = HeadContext(
        target,
        options,
        embedded=header is None,
        kind="mtp",
        n_ctx=target.n_ctx + (0 if shared else ROOM),
    )
    try:
        tap = LastState(llama_library.library(), target.context, target.model)
        _require_fit(source, tap.width, context, target)
        if shared:
            return SharedHead(target, context, tap)
        if layers > 1 and source.architecture in CHAINED:
            return ChainedHead(target, context, tap, layers)
        return MtpHead(target, context, tap)
    except BaseException:
        context.close()
        raise


def _layers(header: ModelHeader) -> int:
    layers = header.get("nextn_predict_layers")
    if not isinstance(layers, int) or layers < 1:
        raise EngineError(f"{header.path.name} has no MTP heads.", _HINT)
    return layers


def _require_fit(
    source: ModelHeader, width: int, context: HeadContext, target: LlamaModel
) -> None:
    """Raise EngineError for sizes at which a pass would abort the process, or mean nothing."""
    if width != context.width or context.n_vocab != target.n_vocab:
        raise EngineError(
            f"The heads in {source.path.name} belong to another model: they expect states of "
            f"{context.width:,} numbers and {context.n_vocab:,} token ids, the target has "
            f"{width:,} and {target.n_vocab:,}.",
            _HINT,
        )
