"""Measures what else than a draft's lead tells whether its tokens are right, on recorded traces.

    python benchmarks/signals.py TRACES.jsonl... [--temperature 0]

`benchmarks/traces.py` records the traces. For each set of signals a logistic regression is fitted
to nine tenths of the prompts and asked about the others, in turn. The table shows the log loss, the
calibration error, and how many times as quick as plain the best causal policy is that sees these
chances in place of the leads, by machine.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from common import printed
from cost_tables import COST_TABLES, CostTable
from numpy.typing import NDArray
from replay import verify
from traces import Trace, chosen_traces, traces_parser

from localspec.speculative.limits import Guess, causal_seconds
from localspec.speculative.prompt_lookup import PromptLookup

DEPTH = 8  # drafted tokens looked at behind each place
FOLDS = 10
BINS = 15
RIDGE = 2.0
COMMONEST = 24  # tokens that are told apart as the last one
FADING = 0.85  # of the share of late tokens that the draft had right, at each token

Floats = NDArray[np.float64]
# Columns of each signal, by name; what the lead tells is always there.
LEAD = slice(0, 5)
SIGNALS = {
    "lead alone": slice(0, 0),
    "place in the draft": slice(5, 7),
    "lead of the token before": slice(7, 9),
    "target's lead": slice(9, 11),
    "last token right": slice(11, 12),
    "share right of late": slice(12, 13),
    "index agrees": slice(13, 15),
    "last token": slice(15, 15 + COMMONEST),
    "all": slice(5, 15 + COMMONEST),
}


@dataclass
class Sample:
    """Drafted tokens: ``features`` (n, columns), whether each is ``right``, and its prompt.

    ``places`` are the trace, the place in it and the depth of each.
    """

    features: Floats
    right: NDArray[np.bool_]
    prompt: NDArray[np.int64]
    places: list[tuple[int, int, int]]


def sample(traces: Sequence[Trace]) -> Sample:
    """Everything that could have been drafted and judged: up to the first wrong token of each."""
    counts = Counter(token for trace in traces for token in trace.tokens)
    classes = {token: i for i, (token, _) in enumerate(counts.most_common(COMMONEST))}
    rows, right, text, places = [], [], [], []
    prompts: dict[tuple[int, ...], int] = {}  # answers to one prompt are alike: never in two folds
    for n, trace in enumerate(traces):
        prompt = prompts.setdefault(tuple(trace.prompt), len(prompts))
        for i, depth, features, agreed in drafted(trace, classes):
            rows.append(features)
            right.append(agreed)
            text.append(prompt)
            places.append((n, i, depth))
    return Sample(np.array(rows), np.array(right), np.array(text), places)


def drafted(trace: Trace, classes: dict[int, int]) -> Iterator[tuple[int, int, list[float], bool]]:
    """Place, depth, features and whether right, of each drafted token that would be judged."""
    context, index, late = list(trace.prompt), PromptLookup(), 0.7
    for i, true in enumerate(trace.tokens):
        if i:
            was_right = trace.drafts[i - 1][0][0] == trace.tokens[i - 1]
            index.update(context)
            before = 5.0
            for depth, (token, lead) in enumerate(trace.drafts[i][:DEPTH]):
                if i + depth >= len(trace.tokens):
                    break
                ahead = [each for each, _ in trace.drafts[i][:depth]]
                agreed = token == trace.tokens[i + depth]
                yield (
                    i,
                    depth,
                    [
                        *of_lead(lead),
                        float(depth == 0), float(depth),
                        min(before, 12.0), min(before, 1.0),
                        min(trace.leads[i - 1], 10.0), min(trace.leads[i - 1], 1.0),
                        float(was_right),
                        late,
                        *of_index(index, context, ahead, token),
                        *of_class(ahead[-1] if ahead else context[-1], classes),
                    ],
                    agreed,
                )  # fmt: skip
                before = min(before, lead)
                if not agreed:
                    break
        late = FADING * late + (1 - FADING) * (trace.drafts[i][0][0] == true)
        context.append(true)


def of_lead(lead: float) -> list[float]:
    """A curve in the lead of a drafted token."""
    lead = min(lead, 12.0)
    return [1.0, lead, min(lead, 2.0), min(lead, 0.7), math.log(max(lead, 1e-3) + 0.05)]


def of_index(index: PromptLookup, context: list[int], ahead: list[int], token: int) -> list[float]:
    """Whether prompt lookup says the same (1), another (-1) or nothing (0), and how sure it is."""
    found = next(index.continuation(context, ahead), None)
    if found is None:
        return [0.0, 0.0]
    sign = 1.0 if found.token == token else -1.0
    return [sign, sign * min(3.0, max(-3.0, found.confidence))]


def of_class(token: int, classes: dict[int, int]) -> list[float]:
    """Which of the commonest tokens this is."""
    return [float(classes.get(token) == i) for i in range(COMMONEST)]


def fit(features: Floats, right: NDArray[np.bool_]) -> Floats:
    """Weights of a logistic regression with a small ridge, by Newton's method."""
    weights = np.zeros(features.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-features @ weights))
        curvature = (features * (p * (1 - p))[:, None]).T @ features + RIDGE * np.eye(len(weights))
        weights += np.linalg.solve(curvature, features.T @ (right - p) - RIDGE * weights)
    return weights


