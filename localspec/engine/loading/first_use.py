"""First use of a pair: a child process loads it, uses it and measures it, since it may crash.

Files and drivers may end llama.cpp's process. The pair file keeps the child's results.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple, NoReturn

from localspec.core import errors, paths, worker
from localspec.core.errors import EngineError
from localspec.core.formatting import one_line, size
from localspec.core.options.load_options import BRANCHES, LoadOptions, RpcServers
from localspec.core.worker import Ended
from localspec.engine.loading.pair_file import ModelFile, PairFile, files_used, news
from localspec.engine.profile_store import MEASURING
from localspec.llama import llama_library
from localspec.llama.memory.plan import asked_ctx_size, default_ctx_size
from localspec.llama.parameters import uses_devices

CHILD = "localspec.engine.loading.child"
_PATIENCE, _BYTES_PER_SECOND = 900, 2e7  # of the child: seconds, and bytes read in a second
_ROOM = 8 * 2**30  # bytes of memory in addition to the weights, a copy of them and the contexts
_WORTH_TELLING = 2**28  # bytes: smaller models take a few seconds
# Tokens: room for the passes, and flash attention is chosen as for longer contexts.
_LEAST_CTX, _MOST_CTX = 128, 1024
_SOURCE = re.compile(r"^\S*/llama\.cpp/")

Say = Callable[[str], None] | None


class Placed(NamedTuple):
    """A pair with contexts and layers that fit, and the bytes that it takes.

    ``notes`` and ``plan`` are for the user, ``loading`` is shown before the weights are read.
    ``no_trees_reason`` is that of `Engine`.
    """

    target: ModelFile
    draft: ModelFile | None
    n_bytes: int
    no_trees_reason: str | None = None
    notes: Sequence[str] = ()
    plan: Sequence[str] = ()
    loading: str | None = None

    @property
    def models(self) -> list[ModelFile]:
        return [self.target, *([] if self.draft is None else [self.draft])]

    @property
    def is_tried_on_device(self) -> bool:
        """Whether the child uses the devices too; an RPC server would be busy with this process."""
        options = [each.options for each in self.models]
        return not options[0].rpc and any(map(uses_devices, options))


def on_cpu(options: LoadOptions) -> LoadOptions:
    """The same model on the CPU, with no tensor placed on a device."""
    return replace(options, gpu_layers=0, device="none", override_tensors=())


def use_first(placed: Placed, file: PairFile, alone: PairFile, say: Say = None) -> None:
    """Use a pair that is new here in a child, which also measures it for ``file``.

    ``alone`` is the file of the target without the draft, which is then no longer new either.
    The bundled models need no child on the CPU. Messages go to ``say``. Raises the child's
    refusals, EngineError if it ends early: then the next start tries again.
    """
    on_device, tried = placed.is_tried_on_device, _tried(file)
    branches = placed.target.options.branches
    if branches in tried or (not on_device and all(map(_is_bundled, placed.models))):
        return
    if say is not None:
        file.is_announced = _announce(placed, on_device, say)
    ended = _in_child(placed, measures=_measures(placed, on_device), answers=on_device)
    if ended.code != 0:
        _fail(placed, ended)
    _keep(file, ended.output)
    note_used(branches, file, alone)


def note_used(branches: int, *files: PairFile) -> None:
    """Record that llama.cpp used these models here, so that no child tries them again."""
    for each in files:
        each.update(tried=list(dict.fromkeys([*_tried(each), branches])))


def _measures(placed: Placed, on_device: bool) -> bool:
    """Whether the child measures the costs of drafting; else they are measured when needed.

    With --exact the passes to be measured are known after the pair is loaded.
    """
    target = placed.target.options
    return not target.exact and (on_device or (placed.draft is not None and not target.rpc))


def prove(model: ModelFile) -> None:
    """Raise a LocalspecError for a file that llama.cpp cannot run, or that ends its process."""
    placed = Placed(ModelFile(model.header, _reduced(model)), None, 0)
    ended = _in_child(placed, measures=False, answers=False)
    if ended.code != 0:
        _fail(placed, ended)


def _announce(placed: Placed, on_device: bool, say: Callable[[str], None]) -> bool:
    """One note for all that the first start does and later ones do not; whether there is one."""
    n_bytes, tests = _n_bytes(placed), "tested and measured once, for up to a minute"
    if on_device:
        say(f"New on this device: {tests}, in a process that a driver may crash.")
    elif n_bytes >= _WORTH_TELLING:
        new = news([each.header for each in placed.models], "tried")
        say(f"{new}: {size(n_bytes)}, {tests}.")
    elif placed.draft is not None and _measures(placed, on_device):
        say(MEASURING)
    else:
        return False
    return True


def _tried(file: PairFile) -> list[int]:
    """The numbers of branches with which the pair was used; without anything invalid."""
    found = file.parts.get("tried")
    return [each for each in found if isinstance(each, int)] if isinstance(found, list) else []


def _keep(file: PairFile, output: str) -> None:
    found = next((each for each in _messages(output) if isinstance(each, dict)), {})
    file.parts |= found
    file.is_new = "profile" in found


def _in_child(placed: Placed, *, measures: bool, answers: bool) -> Ended:
    """The ending of the child that used these models; raises a LocalspecError if it refused."""
    models = placed.models
    if placed.target.options.rpc:
        models = [ModelFile(each.header, _reduced(each)) for each in models]
    question = {
        "models": [asdict(each.options) for each in models],
        "bytes": 2 * _n_bytes(placed) + placed.n_bytes + _ROOM,
        "measures": measures,
        "answers": answers,
    }
    try:
        ended = worker.ask(CHILD, question, _patience(placed))
    except OSError as error:
        raise worker.not_started("to try a model in", error) from None
    if (refusal := _refusal(ended.output)) is not None:
        name, message, hint = refusal
        named = any(path.name in message for each in models for path in files_used(each))
        kind = getattr(errors, name, EngineError)
        step = _step(placed, ended)
        raise kind(message if named else f"When llama.cpp {step}: {message}", hint)
    if ended.code == 0 and not any(isinstance(each, dict) for each in _messages(ended.output)):
        return ended._replace(code=1)  # if SIGCHLD is ignored, each child seems to succeed
    return ended


def _fail(placed: Placed, ended: Ended) -> NoReturn:
    """Raise EngineError with the step at which the child ended, and the cause."""
    step = _step(placed, ended)
    if llama_library.log.verbose:
        sys.stderr.write(ended.log)
    if ended.cause == "killed":
        raise EngineError(
            f"The process that tries a model first was killed from outside ({ended.reason}) when "
            f"llama.cpp {step}; the system does so when memory runs out.",
            "Try again, with a smaller --ctx-size or other programs closed.",
        )
    late = f"gives no answer within {_patience(placed):.0f} s"
    how = late if ended.code is None else f"ends by {ended.reason}"
    raise EngineError(
        f"llama.cpp {how} when it {step}.{_last_line(ended.log)}", _hint(placed, step)
    )


def _last_line(log: str) -> str:
    """A sentence with the last line of llama.cpp's log, without the path of its source."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f" The last line of its log: {one_line(_SOURCE.sub('', lines[-1]))}" if lines else ""


