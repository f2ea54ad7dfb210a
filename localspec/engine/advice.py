"""Advice for faster drafting, from the statistics of an answer."""

from localspec.chat.stats import GenerationStats
from localspec.core.options.sampling_params import SamplingParams
from localspec.core.origins import DRAFT

_ENOUGH_DRAFTED = 40  # tokens of the draft model; with fewer, a share means little
_ENOUGH_SAID = 64  # tokens of an answer
_LOW = 0.35  # accepted of drafted
_SLOW_STEP = 0.3  # of a plain pass, for one draft step
_GAINS_LITTLE = 1.1  # times as fast as plain: who gains more needs no advice
_HOT = 1.0  # temperature
_MOSTLY_READING = 0.5  # of all time after the target's own reading, spent reading with the draft


def advise(stats: GenerationStats, params: SamplingParams) -> str | None:
    """The advice that would help most, or None."""
    # They have one size and no context of their own.
    heads = stats.drafter == "prediction heads"
    spent = stats.spent_seconds
    if not heads and spent and stats.draft_prompt_seconds > _MOSTLY_READING * spent:
        return (
            f"The draft took {stats.draft_prompt_seconds:.1f} s to read the prompt and the answer "
            f"{stats.seconds:.1f} s: for long prompts with short answers a smaller "
            "--draft-ctx-size, or --draft off, is faster."
        )
    model = stats.sources.get(DRAFT)
    if model is None or model.drafted < _ENOUGH_DRAFTED or stats.tokens < _ENOUGH_SAID:
        return None
    rate = model.accepted / model.drafted
    if rate < _LOW and not params.greedy and params.temperature > _HOT:
        return (
            f"At temperature {params.temperature:g} only {rate:.0%} of the draft's tokens were "
            "accepted: a lower --temp makes both models agree more often."
        )
    if rate < _LOW and heads:
        return (
            f"Only {rate:.0%} of the tokens that the heads drafted were accepted: a draft model "
            "may gain more. See what there is: localspec suggest TARGET"
        )
    if rate < _LOW:
        return (
            f"Only {rate:.0%} of the draft's tokens were accepted: a draft closer to the target "
            "gains more. See what there is: localspec suggest TARGET"
        )
    step, gain = _draft_step(stats), stats.estimated_speedup
    if not heads and step is not None and step > _SLOW_STEP and (gain or 1.0) < _GAINS_LITTLE:
        return (
            f"A token of the draft costs {step:.0%} of one of the target: with fewer output rows "
            "it gains more. Make such a draft: localspec draft make --help"
        )
    return None


def _draft_step(stats: GenerationStats) -> float | None:
    """A draft step in plain passes of the target; None if no pass was plain."""
    plain, model = stats.passes.get(1), stats.sources[DRAFT]
    if plain is None or not plain.passes or not plain.seconds:
        return None
    return stats.draft_seconds / model.drafted / (plain.seconds / plain.passes)
