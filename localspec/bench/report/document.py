"""Documents of benchmarks: read again, and compared with that of a later run."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localspec.bench.figures import Spent, speedup_interval
from localspec.bench.prompts import Prompt
from localspec.chat.stats import Interval
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import read_text
from localspec.core.options.load_options import DraftTokens

FORMAT = 3  # raise it when a key changes its name or meaning
Document = Mapping[str, Any]

_MAX_BYTES = 256 * 2**20
_COMPARED = ("version", "machine", "target", "draft", "settings")  # keys
_HINT = "Give a file that `localspec bench --output` or `--json` wrote."


@dataclass(frozen=True, slots=True)
class Ratio:
    """One draft length in two runs: ``ratio`` is its speed now over its speed ``before``.

    Speeds are in tokens per second, from sums over all prompts and repeats; ``interval`` is the
    90 % interval over the prompts (None: too few).
    """

    draft_tokens: DraftTokens
    before_tps: float
    now_tps: float
    ratio: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Against:
    """A run against an earlier one over the ``prompts`` and draft lengths of both.

    ``changes`` are settings with their values before and now; None is one that is not set.
    """

    date: str
    version: str
    prompts: int
    ratios: tuple[Ratio, ...]
    changes: tuple[tuple[str, object, object], ...]


def read_document(path: Path, prompts: Sequence[Prompt]) -> Document:
    """The document of an earlier run with these prompts; raises FileProblem, UsageError."""
    text = read_text(path, _MAX_BYTES, expected="the JSON document of an earlier benchmark")
    try:
        document: Document = json.loads(text)
        written = document["format"]
        measured = _spent(document)[0].keys() if written == FORMAT else set()
        if measured:
            compare_documents(document, document)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FileProblem(f"{path} is not the document of a benchmark.", _HINT) from error
    if written != FORMAT:
        raise FileProblem(
            f"{path} is a document of format {written!r}; this version reads format {FORMAT}.",
            "Measure again with --output.",
        )
    if not measured & {_key(prompt.task, prompt.messages) for prompt in prompts}:
        raise UsageError(
            f"{path} has none of the prompts that are to be measured.",
            "Give the same --prompts and --tasks as then.",
        )
    return document


def compare_documents(now: Document, before: Document) -> Against:
    ours, theirs = _spent(now), _spent(before)
    shared = {length: ours[length].keys() & theirs.get(length, {}).keys() for length in ours}
    facts, former = _facts(now), _facts(before)
    return Against(
        str(before["date"]),
        str(before["version"]),
        len(shared.get(0, ())),
        tuple(
            _ratio(length, _over(theirs[length], keys), _over(ours[length], keys))
            for length, keys in shared.items()
            if keys
        ),
        tuple(
            (name, former.get(name), facts.get(name))
            for name in dict.fromkeys([*former, *facts])
            if former.get(name) != facts.get(name)
        ),
    )


def flat(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Plain data as names, joined by dots, and single values; those not set are left out."""
    if isinstance(value, Mapping):
        items = [*value.items()]
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        items = [*enumerate(value, 1)]
    else:
        if value not in (None, [], ()):
            yield name, _words(value)
        return
    for key, each in items:
        yield from flat(each, f"{name}.{key}" if name else str(key))


def _words(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _facts(document: Document) -> dict[str, object]:
    return dict(flat({name: document[name] for name in _COMPARED}))


def _spent(document: Document) -> dict[DraftTokens, dict[str, tuple[float, float]]]:
    """Seconds and tokens of all repeats, by draft length and prompt; loops are left out."""
    keys = {
        prompt["name"]: _key(prompt["task"], prompt["messages"]) for prompt in document["prompts"]
    }
    left_out = document["overall"]["left_out"] if document["overall"] else ()
    found: dict[DraftTokens, dict[str, tuple[float, float]]] = {0: {}}
    for row in document["answers"]:
        if row["prompt"] in left_out:
            continue
        seconds, tokens = float(row["generation_s"] + row["draft_prompt_s"]), int(row["tokens"])
        if not (0 <= seconds < math.inf and tokens > 0):
            raise ValueError("an answer without tokens, or with a time that cannot be")
        if seconds == 0:
            continue
        side, key = found.setdefault(row["draft_tokens"], {}), keys[row["prompt"]]
        before = side.get(key, (0.0, 0.0))
        side[key] = before[0] + seconds, before[1] + tokens
    return found


def _key(task: object, messages: object) -> str:
    """The key by which two prompts are the same: names are numbers, which depend on the others."""
    return json.dumps([task, messages], sort_keys=True)


def _over(side: Mapping[str, tuple[float, float]], keys: set[str]) -> Spent:
    rows = np.array([side[key] for key in sorted(keys)])
    return Spent(rows[:, :1].T, rows[:, 1:].T)


def _ratio(length: DraftTokens, before: Spent, now: Spent) -> Ratio:
    return Ratio(
        length, 1 / before.pace, 1 / now.pace, before.pace / now.pace, speedup_interval(before, now)
    )
