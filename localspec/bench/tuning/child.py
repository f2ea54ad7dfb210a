"""The child process of `trial`: loads a pair with some settings, measures passes, answers."""

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from localspec.bench.plan import BenchPlan, Variant
from localspec.chat.answer import Piece
from localspec.chat.stats import GenerationStats, SourceStats
from localspec.core.compute import COMPUTE
from localspec.core.errors import LocalspecError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import load_options
from localspec.core.options.sampling_params import SamplingParams
from localspec.core.origins import DRAFT
from localspec.core.worker import Channel
from localspec.engine.engine import Engine
from localspec.engine.loading.first_use import note_used
from localspec.speculative.control.calibration import pass_seconds

_GREEDY = SamplingParams(temperature=0)
_READ = 32  # tokens of a prompt on a CPU, where 512 would take ten seconds
_READ_BY_GPU = 2048


class _Pair:
    """The pair that was loaded by the first question, and the answer that is under way."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._pieces: Iterator[Piece] = iter(())

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a question; an error of localspec is one too."""
        kind = asked["kind"]
        questions: dict[str, Callable[[Any], dict[str, Any]]] = {
            "load": self._load, "pass": self._pass, "begin": self._begin, "go on": self._go_on,
            "end": self._end,
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
        for model in models:  # the first pass of all reads the weights in
            pass_seconds(model, 1, time.perf_counter)
        return {"memory": sum(each.memory.total for each in models)}

    def _pass(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Seconds of a pass on an empty cache; of a token of a prompt for a ``width`` of 0."""
        target, draft, width = self.engine.target, self.engine.draft, asked["width"]
        model = target if asked["model"] == "target" else draft
        assert model is not None
        if width:
            return {"seconds": pass_seconds(model, width, time.perf_counter)}
        width = min(_READ_BY_GPU if target.options.gpu_layers else _READ, model.n_ctx)
        return {"seconds": pass_seconds(model, width, time.perf_counter, 1) / width}

    def _begin(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Prepare a greedy answer from empty caches; its seconds are those inside of rounds."""
        engine, lookup = self.engine, asked["prompt_lookup"]
        options = GenerateOptions(_GREEDY, asked["draft_tokens"], prompt_lookup=lookup)
        length = options.allowed(engine, ("", "")).draft_tokens
        plan = BenchPlan(_GREEDY, (length,), 1, asked["max_tokens"], lookup)
        side = Variant("trial", engine, plan, length)
        self._pieces = side.stream(engine.encode_chat(asked["messages"]))
        return {}

    def _go_on(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The next rounds of the answer; its figures if it ended."""
        for piece in islice(self._pieces, asked["rounds"]):
            if piece.finish_reason is not None:
                assert next(self._pieces, None) is None  # the generator ends, and frees its slot
                return self._figures(piece.stats)
        return {}

    def _figures(self, stats: GenerationStats) -> dict[str, Any]:
        engine = self.engine
        drafted = stats.sources.get(DRAFT, SourceStats())
        is_block = engine.draft is not None and engine.draft.block_size is not None
        return {
            "tokens": stats.tokens,
            "timed": stats.timed_tokens,
            "seconds": stats.spent_seconds,
            "reading": stats.prompt_seconds,
            "ttft": stats.ttft_s or 0.0,
            "passes": {width: each.passes for width, each in stats.passes.items()},
            "steps": drafted.rounds if is_block else drafted.drafted,
            "read": stats.read_tokens,
        }

    def _end(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Save the profile, and that the pair ran: the next start need not try it in a child."""
        note_used(self.engine.target.options.branches, self.engine.file)
        self.engine.close()
        return {}


if __name__ == "__main__":
    with COMPUTE.adopted():
        Channel().serve(_Pair().answer)
