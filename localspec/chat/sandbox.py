"""Jinja for untrusted templates: a sandbox with bounded output."""

import datetime
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from localspec.core.errors import TemplateError

if TYPE_CHECKING:
    from jinja2 import Environment, Template

MAX_CHARACTERS = 16 * 2**20

# Errors besides Jinja's own that a template can cause: a filter on the wrong type, endless
# recursion, loops nested deeper than Python compiles.
_PROVOKED = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip


def fill(source: str, variables: Mapping[str, Any], now: datetime.datetime) -> str:
    """The text of a template with these variables; ``now`` is the time of ``strftime_now``.

    Raises TemplateError when the template fails or writes more than MAX_CHARACTERS.
    """
    import jinja2

    try:
        pieces = _compiled(source).generate({**variables, "strftime_now": now.strftime})
        return _bounded(pieces)
    except (jinja2.TemplateError, *_PROVOKED) as error:
        raise _failure(error) from error


def names_read(source: str) -> frozenset[str]:
    """The names of the variables that a template reads; raises TemplateError."""
    import jinja2
    from jinja2 import meta

    try:
        return frozenset(meta.find_undeclared_variables(_environment().parse(source)))
    except (jinja2.TemplateError, *_PROVOKED) as error:
        raise _failure(error) from error


def _failure(error: BaseException) -> TemplateError:
    return TemplateError(
        f"The chat template cannot be rendered: {str(error).rstrip('.') or type(error).__name__}.",
        "Give another with --chat-template chatml or --chat-template-file FILE; "
        "localspec run --raw completes a prompt without a template.",
    )


@lru_cache(maxsize=4)
def _compiled(source: str) -> "Template":
    """Cached, since every turn of a conversation renders its template."""
    return _environment().from_string(source)


@cache
def _environment() -> "Environment":
    """A sandbox with the globals and filters of Hugging Face's chat templates.

    The results of ``*`` and ``**`` are bounded. Nested loops and padded formats are not: a template
    can still waste time and memory, until Ctrl-C.
    """
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's part for training; its body is rendered."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _refuse_growth(operator, left, right)
            return super().call_binop(context, operator, left, right)

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _to_json
    return environment


def _refuse_growth(operator: str, left: Any, right: Any) -> None:
    sizes = [len(side) if hasattr(side, "__len__") else abs(side) for side in (left, right)]
    if any(hasattr(side, "__len__") for side in (left, right)) or operator == "**":
        if sizes[0] * sizes[1] > MAX_CHARACTERS:
            raise ValueError(f"it repeats something into more than {MAX_CHARACTERS} characters")


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
    import json

    if isinstance(value, Iterator):
        value = list(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
