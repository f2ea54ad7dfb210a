"""Benchmark runner: each variant and plain decoding answer the same prompts in turn."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from localspec.bench.comparison import Comparison
from localspec.bench.equality import Difference, DifferenceFinder
from localspec.bench.figures import Side
from localspec.bench.plan import BenchPlan, PromptIds, Variant, require_prompts_fit
from localspec.chat.answer import Answer
from localspec.core.errors import LocalspecError
from localspec.engine.engine import Engine
from localspec.engine.session.job import as_completed


def run_bench(
    engine: Engine,
    tasks: Mapping[str, Sequence[PromptIds]],
    plan: BenchPlan,
    on_answer: Callable[[str, int, int, Answer | None], None] = lambda task, done, total, answer: (
        None
    ),
    on_prompt: Callable[[Comparison], None] = lambda comparison: None,
    is_enough: Callable[[Comparison], bool] = lambda comparison: False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Comparison]:
    """Compare the draft lengths of a plan task by task, after a warm-up.

    ``on_answer`` is called with the task, how many of its answers there are and will be, and the
    last one, for the first time before there is one; ``on_prompt`` with the prompts of a task so
    far, once all sides have answered another, unless it is the last. A task ends before its last
    prompt if the measurement ``is_enough``. ``say`` gets notes for the user.
    Ctrl-C or a LocalspecError ends the measurement: the prompts that are complete by then are
    yielded as a comparison, then it is raised.
    """
    require_prompts_fit(engine, tasks, plan)
    with engine.plain(say) as plain:
        variants = [
            Variant(str(length), engine if length else plain, plan, length)
            for length in plan.lengths
        ]
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


def both_answers(plain: Variant, other: Variant, prompt: PromptIds) -> list[Answer]:
    """Answers of two variants from empty caches.

    Two engines compute their rounds in turn, so that noise falls on both alike: on a shared machine
    the same passes take twice as long ten seconds later. One engine answers one after the other.
    """
    if plain.engine is other.engine:
        return [each.answer(prompt) for each in (plain, other)]
    with plain.stream(prompt) as first, other.stream(prompt) as second:
        for stream in as_completed([first, second]):
            if stream.error is not None:
                raise stream.error
    return [first.answer, second.answer]


@dataclass(frozen=True, slots=True)
class _Measured:
    """One prompt: ``answers[variant][repeat]``, and the differences of each variant from plain.

    Plain answers are in the order in which they were given; see `Comparison`.
    """

    name: str
    answers: list[list[Answer]]
    differences: list[list[Difference]]


def _measure(
    variants: Sequence[Variant],
    prompts: Mapping[str, PromptIds],
    on_answer: Callable[[int, int, Answer | None], None],
) -> Iterator[_Measured]:
    """Answer each prompt by plain decoding with each variant, then explain differing texts."""
    plain, *others = variants
    plan, count = plain.plan, itertools.count(1)
    total = plan.answers * len(prompts)
    on_answer(0, total, None)

    def noted(answers: Iterable[Answer]) -> list[Answer]:
        for each in (found := [*answers]):
            on_answer(next(count), total, each)
        return found

    for name, prompt in prompts.items():
        rows: list[list[Answer]] = [[] for _ in variants]
        for _ in range(plan.repeats):
            if not others:
                rows[0] += noted([plain.answer(prompt)])
            for other, row in zip(others, rows[1:], strict=True):
                first, second = noted(both_answers(plain, other, prompt))
                rows[0].append(first)
                row.append(second)
        finder = DifferenceFinder(name, prompt, rows[0][0].tokens)
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
