"""llama.cpp's programs: the command of llama-server or llama-cli for a pair."""

from collections.abc import Iterator, Mapping

from localspec.core.config import ALL_LAYERS
from localspec.core.errors import IncompatiblePair
from localspec.core.option import options
from localspec.core.sampling_params import SamplingParams
from localspec.export.facts import (
    Exported,
    PairFacts,
    left_out,
    local_path,
    on_hub,
    require_llama_rule,
)
from localspec.export.shell import Words, made_by, script
from localspec.metadata.header import ModelHeader

# common/arg.cpp of the llama.cpp inside llama-cpp-python 0.3.36.
VERSION = "llama.cpp 0c1e570 (October 2026)"

LOADING_FLAGS = {
    "gpu_layers": "-ngl",
    "draft_gpu_layers": "-ngld",
    "cpu_moe_layers": "--n-cpu-moe",
    "threads": "-t",
    "threads_batch": "-tb",
    "draft_threads": "--spec-draft-threads",
    "flash_attention": "-fa",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
}
SAMPLING_FLAGS = {
    name: row.flags[0] for name, row in options(SamplingParams).items() if row.llama_cpp
}
_DRAFT_CACHES = {"cache_type_k": "-ctkd", "cache_type_v": "-ctvd"}


def llama_server(facts: PairFacts) -> Exported:
    """The command of llama-server."""
    return _command(facts, "llama-server")


def llama_cli(facts: PairFacts) -> Exported:
    """The command of llama-cli, which talks in the terminal."""
    return _command(facts, "llama-cli")


def _command(facts: PairFacts, program: str) -> Exported:
    require_llama_rule(facts, program)
    command: list[Words] = [[program], *_model(facts.target, draft=False)]
    if not facts.own_heads:
        command += _model(facts.draft, draft=True)
    command.append(["--spec-type", facts.kind.spec_type])
    if facts.length.tokens is not None:
        command.append(["--spec-draft-n-max", str(facts.length.tokens)])
    command.append(["-c", str(facts.ctx_size)])
    command += flags_for(facts.settings, LOADING_FLAGS)
    if facts.kind.is_model:  # caches of heads are the target's business
        command += flags_for(facts.settings, _DRAFT_CACHES)
    command += flags_for(facts.sampling, SAMPLING_FLAGS)
    comments = [
        made_by(facts.title, f"{program} of {VERSION}"),
        f"Draft length: {facts.length.source}.",
    ]
    notes = left_out(facts, program, LOADING_FLAGS, SAMPLING_FLAGS)
    return Exported(script(comments, command), notes)


def _model(header: ModelHeader, *, draft: bool) -> list[Words]:
    """How a model is named: by its file, or by its repository where it is only on the Hub."""
    reference = on_hub(header)
    if reference is not None and reference.revision != "main":
        raise IncompatiblePair(
            f"llama.cpp downloads only what a repository has today, not {reference}.",
            f"Fetch it first: localspec download {reference}",
        )
    if reference is None:
        return [["-md" if draft else "-m", str(local_path(header, "llama.cpp"))]]
    if draft:  # the file of --spec-draft-hf is named as that of a local one
        return [["--spec-draft-hf", reference.repo], ["-md", reference.file or ""]]
    return [["--hf-repo", reference.repo], ["--hf-file", reference.file or ""]]


def flags_for(values: Mapping[str, object], flags: Mapping[str, str]) -> Iterator[Words]:
    """The flags of the values that have one; one that is a list is repeated."""
    for name, flag in flags.items():
        value = values.get(name)
        if value is None or value is False:
            continue
        if value is True:
            yield [flag]
        elif isinstance(value, list | tuple):
            yield from ([flag, str(each)] for each in value)
        else:
            yield [flag, written(name, value)]


def written(name: str, value: object) -> str:
    """A setting as people write it: for all layers 999, which no model has."""
    return "999" if "layers" in name and value == ALL_LAYERS else str(value)
