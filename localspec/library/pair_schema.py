"""What may stand in the file of a pair: two models, settings within bounds, and files as they were.

This room owns the keys of such a file, how it is checked and how it is written; it is the door to
pydantic for it. Where the files lie and what they are called is `pairbook`'s matter.

    target = "/models/big-Q4_K_M.gguf"          # or a Hub reference
    draft = "hf:org/small-GGUF/small-Q8_0.gguf"

    [settings]                                  # as `config` names them
    draft_tokens = 4

    [[files]]                                   # local files as they were when the pair was added
    path = "/models/big-Q4_K_M.gguf"
    sha256 = "0123..."
    size = 4920739232
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from localspec.core.config import (
    CACHE_TYPES,
    MAX_DRAFT_TOKENS,
    MAX_THREADS,
    SamplingParams,
    require_fixed_length,
)
from localspec.core.errors import UsageError
from localspec.core.formatting import one_line
from localspec.hub.provenance import SHA256
from localspec.hub.reference import parse_reference

if TYPE_CHECKING:
    from pydantic import ValidationError

SHOWN_CHARACTERS = 80  # of a key
_INT32 = 2**31 - 1

Setting = int | float | str | bool


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a setting must be: a value of this kind, between bounds if any, or one of some words."""

    kind: type
    low: int | None = None
    high: int | None = None
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        kinds = {int: "a whole number", float: "a number", bool: "true or false"}
        bounds = "" if self.low is None else f" from {self.low} to {self.high}"
        kind = [f"{kinds[self.kind]}{bounds}"] if self.kind in kinds else []
        return " or ".join([*kind, *(f'"{word}"' for word in self.words)]) or "a text"

    def fits(self, value: Setting) -> bool:
        if isinstance(value, str):
            return value in self.words if self.words else self.kind is str
        if type(value) is not self.kind and (type(value), self.kind) != (int, float):
            return False  # true is no number here
        return self.low is None or self.high is None or self.low <= value <= self.high


# What may be kept with a pair, as `config` names it; the bounds of sampling are checked there.
_RULES: dict[str, _Rule] = {
    "draft_tokens": _Rule(int, 0, MAX_DRAFT_TOKENS, ("auto", "off")),
    "ctx_size": _Rule(int, 8, _INT32),
    "draft_ctx_size": _Rule(int, 8, _INT32),
    "gpu_layers": _Rule(int, 0, _INT32),
    "draft_gpu_layers": _Rule(int, 0, _INT32),
    "cpu_moe_layers": _Rule(int, 0, _INT32),
    "threads": _Rule(int, 1, MAX_THREADS),
    "threads_batch": _Rule(int, 1, MAX_THREADS),
    "draft_threads": _Rule(int, 1, MAX_THREADS),
    "flash_attention": _Rule(str, words=("auto", "on", "off")),
    "cache_type_k": _Rule(str, words=CACHE_TYPES),
    "cache_type_v": _Rule(str, words=CACHE_TYPES),
    "exact": _Rule(bool),
    "lenient": _Rule(bool),
    **{parameter.name: _Rule(type(parameter.default)) for parameter in fields(SamplingParams)},
}
SETTINGS = tuple(_RULES)
_PLACE = "an absolute path in UTF-8, or a Hub reference such as hf:org/repo/file.gguf"
_EXPECTED = {
    "target": _PLACE,
    "draft": _PLACE,
    "settings": "a table",
    "files": "a list of tables",
    "files.path": "an absolute path",
    "files.sha256": "64 hexadecimal digits in lower case",
    "files.size": "a whole number of bytes",
    **{f"settings.{name}": str(rule) for name, rule in _RULES.items()},
}


