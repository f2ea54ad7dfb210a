"""Shell scripts that start a pair: llama.cpp's programs, ik_llama.cpp, vLLM and SGLang."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from localspec.core.errors import IncompatiblePair
from localspec.core.formatting import one_line
from localspec.core.options.load_options import ALL_LAYERS
from localspec.export.facts import Exported, PairFacts, local_path, on_hub
from localspec.export.names import Dialect, Names
from localspec.export.repositories import original_repos
from localspec.metadata.header import ModelHeader

Words = Sequence[str]  # of one line: an option and its value

_FIRST_LENGTH = 3  # for vLLM, which asks for a number, if nothing is known


def llama_cpp(dialect: Dialect, facts: PairFacts) -> Exported:
    """The command of llama-server, or of llama-cli, which talks in the terminal."""
    command: list[Words] = [[dialect.label], *_model(facts.target, draft=False)]
    if not facts.own_heads:
        command += _model(facts.draft, draft=True)
    command.append(["--spec-type", dialect.draft(facts.kind)])
    return Exported(_script(dialect, facts, [*command, *_flags(dialect, facts)]))


def ik_llama(dialect: Dialect, facts: PairFacts) -> Exported:
    """The command of ik_llama.cpp's llama-server; the length stands inside --spec-type."""
    command: list[Words] = [["llama-server"], ["-m", str(local_path(facts.target, dialect.label))]]
    if not facts.own_heads:
        command.append(["-md", str(local_path(facts.draft, dialect.label))])
    length, stage = facts.length.tokens, dialect.draft(facts.kind)
    # Confidence alone must not end a draft: its default would, and the length was learnt without.
    stage += "" if length is None else f":n_max={length},p_min=0.0"
    command += [["--spec-type", stage], *_flags(dialect, facts)]
    notes = []
    if "gpu_layers" not in facts.settings:
        notes.append("ik_llama.cpp chooses the layers on a GPU; -ngl 999 -ngld 999 puts all there.")
    if not facts.report.llama_cpp_accepts:
        notes.append("The vocabularies differ: ik_llama.cpp translates tokens by their text.")
    return Exported(_script(dialect, facts, command), tuple(notes))


def vllm(dialect: Dialect, facts: PairFacts) -> Exported:
    target, draft = original_repos(facts, dialect.label)
    config, notes = _speculation(dialect, facts, draft)
    command = [
        ["vllm", "serve", target],
        ["--max-model-len", str(facts.ctx_size)],
        ["--speculative-config", json.dumps(config)],
        ["--override-generation-config", _sampling_json(facts.sampling, dialect.sampling)],
    ]
    return Exported(_script(dialect, facts, _given(command)), tuple(notes))


def sglang(dialect: Dialect, facts: PairFacts) -> Exported:
    if facts.kind.is_model and facts.target.n_tokens != facts.draft.n_tokens:
        raise IncompatiblePair(
            "SGLang cannot run this pair: its STANDALONE asks for vocabularies of the same size, "
            f"and these have {facts.target.n_tokens:,} and {facts.draft.n_tokens:,} tokens.",
            "vLLM translates between them: --to vllm",
        )
    target, draft = original_repos(facts, dialect.label)
    length = facts.length.tokens
    # Without a length SGLang chooses one. Heads and models draft one token after the other, as a
    # chain, and a verification holds the token before them too.
    chained = length is not None and not facts.kind.block_size
    command = [
        ["python", "-m", "sglang.launch_server"],
        ["--model-path", target],
        ["--context-length", str(facts.ctx_size)],
        ["--speculative-algorithm", dialect.draft(facts.kind)],
        ["--speculative-draft-model-path", draft or ""],
        ["--speculative-num-steps", str(length) if chained else ""],
        ["--speculative-eagle-topk", "1" if chained else ""],
        ["--speculative-num-draft-tokens", "" if length is None else str(length + 1)],
        ["--preferred-sampling-params", _sampling_json(facts.sampling, dialect.sampling)],
    ]
    return Exported(_script(dialect, facts, _given(command)))


def _given(command: Iterable[Words]) -> list[Words]:
    """The command without options whose value is empty."""
    return [words for words in command if words[-1]]


def _script(dialect: Dialect, facts: PairFacts, command: Iterable[Words]) -> str:
    """A POSIX shell script that runs one command; more arguments are handed on to it."""
    comments = [f"# {one_line(each)}" for each in facts.heading(dialect.version)]
    quoted = [shlex.join(words) for words in command]
    return "\n".join(["#!/bin/sh", *comments, " \\\n  ".join([*quoted, '"$@"'])]) + "\n"


def _flags(dialect: Dialect, facts: PairFacts) -> Iterator[Words]:
    """The flags of the settings and sampling that have one; one that is a list is repeated."""
    values = {**facts.all_settings, **facts.sampling}
    for name, flag in {**dialect.settings, **dialect.sampling}.items():
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


def _model(header: ModelHeader, *, draft: bool) -> list[Words]:
    """How a model is named: by its file, or by its repository if it is only on the Hub."""
    reference = on_hub(header)
    if reference is not None and reference.revision != "main":
        raise IncompatiblePair(
            f"llama.cpp downloads only the current files of a repository, not {reference}.",
            f"Fetch it first: localspec download {reference}",
        )
    if reference is None:
        return [["-md" if draft else "-m", str(local_path(header, "llama.cpp"))]]
    if draft:  # the file of --spec-draft-hf is named as that of a local one
        return [["--spec-draft-hf", reference.repo], ["-md", reference.file or ""]]
    return [["--hf-repo", reference.repo], ["--hf-file", reference.file or ""]]


def _speculation(
    dialect: Dialect, facts: PairFacts, draft: str | None
) -> tuple[dict[str, object], list[str]]:
    """The fields of vLLM's `SpeculativeConfig`, and warnings for the user."""
    config: dict[str, object] = {"method": dialect.draft(facts.kind)}
    notes: list[str] = []
    if draft is not None:
        config["model"] = draft
    length = _vllm_length(facts)
    if length is not None:
        config["num_speculative_tokens"] = length
    if facts.length.tokens is None and length is not None:
        notes.append(f"vLLM asks for a draft length and has no default: {length} to begin with.")
    elif length != facts.length.tokens:
        notes.append(f"vLLM drafts whole rows of {facts.kind.heads} heads: {length} tokens.")
    if facts.kind.is_model and facts.target.n_tokens != facts.draft.n_tokens:
        config["use_heterogeneous_vocab"] = True  # equal sizes are asked for without
        notes.append(
            f"The vocabularies have {facts.target.n_tokens:,} and {facts.draft.n_tokens:,} tokens: "
            "vLLM translates between them (use_heterogeneous_vocab)."
        )
    return config, notes


def _vllm_length(facts: PairFacts) -> int | None:
    """The draft length that vLLM is given; None leaves it to the model's configuration."""
    kind, length = facts.kind, facts.length.tokens
    if kind.kind == "mtp":  # more than there are heads must be a multiple of them
        return length if not length or length <= kind.heads else length - length % kind.heads
    if length is None:
        return kind.most_drafted if kind.block_size > 1 else _FIRST_LENGTH
    return length


def _sampling_json(sampling: Mapping[str, object], names: Names) -> str:
    """The sampling saved with a pair as JSON, by an engine's names; empty without any."""
    values = {names[name]: value for name, value in sampling.items() if name in names}
    k = values.get("top_k")
    if isinstance(k, int) and k <= 0:
        values["top_k"] = -1  # off
    return json.dumps(values) if values else ""
