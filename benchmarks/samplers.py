"""Measures what a pick costs with each sampler, by itself and with top-k off.

    python benchmarks/samplers.py

Rows of logits are made beforehand: normal, with a few tokens raised above the rest. The text behind
which a token is picked repeats itself now and then. Settings take turns; of --repeats rounds of
--picks picks the quickest is shown, in microseconds of processor time a pick: what other programs
do to the caches only adds to it.
"""

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
from common import Parser
from numpy.typing import NDArray

from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.sampling.logit_changes import TokenRules
from localspec.speculative.sampling.sampler import Sampler

ROWS, RAISED = 16, 30
TEXT, WORDS = 8000, 300  # tokens of the text, and different ones among them
PENALISED = {"repeat_penalty": 1.1}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "temperature 0": {"temperature": 0},
    "repetition penalty": PENALISED,
    "presence and frequency penalty": {"presence_penalty": 0.5, "frequency_penalty": 0.1},
    "the same over 4096 tokens": PENALISED | {"frequency_penalty": 0.1, "repeat_last_n": 4096},
    "logit bias of 3 tokens": {"logit_bias": ("5+1", "7-1", "9-inf")},
    "DRY": {"dry_multiplier": 0.8},
    "DRY over 4096 tokens": {"dry_multiplier": 0.8, "dry_penalty_last_n": 4096},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "typical-p": {"typical_p": 0.9},
    "XTC": {"xtc_probability": 0.5},
    "dynamic temperature": {"dynatemp_range": 0.4},
    "all of these": {
        **PENALISED,
        **{"presence_penalty": 0.5, "frequency_penalty": 0.1, "dry_multiplier": 0.8},
        **{"logit_bias": ("5+1", "7-1", "9-inf"), "top_n_sigma": 2.0, "typical_p": 0.9},
        **{"xtc_probability": 0.5, "dynatemp_range": 0.4},
    },
}
UNTRUNCATED = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETTINGS |= {
    f"{name}, nothing else cut": SETTINGS[name] | UNTRUNCATED
    for name in ("defaults", "top-n-sigma", "typical-p", "XTC", "dynamic temperature")
}


def made_rows(n_vocab: int) -> NDArray[np.float32]:
    """Rows of shape (ROWS, n_vocab) in which about RAISED tokens are likely."""
    rng = np.random.default_rng(1)
    rows: NDArray[np.float32] = rng.standard_normal((ROWS, n_vocab), np.float32) * 2
    for row in rows:
        row[rng.integers(0, n_vocab, RAISED)] += rng.uniform(4, 12, RAISED).astype(np.float32)
    return rows


def made_text() -> list[int]:
    """A text whose last tokens occurred before, behind others."""
    rng = np.random.default_rng(2)
    text: list[int] = rng.integers(0, WORDS, TEXT).tolist()
    text[-8:] = text[-40:-32]
    return text


def measure(sampler: Sampler, rows: NDArray[np.float32], text: list[int], picks: int) -> float:
    """Microseconds of each of ``picks`` picks; the text grows by one known token between them."""
    history, began = list(text), time.process_time()
    for i in range(picks):
        sampler.sample(rows[i % ROWS], len(history), history)
        history.append(text[i])
    return 1e6 * (time.process_time() - began) / picks


def main() -> None:
    """Print a table, then the same as JSON."""
    parser = Parser(__doc__)
    parser.integers(vocabulary=152_000, picks=32, repeats=30)
    args = parser.parse_args()
    rows, text = made_rows(args.vocabulary), made_text()
    rules = TokenRules(breakers={token: ((),) for token in range(4)})
    samplers = {
        name: Sampler(replace(SamplingParams(seed=1), **changes), rules)
        for name, changes in SETTINGS.items()
    }
    times: dict[str, list[float]] = {name: [] for name in samplers}
    for sampler in samplers.values():
        measure(sampler, rows, text, 3)  # warms up
    for _ in range(args.repeats):
        for name, sampler in samplers.items():
            times[name].append(measure(sampler, rows, text, args.picks))
    least = {name: min(each) for name, each in times.items()}
    for name, microseconds in least.items():
        print(f"{name:<40}{microseconds:8.0f}")
    print(json.dumps({"vocabulary": args.vocabulary, "picks_us": least}))


if __name__ == "__main__":
    main()
