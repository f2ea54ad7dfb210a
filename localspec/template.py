"""Chat messages to prompt text, by the template inside the GGUF file.

This room owns the rendering of chat templates. A template is a stranger's program, so it runs in
Jinja's sandbox and its output is bounded. It does not tokenize.
"""

import datetime
from collections.abc import Sequence
from typing import Any, NoReturn, TypedDict

from localspec.errors import TemplateError

MAX_CHARACTERS = 16 * 2**20

# What a template can make Jinja raise besides its own errors: a filter on the wrong type, endless
# recursion, loops nested deeper than Python compiles.
_PROVOKED = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip


class Message(TypedDict):
    """One turn of a conversation; ``role`` is system, user or assistant."""

    role: str
    content: str


def render(
    template: str | None,
    messages: Sequence[Message],
    *,
    bos: str = "",
    eos: str = "",
    now: datetime.datetime | None = None,
) -> str:
    """The prompt for the assistant's next turn.

    Without a template the result is a plain transcript. ``bos`` and ``eos`` are the texts of those
    tokens, which some templates print. Raises TemplateError when the template fails.
    """
    if template is None:
        return _transcript(messages)
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    # The names that Hugging Face's chat templates may rely on.
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = (now or datetime.datetime.now()).strftime
    environment.filters["tojson"] = _to_json
    try:
        pieces = environment.from_string(template).generate(
            messages=list(messages), add_generation_prompt=True, bos_token=bos, eos_token=eos
        )
        return _bounded(pieces)
    except (jinja2.TemplateError, *_PROVOKED) as error:
        raise TemplateError(
            f"The model's chat template cannot be rendered: {error}",
            "Use --raw to complete the prompt without a template.",
        ) from error


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