def held_out_log_odds(data: Sample, columns: list[int]) -> Floats:
    """The log-odds of each drafted token, by a fit that never saw its prompt."""
    found = np.zeros(len(data.right))
    for fold in range(FOLDS):
        test = data.prompt % FOLDS == fold
        found[test] = data.features[test][:, columns] @ fit(
            data.features[~test][:, columns], data.right[~test]
        )
    return found


@dataclass
class Row:
    """One set of signals: ``causal`` holds the best causal policy's speedup by machine."""

    name: str
    log_loss: float
    calibration_error: float
    causal: list[float]

    def line(self) -> str:
        """This row of the table."""
        speedups = "".join(f"{each:16.3f}" for each in self.causal)
        return f"{self.name:26}{self.log_loss:9.4f}{self.calibration_error:9.4f}{speedups}"


def measure(data: Sample, traces: Sequence[Trace], tables: Sequence[CostTable]) -> Iterator[Row]:
    """A row for each set of signals."""
    tokens = sum(len(trace.tokens) for trace in traces)
    for name, more in SIGNALS.items():
        columns = [*range(*LEAD.indices(99)), *range(*more.indices(99))]
        log_odds = held_out_log_odds(data, columns)
        p = np.clip(1 / (1 + np.exp(-log_odds)), 1e-6, 1 - 1e-6)
        loss = -np.where(data.right, np.log(p), np.log(1 - p)).mean()
        answers = chains(data, traces, log_odds)
        yield Row(name, float(loss), calibration_error(p, data.right), [
            tokens * table.verify(1)
            / causal_seconds(answers, verify(table)[: DEPTH + 1], table.draft(1))
            for table in tables
        ])  # fmt: skip


def chains(data: Sample, traces: Sequence[Trace], log_odds: Floats) -> list[list[list[Guess]]]:
    """The drafts behind each place, with these log-odds for confidence.

    Behind a wrong token nothing would be judged: other drafts' confidences stand in there.
    """
    answers: list[list[list[Guess]]] = [[[] for _ in trace.tokens] for trace in traces]
    for (n, i, _), right, odds in zip(data.places, data.right, log_odds, strict=True):
        answers[n][i].append(Guess(bool(right), float(odds)))
    others = itertools.cycle(np.random.default_rng(0).permutation(log_odds).tolist())
    for trace, answer in zip(traces, answers, strict=True):
        for i, chain in enumerate(answer):
            missing = min(DEPTH, len(trace.tokens) - i) - len(chain)
            chain += [Guess(False, next(others)) for _ in range(missing if i else 0)]
    return answers


def calibration_error(p: Floats, right: NDArray[np.bool_]) -> float:
    """The mean distance of the chance from the share that is right, over bins of equal count."""
    order = np.array_split(np.argsort(p), BINS)
    return float(sum(len(b) * abs(p[b].mean() - right[b].mean()) for b in order) / len(p))


def main() -> None:
    """Print a table: plain is 1, by machine."""
    traces = chosen_traces(traces_parser(__doc__).parse_args())
    data = sample(traces)
    print(f"{len(traces)} texts, {len(data.right):,} drafted tokens, {data.right.mean():.0%} right")
    names = "".join(f"{table.name:>16}" for table in COST_TABLES)
    print(f"{'signals':26}log loss   calib.{names}")
    printed(measure(data, traces, COST_TABLES))


if __name__ == "__main__":
    main()