@dataclass(frozen=True, slots=True)
class FileHash:
    """A local file as it was when its pair was added: absolute path, lower-case hex, bytes."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    path: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        _require("files.path", Path(self.path).is_absolute())
        _require("files.sha256", bool(SHA256.fullmatch(self.sha256)))
        _require("files.size", 0 <= self.size < 2**63)


@dataclass(frozen=True, slots=True)
class OwnPair:
    """A pair of the user's: each model an absolute path or a Hub reference, settings by name.

    Raises ValueError, a clause that names the key and what was expected, for what cannot be kept.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    name: str
    target: str
    draft: str
    settings: dict[str, Setting] = field(default_factory=dict)
    files: tuple[FileHash, ...] = ()

    def __post_init__(self) -> None:
        _require("target", _is_place(self.target))
        _require("draft", _is_place(self.draft))
        for name, value in self.settings.items():
            if name not in _RULES:
                raise ValueError(_no_key(f"settings.{name}", SETTINGS))
            _require(f"settings.{name}", _RULES[name].fits(value))
        self._check_sampling()

    def _check_sampling(self) -> None:
        known = {parameter.name for parameter in fields(SamplingParams)}
        sampling = {name: value for name, value in self.settings.items() if name in known}
        try:
            params = SamplingParams(**sampling)  # type: ignore[arg-type]
            if self.settings.get("draft_tokens") == "auto":
                require_fixed_length("auto", params)
        except UsageError as error:
            raise ValueError(f"settings: {error.message.rstrip('.')}") from error


def own_pair(name: str, document: Mapping[str, object]) -> OwnPair:
    """The pair in a document; raises ValueError, a clause that names the key, when it is wrong."""
    from pydantic import TypeAdapter, ValidationError

    if "name" in document:  # the file's name is the pair's
        raise ValueError(_no_key("name", [each.name for each in fields(OwnPair)[1:]]))
    try:
        return TypeAdapter(OwnPair).validate_python({"name": name, **document})
    except ValidationError as error:
        raise ValueError(_clause(error)) from error


def toml_value(value: Setting) -> str:
    """The value as TOML writes it; raises ValueError for text that is no UTF-8."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    value.encode()
    escaped = re.sub(r'[\x00-\x1f\x7f"\\]', lambda found: f"\\u{ord(found[0]):04x}", value)
    return f'"{escaped}"'


def as_toml(pair: OwnPair) -> str:
    """The text of the pair's file; raises ValueError for text that is no UTF-8."""
    tables: list[tuple[str, Mapping[str, Setting]]] = [
        ("# A pair of models, kept by localspec.", {"target": pair.target, "draft": pair.draft})
    ]
    if pair.settings:
        tables.append(("\n[settings]", pair.settings))
    tables += [("\n[[files]]", asdict(file)) for file in pair.files]
    lines = [
        line
        for heading, table in tables
        for line in (heading, *(f"{key} = {toml_value(value)}" for key, value in table.items()))
    ]
    return "\n".join(lines) + "\n"


def _clause(error: "ValidationError") -> str:
    """The first thing that is wrong: its key, and what was expected."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # ours
        return str(first["ctx"]["error"])
    keys = [part for part in first["loc"] if isinstance(part, str)][:2]
    key = ".".join(keys)
    if first["type"] == "unexpected_keyword_argument":
        known = fields(FileHash) if keys[0] == "files" else fields(OwnPair)[1:]
        return _no_key(key, [each.name for each in known])
    if keys[0] == "settings" and key not in _EXPECTED:
        return _no_key(key, SETTINGS)
    missing = " is missing" if first["type"] == "missing" else ""
    return f"{_shown(key)}{missing}: expected {_EXPECTED[key]}"


def _no_key(key: str, known: Iterable[str]) -> str:
    return f"there is no key {_shown(key)}; known are {', '.join(known)}"


def _is_place(model: str) -> bool:
    try:
        model.encode()
        on_hub = model.startswith("hf:") and parse_reference(model) is not None
    except (UnicodeEncodeError, UsageError):
        return False
    return on_hub or (Path(model).is_absolute() and "\0" not in model)


def _require(key: str, holds: bool) -> None:
    if not holds:
        raise ValueError(f"{key}: expected {_EXPECTED[key]}")


def _shown(text: str) -> str:
    return one_line(text[:SHOWN_CHARACTERS])
