"""Proof that llama.cpp runs a file: a child process loads and uses it first, since it may crash.

A proof is remembered, so that later starts need no child. The child runs this module too.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from localspec import __version__
from localspec.core import errors, machine, paths, worker
from localspec.core.errors import EngineError, LocalspecError
from localspec.core.files import add_keys, read_keys
from localspec.core.formatting import one_line, size
from localspec.core.options.load_options import LoadOptions, RpcServers, load_options
from localspec.engine.loading.rollback_choice import STRATEGIES
from localspec.llama import llama_library
from localspec.llama.memory.plan import asked_ctx_size, default_ctx_size
from localspec.llama.memory.probe import limit_memory
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.tokenizer import SHORT, tokenize
from localspec.llama.vocabulary.trimmed import open_draft_model
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import ModelHeader, read_header

_PATIENCE, _BYTES_PER_SECOND = 120, 2e7  # of the child: seconds, and how fast it reads a file
_ROOM = 8 * 2**30  # bytes of memory besides the weights and a copy of them
_HEADER_BYTES = 2**20  # of a file that identify it, besides its size and time
# Tokens: room for the passes, and flash attention is chosen as for longer contexts.
_LEAST_CTX, _MOST_CTX = 128, 1024
_WORTH_TELLING = 2**30  # bytes
_WIDE = 9  # tokens of a pass
_SOURCE = re.compile(r"^\S*/llama\.cpp/")
_TEXT = "Hello, world! 1 + 1 = 2.\n"
# Every kind of byte that UTF-8 has, and words of many scripts.
_CHARACTERS = "".join(map(chr, [*range(1, 0x800), *range(0x800, 0xD800, 64), 0x1F600, 0x10FFFF]))
# Options that the child does not use, or that cannot end it.
_FREE = ("path", "threads", "threads_batch", "loras")


class Model(NamedTuple):
    """A file of this disk, and how it is loaded."""

    header: ModelHeader
    options: LoadOptions


def require_proven(
    target: Model, draft: Model | None = None, say: Callable[[str], None] | None = None
) -> None:
    """Raise a LocalspecError for files that llama.cpp cannot run, or that end its process.

    A draft that consists of prediction heads is tried beside the target, whose own file may hold
    them. The bundled models need no proof.
    """
    if draft is None or _is_heads(target, draft):
        _require(target, draft, say)
    else:
        _require(target, None, say)
        _require(draft, None, say)


def _is_heads(target: Model, draft: Model) -> bool:
    own = draft.options.path == target.options.path and draft.options.load_heads
    return own or not draft_kind(draft.header).is_model


def _require(model: Model, heads: Model | None, say: Callable[[str], None] | None) -> None:
    used = [model] if heads is None else [model, heads]
    if all(map(_is_bundled, used)):
        return
    keys = [_key(used[:count]) for count in range(1, len(used) + 1)]
    if keys[-1] in read_keys(_store()):
        return
    n_bytes = sum(path.stat().st_size for each in used for path in _files(each))
    if say is not None and n_bytes >= _WORTH_TELLING:
        say(f"New here: {size(n_bytes)} are tried in a process of their own first, this once.")
    _try(used, n_bytes)
    add_keys(_store(), *keys)


def _try(used: list[Model], n_bytes: int) -> None:
    """Let the child use the files; raises a LocalspecError where it refuses or ends early."""
    question = {"models": [asdict(_reduced(each)) for each in used], "bytes": n_bytes}
    patience = _PATIENCE + reading_seconds(n_bytes)
    try:
        ended = worker.ask(__name__, question, patience)
    except OSError as error:
        raise EngineError(f"No process could be started to try a model in: {error}.") from None
    step, refusal = _said(ended.output)
    step = step or f"loads {_name(used[0].options)}"
    if refusal is not None:
        name, message, hint = refusal
        named = any(path.name in message for each in used for path in _files(each))
        kind = getattr(errors, name, EngineError)
        raise kind(message if named else f"When llama.cpp {step}: {message}", hint)
    if ended.code == 0:
        return
    if llama_library.log.verbose:
        sys.stderr.write(ended.log)
    late = f"gives no answer within {patience:.0f} s"
    how = late if ended.code is None else f"ends by {ended.reason}"
    if ended.cause == "killed":
        raise EngineError(
            f"The process that tries a model first was killed from outside ({ended.reason}) when "
            f"llama.cpp {step}; the system does so where memory runs out.",
            "Try again, with a smaller --ctx-size or other programs closed.",
        )
    raise EngineError(f"llama.cpp {how} when it {step}.{_last_line(ended.log)}", _hint(used))


def reading_seconds(n_bytes: int) -> float:
    """How long a child may take to read files of this size, from a slow disk."""
    return n_bytes / _BYTES_PER_SECOND


def _last_line(log: str) -> str:
    """A sentence with the last line of llama.cpp's log, without the path of its source."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f" The last line of its log: {one_line(_SOURCE.sub('', lines[-1]))}" if lines else ""


def _hint(used: list[Model]) -> str:
    """The next thing to try after a failed proof."""
    if used[0].options.override_kv:
        return "Leave out the values of --override-kv one by one."
    if used[0].options.loras:
        return "Leave out --lora."
    without = " Or run without a draft: --draft off." if len(used) > 1 else ""
    return f"Get the file again, or convert it again; the log: --verbose.{without}"


