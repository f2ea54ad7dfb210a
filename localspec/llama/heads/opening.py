"""Opening heads: whether they fit the target, and the head that reads them."""

from dataclasses import replace

from localspec.core.config import BATCH, LoadOptions
from localspec.core.errors import IncompatiblePair
from localspec.llama import llama_library
from localspec.llama.heads.context import HeadContext
from localspec.llama.heads.dflash import DFlashHead
from localspec.llama.heads.eagle3 import Eagle3Head
from localspec.llama.heads.head import ROOM, Head
from localspec.llama.heads.hidden_states import LastState, LayerInputs, unstable
from localspec.llama.heads.mtp import ChainedHead, MtpHead, SharedHead
from localspec.llama.model import LlamaModel
from localspec.metadata.draft_kind import (
    ASSISTANTS,
    MTP_CHAINS,
    DraftKind,
    claimed_heads,
    draft_kind,
)
from localspec.metadata.head_checks import check_embedded, check_heads, check_heads_of
from localspec.metadata.header import ModelHeader


def open_head(target: LlamaModel, header: ModelHeader | None, options: LoadOptions) -> Head:
    """The heads of the file that ``header`` describes; of the target's own file where it is None.

    ``options`` say how they are loaded; a target with heads of its own was loaded with
    ``load_heads``. The head must be closed before the target. Raises IncompatiblePair for heads
    that llama.cpp cannot run with this target, most of which it would abort at, and EngineError
    where this build cannot run heads or refuses these.
    """
    unstable()
    kind = draft_kind(header) if header is not None else DraftKind("mtp")
    _require_fit(target.header, header, kind)
    if header is None and not target.options.load_heads:
        raise ValueError("the target was not loaded with load_heads")  # llama.cpp would abort
    if kind.kind == "mtp":
        return _open_mtp(target, header, options)
    return _open_tapping(target, header, options, kind)


def _require_fit(target: ModelHeader, header: ModelHeader | None, kind: DraftKind) -> None:
    if header is None:
        findings = [*check_embedded(target)]
    else:
        findings = [*check_heads(header, kind), *check_heads_of(target, header)]
    for finding in findings:
        if finding.level == "error":
            raise IncompatiblePair(finding.message, finding.hint)


def _open_mtp(target: LlamaModel, header: ModelHeader | None, options: LoadOptions) -> Head:
    source = header or target.header
    shared = source.architecture in ASSISTANTS
    n_ctx = target.n_ctx + (0 if shared else ROOM)
    context = HeadContext(target, header, options, mtp=True, n_ctx=n_ctx)
    tap = LastState(llama_library.library(), target.context, target.weights.handle)
    try:
        if shared:
            return SharedHead(target, context, tap)
        layers = claimed_heads(source)
        if layers > 1 and source.architecture in MTP_CHAINS:
            return ChainedHead(target, context, tap, layers)
        return MtpHead(target, context, tap)
    except BaseException:
        context.close()
        raise


def _open_tapping(
    target: LlamaModel, header: ModelHeader | None, options: LoadOptions, kind: DraftKind
) -> Head:
    llama, eagle3 = llama_library.library(), kind.kind == "eagle3"
    if eagle3:  # whose graph makes room for the logits of a whole batch
        options = replace(options, batch_size=BATCH.low, ubatch_size=BATCH.low)
    n_ctx = target.n_ctx + ROOM
    context = HeadContext(target, header, options, mtp=False, n_ctx=n_ctx)
    tap = LayerInputs(
        llama, target.context, target.weights.handle, kind.target_layers, beyond_by_nextn=eagle3
    )
    try:
        if eagle3:
            return Eagle3Head(target, context, tap)
        assert kind.mask_token is not None  # else it was refused above
        llama.llama_set_causal_attn(context.handle, kind.causal)
        return DFlashHead(target, context, tap, kind.block_size, kind.mask_token)
    except BaseException:
        context.close()
        raise
