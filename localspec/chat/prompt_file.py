"""Files of prompts, one on each line: plain text or JSON."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from localspec.core.errors import FileProblem
from localspec.core.files import read_text

# A table's first line in a file that is not named as one: cells, one of them with such a name.
_CELLS = re.compile(r"[\w .\"'-]+(?:[,;\t][\w .\"'-]+)*")
_COLUMNS = frozenset(
    "prompt prompts messages content text question questions query instruction input custom_id"
    .split()
)  # fmt: skip


def read_prompt_file(path: Path, most: int, what: str, hint: str) -> Iterator[tuple[int, object]]:
    """Each line that is not empty, with its number: an object, a list, or a text.

    A line that is not JSON is a text. Raises FileProblem with this hint, naming the line, for JSON
    that is damaged or goes on in the next line, and for tables: half a prompt would be answered.
    """
    # Other line separators may stand in a text.
    text = read_text(path, most, what=what, expected="prompts, one a line,")
    lines = [(n, line.strip()) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    named = path.suffix.lower() in (".csv", ".tsv")
    if lines and (named or (len(lines) > 1 and _is_heading(lines[0][1]))):
        raise FileProblem(
            f"{path}, line {lines[0][0]}: this is a table, whose lines are not prompts.", hint
        )
    for number, line in lines:
        try:
            value = _read_line(line)
        except ValueError as error:
            raise FileProblem(f"{path}, line {number}: {error}", hint) from error
        yield number, value


def _is_heading(line: str) -> bool:
    cells = re.split("[,;\t]", line.lower()) if _CELLS.fullmatch(line) else []
    return not _COLUMNS.isdisjoint(cell.strip(" \"'") for cell in cells)


def _read_line(line: str) -> object:
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply.") from None
    except json.JSONDecodeError as error:
        # Quotes may begin a text; an end that is missing, or a comma at the end, is a part of JSON.
        cut = line.startswith('"') and (
            error.msg.startswith("Unterminated") or line[error.pos :].strip() in (",", "]", "}")
        )
        if cut or line.startswith(("{", "[")):
            raise ValueError(f"one prompt is not one line of JSON ({error.msg}).") from error
        return line
    entries = value if isinstance(value, list) else ()
    if not all(isinstance(each, dict) and "role" in each for each in entries):
        raise ValueError("a list on a line is one conversation; its entries need a role.")
    return value if isinstance(value, dict | list | str) else line
