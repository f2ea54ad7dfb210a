"""The built-in prompts as a target reads them: some to search with, others to judge by."""

from collections.abc import Iterable

from localspec.bench.plan import PromptIds
from localspec.bench.prompts import by_task, read_prompts
from localspec.core.errors import PromptTooLong
from localspec.engine.engine import Engine

Questions = dict[str, PromptIds]  # token ids by name


def questions(engine: Engine, room: int) -> tuple[Questions, Questions]:
    """Two sets with every kind of task in each, both with short prompts first.

    The first holds the shortest prompt of each task, to search with; the second begins with the
    others, since what was searched for is judged too well by what it was searched with, and ends
    with the first again. Raises PromptTooLong where no prompt leaves ``room`` tokens in the
    context.
    """
    quick, others = Questions(), Questions()
    for task, prompts in by_task(read_prompts()).items():
        ids = {f"{task} {i}": engine.encode_chat(one.messages) for i, one in enumerate(prompts, 1)}
        fitting = _by_length((n, p) for n, p in ids.items() if len(p) + room <= engine.target.n_ctx)
        quick |= dict(list(fitting.items())[:1])
        others |= dict(list(fitting.items())[1:])
    if not quick:
        raise PromptTooLong(
            f"No built-in prompt fits into a context of {engine.target.n_ctx} tokens.",
            "Give a larger --ctx-size.",
        )
    quick, others = _by_length(quick.items()), _by_length(others.items())
    return quick, others | quick


def _by_length(prompts: Iterable[tuple[str, PromptIds]]) -> Questions:
    return dict(sorted(prompts, key=lambda item: len(item[1])))
