"""LM Studio: the settings that it keeps for a model, with the draft among them."""

import json
import shlex
from pathlib import Path

from localspec.core.errors import IncompatiblePair
from localspec.core.formatting import one_line
from localspec.export.facts import (
    Exported,
    PairFacts,
    left_out,
    local_path,
    on_hub,
    require_llama_rule,
)
from localspec.hub.provenance import read_record
from localspec.metadata.header import ModelHeader

# packages/lms-kv-config of lmstudio-ai/lmstudio-js, read in November 2026.
_LOAD, _SPEC = "llm.load.", "llm.load.llama.speculativeDecoding."
_SWITCHES = {
    "draft-simple": "draftSimple",
    "draft-mtp": "draftMtp",
    "draft-dflash": "draftDflashSidecar",
}
_MTP_SIDECAR = "draftMtpSidecar"
_ALL = (*_SWITCHES.values(), _MTP_SIDECAR, "draftDsparkSidecar")
_NUMBERS = {"temperature": "temperature", "top_k": "topKSampling"}
_CHECKED = {  # a number with a box that switches it on
    "top_p": "topPSampling",
    "min_p": "minPSampling",
    "repeat_penalty": "repeatPenalty",
    "seed": "seed",
    "presence_penalty": "llama.presencePenalty",
    "frequency_penalty": "llama.frequencyPenalty",
    "xtc_probability": "llama.xtcProbability",
    "xtc_threshold": "llama.xtcThreshold",
}
_FOLDER = "~/.lmstudio/.internal/user-concrete-model-default-config"


def lm_studio(facts: PairFacts) -> Exported:
    """The settings as JSON; where the file belongs, and how models get there, is in the notes."""
    require_llama_rule(facts, "LM Studio")
    switch = _SWITCHES.get(facts.kind.spec_type)
    if switch is None:
        raise IncompatiblePair(
            f"LM Studio has no setting for {facts.kind.words} ({facts.kind.spec_type}).",
            "llama.cpp runs it: --to llama-server",
        )
    if switch == "draftMtp" and not facts.own_heads:
        switch = _MTP_SIDECAR
    fields: dict[str, object] = {f"{_LOAD}contextLength": facts.ctx_size}
    # It refuses two kinds at once, and one may be kept from before.
    fields |= {f"{_SPEC}{each}": each == switch for each in _ALL}
    fields[f"{_SPEC}draftModel"] = "" if facts.own_heads else _key(facts.draft)
    if facts.length.tokens is not None:
        fields[f"{_SPEC}draftMaxTokens"] = facts.length.tokens
    document = {
        "preset": "",
        "operation": {"fields": _fields(_sampling(facts))},
        "load": {"fields": _fields(fields)},
    }
    notes = [
        *(_import(header) for header in facts.models if not _at_home(header)),
        f"Save it as {_FOLDER}/{_key(facts.target)}.json, then: lms load "
        f"{shlex.quote(_key(facts.target))}",
        f"Draft length: {facts.length.source}.",
        *left_out(facts, "LM Studio", {}, _NUMBERS | _CHECKED),
    ]
    return Exported(json.dumps(document, indent=2) + "\n", tuple(notes), executable=False)


def _sampling(facts: PairFacts) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, value in facts.whole_sampling.items():
        if name in _NUMBERS:
            fields[f"llm.prediction.{_NUMBERS[name]}"] = value
        elif name in _CHECKED:
            fields[f"llm.prediction.{_CHECKED[name]}"] = {"checked": True, "value": value}
    return fields


def _fields(values: dict[str, object]) -> list[dict[str, object]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _at_home(header: ModelHeader) -> bool:
    """Whether a file lies in LM Studio's own folder, by owner and repository."""
    return ".lmstudio" in header.path.parts[:-3]


def _key(header: ModelHeader) -> str:
    """What LM Studio calls a file: owner/repository/file below its folder."""
    if _at_home(header):
        return "/".join(header.path.parts[-3:])
    return f"{_repo(header)}/{Path(header.path).name}"


def _repo(header: ModelHeader) -> str:
    """Owner and repository of a file, made up where it came from nowhere."""
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
