"""Schema of a user's pair file (TOML): two models, settings within bounds, and file hashes.

    target = "/models/big-Q4_K_M.gguf"          # or a Hub reference
    draft = "hf:org/small-GGUF/small-Q8_0.gguf" # or "mtp", heads of the target's own

    [settings]                                  # options with ``stored=True``, and draft_tokens
    draft_tokens = 4

    [[files]]                                   # local files as they were when the pair was added
    path = "/models/big-Q4_K_M.gguf"
    sha256 = "0123..."
    size = 4920739232

Importing this imports pydantic, which takes a while: do it only to read or write a pair.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # before Python 3.12, pydantic refuses the one of typing

from localspec.core.errors import UsageError
from localspec.core.formatting import one_line
from localspec.core.options.load_options import DRAFT_TOKENS, LoadOptions
from localspec.core.options.model_options import ModelOptions
from localspec.core.options.option import Bounds, Option, options
from localspec.core.options.sampling_params import (
    RANDOM_SEED,
    SamplingParams,
    require_fixed_length,
    sampling_fields,
)
from localspec.hub.provenance import SHA256
from localspec.hub.reference import parse_reference
from localspec.library.pairs.catalog import MTP

SHOWN_CHARACTERS = 80  # of a key

Setting = int | float | str | bool | tuple[str, ...]


def _within(bounds: Bounds[Any]) -> Any:
    return Field(ge=bounds.low, le=bounds.high)


def _absolute(text: str) -> str:
    if not Path(text).is_absolute():
        raise ValueError
    return text


def _model(text: str) -> str:
    text.encode()  # UnicodeEncodeError is a ValueError
    try:
        on_hub = text.startswith("hf:") and parse_reference(text) is not None
    except UsageError as error:
        raise ValueError from error
    if "\0" in text:
        raise ValueError
    return text if on_hub else _absolute(text)


_MODEL = "an absolute path in UTF-8, or a Hub reference such as hf:org/repo/file.gguf"


def _draft(text: str) -> str:
    return text if text == MTP else _model(text)


_Model = Annotated[str, AfterValidator(_model), Field(description=_MODEL)]
_Draft = Annotated[str, AfterValidator(_draft), Field(description=f'{_MODEL}, or "{MTP}"')]
_Path = Annotated[str, AfterValidator(_absolute), Field(description="an absolute path")]
_HASH = "64 hexadecimal digits in lower case"
_Texts = Annotated[list[str], Field(description="a list of texts")]


def _type(row: Option) -> Any:
    if row.many:
        return _Texts
    if row.choices:
        return Literal[row.choices]
    bounds = row.asked or row.bounds
    return row.item if bounds is None else Annotated[row.item, _within(bounds)]


_ROWS = options(ModelOptions, LoadOptions, SamplingParams)
_STORED = {name: _type(row) for name, row in _ROWS.items() if row.stored}
_DraftTokens = Annotated[int, _within(DRAFT_TOKENS)] | Literal["auto", "off"]
if TYPE_CHECKING:
    PairSettings = dict[str, object]
else:
    PairSettings = with_config(ConfigDict(extra="forbid", strict=True))(
        TypedDict("PairSettings", {"draft_tokens": _DraftTokens} | _STORED, total=False)
    )


@dataclass(frozen=True, slots=True)
class FileHash:
    """A local file as it was when its pair was added: absolute path, lower-case hex, bytes."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    path: _Path
    sha256: Annotated[str, Field(pattern=f"^{SHA256.pattern}$", description=_HASH)]
    size: Annotated[int, Field(ge=0, lt=2**63, description="a whole number of bytes")]


@with_config(ConfigDict(extra="forbid"))
class PairDocument(TypedDict):
    """The document in a pair's file."""

    target: _Model
    draft: _Draft
    settings: NotRequired[Annotated[PairSettings, Field(description="a table")]]
    files: NotRequired[Annotated[list[FileHash], Field(description="a list of tables")]]


@dataclass(frozen=True, slots=True)
class UserPair:
    """A pair of the user's: each model an absolute path or a Hub reference, settings by name."""

    name: str
    target: str
    draft: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    files: tuple[FileHash, ...] = ()


def parse_pair(name: str, document: Mapping[str, object]) -> UserPair:
    """The pair in a document; raises ValueError, a clause that names the key, when it is wrong."""
    try:
        file = TypeAdapter(PairDocument).validate_python(document)
    except ValidationError as error:
        raise ValueError(_clause(error)) from error
    # As they were written: 1 stays 1, and not 1.0.
    written = cast(Mapping[str, Any], document.get("settings", {}))
    settings = {
        key: tuple(value) if isinstance(value, list) else value for key, value in written.items()
    }
    _check_sampling(settings)
    return UserPair(name, file["target"], file["draft"], settings, tuple(file.get("files", ())))


def as_toml(pair: UserPair) -> str:
    import tomlkit

    document: dict[str, object] = {"target": pair.target, "draft": pair.draft}
    if pair.settings:
        document["settings"] = dict(pair.settings)
    if pair.files:
        document["files"] = [asdict(file) for file in pair.files]
    return f"# A pair of models, stored by localspec.\n{tomlkit.dumps(document)}"


def _check_sampling(settings: Mapping[str, Setting]) -> None:
    given = {name: settings[name] for name in sampling_fields() if name in settings}
    if given.get("seed") == RANDOM_SEED:
        del given["seed"]
    try:
        params = SamplingParams(**given)  # type: ignore[arg-type]
        if settings.get("draft_tokens") == "auto":
            require_fixed_length("auto", params)
    except UsageError as error:
        raise ValueError(f"settings: {error.message.rstrip('.')}") from error


def _clause(error: ValidationError) -> str:
    first = error.errors(include_input=False)[0]  # the input may be a number of any length
    *table, last = [part for part in first["loc"] if isinstance(part, str)][:2]
    schema = {"settings": PairSettings, "files": FileHash}[table[0]] if table else PairDocument
    known = TypeAdapter[object](schema).json_schema()["properties"]
    key = one_line(".".join([*table, last])[:SHOWN_CHARACTERS])
    if last not in known:
        return f"there is no key {key}; known are {', '.join(known)}"
    missing = " is missing" if first["type"] == "missing" else ""
    return f"{key}{missing}: expected {_words(known[last])}"


def _words(schema: Mapping[str, Any]) -> str:
    """The values that a JSON schema asks for."""
    if "description" in schema:
        return str(schema["description"])
    choices = [_words(each) for each in schema.get("anyOf", ())]
    choices += [f'"{word}"' for word in schema.get("enum", ())]
    if choices:
        return " or ".join(choices)
    kinds = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
    bounds = f" from {schema['minimum']} to {schema['maximum']}" if "minimum" in schema else ""
    return kinds.get(schema["type"], "a text") + bounds
