"""SGLang: the command of its server, on one machine or on several that share every layer."""

from localspec.core.errors import IncompatiblePair
from localspec.export.cluster import split_pair
from localspec.export.facts import Exported, PairFacts, left_out
from localspec.export.repositories import original_repos
from localspec.export.shell import Words, made_by, script
from localspec.export.vllm import HUGGING_FACE_NAMES, sampling_json

# Its own parser took these arguments: 0.5.23, November 2026.
VERSION = "SGLang 0.5.23"
_ALGORITHMS = {
    "draft-simple": "STANDALONE",
    "draft-mtp": "NEXTN",
    "draft-eagle3": "EAGLE3",
    "draft-dflash": "DFLASH",
}
_NAMES = HUGGING_FACE_NAMES | {
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_PORT = 20000


def sglang(facts: PairFacts) -> Exported:
    """The command; pipeline parallelism is not used, which SGLang refuses beside these drafts."""
    if facts.kind.is_model and facts.target.n_tokens != facts.draft.n_tokens:
        raise IncompatiblePair(
            "SGLang cannot run this pair: its STANDALONE asks for vocabularies of the same size, "
            f"and these have {facts.target.n_tokens:,} and {facts.draft.n_tokens:,} tokens.",
            "vLLM translates between them: --to vllm",
        )
    target, draft = original_repos(facts, "SGLang")
    split = split_pair(facts, pipeline=False)
    command: list[Words] = [
        ["python", "-m", "sglang.launch_server"],
        ["--model-path", target],
        ["--context-length", str(facts.ctx_size)],
        *([["--tp-size", str(split.tensor)]] if split.tensor > 1 else []),
        *_speculation(facts, draft),
    ]
    if sampling := sampling_json(facts.sampling, _NAMES):
        command.append(["--preferred-sampling-params", sampling])
    comments = [
        made_by(facts.title, VERSION),
        f"Draft length: {facts.length.source}.",
        f"{split.sentence}.",
    ]
    joining, before, after = _machines(facts.cluster.machines)
    text = script([*comments, *joining], command, before, after)
    return Exported(text, left_out(facts, "SGLang", {}, _NAMES))


def _machines(count: int) -> tuple[list[str], list[str], list[str]]:
    """How several machines are started: a comment, what each must be told, and its options."""
    if count == 1:
        return [], [], []
    comment = (
        f"On each of the {count} machines, RANK from 0 on the first: "
        "HEAD=ADDRESS_OF_THE_FIRST RANK=0 sh THIS_FILE"
    )
    told = [
        ': "${HEAD:?set HEAD to the address of the first machine}"',
        ': "${RANK:?set RANK to the number of this machine, 0 for the first}"',
    ]
    place = f'--nnodes {count} --node-rank "$RANK" --dist-init-addr "$HEAD:{_PORT}"'
    return [comment], told, [place]


def _speculation(facts: PairFacts, draft: str | None) -> list[Words]:
    """The options of speculation; without a length SGLang chooses one."""
    algorithm, length = _ALGORITHMS[facts.kind.spec_type], facts.length.tokens
    options: list[Words] = [["--speculative-algorithm", algorithm]]
    if draft is not None:
        options.append(["--speculative-draft-model-path", draft])
    if length is None:
        return options
    if not facts.kind.block_size:  # one token after the other, as a chain
        options += [["--speculative-num-steps", str(length)], ["--speculative-eagle-topk", "1"]]
    # A verification holds the token before them too.
    return [*options, ["--speculative-num-draft-tokens", str(length + 1)]]
