"""Ollama: a Modelfile with the one kind of draft that it takes, heads that read hidden states."""

from localspec.core.errors import IncompatiblePair
from localspec.core.formatting import one_line
from localspec.export.facts import Exported, PairFacts, left_out, local_path, require_llama_rule
from localspec.export.llama_cpp import written
from localspec.export.shell import made_by
from localspec.metadata.header import ModelHeader

# parser/parser.go, docs/modelfile.mdx and llm/llama_server.go of ollama/ollama.
VERSION = "Ollama (read in November 2026)"
_KINDS = ("draft-mtp", "draft-dflash")
_DEFAULT_LENGTH = 4  # Ollama's own; heads in the target's file draft only if it is written down

_PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
_LOADING = {"gpu_layers": "num_gpu", "threads": "num_thread"}


def ollama(facts: PairFacts) -> Exported:
    """The Modelfile; raises IncompatiblePair for what Ollama cannot draft with."""
    require_llama_rule(facts, "Ollama")
    _require_kind(facts)
    lines = [
        f"# {made_by(facts.title, VERSION)}",
        f"# Draft length: {facts.length.source}.",
        f"FROM {_path(facts.target)}",
    ]
    if not facts.own_heads:
        lines.append(f"DRAFT {_path(facts.draft)}")
    parameters: dict[str, object] = {
        "draft_num_predict": facts.length.tokens or _DEFAULT_LENGTH,
        "num_ctx": facts.ctx_size,
    }
    parameters |= {_LOADING[n]: written(n, v) for n, v in facts.settings.items() if n in _LOADING}
    parameters |= {
        _PARAMETERS[name]: value
        for name, value in facts.whole_sampling.items()  # or its own defaults would stand
        if name in _PARAMETERS
    }
    lines += [f"PARAMETER {name} {value}" for name, value in parameters.items()]
    notes = [
        "Save it as Modelfile, then: ollama create NAME -f Modelfile && ollama run NAME",
        *left_out(facts, "Ollama", _LOADING, _PARAMETERS),
    ]
    return Exported("\n".join(lines) + "\n", tuple(notes), executable=False)


def _require_kind(facts: PairFacts) -> None:
    kind = facts.kind
    if kind.is_model:
        raise IncompatiblePair(
            "Ollama cannot run this pair: its DRAFT takes MTP heads and DFlash, not an ordinary "
            "draft model, which it would load as heads.",
            "A Modelfile of the target alone would only hide that; llama.cpp runs the pair: "
            "--to llama-server",
        )
    if kind.spec_type not in _KINDS:
        raise IncompatiblePair(
            f"Ollama cannot run this pair: it takes every DRAFT but DFlash for MTP heads, and this "
            f"is {kind.words} ({kind.spec_type}).",
            "llama.cpp runs it: --to llama-server",
        )


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
