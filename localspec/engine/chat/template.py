"""Chat templates: messages to prompt text, in Jinja's sandbox, with bounded output."""

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from localspec.core.errors import TemplateError

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_CHARACTERS = 16 * 2**20

# What a template can make Jinja raise besides its own errors: a filter on the wrong type, endless
# recursion, loops nested deeper than Python compiles.
_PROVOKED = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip


ROLES = ("system", "user", "assistant")


class Message(TypedDict):
    """One turn of a conversation; ``role`` is system, user or assistant."""

    role: str
    content: str


def parse_message(entry: object) -> Message:
    """A message from what a JSON file holds; raises ValueError for anything else."""
    if (
        not isinstance(entry, dict)
        or entry.get("role") not in ROLES
        or not isinstance(entry.get("content"), str)
    ):
        raise ValueError(f"a message needs a role ({', '.join(ROLES)}) and a content, a text.")
    return {"role": entry["role"], "content": entry["content"]}


def render(
    template: str | None,
    messages: Sequence[Message],
    *,
    bos: str = "",
    eos: str = "",
    thinking: bool | None = None,
    now: datetime.datetime | None = None,
) -> str:
    """The prompt for the assistant's next turn.

    Without a template the result is a plain transcript. ``bos`` and ``eos`` are the texts of those
    tokens, which some templates print; templates of thinking models read ``thinking`` as
    ``enable_thinking``, and None leaves it to them. Raises TemplateError when the template fails.
    """
    if template is None:
        return _transcript(messages)
    import jinja2

    environment = _make_environment(now or datetime.datetime.now())
    try:
        pieces = environment.from_string(template).generate(
            messages=list(messages),
            add_generation_prompt=True,
            bos_token=bos,
            eos_token=eos,
            **({} if thinking is None else {"enable_thinking": thinking}),
        )
        return _bounded(pieces)
    except (jinja2.TemplateError, *_PROVOKED) as error:
        raise TemplateError(
            f"The model's chat template cannot be rendered: {error or type(error).__name__}.",
            "localspec run --raw completes a prompt without a template.",
        ) from error


def _make_environment(now: datetime.datetime) -> "Environment":
    """A sandbox with the names that Hugging Face's chat templates may rely on.

    Repetition is bounded, because ``'a' * 10**9`` is small to write. Loops over loops and padded
    formats are not: a template can still waste time and memory, which Ctrl-C ends.
    """
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's part for training; here it shows its body."""

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
    environment.globals["strftime_now"] = now.strftime
    environment.filters["tojson"] = _to_json
    return environment


def _refuse_growth(operator: str, left: Any, right: Any) -> None:
    sizes = [len(side) if hasattr(side, "__len__") else abs(side) for side in (left, right)]
    if any(hasattr(side, "__len__") for side in (left, right)) or operator == "**":
        if sizes[0] * sizes[1] > MAX_CHARACTERS:
            raise ValueError(f"it repeats something into more than {MAX_CHARACTERS} characters")


def _transcript(messages: Sequence[Message]) -> str:
    turns = [f"{message['role'].capitalize()}: {message['content']}\n" for message in messages]
    return "".join(turns) + "Assistant:"


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


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own filter escapes for HTML, which models were not trained on.
    import json

    return json.dumps(value, ensure_ascii=False, indent=indent)