def _hint(placed: Placed, step: str) -> str:
    if placed.target.options.override_kv:
        return "Leave out the values of --override-kv one by one."
    if placed.target.options.loras:
        return "Leave out --lora."
    if placed.is_tried_on_device:
        without = "" if placed.draft is None else ", or without a draft: --draft off"
        return f"The driver may be at fault: run on the CPU, --device none{without}."
    drafts = placed.draft is not None and str(placed.draft.options.path) in step
    without = " Or run without a draft: --draft off." if drafts else ""
    foreign = llama_library.foreign()
    again = f"{foreign} Or get" if foreign else "Get"
    return f"{again} the file again, or convert it again; the log: --verbose.{without}"


def _reduced(model: ModelFile) -> LoadOptions:
    """Options of a proof alone: on the CPU, in a short context, with trees."""
    header, options = model
    ctx_size = asked_ctx_size(header, options.ctx_size) or default_ctx_size(header)
    return replace(
        on_cpu(options),
        ctx_size=min(max(ctx_size, _LEAST_CTX), _MOST_CTX),
        cpu_moe_layers=0,
        tensor_split=(),
        split_mode="layer",
        main_gpu=0,
        rpc=RpcServers(),  # a server answers one connection at a time: this process's
        mlock=False,
        mmap=True,
        parallel=1,
        branches=BRANCHES.high,
    )


def _patience(placed: Placed) -> float:
    """Seconds that the child may take, also from a slow disk."""
    return _PATIENCE + _n_bytes(placed) / _BYTES_PER_SECOND


def _n_bytes(placed: Placed) -> int:
    return sum(path.stat().st_size for each in placed.models for path in files_used(each))


def _is_bundled(model: ModelFile) -> bool:
    """Whether a model is bundled, and used as it is.

    A hash that the Hub listed would show that a file is a true copy, not that llama.cpp runs it.
    """
    if model.options.override_kv or model.options.loras:
        return False
    return all(paths.is_bundled(path) for path in model.header.paths)


def _messages(output: str) -> list[Any]:
    """The child's messages in JSON, a line each, among which llama.cpp may print."""
    found = []
    for line in output.splitlines():
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return found


def _step(placed: Placed, ended: Ended) -> str:
    steps = [each for each in _messages(ended.output) if isinstance(each, str)]
    return steps[-1] if steps else f"loads {shown(placed.target.options)}"


def _refusal(output: str) -> list[str] | None:
    """Name, message and hint of the error that the child raised."""
    found = [each for each in _messages(output) if isinstance(each, list) and len(each) == 3]
    return [str(part) for part in found[-1]] if found else None


def shown(options: LoadOptions) -> str:
    adapters = " and ".join(str(lora.path) for lora in options.loras)
    return one_line(f"{options.path} with {adapters}" if adapters else str(options.path))
