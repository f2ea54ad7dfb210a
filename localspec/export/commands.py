"""Shell scripts that start a pair: llama.cpp's programs, ik_llama.cpp, vLLM and SGLang."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from localspec.core.errors import IncompatiblePair
from localspec.core.formatting import one_line
from localspec.core.options.load_options import ALL_LAYERS
from localspec.export.cluster import split_pair
from localspec.export.facts import Exported, PairFacts, local_path, on_hub
from localspec.export.names import Dialect, Names
from localspec.export.repositories import original_repos
from localspec.metadata.header import ModelHeader

Words = Sequence[str]  # of one line: an option and its value

_FIRST_LENGTH = 3  # for vLLM, which asks for a number, where nothing is known
_RAY_PORT, _SGLANG_PORT = 6379, 20000
_HEAD = ': "${HEAD:?set HEAD to the address of the first machine}"'
_RANK = ': "${RANK:?set RANK to the number of this machine, 0 for the first}"'
_RAY = (
    _HEAD,
    'if [ "${1-}" = worker ]; then',
    f'  exec ray start --address="$HEAD:{_RAY_PORT}" --block',
    "fi",
    f'ray start --head --node-ip-address="$HEAD" --port={_RAY_PORT}',
)


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
        notes.append("What goes to a GPU is left to ik_llama.cpp; -ngl 999 -ngld 999 is all.")
    if not facts.report.llama_cpp_accepts:
        notes.append("The vocabularies differ: ik_llama.cpp translates tokens by their text.")
    return Exported(_script(dialect, facts, command), tuple(notes))


def vllm(dialect: Dialect, facts: PairFacts) -> Exported:
    """The command, with the speculation as JSON, and Ray around it for several machines."""
    target, draft = original_repos(facts, dialect.label)
    split, machines = split_pair(facts, pipeline=True), facts.cluster.machines
    config, notes = _speculation(dialect, facts, draft)
    options = {
        "--max-model-len": str(facts.ctx_size),
        "--tensor-parallel-size": str(split.tensor) if split.tensor > 1 else "",
        "--pipeline-parallel-size": str(split.pipeline) if split.pipeline > 1 else "",
        "--distributed-executor-backend": "ray" if machines > 1 else "",
        "--speculative-config": json.dumps(config),
        "--override-generation-config": _sampling_json(facts.sampling, dialect.sampling),
    }
    command = [["vllm", "serve", target], *([n, value] for n, value in options.items() if value)]
    comments = [f"{split.sentence}."]
    if machines > 1:
        comments += [
            f"On the first of the {machines} machines: HEAD=ADDRESS sh THIS_FILE",
            "On each of the others, after it: HEAD=ADDRESS sh THIS_FILE worker",
        ]
    before = _RAY if machines > 1 else ()
    return Exported(_script(dialect, facts, command, comments, before), tuple(notes))


def sglang(dialect: Dialect, facts: PairFacts) -> Exported:
    """The command; pipeline parallelism is not used, which SGLang refuses beside these drafts."""
    if facts.kind.is_model and facts.target.n_tokens != facts.draft.n_tokens:
        raise IncompatiblePair(
            "SGLang cannot run this pair: its STANDALONE asks for vocabularies of the same size, "
            f"and these have {facts.target.n_tokens:,} and {facts.draft.n_tokens:,} tokens.",
            "vLLM translates between them: --to vllm",
        )
    target, draft = original_repos(facts, dialect.label)
    split, machines = split_pair(facts, pipeline=False), facts.cluster.machines
    length = facts.length.tokens
    # Without a length SGLang chooses one. Heads and models draft one token after the other, as a
    # chain, and a verification holds the token before them too.
    chained = length is not None and not facts.kind.block_size
    options = {
        "--model-path": target,
        "--context-length": str(facts.ctx_size),
        "--tp-size": str(split.tensor) if split.tensor > 1 else "",
        "--speculative-algorithm": dialect.draft(facts.kind),
        "--speculative-draft-model-path": draft,
        "--speculative-num-steps": str(length) if chained else "",
        "--speculative-eagle-topk": "1" if chained else "",
        "--speculative-num-draft-tokens": "" if length is None else str(length + 1),
        "--preferred-sampling-params": _sampling_json(facts.sampling, dialect.sampling),
    }
    command = [["python", "-m", "sglang.launch_server"]]
    command += [[name, value] for name, value in options.items() if value]
    comments = [f"{split.sentence}."]
    if machines == 1:
        return Exported(_script(dialect, facts, command, comments))
    comments.append(
        f"On each of the {machines} machines, RANK from 0 on the first: "
        "HEAD=ADDRESS_OF_THE_FIRST RANK=0 sh THIS_FILE"
    )
    place = f'--nnodes {machines} --node-rank "$RANK" --dist-init-addr "$HEAD:{_SGLANG_PORT}"'
    return Exported(_script(dialect, facts, command, comments, (_HEAD, _RANK), (place,)))


def _script(
    dialect: Dialect,
    facts: PairFacts,
    command: Sequence[Words],
    comments: Iterable[str] = (),
    before: Iterable[str] = (),
    after: Iterable[str] = (),
) -> str:
    """A POSIX shell script that runs one command; more arguments are handed on to it.

    ``before`` are lines of shell as they are, ``after`` more options as they are; all else is
    quoted.
    """
    said = [*facts.heading(dialect.version), *comments]
    lines = ["#!/bin/sh", *(f"# {one_line(each)}" for each in said), *before]
    quoted = [shlex.join(words) for words in command]
    lines.append(" \\\n  ".join([*quoted, *after, '"$@"']))
    return "\n".join(lines) + "\n"


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


def _speculation(
    dialect: Dialect, facts: PairFacts, draft: str | None
) -> tuple[dict[str, object], list[str]]:
    """What vLLM's `SpeculativeConfig` takes, and what of it the user should know."""
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
        return kind.block_size - 1 if kind.block_size > 1 else _FIRST_LENGTH
    return length


def _sampling_json(sampling: Mapping[str, object], names: Names) -> str:
    """The sampling saved with a pair as JSON, by an engine's names; empty without any."""
    values = {names[name]: value for name, value in sampling.items() if name in names}
    k = values.get("top_k")
    if isinstance(k, int) and k <= 0:
        values["top_k"] = -1  # off
    return json.dumps(values) if values else ""
