"""Trials of drafts: how often one says what the target said, and what a step of it costs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

from localspec.bench.plan import BenchPlan, PromptIds, Variant
from localspec.bench.prompts import by_task, read_prompts
from localspec.bench.run import guesses_along
from localspec.core.errors import EngineError, PromptTooLong
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import make_sampler
from localspec.llama.memory.plan import draft_ctx_size
from localspec.llama.memory.probe import plan_here
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.trimmed import open_draft_model
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft.make import Recipe
from localspec.speculative.control.valuation import LONGEST_AUTO
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.limits import best_fixed

GREEDY = SamplingParams(temperature=0)
ANSWER_TOKENS = 48
_ROOM = ANSWER_TOKENS + LONGEST_AUTO + 1  # tokens behind a prompt: an answer, and a draft
_STEPS, _STEP_BUDGET = 32, 0.5  # passes of one token, seconds; the quickest counts

Questions = dict[str, PromptIds]  # token ids by name


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, and the target's greedy answer to it."""

    prompt: PromptIds
    answer: Sequence[int]


@dataclass(frozen=True, slots=True)
class Trial:
    """What was measured of one draft.

    ``agreement`` is the share of the target's tokens that it says too, given the text before;
    ``step_s`` the seconds of a draft step, ``step_cost`` the same in plain passes of the target.
    ``predicted_speedup`` over plain is that of the best fixed draft length, ``length``.
    """

    recipe: Recipe
    n_bytes: int
    agreement: float
    step_s: float
    step_cost: float
    predicted_speedup: float
    length: int

    def as_json(self) -> dict[str, object]:
        """Plain data: seconds end in ``_s``."""
        return asdict(self) | {"recipe": self.recipe.as_json()}


def questions(engine: Engine) -> tuple[Questions, Questions]:
    """Built-in prompts to search with and to judge by; both have every task, short prompts first.

    The first set holds the shortest prompt of each task. The second begins with the others, since
    the prompts of the search favour what it found, and ends with the first set. Raises
    PromptTooLong where the context has no room for any prompt and its answer.
    """
    quick, others = Questions(), Questions()
    n_ctx = engine.target.n_ctx
    for task, prompts in by_task(read_prompts()).items():
        ids = {f"{task} {i}": engine.encode_chat(one.messages) for i, one in enumerate(prompts, 1)}
        fitting = _by_length((n, p) for n, p in ids.items() if len(p) + _ROOM <= n_ctx)
        quick |= dict(list(fitting.items())[:1])
        others |= dict(list(fitting.items())[1:])
    if not quick:
        raise PromptTooLong(
            f"No built-in prompt fits into a context of {n_ctx} tokens.",
            "Give a larger --ctx-size.",
        )
    quick, others = _by_length(quick.items()), _by_length(others.items())
    return quick, others | quick


def _by_length(prompts: Iterable[tuple[str, PromptIds]]) -> Questions:
    return dict(sorted(prompts, key=lambda item: len(item[1])))


def record(engine: Engine, prompts: Mapping[str, PromptIds], budget: float) -> list[Text]:
    """The target's plain answers to these prompts, in their order, until the seconds are spent.

    The first is answered in any case; empty answers are left out.
    """
    plan = BenchPlan(GREEDY, (0,), 1, ANSWER_TOKENS)
    plain = Variant("plain", engine, plan, 0)
    texts, end = list[Text](), perf_counter() + budget
    for prompt in prompts.values():
        if texts and perf_counter() > end:
            break
        said = plain.answer(prompt).tokens
        if said:
            texts.append(Text(prompt, said))
    return texts


class Trials:
    """Tries drafts against a target's answers and the costs of its passes.

    ``verify`` holds the seconds of the target's passes of 1, 2, ... tokens. ``load`` gives the load
    options of a draft file.
    """

    def __init__(
        self,
        engine: Engine,
        texts: Sequence[Text],
        load: Callable[[Path], LoadOptions],
    ) -> None:
        engine.target.truncate(0)
        self._engine = engine
        self._texts = texts
        self._load = load
        costs = engine.profile.learnt(perf_counter).verify
        plain = self._step(engine.target)  # measured like drafts; wider passes by the learnt ratio
        self.verify = [
            plain * costs.seconds(width, 0) / costs.seconds(1, 0)
            for width in range(1, LONGEST_AUTO + 2)
        ]

    def attempt(self, recipe: Recipe, path: Path) -> Trial:
        """Load the draft of this recipe from its file and try it.

        Raises EngineError where llama.cpp refuses it, or cannot take its tokens back, and
        NotEnoughMemory where it does not fit beside the target.
        """
        header = read_header(path)
        model = open_draft_model(header, self._placed(header))
        try:
            if not model.can_roll_back:
                raise EngineError(f"llama.cpp cannot take tokens back from {path.name}.")
            agreed = self._agreed(model)
            step = self._step(model)
        finally:
            model.close()
        speedup, length = best_fixed(agreed, self.verify, step)
        tokens = sum(map(len, agreed))
        return Trial(
            recipe=recipe,
            n_bytes=path.stat().st_size,
            agreement=sum(map(sum, agreed)) / tokens,
            step_s=step,
            step_cost=step / self.verify[0],
            predicted_speedup=speedup,
            length=length,
        )

    def _placed(self, header: ModelHeader) -> LoadOptions:
        """The load options of a draft beside the target, which is in memory."""
        options = self._load(header.path)
        ctx_size = options.ctx_size or draft_ctx_size(header, self._engine.target.n_ctx)
        plan = plan_here(header, replace(options, ctx_size=ctx_size))
        return replace(options, ctx_size=plan.ctx_size, gpu_layers=plan.gpu_layers)

    def _agreed(self, model: LlamaModel) -> list[list[bool]]:
        """For each token of each answer, whether the draft picks it too."""
        engine = self._engine
        sampler = make_sampler(GREEDY, engine.token_rules(GREEDY))
        drafter = ModelDrafter(model, sampler, engine.target.n_vocab, engine.is_stop)
        return [
            [guess.right for guess in guesses_along(drafter, text.prompt, text.answer)]
            for text in self._texts
        ]

    def _step(self, model: LlamaModel) -> float:
        """Seconds of a pass of one token after few others; the cache is left empty."""
        model.truncate(0)
        best, end = self._seconds(model, 0), perf_counter() + _STEP_BUDGET
        for token in range(1, _STEPS):
            best = min(best, self._seconds(model, token))
            if perf_counter() > end:
                break
        model.truncate(0)
        return max(1e-9, best)

    def _seconds(self, model: LlamaModel, token: int) -> float:
        began = perf_counter()
        model.decode([token], 1)
        return perf_counter() - began
