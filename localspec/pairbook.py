"""The user's own pairs: two models and their settings under a name, in one small TOML file each.

This room owns these files: their names, what may stand in them and how they are written; it is the
door to pydantic for them. It opens, judges and deletes no model. Pairs that everybody has are in
`catalog`.

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

from localspec import paths
from localspec.catalog import find_pair, load_catalog, unknown_pair
from localspec.config import (
    CACHE_TYPES,
    MAX_DRAFT_TOKENS,
    MAX_THREADS,
    SamplingParams,
    require_fixed,
)
from localspec.errors import FileProblem, UnknownPair, UsageError
from localspec.files import appearing_when_complete, read_at_most
from localspec.reference import parse_reference
from localspec.text import one_line

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_BYTES = 2**20
MAX_NAME = 64
SHOWN_CHARACTERS = 80
SHOWN_REASON = 600  # characters, enough for the names of all settings
_INT32 = 2**31 - 1
_NAME = re.compile(rf"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")
_KEYWORDS = ("auto", "off", "find")  # what --draft takes besides a model
_NAME_RULE = (
    f"A name has up to {MAX_NAME} letters, digits, dots, dashes and underscores, begins with a "
    f"letter or digit, is no number and none of {', '.join(_KEYWORDS)}, and does not end in .gguf."
)
_SHA256 = re.compile(r"[0-9a-f]{64}")

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
        _require("files.sha256", bool(_SHA256.fullmatch(self.sha256)))
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
                require_fixed("auto", params)
        except UsageError as error:
            raise ValueError(f"settings: {error.message.rstrip('.')}") from error


@dataclass(frozen=True, slots=True)
class NamedPair:
    """What a pair's name stands for, wherever the pair is kept; `note` is worth telling."""

    name: str
    target: str
    draft: str
    settings: Mapping[str, Setting]
    note: str


def folder() -> Path:
    """Where the pairs are kept, beside the models."""
    return paths.models_folder() / "pairs"


def is_name(text: str) -> bool:
    """Whether a pair may have this name: nothing that reads as a file or as a draft length."""
    lower = text.lower()
    return bool(_NAME.fullmatch(text)) and lower not in _KEYWORDS and not lower.endswith(".gguf")


def add(
    name: str,
    target: str,
    draft: str,
    settings: Mapping[str, object],
    hashes: Iterable[FileHash] = (),
) -> Path:
    """Keep a pair, and return its file. Models are paths, made absolute, or Hub references.

    Settings that are None are left out. Raises UsageError for a name that is taken or none, and
    for a setting that is unknown or out of its bounds; FileProblem when nothing can be written.
    """
    if not is_name(name):
        raise UsageError(f"A pair cannot be named '{_shown(name)}'.", _NAME_RULE)
    for taken in _spellings(name):
        raise UsageError(
            f"You already have a pair named {taken}.",
            f"See it with: localspec pair show {taken}, or drop it: localspec pair remove {taken}",
        )
    document = {
        "target": _place(target),
        "draft": _place(draft),
        "settings": {key: value for key, value in settings.items() if value is not None},
        "files": tuple(hashes),
    }
    try:
        data = _manifest(_own_pair(name, document)).encode()
        if len(data) > MAX_BYTES:
            raise ValueError(f"its file would be larger than {MAX_BYTES} bytes")
    except ValueError as error:
        hint = "See what is taken: localspec pair add --help"
        raise UsageError(f"The pair {name} cannot be kept: {_reason(error)}.", hint) from error
    return _write(_path(name), data)


def load(name: str) -> OwnPair:
    """The user's pair of this name, in any case.

    Raises UnknownPair when there is none, FileProblem naming file and key when its file is wrong.
    """
    import tomllib

    name = _stored(name)
    path = _path(name)
    try:
        return _own_pair(name, tomllib.loads(read_at_most(path, MAX_BYTES).decode("utf-8-sig")))
    except (OSError, ValueError, RecursionError) as error:
        raise FileProblem(
            f"The pair file {path} cannot be used: {_reason(error)}.",
            f"Edit it, or drop the pair: localspec pair remove {name}",
        ) from error


