"""Benchmark runner: measures plain decoding beside drafted, in interleaved repeats, task by task.

Every side answers through the same function as `localspec run`. Nothing is drawn here.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from localspec.bench.comparison import Comparison
from localspec.bench.equality import Audit, Difference, DifferenceFinder, audit_answers
from localspec.bench.figures import Side
from localspec.bench.plan import BenchEngine, BenchPlan, PromptIds, require_room
from localspec.chat.answer import Answer, collect
from localspec.core.config import DraftTokens
from localspec.core.errors import LocalspecError
from localspec.core.generate_options import GenerateOptions
from localspec.engine.generate import model_drafter, stream_generate
from localspec.llama.heads.head import Head
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.limits import Guess

T = TypeVar("T")

_WARM_UP_TOKENS = 16
_AT_ONCE = 32  # tokens of an answer that the draft is asked about in one pass
_NOTHING = Guess(False, -math.inf)  # of a draft that lacks a token of the text


def run_bench(
    engine: BenchEngine,
    tasks: Mapping[str, Sequence[PromptIds]],
    plan: BenchPlan,
    on_answer: Callable[[str], None] = lambda task: None,
) -> Iterator[Comparison]:
    """Compare all sides task by task, after a warm-up of each side.

    ``on_answer`` hears the task of each measured answer. Ctrl-C or a LocalspecError ends the
    measurement: what is complete of its task by then is yielded first, and then it is raised.
    """
    require_room(engine, tasks, plan)
    warm_up(engine, next(iter(tasks.values()))[0], plan)
    for task, prompts in tasks.items():
        done: list[_Measured] = []
        problem: BaseException | None = None
        heard = partial(on_answer, task)
        try:
            for i, prompt in enumerate(prompts):
                done.append(_measure(engine, f"{task} {i + 1}", prompt, plan, heard))
        except (KeyboardInterrupt, LocalspecError) as error:
            problem = error
        if done:
            yield _comparison(task, plan, done)
        if problem is not None:
            raise problem


def warm_up(engine: BenchEngine, prompt: PromptIds, plan: BenchPlan) -> None:
    """Let every side answer once, unmeasured: first passes page weights in and set up kernels."""
    short = replace(plan, max_tokens=min(plan.max_tokens, _WARM_UP_TOKENS))
    for length in plan.lengths:
        answer(engine, prompt, short, length)


def answer(engine: BenchEngine, prompt: PromptIds, plan: BenchPlan, length: DraftTokens) -> Answer:
    """Generate once from empty caches; Ctrl-C ends the whole measurement."""
    engine.target.truncate(0)
    if engine.draft is not None:
        engine.draft.truncate(0)
    engine.prompt_lookup.update([])
    engine.conversations.clear()
    result = collect(
        stream_generate(
            engine,
            prompt,
            GenerateOptions(
                plan.params, length, prompt_lookup=plan.prompt_lookup, max_tokens=plan.max_tokens
            ),
            clock=plan.clock,
        )
    )
    if result.finish_reason == "cancelled":
        raise KeyboardInterrupt
    return result


@dataclass(frozen=True, slots=True)
class _Measured:
    """One prompt's answers, ``answers[side][repeat]``, and what explains their differences."""

    name: str
    answers: list[list[Answer]]
    differences: list[Difference]
    guesses: tuple[Guess, ...]
    audits: list[Audit]


def _measure(
    engine: BenchEngine,
    name: str,
    prompt: PromptIds,
    plan: BenchPlan,
    on_answer: Callable[[], None],
) -> _Measured:
    """Answer one prompt with every side, then explain where the texts differ."""
    sides = [partial(answer, engine, prompt, plan, length) for length in plan.lengths]
    rows = take_turns(sides, plan.repeats, on_answer)
    finder = DifferenceFinder(engine, name, prompt, plan, partial(answer, engine, prompt, plan))
    return _Measured(
        name,
        rows,
        list(finder.among(rows)),
        _guesses(engine, prompt, plan, rows[0][0].tokens),
        list(audit_answers(engine, name, prompt, plan, rows)) if plan.audit else [],
    )


def take_turns(
    sides: Sequence[Callable[[], T]], repeats: int, on_answer: Callable[[], None] = lambda: None
) -> list[list[T]]:
    """What each side gives, ``[side][repeat]``; the sides are interleaved.

    So noise from other processes falls on all of them alike; their order alternates between
    repeats.
    """
    given: list[list[T]] = [[] for _ in sides]
    for repeat in range(repeats):
        for i in range(len(sides))[:: 1 if repeat % 2 == 0 else -1]:
            given[i].append(sides[i]())
            on_answer()
    return given


def _guesses(
    engine: BenchEngine, prompt: PromptIds, plan: BenchPlan, tokens: Sequence[int]
) -> tuple[Guess, ...]:
    """`guesses_along` of the engine's draft.

    Not told where the rule of acceptance asks for more than the same token, nor of heads, which
    answer only where the target has just read.
    """
    asked = plan.params.seed_decides and not isinstance(engine.draft, Head)
    drafter = model_drafter(engine, plan.params) if asked else None
    if drafter is None:
        return ()
    return guesses_along(drafter, prompt, tokens)


def guesses_along(
    drafter: ModelDrafter, prompt: PromptIds, tokens: Sequence[int]
) -> tuple[Guess, ...]:
    """What a draft would say in the place of each of these tokens, read in wide passes."""
    context, guesses = list(prompt), list[Guess]()
    drafter.read(context)
    for i in range(0, len(tokens), _AT_ONCE):
        piece = tokens[i : i + _AT_ONCE]
        context += piece
        reviewed = drafter.review(context, len(piece))
        found = [Guess(said.token == came, said.confidence) for said, came in reviewed]
        guesses += [*[_NOTHING] * (len(piece) - len(found)), *found]
    return tuple(guesses)


def _comparison(task: str, plan: BenchPlan, measured: Sequence[_Measured]) -> Comparison:
    sides = tuple(
        Side(length, tuple(zip(*(one.answers[i] for one in measured), strict=True)))
        for i, length in enumerate(plan.lengths)
    )
    differences = tuple(each for one in measured for each in one.differences)
    guesses = tuple(one.guesses for one in measured) if measured[0].guesses else ()
    names = tuple(one.name for one in measured)
    audits = tuple(each for one in measured for each in one.audits)
    return Comparison(task, names, sides, differences, guesses, plan.params.seed_decides, audits)
