"""Jinja's sandbox, and the child process that renders untrusted templates in it.

The sandbox keeps a template from the files and the memory of a process, the child's limits keep it
from using up time and memory. `renderer` starts the child.
"""

import datetime
import json
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Environment, Template

MAX_CHARACTERS = 16 * 2**20
_MOST_OF_AN_ERROR = 1000  # characters: a template chooses the text


def fill(source: str, variables: Mapping[str, Any], now: datetime.datetime) -> str:
    """The text of a template with these variables; ``now`` is the time of ``strftime_now``.

    Raises any exception when the template fails, ValueError for more than MAX_CHARACTERS.
    """
    return _bounded(_compiled(source).generate({**variables, "strftime_now": now.strftime}))


def names_read(source: str) -> list[str]:
    """The names of the variables that a template reads; raises any exception."""
    from jinja2 import meta

    return sorted(meta.find_undeclared_variables(_environment().parse(source)))


def _reply(question: Mapping[str, Any]) -> dict[str, object]:
    """A text, names or an error; raises MemoryError."""
    try:
        source = question["source"]
        if "variables" not in question:
            return {"names": names_read(source)}
        now = datetime.datetime.fromisoformat(question["now"])
        return {"text": fill(source, question["variables"], now)}
    except MemoryError:
        raise
    except Exception as error:  # a filter on the wrong type, endless recursion, and many more
        reason = str(error)[:_MOST_OF_AN_ERROR].rstrip(".")
        return {"error": reason or type(error).__name__}


@lru_cache(maxsize=4)
def _compiled(source: str) -> "Template":
    """Cached, since every turn of a conversation renders its template."""
    return _environment().from_string(source)


@cache
def _environment() -> "Environment":
    """A sandbox with the globals and filters of Hugging Face's chat templates."""
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        """Lists may change, as in llama.cpp: Kimi K2 queues the ids of its calls in one."""

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            changes = isinstance(obj, list) and attr in ("append", "extend", "pop")
            return changes or super().is_safe_attribute(obj, attr, value)

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's part for training; its body is rendered."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _to_json
    return environment


def _bounded(pieces: Any) -> str:
    parts, total = [], 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_CHARACTERS:
            raise ValueError(f"it writes more than {MAX_CHARACTERS} characters")
        parts.append(piece)
    return "".join(parts)


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's ``tojson``: Jinja's own escapes for HTML. Iterators become lists."""
    if isinstance(value, Iterator):
        value = list(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    from localspec.core.worker import Channel

    channel = Channel()
    _environment()
    channel.serve(_reply)