def names() -> list[str]:
    """Names of the user's pairs, sorted. Raises FileProblem when their folder cannot be read."""
    try:
        found = [path.stem for path in folder().iterdir() if path.suffix == ".toml"]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileProblem(
            f"The folder of your pairs, {folder()}, cannot be read: {_reason(error)}.",
            "Set LOCALSPEC_MODELS to a folder that you may read.",
        ) from error
    return sorted(filter(is_name, found))


def remove(name: str) -> None:
    """Forget a pair; models stay where they are. Raises UnknownPair, or FileProblem."""
    path = _path(_stored(name))
    try:
        path.unlink()
    except OSError as error:
        raise FileProblem(
            f"The pair file {path} cannot be removed: {_reason(error)}.", "Remove it by hand."
        ) from error


def find(name: str) -> NamedPair:
    """The pair of this name: the user's own before the catalogue's.

    Raises UnknownPair with names near it, and FileProblem when the user's own is damaged.
    """
    own = names()
    if _spellings(name):
        pair = load(name)
        hidden = any(pair.name.lower() == known.name for known in load_catalog())
        note = f"{pair.name} is your own pair; the catalogue's of that name is not used."
        return NamedPair(pair.name, pair.target, pair.draft, pair.settings, note if hidden else "")
    try:
        spec = find_pair(name)
    except UnknownPair:
        raise unknown_pair(name, [*own, *(known.name for known in load_catalog())]) from None
    target, draft = str(spec.target.reference), str(spec.draft.reference)
    return NamedPair(spec.name, target, draft, {}, "")


def toml_value(value: Setting) -> str:
    """The value as TOML writes it; raises ValueError for text that is no UTF-8."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    value.encode()
    escaped = re.sub(r'[\x00-\x1f\x7f"\\]', lambda found: f"\\u{ord(found[0]):04x}", value)
    return f'"{escaped}"'


def _manifest(pair: OwnPair) -> str:
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


def _path(name: str) -> Path:
    return folder() / f"{name}.toml"


def _spellings(name: str) -> list[str]:
    """The user's pairs of this name: the same spelling, or else others, since disks differ."""
    own = names()
    return [name] if name in own else [each for each in own if each.lower() == name.lower()]


def _stored(name: str) -> str:
    """The name as it is stored, which no text from outside can lead elsewhere."""
    for each in _spellings(name):
        return each
    raise unknown_pair(name, names())


def _write(path: Path, data: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing_when_complete(path) as partial:
            partial.write_bytes(data)
    except OSError as error:
        raise FileProblem(
            f"The pair file {path} cannot be written: {_reason(error)}.",
            "Set LOCALSPEC_MODELS to a folder where you may write.",
        ) from error
    return path


def _place(model: str) -> str:
    """A model as the file keeps it: the same from any folder. Raises UsageError."""
    reference = parse_reference(model)
    if reference is not None:
        return str(reference)
    return str(Path(model).absolute()) if model else model


def _is_place(model: str) -> bool:
    try:
        model.encode()
        on_hub = model.startswith("hf:") and parse_reference(model) is not None
    except (UnicodeEncodeError, UsageError):
        return False
    return on_hub or (Path(model).is_absolute() and "\0" not in model)


def _own_pair(name: str, document: Mapping[str, object]) -> OwnPair:
    """The pair in a document; raises ValueError, a clause that names the key, when it is wrong."""
    from pydantic import TypeAdapter, ValidationError

    if "name" in document:  # the file's name is the pair's
        raise ValueError(_no_key("name", [each.name for each in fields(OwnPair)[1:]]))
    try:
        return TypeAdapter(OwnPair).validate_python({"name": name, **document})
    except ValidationError as error:
        raise ValueError(_clause(error)) from error


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


def _require(key: str, holds: bool) -> None:
    if not holds:
        raise ValueError(f"{key}: expected {_EXPECTED[key]}")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "the system does not say why"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    return one_line(str(error)[:SHOWN_REASON])


def _shown(text: str) -> str:
    return one_line(text[:SHOWN_CHARACTERS])
