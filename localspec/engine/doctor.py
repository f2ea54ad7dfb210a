"""Diagnosis of this machine and this build of llama.cpp."""

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from localspec import __version__
from localspec.core import machine, paths
from localspec.core.errors import EngineError, LocalspecError
from localspec.core.formatting import size
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.loading.notes import missing_gpu, missing_kernels, unloaded_backends
from localspec.llama import llama_library, row_kernels
from localspec.llama.heads.hidden_states import unstable
from localspec.llama.memory.probe import attention_here
from localspec.metadata.header import read_header


@dataclass(slots=True)
class DoctorReport:
    """Facts in display order, advice as sentences, and whether everything works."""

    facts: dict[str, object] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)
    healthy: bool = True


def examine(say: Callable[[str], None] | None = None) -> DoctorReport:
    """Examine everything; failures become advice, not exceptions.

    ``say`` gets a note before a step that may take minutes on a slow device.
    """
    result = DoctorReport()
    facts = result.facts
    facts["localspec"] = __version__
    facts["python"] = f"{platform.python_version()} ({sys.executable})"
    facts["system"] = platform.platform()
    facts["cpu"] = machine.cpu_name()
    facts["physical_cores"] = machine.physical_cores()
    facts["logical_cores"] = machine.logical_cores()
    _examine_memory(result)
    try:
        facts["models_folder"] = str(paths.models_folder())
        facts["cache_folder"] = str(paths.cache_folder())
        _examine_build(result)
        exact = _exact(say)  # first: it notes that it takes a while
        facts["demo"] = _try_demo(result)
        facts["exact"] = exact
    except LocalspecError as error:
        result.healthy = False
        facts["demo"] = f"fails: {error.message}"
        result.advice.append(error.hint)
    return result


def _examine_memory(result: DoctorReport) -> None:
    sizes = machine.memory()
    if sizes is None:
        return
    available, total = sizes
    result.facts["memory_total"], result.facts["memory_available"] = total, available
    if available < 2 * 10**9:
        result.advice.append(
            "Less than 2 GB of memory is free: close other programs, or models will be read "
            "from disk again and again."
        )


def _examine_build(result: DoctorReport) -> None:
    build = llama_library.build()
    result.facts["llama_cpp_python"] = build.bindings
    result.facts["llama_cpp"] = build.llama_cpp
    result.facts["features"] = build.features
    result.facts["gpu_offload"] = build.gpu_offload
    result.facts["rpc"] = build.rpc
    result.facts["kept_graphs"] = build.kept_graphs
    backends = llama_library.backends(llama_library.libraries())
    if backends:
        loaded = [name for name, reason in backends.items() if reason is None]
        result.facts["backends"] = ", ".join(loaded)
    result.advice += unloaded_backends()
    result.facts["prediction_heads"] = _heads(result)
    shown = ("name", "description", "kind", "free", "total")
    devices = llama_library.devices()
    result.facts["devices"] = [{name: getattr(d, name) for name in shown} for d in devices]
    _examine_kernels(result)
    result.facts["flash_attention"] = str(attention_here(read_header(paths.demo_pair()[0])))
    gpu = missing_gpu(any_maker=True)
    result.advice += [sentence for sentence in gpu if sentence not in result.advice]


def _examine_kernels(result: DoctorReport) -> None:
    """The form of the row kernels; wrong ones are a failure, missing ones can be built."""
    form, refused = row_kernels.form(), row_kernels.refusal()
    kernels = "not in this build"
    if form is not None:
        kernels = form or "none for the kind of processor that this build is for"
    result.facts["row_kernels"] = kernels if refused is None else f"{kernels}, refused"
    if refused is not None:
        result.healthy = False
        result.advice.append(refused)
    result.advice += missing_kernels()


def _heads(result: DoctorReport) -> bool:
    """Whether this build exposes the hidden states that heads need."""
    try:
        unstable()
    except EngineError as error:
        result.advice.append(f"{error.message} {error.hint}")
        return False
    return True


def _exact(say: Callable[[str], None] | None) -> str:
    """Whether a draft changes texts of the bundled target, with `--exact` and without."""
    options = LoadOptions(paths.demo_pair()[0], ctx_size=128, threads=1, exact=True)
    with Engine.load(options, None, say=say) as engine:
        rounding = engine.target.rounding
        if rounding is not None and rounding.alike:
            return "a draft changes no text of the bundled models here, with --exact or without"
        without = rounding or "drafted texts may differ from plain ones by rounding"
        return f"without --exact, {without}; with it, {engine.target.passes}"


def _try_demo(result: DoctorReport) -> str:
    """Load the bundled pair and generate eight tokens."""
    options = [LoadOptions(path, ctx_size=128, threads=1) for path in paths.demo_pair()]
    with Engine.load(*options) as engine:
        result.advice += [note for note in engine.notes if note not in result.advice]
        models = [model for model in (engine.target, engine.draft) if model is not None]
        taken = size(sum(model.memory.total for model in models))
        prompt = engine.encode_chat([{"role": "user", "content": "What does json.dumps do?"}])
        greedy = SamplingParams(temperature=0)
        *_, last = engine.stream(prompt, GenerateOptions(greedy, 3, max_tokens=8))
    stats = last.stats
    drafted = f"{stats.accepted} of {stats.drafted} drafted accepted"
    return f"runs: {stats.tokens} tokens, {drafted}, {taken} of memory"
