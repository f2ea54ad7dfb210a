"""Files that other engines read: LM Studio's settings, Ollama's Modelfile, a Python script."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from localspec.core.errors import IncompatiblePair
from localspec.core.formatting import one_line
from localspec.export.commands import written
from localspec.export.facts import Exported, PairFacts, local_path, on_hub
from localspec.export.names import LM_STUDIO_SPEC, Dialect
from localspec.hub.provenance import read_record
from localspec.metadata.header import ModelHeader

_MTP_SIDECAR = "draftMtpSidecar"  # besides the kinds of the dialect
_PLAIN = ("temperature", "top_k")  # other sampling has a box that switches it on
_FOLDER = "~/.lmstudio/.internal/user-concrete-model-default-config"
_SHARED = ("flash_attention", "exact")  # by both models
_OLLAMA_LENGTH = 4  # its own; heads in the target's file draft only if a length is written down

_SCRIPT = Path(__file__).with_name("script.txt")


def lm_studio(dialect: Dialect, facts: PairFacts) -> Exported:
    """The settings of a model as JSON; the notes name the places of the file and the models."""
    switch = dialect.draft(facts.kind)
    if switch == "draftMtp" and not facts.own_heads:
        switch = _MTP_SIDECAR
    fields: dict[str, object] = {"contextLength": facts.ctx_size}
    # It refuses two kinds at once, and one may be on from before.
    kinds = (*(dialect.drafts or {}).values(), _MTP_SIDECAR)
    fields |= {f"{LM_STUDIO_SPEC}{each}": each == switch for each in kinds}
    fields[f"{LM_STUDIO_SPEC}draftModel"] = "" if facts.own_heads else _key(facts.draft)
    if facts.length.tokens is not None:
        fields[dialect.settings["draft_tokens"]] = facts.length.tokens
    sampling = {
        dialect.sampling[name]: value if name in _PLAIN else {"checked": True, "value": value}
        for name, value in facts.whole_sampling.items()
        if name in dialect.sampling
    }
    document = {
        "preset": "",
        "operation": {"fields": _fields("llm.prediction.", sampling)},
        "load": {"fields": _fields("llm.load.", fields)},
    }
    notes = [
        *(_import(header) for header in facts.models if not _at_home(header)),
        f"Save it as {_FOLDER}/{_key(facts.target)}.json, then: lms load "
        f"{shlex.quote(_key(facts.target))}",
        f"Draft length: {facts.length.source}.",
    ]
    return Exported(json.dumps(document, indent=2) + "\n", tuple(notes), executable=False)


def _fields(prefix: str, values: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"key": f"{prefix}{key}", "value": value} for key, value in values.items()]


def _at_home(header: ModelHeader) -> bool:
    """Whether a file lies in LM Studio's own folder, by owner and repository."""
    return ".lmstudio" in header.path.parts[:-3]


def _key(header: ModelHeader) -> str:
    if _at_home(header):
        return "/".join(header.path.parts[-3:])
    return f"{_repo(header)}/{Path(header.path).name}"


def _repo(header: ModelHeader) -> str:
    """Owner and repository of a file, made up if it came from nowhere."""
    reference = on_hub(header)
    if reference is not None:
        return reference.repo
    try:
        origin = read_record(header.path)
    except ValueError:
        origin = None
    return origin.repo if origin else f"local/{header.path.stem}"


def _import(header: ModelHeader) -> str:
    reference = on_hub(header)
    if reference is not None:
        return f"LM Studio has to have the file: lms get {shlex.quote(reference.repo)}"
    path = one_line(str(local_path(header, "LM Studio")))
    words = ["lms", "import", "--symbolic-link", "--user-repo", _repo(header), path]
    return f"LM Studio has to have the file: {shlex.join(words)}"


def ollama(dialect: Dialect, facts: PairFacts) -> Exported:
    lines = [f"# {each}" for each in facts.heading(dialect.version)]
    lines.append(f"FROM {_path(facts.target)}")
    if not facts.own_heads:
        lines.append(f"DRAFT {_path(facts.draft)}")
    # The target's recommended sampling too, or Ollama's own defaults would stand.
    values = facts.all_settings | facts.whole_sampling
    values["draft_tokens"] = facts.length.tokens or _OLLAMA_LENGTH
    names = {**dialect.settings, **dialect.sampling}
    lines += [
        f"PARAMETER {names[name]} {written(name, value)}"
        for name, value in values.items()
        if name in names
    ]
    then = "Save it as Modelfile, then: ollama create NAME -f Modelfile && ollama run NAME"
    return Exported("\n".join(lines) + "\n", (then,), executable=False)


def _path(header: ModelHeader) -> str:
    """A file as a Modelfile names it: the rest of the line."""
    if header.split_count > 1:
        raise IncompatiblePair(
            f"A Modelfile names one file, and {one_line(header.path.name)} has "
            f"{header.split_count} parts.",
            "Join them with llama.cpp's llama-gguf-split --merge, then export the one file.",
        )
    path = str(local_path(header, "Ollama"))
    if one_line(path) != path or '"' in path:
        raise IncompatiblePair(
            f"A Modelfile cannot name {one_line(path)}: its path holds a quote or a line break.",
            "Link the file under a plain name, and export that.",
        )
    return path


def python_script(dialect: Dialect, facts: PairFacts) -> Exported:
    """A script that answers one prompt with this library; its length is auto unless given."""
    length, sampling = facts.length, facts.whole_sampling.items()
    text = _SCRIPT.read_text("utf-8").format(
        # Names of files inside a docstring: without characters that end it or begin an escape.
        title=facts.title.replace("\\", "/").replace('"', "'"),
        target=_load_options(dialect, facts, draft=False),
        draft=_load_options(dialect, facts, draft=True),
        sampling=", ".join(f"{name}={value!r}" for name, value in sampling),
        length=length.tokens if length.given else '"auto"',
        source=length.source if length.given else "as many tokens as pay; or a number",
        lenient=", lenient=True" if facts.settings.get("lenient") else "",
    )
    return Exported(text)


def _load_options(dialect: Dialect, facts: PairFacts, *, draft: bool) -> str:
    """The arguments of one model's `LoadOptions`; a draft's own settings begin with draft_."""
    path = str(local_path(facts.draft if draft else facts.target, dialect.label))
    given = {name: facts.settings[name] for name in dialect.settings if name in facts.settings}
    named = {name: given.pop(name) for name in _SHARED if name in given}
    if not draft:
        named["ctx_size"] = facts.ctx_size
    elif facts.own_heads:
        named["load_heads"] = True
    for name, value in given.items():
        if name.startswith("draft_") is draft:
            named[name.removeprefix("draft_")] = value
    return ", ".join([f"Path({path!r})", *(f"{name}={value!r}" for name, value in named.items())])
