"""Loads a target and its draft: checks headers, plans memory, reads weights.

Headers are checked first: some bad files trip assertions in llama.cpp that end the process.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from localspec.core.errors import FileProblem, IncompatiblePair, UsageError
from localspec.core.options.load_options import LoadOptions
from localspec.engine.loading.exact_passes import use_exact_passes
from localspec.engine.loading.first_use import Placed, Say, use_first
from localspec.engine.loading.notes import (
    missing_gpu,
    no_trees_reason,
    not_branched,
    not_overridden,
    refused_kernels,
    slow_exact,
    stretched,
    without_gpu,
)
from localspec.engine.loading.pair_file import ModelFile, PairFile, open_pair_file
from localspec.engine.session.slot import one_at_a_time
from localspec.llama import row_kernels
from localspec.llama.cache.rollback import STRATEGIES, Fork
from localspec.llama.heads.head import Head
from localspec.llama.heads.opening import open_head
from localspec.llama.memory.estimate import has_cells, keeps_state
from localspec.llama.memory.plan import in_slots
from localspec.llama.memory.probe import announcement, free_memory, plan_here
from localspec.llama.model import LlamaModel
from localspec.llama.parameters import uses_devices
from localspec.llama.rpc.servers import connect, warning
from localspec.llama.vocabulary.trimmed import open_draft_model
from localspec.metadata.adapter import check_adapter
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import Finding, check_model, check_own_heads, check_pair, drafts_by_text

_CANNOT_ROLL_BACK = (
    "llama.cpp cannot roll {} back by any known strategy: running plain, the draft is not used."
)
_NO_CELLS = (
    "--kv-unified has no effect: {} keeps a state for each slot, which is as large for any context."
)

Draft = LlamaModel | Head | None


class UsablePair(NamedTuple):
    """A pair that llama.cpp can run here, notes for the user, the files of pair and target.

    That of the target ``alone`` records the passes that round alike, with ``exact`` or without.
    """

    placed: Placed
    notes: list[str]
    file: PairFile
    alone: PairFile


def load_pair(
    pair: UsablePair, say: Say = None, *, trial: bool = True
) -> tuple[LlamaModel, Draft, list[str], str | None, PairFile]:
    """The arguments of an engine for a pair; without ``trial``, no new rounding is measured."""
    placed, notes, file, alone = pair
    model = load_target(placed.target, drafted=placed.draft is not None)
    notes += stretched(model)
    try:
        use_exact_passes(model, alone, None if file.is_announced else say, trial=trial)
        notes += slow_exact(model)
        drafting = None if model.passes.alone else placed.draft
        drafter = None if drafting is None else load_draft(model, drafting, notes)
    except BaseException:
        model.close()
        raise
    notes += not_overridden(model, drafter)
    chain = placed.no_trees_reason or not_branched(model, placed.target.options)
    return model, drafter, notes, chain, file


def usable_pair(
    target: LoadOptions,
    draft: LoadOptions | None,
    *,
    lenient: bool = False,
    say: Say = None,
    trial: bool = True,
) -> UsablePair:
    """Check headers, plan memory and, with ``trial``, use a pair that is new here in a child."""
    if target.kv_unified and target.exact and target.parallel > 1:
        raise UsageError(
            "--exact gives each slot cells of its own, which --kv-unified would have them share.",
            "Leave one of them out.",
        )
    target = replace(target, load_heads=_is_own(draft, target))
    draft = draft and replace(draft, row_kernels=target.row_kernels)  # one setting a process
    header = read_header(target.path, target.override_kv)
    draft_header = None
    if draft is not None and not target.load_heads:
        draft_header = read_header(draft.path, draft.override_kv)
    notes = _require(header, draft_header, target, lenient) + refused_kernels(target)
    drafts = [] if draft is None else [ModelFile(draft_header or header, draft)]
    file = open_pair_file(ModelFile(header, target), *drafts)
    without_draft = file
    if drafts:
        without_draft = open_pair_file(ModelFile(header, replace(target, load_heads=False)))
    alone = file
    if drafts or not target.exact:
        alone = open_pair_file(ModelFile(header, replace(target, exact=True)))
    target = _connected(target, notes, say)
    placed = _place(header, draft_header, target, draft)
    if trial:
        use_first(placed, file, without_draft, say)
    file.place([each.options.gpu_layers for each in placed.models])
    notes += placed.notes
    for sentence in placed.plan:
        (say or notes.append)(sentence)
    if say is not None and placed.loading is not None:
        say(placed.loading)
    notes += missing_gpu()
    unused = without_gpu(placed.target.options, placed.draft and placed.draft.options)
    notes += [note for note in unused if note not in notes]
    return UsablePair(placed, notes, file, alone)


def _place(
    header: ModelHeader,
    draft_header: ModelHeader | None,
    target: LoadOptions,
    draft: LoadOptions | None,
) -> Placed:
    """The pair with slots, trees, contexts and GPU layers that are possible."""
    notes = list[str]()
    target = replace(target, own_cells=_has_own_cells(header, draft_header, target))
    if target.parallel > 1 and (reason := one_at_a_time(target)):
        target = replace(target, parallel=1)
        notes.append(reason)
    if target.kv_unified and (target.parallel == 1 or not has_cells(header)):
        notes += [_NO_CELLS.format(header.path.name)] if target.parallel > 1 else []
        target = replace(target, kv_unified=False)
    shares = target.kv_unified and _has_same_tokens(header, draft_header)
    draft = draft and replace(
        draft, parallel=target.parallel, branches=1, own_cells=False, kv_unified=shares
    )
    chain = no_trees_reason(header, draft_header, target)
    target = target if chain is None else replace(target, branches=1)
    free = free_memory(target.device)
    plan = plan_here(header, target, draft_header, draft, free)
    copies = target.window_copies and plan.window_copies
    target = in_slots(header, target, plan.ctx_size)
    target = replace(target, gpu_layers=plan.gpu_layers, window_copies=copies)
    if draft is not None and draft_header is not None:
        context, layers = plan.draft_ctx_size, plan.draft_gpu_layers
        draft = replace(draft, ctx_size=context, gpu_layers=layers, window_copies=copies)
        draft = replace(draft, shared_ctx=target.shared_ctx)
    second = None if draft is None else ModelFile(draft_header or header, draft)
    sharing = target.parallel if target.kv_unified else 1
    first, loading = ModelFile(header, target), announcement(plan, free, sharing)
    return Placed(first, second, plan.use.total, chain, notes, plan.notes, loading)


def _has_same_tokens(target: ModelHeader, draft: ModelHeader | None) -> bool:
    """Whether the draft holds no more tokens of a text than the target, and no heads' cells."""
    if draft is None or not draft_kind(draft).is_model:
        return False
    return not drafts_by_text(target, draft)


