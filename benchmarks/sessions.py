"""Scripted sessions of coding assistants: what a user asks turn by turn, and the right answers.

`benchmarks/traces.py --sessions` records them and `benchmarks/replay.py` plays them. The bundled
models cannot do such work, so the answers are written here: from the sources of Python's standard
library, and from made-up records. They are the same at every call with one version of Python.
"""

import inspect
import json
import random
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from localspec.chat.message import Message

TURNS = 20
EXTRACTIONS = 50
COMPACTED = 10  # the turn before which the older ones are replaced by a summary
REGENERATED = (4, 14)  # turns whose answer is asked for once more, and comes out otherwise

_SYSTEM = "You are a coding assistant. Follow the instructions to the letter."
_WORDS = ("value", "entry", "source", "target", "result", "buffer", "record", "origin", "folder")
_TOOLS = {
    "read_file": {"path": "file to read", "begin": "first line", "end": "last line"},
    "search": {"pattern": "regular expression", "path": "folder or file"},
    "edit_file": {"path": "file to edit", "old": "text to replace", "new": "its replacement"},
    "run_tests": {"path": "test file", "pattern": "names of the tests"},
    "list_files": {"path": "folder", "depth": "levels of folders"},
}


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model is shown, and what it says."""

    messages: tuple[Message, ...]
    answer: str


Session = list[Turn]


def sessions() -> Iterator[tuple[str, Session]]:
    """Every session with its kind."""
    yield "edit", _edits(random.Random(1))
    yield "extract", _extractions(random.Random(2))
    yield "agent", _agent(random.Random(3))


class _Chat:
    """A conversation that grows by a turn at a time."""

    def __init__(self, system: str) -> None:
        self._system: Message = {"role": "system", "content": system}
        self._messages: list[Message] = []
        self.turns: Session = []

    def ask(self, request: str, *answers: str) -> None:
        """The model's answers to one request; the last one stays."""
        self._messages.append({"role": "user", "content": request})
        shown = (self._system, *self._messages)
        self.turns += [Turn(shown, answer) for answer in answers]
        self._messages.append({"role": "assistant", "content": answers[-1]})

    def compact(self, summary: str) -> None:
        """Put a summary in the place of all turns so far."""
        self._messages = [
            {"role": "user", "content": f"Summary of the work so far: {summary}"},
            {"role": "assistant", "content": "Understood."},
        ]


def _edits(rng: random.Random) -> Session:
    """A file that is rewritten with one small change after the other."""
    chat = _Chat(_SYSTEM)
    functions = (shutil.copyfileobj, shutil.copymode, shutil.copy)
    file = "".join(inspect.getsource(function) for function in functions)
    for turn in range(TURNS):
        if turn == COMPACTED:
            chat.compact(f"names were changed one by one. The file now:\n{_fenced(file)}")
        request, changed = _edit(rng, file)
        first = (_fenced(_edit(rng, file)[1]),) if turn in REGENERATED else ()
        shown = f"Here is a file:\n{_fenced(file)}\n" if turn == 0 else ""
        chat.ask(f"{shown}{request} Show the whole file.", *first, _fenced(changed))
        file = changed
    return chat.turns


def _edit(rng: random.Random, file: str) -> tuple[str, str]:
    """A request, and the file changed as it says."""
    names = sorted({name for name in re.findall(r"\b[a-z_]{3,}\b", file) if file.count(name) < 9})
    old, new = rng.choice(names), f"{rng.choice(_WORDS)}_{rng.choice(_WORDS)}"
    if rng.random() < 0.7:
        return f"Rename `{old}` to `{new}`.", re.sub(rf"\b{old}\b", new, file)
    lines = file.splitlines(keepends=True)
    place = rng.randrange(1, len(lines))
    lines.insert(place, f"    # The {new.replace('_', ' ')} is checked by the caller.\n")
    return f"Add a comment about the {new} before line {place + 1}.", "".join(lines)


