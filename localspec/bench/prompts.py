"""Benchmark prompts by kind of task: those that are shipped, or a JSON Lines file's.

A line of a file is a prompt: plain text, a JSON string, a list of messages (``{"role": ...,
"content": ...}``), or an object with ``prompt`` or ``messages``, and perhaps ``task``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from localspec.chat.message import Message, parse_message
from localspec.chat.prompt_file import read_prompt_file
from localspec.core.errors import FileProblem, UsageError

SHIPPED = Path(__file__).with_name("prompts.jsonl")
_MAX_BYTES = 64 * 2**20
_NO_TASK = "prompts"
_EXAMPLE = 'Expected on each line: {"task": "code", "prompt": "Write ..."}'


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A conversation to be answered, and its kind of task."""

    task: str
    messages: tuple[Message, ...]


def read_prompts(path: Path = SHIPPED) -> list[BenchPrompt]:
    """The prompts of a file, in its order; raises FileProblem, which names the line."""
    prompts = []
    for number, value in read_prompt_file(path, _MAX_BYTES, "The prompt file ", _EXAMPLE):
        try:
            prompts.append(_prompt_of(value))
        except ValueError as error:
            raise FileProblem(f"{path}, line {number}: {error}", _EXAMPLE) from error
    if not prompts:
        raise FileProblem(f"The prompt file {path} holds no prompts.", _EXAMPLE)
    return prompts


def _prompt_of(value: object) -> BenchPrompt:
    if isinstance(value, str):
        return BenchPrompt(_NO_TASK, ({"role": "user", "content": value},))
    fields: dict[str, Any] = value if isinstance(value, dict) else {"messages": value}
    task = fields.get("task", _NO_TASK)
    if not isinstance(task, str) or not task.strip():
        raise ValueError("expected a text as the task.")
    task = task.strip()
    if isinstance(fields.get("prompt"), str) and "messages" not in fields:
        return BenchPrompt(task, ({"role": "user", "content": fields["prompt"]},))
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or "prompt" in fields:
        raise ValueError("expected either a prompt (a text) or messages (a list).")
    return BenchPrompt(task, tuple(map(parse_message, messages)))


def by_task(
    prompts: Iterable[BenchPrompt], wanted: str | None = None
) -> dict[str, list[BenchPrompt]]:
    """The prompts by task; only ``wanted`` ones, separated by commas. Raises UsageError."""
    groups: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.task, []).append(prompt)
    if wanted is None:
        return groups
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    missing = [name for name in names if name not in groups] or ([] if names else [wanted])
    if missing:
        raise UsageError(f"There is no task {missing[0]!r}.", f"Tasks here: {', '.join(groups)}.")
    return {task: group for task, group in groups.items() if task in names}


def in_turn(groups: Mapping[str, Sequence[BenchPrompt]]) -> dict[str, list[BenchPrompt]]:
    """All prompts as one group, the first of each task, then the second ones; one task as it is."""
    if len(groups) == 1:
        return {task: [*group] for task, group in groups.items()}
    rounds = zip_longest(*groups.values())
    return {"all": [prompt for each in rounds for prompt in each if prompt is not None]}
