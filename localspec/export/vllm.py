"""vLLM: the command of `vllm serve`, on one machine or on several that Ray joins."""

import json
from collections.abc import Mapping

from localspec.export.cluster import split_pair
from localspec.export.facts import Exported, PairFacts, left_out
from localspec.export.repositories import original_repos
from localspec.export.shell import made_by, script

# Its own parser took these arguments: 0.33.0, November 2026.
VERSION = "vLLM 0.33"
_METHODS = {
    "draft-simple": "draft_model",
    "draft-mtp": "mtp",
    "draft-eagle3": "eagle3",
    "draft-dflash": "dflash",
}
_START = 3  # tokens, where nothing is known: vLLM asks for a number
_RAY_PORT = 6379

HUGGING_FACE_NAMES = {  # of sampling, in generation_config.json
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
}
_JOINED = (
    ': "${HEAD:?set HEAD to the address of the first machine}"',
    'if [ "${1-}" = worker ]; then',
    f'  exec ray start --address="$HEAD:{_RAY_PORT}" --block',
    "fi",
    f'ray start --head --node-ip-address="$HEAD" --port={_RAY_PORT}',
)


def vllm(facts: PairFacts) -> Exported:
    """The command, with the speculation as JSON, and Ray around it for several machines."""
    target, draft = original_repos(facts, "vLLM")
    split, machines = split_pair(facts, pipeline=True), facts.cluster.machines
    config, notes = _speculation(facts, draft)
    options = {
        "--max-model-len": str(facts.ctx_size),
        "--tensor-parallel-size": str(split.tensor) if split.tensor > 1 else "",
        "--pipeline-parallel-size": str(split.pipeline) if split.pipeline > 1 else "",
        "--distributed-executor-backend": "ray" if machines > 1 else "",
        "--speculative-config": json.dumps(config),
        "--override-generation-config": sampling_json(facts.sampling, HUGGING_FACE_NAMES),
    }
    command = [["vllm", "serve", target], *([n, value] for n, value in options.items() if value)]
    comments = [
        made_by(facts.title, VERSION),
        f"Draft length: {facts.length.source}.",
        f"{split.sentence}.",
        *_joining(machines),
    ]
    notes += left_out(facts, "vLLM", {}, HUGGING_FACE_NAMES)
    return Exported(script(comments, command, _JOINED if machines > 1 else ()), tuple(notes))


def _joining(machines: int) -> list[str]:
    """How several machines are started."""
    if machines == 1:
        return []
    return [
        f"On the first of the {machines} machines: HEAD=ADDRESS sh THIS_FILE",
        "On each of the others, after it: HEAD=ADDRESS sh THIS_FILE worker",
    ]


def _speculation(facts: PairFacts, draft: str | None) -> tuple[dict[str, object], list[str]]:
    """What `SpeculativeConfig` takes, and what of it the user should know."""
    config: dict[str, object] = {"method": _METHODS[facts.kind.spec_type]}
    notes: list[str] = []
    if draft is not None:
        config["model"] = draft
    length = _length(facts)
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


def _length(facts: PairFacts) -> int | None:
    """The draft length that vLLM is given; None leaves it to the model's configuration."""
    kind, length = facts.kind, facts.length.tokens
    if kind.kind == "mtp":  # more than there are heads must be a multiple of them
        return length if not length or length <= kind.heads else length - length % kind.heads
    if length is None:
        return kind.block_size - 1 if kind.block_size > 1 else _START
    return length


def sampling_json(sampling: Mapping[str, object], names: Mapping[str, str]) -> str:
    """The sampling kept with a pair as JSON, by another engine's names; empty without any."""
    values = {names[name]: value for name, value in sampling.items() if name in names}
    k = values.get("top_k")
    if isinstance(k, int) and k <= 0:
        values["top_k"] = -1  # off
    return json.dumps(values) if values else ""
