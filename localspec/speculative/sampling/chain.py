"""Steps of llama.cpp's chain that rarely run: top-n-sigma, typical-p, XTC, dynamic temperature."""

import math

import numpy as np

from localspec.core.options.sampling_params import COLDEST, SamplingParams
from localspec.speculative.sampling.noise import uniform
from localspec.speculative.sampling.row import Ids, Logits, Row, Scores
from localspec.speculative.sampling.truncation import Survivors, count_kept, listed, softmax

_XTC = 2**35  # beyond any seed: another stream of numbers than tokens are drawn with


def needs_chain(params: SamplingParams) -> bool:
    """Whether a step is enabled that `truncation.survivors` does not have.

    top-n-sigma never leaves the likeliest token out, so it changes nothing if that one is taken
    anyway.
    """
    cuts = params.typical_p < 1 or params.excludes_top or params.top_n_sigma > 0
    return not params.greedy and (cuts or params.dynatemp_range > 0)


def chain_survivors(row: Row, params: SamplingParams, position: int) -> Survivors:
    """The tokens that the whole chain leaves, by llama.cpp's rules and in its order.

    top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature (`common_params_sampling`), none
    with a least number of tokens to keep. A masked token, its logit -inf, survives no step;
    llama.cpp may count it among those whose entropy is taken.
    """
    k = params.top_k if params.top_k > 0 else len(row)
    ids, scores = row.largest(k, _reach(row, params))
    if params.typical_p < 1:
        typical = _typical(scores, params.typical_p)
        ids, scores = ids[typical], scores[typical]
    keep = count_kept(scores, params)
    skip = _excluded(scores[:keep], params, position)
    ids, scores = ids[skip:keep], scores[skip:keep]
    return listed(ids, scores, _temperature(scores, params), row)


def _reach(row: Row, params: SamplingParams) -> float:
    """How far below the best logit a token may lie to be considered."""
    reach = math.inf
    if params.top_n_sigma > 0:
        reach = params.top_n_sigma * _deviation(row.whole())
    if params.min_p > 0 and params.top_p == 1 and params.typical_p == 1:  # no step in between
        reach = min(reach, -math.log(params.min_p))
    return reach


def _deviation(logits: Logits) -> float:
    """The standard deviation of all logits that are not masked."""
    if logits.min() == -np.inf:
        logits = logits[logits > -np.inf]
    return float(logits.std(dtype=np.float64))  # squares of DRY's largest penalty overflow single


def _typical(scores: Scores, typical_p: float) -> Ids:
    """Places, ascending, of the tokens whose surprise is nearest to the entropy.

    Of so many that their probability exceeds ``typical_p`` (Meister et al., arXiv 2202.00666, as in
    `llama_sampler_typical_apply`).
    """
    probabilities = softmax(scores)
    surprise = scores[0] - scores - math.log(probabilities[0])
    entropy = float((probabilities * surprise).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    mass = probabilities[order].cumsum()
    return np.sort(order[: int(mass.searchsorted(typical_p, side="right")) + 1])


def _excluded(scores: Scores, params: SamplingParams, position: int) -> int:
    """How many of the likeliest tokens XTC leaves out (`llama_sample_xtc_apply`).

    All above the threshold but the last. Chance decides by seed and position alone, so that target
    and draft agree about it.
    """
    if not params.excludes_top or len(scores) < 2:
        return 0
    if uniform(params.seed + _XTC, position) > params.xtc_probability:
        return 0
    return max(0, int(np.count_nonzero(softmax(scores) >= params.xtc_threshold)) - 1)


def _temperature(scores: Scores, params: SamplingParams) -> float:
    """The temperature, dynamic by the entropy of these tokens (`llama_sampler_temp_ext_apply`).

    0 if the likeliest of them is taken.
    """
    temperature = params.temperature
    if params.dynatemp_range > 0 and len(scores) > 1:
        probabilities = softmax(scores)
        surprise = scores[0] - scores - math.log(probabilities[0])
        evenness = float((probabilities * surprise).sum()) / math.log(len(scores))
        low = max(0.0, temperature - params.dynatemp_range)
        high = temperature + params.dynatemp_range
        temperature = low + (high - low) * min(1.0, evenness) ** params.dynatemp_exp
    return temperature if temperature >= COLDEST else 0.0
