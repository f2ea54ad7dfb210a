"""Rules for a model file and for a pair, with level and hint, and findings that break them.

`rules.toml` holds the rules with their hints; they are checked in `checks` and `localspec.pairing`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.core.files import read_toml
from localspec.core.formatting import one_line

Level = Literal["error", "warning", "info"]

SHOWN_CHARACTERS = 40  # of a token's text

_HINTS: dict[str, dict[str, str]] = read_toml(Path(__file__).parent / "rules.toml")
REFUSED_BY_LLAMA_CPP = _HINTS["refused"]
_BY_LEVEL: dict[Level, dict[str, str]] = {
    "error": REFUSED_BY_LLAMA_CPP | _HINTS["error"],
    "warning": _HINTS["warning"],
    "info": _HINTS["info"],
}
# Every rule with its usual level, and the hint with the next step.
RULES = {rule: (level, hint) for level, hints in _BY_LEVEL.items() for rule, hint in hints.items()}
# Refused by llama.cpp, and harmless: the target verifies by id, so no text can be corrupted. That
# holds if ordinary words differ, too, but hardly a token would be accepted.
LENIENT = frozenset(
    "add-bos bos-id add-eos eos-id vocab-size token-text-control token-text-unused "
    "token-text-padding".split()
)

# About the ids of both. A model that differs in more than LENIENT drafts by text.
VOCABULARY = LENIENT | {
    "vocab-type", "token-text-normal", "token-text-byte", "token-text-user-defined",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One fact about a file or a pair: `rule` is a stable slug, `message` has the values."""

    level: Level
    rule: str
    message: str
    hint: str

    def as_json(self) -> dict[str, str]:
        return dict(vars(self))


def make_finding(rule: str, message: str, hint: str = "", level: Level | None = None) -> Finding:
    """A finding with the rule's own hint and level, unless others are given."""
    usual_level, usual_hint = RULES[rule]
    return Finding(level or usual_level, rule, message, hint or usual_hint)


def show_text(text: bytes) -> str:
    """A token's text in quotes on one line, with unprintable characters escaped."""
    start = text[: 4 * SHOWN_CHARACTERS].replace(b"\\", b"\\\\")
    shown = one_line(start.decode("utf-8", errors="backslashreplace"))
    cut = len(shown) > SHOWN_CHARACTERS or len(text) > 4 * SHOWN_CHARACTERS
    return f"'{shown[:SHOWN_CHARACTERS]}{'…' if cut else ''}'"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
