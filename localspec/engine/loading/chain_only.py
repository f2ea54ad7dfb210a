"""Why a target verifies chains of tokens, and no trees."""

from localspec.core.config import LoadOptions
from localspec.engine import profile_store
from localspec.llama.memory.estimate import keeps_state
from localspec.llama.model import LlamaModel
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import ModelHeader

_CHAIN = "The target verifies chains, without branches: {}."


def chain_only(target: ModelHeader, draft: ModelHeader | None, options: LoadOptions) -> str | None:
    """Why trees are not for this pair, in a sentence; None where they may be, or are not wanted.

    Without a header of its own, the draft is none, or the target's own heads.
    """
    if options.branches == 1:
        return None
    if keeps_state(target):
        return _CHAIN.format("a recurrent state takes tokens in one order only")
    if options.parallel > 1:
        return _CHAIN.format("its sequences are the texts of --parallel")
    if options.load_heads or (draft is not None and not draft_kind(draft).is_model):
        return _CHAIN.format("heads read along with one text")
    if options.exact:
        return _CHAIN.format("--exact demands passes that round as plain decoding does")
    if draft is None:
        return _CHAIN.format("only a draft model has several candidates for a place")
    if options.branches == "auto" and _gains_nothing(target, draft):
        return _CHAIN.format("as was measured before, drafting gains nothing for this pair")
    return None


def _gains_nothing(target: ModelHeader, draft: ModelHeader) -> bool:
    """Whether no draft could pay, by what was learnt last of a pair; False for a new one.

    A tree has no more accepted tokens than rows, as a perfect chain, and costs as much.
    """
    known = profile_store.latest([target, draft])
    if known is None or not known.draft.knows(1):
        return False
    return profile_store.best_gain(known)[0] < profile_store.LEAST_CEILING


def not_branched(model: LlamaModel, asked: LoadOptions) -> str | None:
    """The same of what only a model shows that was loaded as it was asked."""
    if model.options.branches == asked.branches:
        return None
    if model.weights.is_sliding:
        return _CHAIN.format("layers with a sliding window forget what another path may need")
    return _CHAIN.format("llama.cpp cannot take tokens back from it, or mixes up its paths")