def _fenced(text: str) -> str:
    return f"```python\n{text}```"


def _extractions(rng: random.Random) -> Session:
    """Records, each in a conversation of its own behind the same instructions."""
    fields = {"customer": "string", "city": "string", "invoice": "string", "date": "ISO date"}
    fields |= {"items": "list of {name, count, price}", "total": "number", "paid": "boolean"}
    system = f"Extract the fields as JSON, nothing else. The fields: {json.dumps(fields, indent=1)}"
    return [turn for _ in range(EXTRACTIONS) for turn in _extraction(rng, system)]


def _extraction(rng: random.Random, system: str) -> Session:
    names, cities = ("Miller", "Okafor", "Tanaka", "Rossi", "Larsen"), ("Leeds", "Turin", "Bergen")
    goods = ("copper wire", "steel bolts", "paper rolls", "glass panes", "oak boards")
    sold = [
        (name, rng.randint(1, 40), rng.randint(100, 9999) / 100)
        for name in rng.sample(goods, rng.randint(1, 3))
    ]
    found = {
        "customer": f"{rng.choice(names)} {rng.choice(('and Sons', 'Trading', 'Works'))}",
        "city": rng.choice(cities),
        "invoice": f"{rng.choice('ABC')}-{rng.randint(10000, 99999)}",
        "date": f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
        "items": [{"name": name, "count": count, "price": price} for name, count, price in sold],
        "total": round(sum(count * price for _, count, price in sold), 2),
        "paid": rng.random() < 0.5,
    }
    listed = "; ".join(f"{count} x {name} at {price}" for name, count, price in sold)
    letter = (
        f"Dear {found['customer']}, we have sent the goods to our branch in {found['city']} on "
        f"{found['date']}: {listed}. The sum of {found['total']} for invoice {found['invoice']} "
        f"{'was received, thank you' if found['paid'] else 'is still open'}."
    )
    chat = _Chat(system)
    chat.ask(letter, json.dumps(found))
    return chat.turns


def _agent(rng: random.Random) -> Session:
    """Calls of tools and their results, behind a long description of the tools."""
    tools = [
        {"name": name, "description": f"Use {name} wherever it fits.", "parameters": parameters}
        for name, parameters in _TOOLS.items()
    ]
    guide = inspect.getdoc(textwrap.TextWrapper) or ""
    chat = _Chat(
        f"{_SYSTEM} Tools:\n{json.dumps(tools, indent=1)}\nStyle of this project:\n{guide}"
    )
    lines = inspect.getsource(shlex).splitlines()
    result, shown = "The tests of shlex.py fail. Find out why and mend them.", 0
    for turn in range(TURNS):
        if turn == COMPACTED:
            chat.compact("the first half of shlex.py was read and two names in it were changed.")
        begin = rng.randrange(len(lines) - 30)
        calls = [_call(rng, tool, lines[shown : shown + 4], begin) for tool in sorted(_TOOLS)]
        said = rng.sample(calls, 2 if turn in REGENERATED else 1)
        chat.ask(result, *said)
        result = "Result:\n" + "\n".join(lines[begin : begin + 25])
        shown = begin + rng.randrange(20)
    return chat.turns


def _call(rng: random.Random, tool: str, shown: list[str], begin: int) -> str:
    """A thought and a call, which quotes lines of the last result or asks for others."""
    quoted = "\n".join(shown)
    arguments: dict[str, object] = {"path": "Lib/shlex.py"}
    if tool == "read_file":
        arguments |= {"begin": begin, "end": begin + 25}
    elif tool == "edit_file":
        arguments |= {"old": quoted, "new": quoted.replace("self", rng.choice(_WORDS))}
    elif tool == "search":
        arguments["pattern"] = shown[-1].strip()
    thought = rng.choice(("Let me look at", "Next comes", "The cause may be in"))
    return f"{thought} line {begin}.\n{json.dumps({'name': tool, 'arguments': arguments})}"
