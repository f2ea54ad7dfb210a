"""Chat templates that llama.cpp has by name, as Jinja."""

import ctypes
import json
from collections.abc import Sequence
from functools import cache, partial

from localspec.llama.llama_library import library

_MOST = 200  # names
_BYTES = 2**16  # of a rendered sample
_MARK = "\x01"  # in the place of a message's text
_SAMPLE = (("system", "A."), ("user", "B"), ("assistant", "C."), ("user", "D?"))
_Turns = Sequence[tuple[str, str]]


def builtin_names() -> list[str]:
    """The names of llama.cpp's own chat templates that `builtin_template` can write."""
    names = (ctypes.c_char_p * _MOST)()
    count = min(_MOST, library().llama_chat_builtin_templates(names, _MOST))
    found = [bytes(name or b"").decode() for name in names[:count]]
    return [name for name in found if builtin_template(name) is not None]


@cache
def builtin_template(name: str) -> str | None:
    """The Jinja text of a chat template of llama.cpp; None if it is unknown, or not expressible.

    llama.cpp writes these templates in C++. Those that write each message between two texts of its
    role can be read off their output; others are compared with that, and left out.
    """
    user, answer = ("user", _MARK), ("assistant", _MARK)
    first = _rendered(name, [user])
    if first is None:
        return None
    around = {
        "system": (_rendered(name, [("system", _MARK)]) or "").split(_MARK),
        "user": first.split(_MARK),
        "assistant": (_rendered(name, [user, answer]) or "").removeprefix(first).split(_MARK),
    }
    opening = (_rendered(name, [user], opens=True) or "").removeprefix(first)
    if any(len(parts) != 2 for parts in around.values()):
        return None
    sample = "".join(text.join(around[role]) for role, text in _SAMPLE) + opening
    return _jinja(around, opening) if sample == _rendered(name, _SAMPLE, opens=True) else None


def _rendered(name: str, turns: _Turns, *, opens: bool = False) -> str | None:
    """llama.cpp's text of a conversation; None if it does not know the template."""
    import llama_cpp

    made = [llama_cpp.llama_chat_message(role.encode(), text.encode()) for role, text in turns]
    messages = (llama_cpp.llama_chat_message * len(made))(*made)
    buffer = ctypes.create_string_buffer(_BYTES)
    apply = library().llama_chat_apply_template
    length = apply(name.encode(), messages, len(made), opens, buffer, _BYTES)
    return buffer.raw[:length].decode() if 0 <= length <= _BYTES else None


def _jinja(around: dict[str, list[str]], opening: str) -> str:
    quoted = partial(json.dumps, ensure_ascii=False)
    turns = "".join(
        f"{{% if message.role == '{role}' %}}"
        f"{{{{ {quoted(before)} + message.content + {quoted(after)} }}}}{{% endif %}}"
        for role, (before, after) in around.items()
    )
    return (
        f"{{% for message in messages %}}{turns}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {quoted(opening)} }}}}{{% endif %}}"
    )