def _reduced(model: Model) -> LoadOptions:
    """Options for the child: on the CPU, in a short context, with trees."""
    header, options = model
    ctx_size = asked_ctx_size(header, options.ctx_size) or default_ctx_size(header)
    return replace(
        on_cpu(options),
        ctx_size=min(max(ctx_size, _LEAST_CTX), _MOST_CTX),
        cpu_moe_layers=0,
        tensor_split=(),
        split_mode="layer",
        main_gpu=0,
        rpc=RpcServers(),  # a server answers one connection at a time, and that is ours
        mlock=False,
        mmap=True,
        parallel=1,
        branches="auto",
    )


def on_cpu(options: LoadOptions) -> LoadOptions:
    """The same model on the CPU, with no tensor placed on a device."""
    return replace(options, gpu_layers=0, device="none", override_tensors=())


# -- stored proofs --------------------------------------------------------------------------


def _store() -> Path:
    return paths.cache_folder() / "proven.json"


def _key(used: list[Model]) -> str:
    """What identifies these files, this llama.cpp, and the options that matter."""
    circumstances = [__version__, llama_library.identity(), machine.cpu_name()]
    options = [asdict(_reduced(each)) for each in used]
    scales = [lora.scale for each in used for lora in each.options.loras]
    known = [{k: v for k, v in each.items() if k not in _FREE} for each in options]
    digest = hashlib.sha256(json.dumps([circumstances, scales, known], default=str).encode())
    for path in (path for each in used for path in _files(each)):
        stat = path.stat()
        digest.update(f"{stat.st_size} {stat.st_mtime_ns} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_HEADER_BYTES))
    return digest.hexdigest()


def _files(model: Model) -> list[Path]:
    return [*model.header.paths, *(lora.path for lora in model.options.loras)]


def _is_bundled(model: Model) -> bool:
    """Whether a model is bundled, and used as it is.

    A hash that the Hub listed would show that a file is a true copy, not that llama.cpp runs it.
    """
    if model.options.override_kv or model.options.loras:
        return False
    return all(paths.is_bundled(path) for path in model.header.paths)


# -- the child -----------------------------------------------------------------------------


def _say(*words: str) -> None:
    print(json.dumps(words), flush=True)


def _said(output: str) -> tuple[str | None, list[str] | None]:
    """The last step of the child, and its refusal, among which llama.cpp may print."""
    step, refusal = None, None
    for line in output.splitlines():
        try:
            words = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(words, list) and len(words) == 1:
            step = str(words[0])
        elif isinstance(words, list) and len(words) == 3:
            refusal = list(map(str, words))
    return step, refusal


def _answer() -> None:
    """Read options as a line of JSON from stdin, and use these models; say each step."""
    asked = json.loads(sys.stdin.readline())
    worker.end_with_parent()
    models = [load_options(each) for each in asked["models"]]
    llama_library.log.verbose = True
    free = (machine.memory() or (sys.maxsize, 0))[0]
    limit_memory(min(free, 2 * asked["bytes"] + _ROOM))
    try:
        _use(*models)
    except LocalspecError as problem:
        _say(type(problem).__name__, problem.message, problem.hint)


def _use(options: LoadOptions, heads: LoadOptions | None = None) -> None:
    name = _name(options)
    _say(f"loads {name}")
    header = read_header(options.path, options.override_kv)
    model = _open(header, options)
    if header.vocab is not None and header.vocab.type != "NONE":
        _say(f"tokenizes with {name}")
        _use_vocabulary(model)
    _say(f"decodes with {name}")
    tokens = [(7919 * i + 1) % model.n_vocab for i in range(1 + _WIDE)]
    for rows in model.decode(tokens[:1], 1).copy(), model.decode(tokens[1:], _WIDE):
        for row in rows:
            model.require_numbers(row)
    if heads is not None and model.can_roll_back:
        model.truncate(0)
        _use_heads(model, heads)


def _open(header: ModelHeader, options: LoadOptions) -> LlamaModel:
    if header.trimmed is not None:
        return open_draft_model(header, options)
    return LlamaModel(header, options, strategies=STRATEGIES)


def _use_vocabulary(model: LlamaModel) -> None:
    """Tokenize a short text and a long one, and write every token."""
    llama = llama_library.library()
    longer = _CHARACTERS + _TEXT * (2 * SHORT // len(_TEXT))
    for text in (_TEXT, longer):
        for special in (True, False):
            tokenize(llama, model.vocab, text, add_special=special, special=special)
    for token in range(model.n_vocab):
        model.piece(token)


def _use_heads(target: LlamaModel, options: LoadOptions) -> None:
    """Answer with drafts of these heads."""
    from localspec.core.options.generate_options import GenerateOptions
    from localspec.core.options.sampling_params import SamplingParams
    from localspec.engine.engine import Engine
    from localspec.llama.heads.opening import open_head

    name = _name(options)
    _say(f"loads the prediction heads of {name}")
    own = options.path == target.header.path
    head = open_head(target, None if own else read_header(options.path), options)
    _say(f"drafts with the prediction heads of {name}")
    prompt = np.arange(1, 1 + _WIDE) % target.n_vocab
    greedy = SamplingParams(temperature=0, ignore_eos=True)
    answer = GenerateOptions(greedy, _WIDE - 1, max_tokens=2 * _WIDE)
    for _ in Engine(target, head).stream([int(token) for token in prompt], answer):
        pass


def _name(options: LoadOptions) -> str:
    adapters = " and ".join(str(lora.path) for lora in options.loras)
    return one_line(f"{options.path} with {adapters}" if adapters else str(options.path))


if __name__ == "__main__":
    _answer()
