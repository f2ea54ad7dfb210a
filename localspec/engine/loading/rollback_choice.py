"""Choice of the cheaper rollback strategy for a recurrent state, measured once per model."""

import time
from collections.abc import Callable
from typing import Any

from localspec.engine.loading.pair_file import Model, PairFile
from localspec.llama.cache.rollback import Fork, Snapshots
from localspec.llama.model import LlamaModel
from localspec.speculative.loop import Clock

STRATEGIES = (Snapshots.name, Fork.name)
_ROUNDS, _DRAFTED, _ACCEPTED = 6, 3, 1  # a typical round
_BUDGET = 2.0  # seconds for each strategy


def load_target(
    model: Model,
    file: PairFile,
    say: Callable[[str], None] | None = None,
    *,
    drafted: bool = True,
    clock: Clock = time.perf_counter,
) -> LlamaModel:
    """A target with the cheapest rollback strategy on this machine.

    If two work, the first start measures both; several slots take snapshots, without which they
    share no passes of different widths. A target without a draft (``drafted``) is rarely rolled
    back, so it takes no snapshots, which make each pass a little longer.
    """
    header, options = model
    if not drafted:
        return LlamaModel(header, options, strategies=(Fork.name,))
    if options.parallel > 1:
        return LlamaModel(header, options, strategies=STRATEGIES)
    kept = _cheapest(file.parts.get("rollback"))
    loaded = LlamaModel(header, options, strategies=STRATEGIES if kept is None else (kept,))
    if kept is None and loaded.rollback.name == Snapshots.name:
        if say is not None:
            say("New on this machine: measuring two strategies to roll rejected tokens back.")
        try:
            file.update(rollback=_choose(loaded, clock))
        except BaseException:
            loaded.close()
            raise
    return loaded


def _choose(model: LlamaModel, clock: Clock) -> dict[str, float]:
    """Let the model use the cheaper strategy; returns seconds of a round with each."""
    seconds = {Snapshots.name: _round_seconds(model, clock)}
    if model.use_rollback(Fork.name):
        seconds[Fork.name] = _round_seconds(model, clock)
    best = min(seconds, key=seconds.__getitem__)
    if model.rollback.name != best:
        model.use_rollback(best)
    return seconds


def _round_seconds(model: LlamaModel, clock: Clock) -> float:
    """Mean seconds of rounds that reject some of their tokens; the first ones set things up."""
    tokens = [(7919 * i + 1) % model.n_vocab for i in range(1 + _DRAFTED)]
    end = clock() + _BUDGET
    times: list[float] = []
    while len(times) < 2 + _ROUNDS and (len(times) < 4 or clock() < end):
        began = clock()
        model.decode(tokens, len(tokens))
        model.truncate(len(model.tokens) - _DRAFTED + _ACCEPTED)
        times.append(clock() - began)
    model.truncate(0)
    return sum(times[2:]) / len(times[2:])


def _cheapest(seconds: Any) -> str | None:
    """The strategy measured to be the cheapest; None if nothing valid was saved."""
    try:
        return min((s for s in STRATEGIES if s in seconds), key=lambda s: float(seconds[s]))
    except (ValueError, TypeError):
        return None
