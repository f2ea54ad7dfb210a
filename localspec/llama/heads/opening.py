"""Opening heads: whether they fit the target, and the head that reads them."""

from dataclasses import replace

from localspec.core.errors import IncompatiblePair
from localspec.core.options.load_options import BATCH, LoadOptions
from localspec.llama import llama_library
from localspec.llama.heads.context import HeadContext
from localspec.llama.heads.dflash import DFlashHead
from localspec.llama.heads.eagle3 import Eagle3Head
from localspec.llama.heads.head import ROOM, Head
from localspec.llama.heads.hidden_states import Tap, unstable
from localspec.llama.heads.mtp import ChainedHead, MtpHead, SharedHead
from localspec.llama.memory.attention import is_quantized
from localspec.llama.model import LlamaModel
from localspec.metadata.checks.heads import check_embedded, check_heads, check_heads_of
from localspec.metadata.draft_kind import (
    ASSISTANTS,
    MTP_CHAINS,
    DraftKind,
    claimed_heads,
    draft_kind,
)
from localspec.metadata.header import ModelHeader


def open_head(target: LlamaModel, header: ModelHeader | None, options: LoadOptions) -> Head:
    """The heads of the file that ``header`` describes; of the target's own file if it is None.

    ``options`` say how they are loaded; a target with heads of its own was loaded with
    ``load_heads``. The head must be closed before the target. Raises IncompatiblePair for heads
    that llama.cpp cannot run with this target (it would mostly abort), and EngineError if this
    build cannot run heads or refuses these.
    """
    unstable()
    kind = draft_kind(header) if header is not None else DraftKind("mtp")
    _require_fit(target.header, header, kind)
    if header is None and not target.options.load_heads:
        raise ValueError("the target was not loaded with load_heads")  # llama.cpp would abort
    own = header or target.header
    shares_cache = own.architecture in ASSISTANTS
    if kind.kind == "eagle3":  # its graph makes room for the logits of a whole batch
        options = replace(options, batch_size=BATCH.low, ubatch_size=BATCH.low)
    n_ctx = target.n_ctx + (0 if shares_cache else ROOM)
    options = _with_cache(options, target.options, shares_cache)
    # MTP heads that draft one after the other: the layers of one position share its cells.
    chained = kind.kind == "mtp" and own.architecture in MTP_CHAINS
    layers = claimed_heads(own) if chained else 1
    context = HeadContext(
        target, header, options, mtp=kind.kind == "mtp", n_ctx=n_ctx, own_cells=layers > 1
    )
    try:
        return _make_head(target, context, kind, shares_cache, layers)
    except BaseException:
        context.close()
        raise


def _with_cache(options: LoadOptions, target: LoadOptions, shares_cache: bool) -> LoadOptions:
    """The options, with a cache layout and types that llama.cpp accepts next to the target's."""
    if shares_cache:
        return replace(
            options,
            flash_attention=target.flash_attention,
            cache_type_k=target.cache_type_k,
            cache_type_v=target.cache_type_v,
            kv_unified=target.kv_unified,
            shared_ctx=target.shared_ctx,
        )
    flash = options.flash_attention
    if flash == "auto":
        flash = "on" if is_quantized(options.cache_type_v) else target.flash_attention
    return replace(options, flash_attention=flash)


def _require_fit(target: ModelHeader, header: ModelHeader | None, kind: DraftKind) -> None:
    if header is None:
        findings = [*check_embedded(target)]
    else:
        findings = [*check_heads(header, kind), *check_heads_of(target, header)]
    for finding in findings:
        if finding.level == "error":
            raise IncompatiblePair(finding.message, finding.hint)


def _make_head(
    target: LlamaModel, context: HeadContext, kind: DraftKind, shares_cache: bool, layers: int
) -> Head:
    llama, model = llama_library.library(), target.weights.handle
    if kind.kind == "mtp":
        tap = Tap(target.context, (None,), llama.llama_model_n_embd_out(model))
        if shares_cache:
            return SharedHead(target, context, tap)
        if layers > 1:
            return ChainedHead(target, context, tap, layers)
        return MtpHead(target, context, tap)
    each = llama.llama_model_n_embd(model)
    if kind.kind == "eagle3":
        # The id that is the number of layers means the output of the last one, from the tap of MTP
        # heads (`common_speculative_impl_draft_eagle3`; DFlash's does not do so).
        last = llama.llama_model_n_layer(model)
        taken = [None if layer == last else layer for layer in kind.target_layers]
        return Eagle3Head(target, context, Tap(target.context, taken, each))
    llama.llama_set_causal_attn(context.handle, kind.causal)
    tap = Tap(target.context, kind.target_layers, each)
    return DFlashHead(target, context, tap, kind)
