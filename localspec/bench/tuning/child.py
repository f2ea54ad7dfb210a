"""The child process of `trial`: loads a pair with some settings, measures passes, answers."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from localspec.bench.plan import BenchPlan, Variant
from localspec.chat.stats import SourceStats
from localspec.core.compute import COMPUTE
from localspec.core.errors import LocalspecError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import load_options
from localspec.core.options.sampling_params import SamplingParams
from localspec.core.origins import DRAFT
from localspec.core.worker import Channel
from localspec.engine.engine import Engine
from localspec.engine.profile_store import as_json
from localspec.speculative.control.calibration import calibrate

_GREEDY = SamplingParams(temperature=0)
_READ = 64  # tokens of a prompt on a CPU, where 512 would take ten seconds
_READ_BY_GPU = 2048


class _Pair:
    """The pair that was loaded by the first question."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a question; an error of localspec is one too."""
        kind = asked["kind"]
        questions: dict[str, Callable[[Any], dict[str, Any]]] = {
            "load": self._load, "passes": self._passes, "answer": self._answer, "end": self._end,
        }  # fmt: skip
        try:
            return questions[kind](asked)
        except LocalspecError as problem:
            return {"error": [problem.message, problem.hint]}

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def _load(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        # No trial in another child: this is one.
        self._engine = Engine.load(*map(load_options, asked["models"]), trial=False)
        models = [each for each in (self.engine.target, self.engine.draft) if each is not None]
        return {"memory": sum(each.memory.total for each in models)}

    def _passes(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Costs by width on empty caches, and seconds of the target for a token of a prompt."""
        engine = self.engine
        found = calibrate(engine.target, engine.draft, time.perf_counter, asked["seconds"])
        width = min(
            _READ_BY_GPU if engine.target.options.gpu_layers else _READ, engine.target.n_ctx
        )
        tokens = [(7919 * i + 1) % engine.target.n_vocab for i in range(width)]
        began = time.perf_counter()
        engine.target.decode(tokens, 1)
        reading = (time.perf_counter() - began) / width
        return as_json(found) | {"target_reading": reading}

    def _answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """One greedy answer from empty caches."""
        engine, lookup = self.engine, asked["prompt_lookup"]
        options = GenerateOptions(_GREEDY, asked["draft_tokens"], prompt_lookup=lookup)
        length = options.allowed(engine, ("", "")).draft_tokens
        plan = BenchPlan(_GREEDY, (length,), 1, asked["max_tokens"], lookup)
        side = Variant("trial", engine, plan, length)
        stats = side.answer(engine.encode_chat(asked["messages"])).stats
        drafted = stats.sources.get(DRAFT, SourceStats())
        is_block = engine.draft is not None and engine.draft.block_size is not None
        return {
            "tokens": stats.tokens,
            "timed": stats.timed_tokens,
            "seconds": stats.seconds + stats.draft_prompt_seconds,
            "reading": stats.prompt_seconds,
            "ttft": stats.ttft_s or 0.0,
            "passes": {width: each.passes for width, each in stats.passes.items()},
            "steps": drafted.rounds if is_block else drafted.drafted,
            "read": stats.read_tokens,
        }

    def _end(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Save the profile, with which the first answer with these settings starts."""
        self.engine.close()
        return {}


if __name__ == "__main__":
    with COMPUTE.adopted():
        Channel().serve(_Pair().answer)
