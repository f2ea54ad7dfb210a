"""An answer read again by plain decoding, token by token."""

import time
from collections.abc import Iterator, Sequence

from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.speculative.loop import prefill
from localspec.speculative.sampling.sampler import Sampler


def shortfalls(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, text: Sequence[int]
) -> Iterator[float]:
    """For each token that is not plain decoding's pick: the logits by which it falls short.

    Infinite if plain decoding would never pick it after the same text.
    """
    context, sampler = list(prompt), Sampler(params, engine.token_rules(params))
    engine.target.truncate(0)
    row = prefill(engine.target, context, time.perf_counter).row
    for token in text:
        if row is None:
            row = engine.target.decode(context[-1:], 1)[0]
        short = sampler.shortfall(row, len(context), context, token)
        if short > 0:
            yield short
        context.append(token)
        row = None
