"""Changes of a row of logits before truncation: logit bias, penalties and DRY."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.core.options.sampling_params import SamplingParams, parse_logit_bias
from localspec.speculative.sampling.dry import Breakers, Dry
from localspec.speculative.sampling.penalties import Penalties
from localspec.speculative.sampling.row import Logits


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Sampling parameters in the ids of a vocabulary.

    ``masked`` ids are never picked; ``breakers`` are DRY's sequence breakers.
    """

    masked: tuple[int, ...] = ()
    breakers: Breakers = field(default_factory=dict)


NO_RULES = TokenRules()


class LogitChanges:
    """Logit bias, penalties and DRY in llama.cpp's order (`common_sampler_init`).

    ``needed`` is False if nothing but penalties changes a row.
    """

    def __init__(self, params: SamplingParams, rules: TokenRules, penalties: Penalties) -> None:
        biases: dict[int, float] = defaultdict(float)
        for token, bias in map(parse_logit_bias, params.logit_bias):
            biases[token] += bias
        biases.update(dict.fromkeys(rules.masked, -np.inf))
        order = np.argsort(list(biases))
        self._biased = np.array(list(biases), np.int64)[order]
        self._biases = np.array(list(biases.values()), np.float32)[order]
        self._penalties = penalties if params.penalises else None
        self._dry = Dry(params, rules.breakers) if params.dry else None
        self.needed = len(biases) > 0 or self._dry is not None

    def of(self, logits: Logits, history: Sequence[int]) -> Logits:
        """A changed copy of the row."""
        row = logits.copy()
        here = self._biased.searchsorted(len(row))  # a draft may have fewer ids
        row[self._biased[:here]] += self._biases[:here]
        if self._penalties is not None:
            self._penalties.show(history, len(row))
            self._penalties.change(row)
        if self._dry is not None:
            for token, penalty in self._dry.penalties(history).items():
                if token < len(row):
                    row[token] -= np.float32(penalty)
        return row
