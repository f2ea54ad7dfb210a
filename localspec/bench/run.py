"""Benchmark runner: variants answer the same prompts in turn, and are compared with plain."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from localspec.bench.comparison import Comparison
from localspec.bench.equality import Difference, DifferenceFinder
from localspec.bench.figures import Side
from localspec.bench.plan import BenchPlan, PromptIds, Variant, require_prompts_fit
from localspec.chat.answer import Answer
from localspec.core.errors import LocalspecError
from localspec.engine.engine import Engine

T = TypeVar("T")


def run_bench(
    engine: Engine,
    tasks: Mapping[str, Sequence[PromptIds]],
    plan: BenchPlan,
    on_answer: Callable[[str, int, int, Answer | None], None] = lambda task, done, total, answer: (
        None
    ),
    on_prompt: Callable[[Comparison], None] = lambda comparison: None,
    is_enough: Callable[[Comparison], bool] = lambda comparison: False,
) -> Iterator[Comparison]:
    """Compare the draft lengths of a plan task by task, after a warm-up.

    ``on_answer`` is called with the task, how many of its answers there are and will be, and the
    last one, for the first time before there is one; ``on_prompt`` with the prompts of a task so
    far, once all sides have answered another, unless it is the last. A task ends before its last
    prompt if the measurement ``is_enough``.
    Ctrl-C or a LocalspecError ends the measurement: the prompts that are complete by then are
    yielded as a comparison, then it is raised.
    """
    require_prompts_fit(engine, tasks, plan)
    variants = [Variant(str(length), engine, plan, length) for length in plan.lengths]
    for variant in variants:
        variant.warm_up(next(iter(tasks.values()))[0])
    for task, prompts in tasks.items():
        named = {f"{task} {i}": prompt for i, prompt in enumerate(prompts, 1)}
        done: list[_Measured] = []
        problem: BaseException | None = None
        try:
            for measured in _measure(variants, named, partial(on_answer, task)):
                done.append(measured)
                so_far = _comparison(task, variants, done)
                if is_enough(so_far):
                    break
                if len(done) < len(named):
                    on_prompt(so_far)
        except (KeyboardInterrupt, LocalspecError) as error:
            problem = error
        if done:
            yield _comparison(task, variants, done)
        if problem is not None:
            raise problem


def take_turns(
    sides: Sequence[Callable[[], T]],
    repeats: int,
    on_answer: Callable[[T], None] = lambda answer: None,
) -> list[list[T]]:
    """The results of each side, ``[side][repeat]``, interleaved: noise falls on all sides alike."""
    given: list[list[T]] = [[] for _ in sides]
    for repeat in range(repeats):
        for i in range(len(sides))[:: 1 if repeat % 2 == 0 else -1]:
            given[i].append(sides[i]())
            on_answer(given[i][-1])
    return given


@dataclass(frozen=True, slots=True)
class _Measured:
    """One prompt: ``answers[variant][repeat]``, and the differences of each variant from plain."""

    name: str
    answers: list[list[Answer]]
    differences: list[list[Difference]]


def _measure(
    variants: Sequence[Variant],
    prompts: Mapping[str, PromptIds],
    on_answer: Callable[[int, int, Answer | None], None],
) -> Iterator[_Measured]:
    """Answer each prompt with every variant in turn, then explain where the texts differ."""
    first = variants[0]
    plan, count = first.plan, itertools.count(1)
    total = plan.repeats * len(variants) * len(prompts)
    on_answer(0, total, None)
    for name, prompt in prompts.items():
        sides = [partial(variant.answer, prompt) for variant in variants]
        rows = take_turns(sides, plan.repeats, lambda one: on_answer(next(count), total, one))
        plain = rows[0][0].tokens
        finder = DifferenceFinder(name, prompt, plain)
        yield _Measured(
            name, rows, [list(finder.explain(*each)) for each in zip(variants, rows, strict=True)]
        )


def _comparison(
    task: str, variants: Sequence[Variant], measured: Sequence[_Measured]
) -> Comparison:
    sides = tuple(
        Side(variant.length, tuple(zip(*(one.answers[i] for one in measured), strict=True)))
        for i, variant in enumerate(variants)
    )
    return Comparison(
        task,
        tuple(one.name for one in measured),
        sides,
        tuple(each for one in measured for side in one.differences for each in side),
        variants[0].plan.params.text_independent_of_draft,
    )
