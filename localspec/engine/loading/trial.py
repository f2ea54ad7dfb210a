"""First use of a pair on a device, tried in a child process because a driver may crash there."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from localspec.core import worker
from localspec.core.files import read_at_most, save_json
from localspec.core.options.load_options import DraftTokens, LoadOptions, load_options
from localspec.core.options.sampling_params import SamplingParams
from localspec.core.worker import NO_ANSWER, Ended
from localspec.engine.loading.proof import on_cpu, reading_seconds
from localspec.engine.profile_store import profile_path
from localspec.llama import llama_library
from localspec.llama.parameters import uses_devices
from localspec.metadata.header import ModelHeader

_PATIENCE = 900  # seconds for the child to measure and to answer, besides reading the files
_MAX_BYTES = 2**12
_TOKENS = 24  # of each of its answers
_LENGTHS: tuple[DraftTokens, ...] = (0, 4, "auto")
_PROMPT = 40  # tokens
# Options that do not reach the driver.
_FREE = ("path", "ctx_size", "threads", "threads_batch", "mmap", "mlock")


class TrialVariant(NamedTuple):
    """A configuration to try a pair with; ``without`` names what it leaves out."""

    name: str
    target: LoadOptions
    draft: LoadOptions | None
    without: str


def survivable(
    target: LoadOptions,
    draft: LoadOptions | None,
    headers: list[ModelHeader],
    notes: list[str],
    say: Callable[[str], None] | None = None,
) -> tuple[LoadOptions, LoadOptions | None]:
    """Options of the first variant that does not crash, which is usually the one asked for.

    The result is saved, so that a pair is tried once per driver and options. Messages go to
    ``say``; without it, a crash is noted.
    """
    models = [target, *([] if draft is None else [draft])]
    if target.rpc or not any(map(uses_devices, models)):
        return target, draft
    variants = list(_variants(target, draft))
    path = _path(models, headers)
    endings, how = _read(path), "crashed"
    again = f"To try again, for instance after an update of the driver, remove {path}."
    if endings is None:
        if say is not None:
            say("New on this device: tried in a process of its own first, as drivers may crash.")
        tried = _try(variants, _PATIENCE + reading_seconds(_n_bytes(headers)))
        endings = {name: ended.reason if _failed(ended) else "" for name, ended in tried.items()}
        if all(ended.crashed or not _failed(ended) for ended in tried.values()):
            save_json(path, endings)
        else:
            how, again = "did not finish", "The next start tries again."
    failed = [variant for variant in variants if endings.get(variant.name)]
    if not failed:
        return target, draft
    chosen = next((variant for variant in variants if variant not in failed), variants[-1])
    (say or notes.append)(
        f"llama.cpp {how} ({endings[failed[0].name]}) in a trial of this pair on "
        f"{_devices()}: {chosen.without}. {again}"
    )
    return chosen.target, chosen.draft


def _failed(ended: Ended) -> bool:
    """Whether the child did not get to its end; exit code 1 is a refusal, as the parent's."""
    return ended.code not in (0, 1)


def _n_bytes(headers: list[ModelHeader]) -> int:
    return sum(path.stat().st_size for header in headers for path in header.paths)


def _variants(target: LoadOptions, draft: LoadOptions | None) -> Iterator[TrialVariant]:
    """Configurations of a pair: as asked, then with fewer features, at last on the CPU."""
    yield TrialVariant("as asked", target, draft, "")
    chain = replace(target, branches=1)
    if draft is not None and target.branches != 1:
        yield TrialVariant("chains", chain, draft, "the target verifies chains, without branches")
    if draft is not None:
        alone = replace(chain, load_heads=False)
        yield TrialVariant("plain", alone, None, "decoding plainly, the draft is not used")
    yield TrialVariant("cpu", on_cpu(chain), draft and on_cpu(draft), "the CPU is used instead")


def _try(variants: list[TrialVariant], patience: float) -> dict[str, Ended]:
    """How the child ended with the variants, up to the first that does not fail.

    The last one, on the CPU, is not tried: see `proof`.
    """
    endings: dict[str, Ended] = {}
    for variant in variants[:-1]:
        options = [asdict(each) for each in (variant.target, variant.draft) if each is not None]
        ended = endings[variant.name] = worker.ask(__name__, options, patience)
        if not _failed(ended):
            break
    return endings


def _devices() -> str:
    found = [device.description for device in llama_library.devices() if device.is_gpu]
    return ", ".join(found) or "the device"


def _path(models: list[LoadOptions], headers: list[ModelHeader]) -> Path:
    circumstances = {
        "models": [
            {name: value for name, value in asdict(each).items() if name not in _FREE}
            for each in models
        ],
        "devices": [device.description for device in llama_library.devices()],
        "llama_cpp_python": llama_library.build().bindings,
    }
    return profile_path(headers, circumstances).with_suffix(".trial")


def _read(path: Path) -> dict[str, str] | None:
    """What ended the child by name of variant, or nothing; None where no valid file was saved."""
    try:
        endings = json.loads(read_at_most(path, _MAX_BYTES).decode())
        valid = all(isinstance(each, str) and each != NO_ANSWER for each in endings.values())
        return endings if valid else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _answer() -> None:
    """The child process: load the pair described by JSON on stdin, and use it in every way."""
    from localspec.core.options.generate_options import GenerateOptions
    from localspec.engine.engine import Engine

    models = [load_options(each) for each in json.loads(sys.stdin.readline())]
    worker.end_with_parent()
    draft = models[1] if len(models) > 1 else None
    with Engine.load(models[0], draft, lenient=True, trial=False) as engine:
        prompt = [(7919 * i + 1) % engine.target.n_vocab for i in range(_PROMPT)]
        engine.profile.introduce(lambda sentence: None)  # which is saved for the parent
        for length in _LENGTHS if engine.can_roll_back else (0,):
            drafted = length if engine.draft is not None else 0
            greedy = SamplingParams(temperature=0, ignore_eos=True)
            answer = GenerateOptions(greedy, drafted, max_tokens=_TOKENS)
            for stream in [engine.stream(prompt, answer) for _ in range(models[0].parallel)]:
                for _ in stream:
                    pass
        if engine.target.options.parallel == 1:
            tokens, state = list(engine.target.tokens), engine.target.state()
            engine.target.restore(tokens, state)


if __name__ == "__main__":
    _answer()