def _has_own_cells(
    header: ModelHeader, draft_header: ModelHeader | None, target: LoadOptions
) -> bool:
    """Whether slots have cells of their own with ``exact``: row kernels add up in their order.

    Slots that draft different lengths then make a pass each. Recurrent states are computed in one
    pass only if the slots share their cells, and so are the heads of all slots.
    """
    if not target.exact or target.parallel == 1 or target.load_heads:
        return False
    if draft_header is not None and not draft_kind(draft_header).is_model:
        return False
    if keeps_state(header) or uses_devices(target):
        return False
    return row_kernels.in_use(target)


def _is_own(draft: LoadOptions | None, target: LoadOptions) -> bool:
    """Whether the draft are the heads in the target's own file."""
    return draft is not None and draft.load_heads and draft.path == target.path


def _require(
    header: ModelHeader, draft: ModelHeader | None, target: LoadOptions, lenient: bool
) -> list[str]:
    """Check both headers; raise on errors, return warnings."""
    if draft is None:
        warnings = _require_model(header)
    else:
        warnings = _require_pair(header, draft, lenient)
    if target.load_heads:
        for finding in check_own_heads(header).errors:
            raise IncompatiblePair(finding.message, finding.hint)
    for adapter, _ in target.loras:
        check_adapter(adapter, header)
    return warnings


def _require_model(header: ModelHeader) -> list[str]:
    """Raise FileProblem for a file that must not be loaded; returns warnings."""
    findings = check_model(header)
    for finding in findings:
        if finding.level == "error":
            raise FileProblem(f"{header.path}: {finding.message}", finding.hint)
    return _warnings(findings)


def _require_pair(target: ModelHeader, draft: ModelHeader, lenient: bool) -> list[str]:
    """Raise IncompatiblePair for an incompatible draft; returns warnings."""
    report = check_pair(target, draft, lenient=lenient)
    if not report.compatible:
        first, *others = report.errors
        more = f" And {len(others)} more." if others else ""
        anyway = " This cannot corrupt the text: --lenient runs the pair." * report.harmless
        raise IncompatiblePair(
            f"{draft.path} cannot draft for {target.path}: {first.message}{more}",
            f"{first.hint}{anyway} All findings: "
            + shlex.join(["localspec", "check", str(target.path), str(draft.path)]),
        )
    return _warnings(report.findings)


def _warnings(findings: Sequence[Finding]) -> list[str]:
    return [f"{f.message} {f.hint}" for f in findings if f.level == "warning"]


def _connected(target: LoadOptions, notes: list[str], say: Say) -> LoadOptions:
    """The options with connected RPC servers; a warning about these is shown or noted."""
    connected = connect(target)
    if target.rpc:
        (say or notes.append)(warning(target.rpc))
    return connected


def load_target(model: ModelFile, *, drafted: bool) -> LlamaModel:
    """The target; one that nothing drafts for is rarely rolled back, so it takes no snapshots."""
    return LlamaModel(*model, strategies=STRATEGIES if drafted else (Fork.name,))


def load_draft(target: LlamaModel, model: ModelFile, notes: list[str]) -> Draft:
    """The draft; None, with the reason noted, if either model cannot roll back."""
    header, options = model
    if not target.can_roll_back:
        notes.append(_CANNOT_ROLL_BACK.format(target.header.path.name))
        return None
    is_own = _is_own(options, target.options)
    if is_own or not draft_kind(header).is_model:
        # Tensors that heads share with the target are computed on the target's device.
        options = replace(options, rpc=target.options.rpc)
        return open_head(target, None if is_own else header, options)
    draft = open_draft_model(header, options)
    if not draft.can_roll_back:
        draft.close()
        notes.append(_CANNOT_ROLL_BACK.format(header.path.name))
        return None
    notes += stretched(draft)
    return draft
