"""The llama.cpp library: loaded, its log, its devices, how it was built."""

import collections
import ctypes
import functools
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from localspec.core import machine
from localspec.core.errors import EngineError, UsageError
from localspec.core.formatting import printable
from localspec.core.host import install_command
from localspec.core.interrupt import held_interrupt, is_unwanted, require_wanted

# Iterations an idle libgomp thread spins before it sleeps, on a quiet machine and on a busy one;
# see docs/hardware/cpu.md. Unbounded spinning, libgomp's default, stalls a token for up to a second
# next to another busy process, and sleeping early costs up to 7 % on a quiet machine.
SPIN_COUNT, SPIN_COUNT_BUSY = "10000", "1000"

# Mesa's Vulkan device in software. Shaders that llama.cpp fuses of several operations crash its
# version 22.3, though Vulkan's validation layer objects to nothing; see docs/hardware/gpu.md.
_SOFTWARE = b"llvmpipe"

_FOLDER = "LLAMA_CPP_LIB_PATH"
VERSION = "0.3.36"
_LOG_LINES = 50_000  # a model of many layers tells thousands about making a context
_LEVEL_ERROR, _LEVEL_CONTINUES = 4, 5  # ggml_log_level; the bindings' own comments are out of date
RPC_SERVER = "RPC server"  # a kind of our own: llama.cpp calls them GPUs
_DEVICE_KINDS = ("CPU", "GPU", "integrated GPU", "accelerator", "meta")


@dataclass(frozen=True, slots=True)
class Device:
    """A device llama.cpp can compute on; memory in bytes, ``handle`` for llama.cpp."""

    name: str
    description: str
    kind: str
    free: int
    total: int
    handle: int

    @property
    def is_gpu(self) -> bool:
        return "GPU" in self.kind


@dataclass(frozen=True, slots=True)
class Build:
    """How the installed llama.cpp was built."""

    bindings: str
    llama_cpp: str
    features: str
    gpu_offload: bool
    rpc: bool = False
    kept_graphs: int = 0  # graphs that a context keeps for narrow passes, one for each shape


class NativeLog:
    """llama.cpp's log: kept quiet, shown when verbose, asked for the reason of a failure."""

    def __init__(self) -> None:
        self.verbose = False
        self._lines: collections.deque[tuple[int, str]] = collections.deque(maxlen=_LOG_LINES)

    def write(self, level: int, text: str) -> None:
        """Take one message; a continuation is joined to the message before it."""
        if self.verbose:
            sys.stderr.write(printable(text) if sys.stderr.isatty() else text)
        if level == _LEVEL_CONTINUES and self._lines:
            last_level, last = self._lines[-1]
            self._lines[-1] = (last_level, last + text)
        else:
            self._lines.append((level, text))

    def lines(self) -> list[str]:
        """The lines since the last `watch` began, the oldest of very many left out."""
        return [text for _, text in self._lines]

    @contextmanager
    def watch(self) -> Iterator[list[str]]:
        """Collect the lines that are logged as errors while the block runs."""
        errors: list[str] = []
        self._lines.clear()
        try:
            yield errors
        finally:
            errors.extend(text.strip() for level, text in self._lines if level == _LEVEL_ERROR)


log = NativeLog()


_keep_alive: list[Any] = []  # ctypes callbacks that llama.cpp calls until the process ends


@functools.cache
def library() -> Any:
    """The low-level bindings, imported and initialised on first use."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an abort would start a debugger
    if "OMP_WAIT_POLICY" not in os.environ:
        if "GOMP_SPINCOUNT" not in os.environ:  # read when libgomp is loaded
            os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT_BUSY if machine.is_busy() else SPIN_COUNT
    if not os.environ.get(_FOLDER):  # empty, it would be the current folder for llama_cpp
        os.environ.pop(_FOLDER, None)
    try:
        import llama_cpp.llama_cpp as llama
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # a function is missing
        raise EngineError(
            f"llama-cpp-python cannot be loaded: {error}",
            foreign() or f"Reinstall it: {reinstall()}",
        ) from error

    @llama.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(level: int, text: bytes, _: Any) -> None:
        log.write(level, text.decode("utf-8", "replace"))

    _keep_alive.append(on_log)
    llama.llama_log_set(on_log, ctypes.c_void_p(0))
    _load_backends(llama._lib)
    llama.llama_backend_init()
    return llama


def _load_backends(ggml: Any) -> None:
    """Load backends that are libraries of their own, the CPU's in the form for this processor.

    llama.cpp by itself also looks in the current folder, which may hold an untrusted library.
    Raises EngineError if no backend can be loaded.
    """
    ggml.ggml_backend_reg_count.restype = ctypes.c_size_t
    if ggml.ggml_backend_reg_count():
        return
    folder = libraries()
    ggml.ggml_backend_load_all_from_path(os.fsencode(folder))
    if not ggml.ggml_backend_reg_count():
        raise EngineError(
            f"llama.cpp has no backend for this processor in {folder}.",
            foreign() or f"Reinstall llama-cpp-python: {reinstall()}",
        )


def reinstall(version: str = VERSION) -> str:
    """The command that builds the bindings again.

    pip alone would take a build from its cache, and install all dependencies again.
    """
    flags = "--force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python"
    return install_command(f"{flags} llama-cpp-python=={version}")


def foreign() -> str | None:
    """The next thing to try if the libraries are those that a variable names; None elsewhere."""
    folder = os.environ.get(_FOLDER)
    if not folder:
        return None
    return (
        f"{_FOLDER} names libraries in {folder}: unset it, or name a folder with those of "
        f"llama-cpp-python {VERSION}."
    )


def libraries() -> Path:
    """The folder of llama.cpp's libraries; LLAMA_CPP_LIB_PATH names another, as in llama_cpp."""
    if chosen := os.environ.get(_FOLDER):
        return Path(chosen)
    spec = PathFinder.find_spec("llama_cpp")
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0], "lib") if folders else Path(os.devnull)


@functools.cache  # asking for a reason loads the library
def backends(folder: Path) -> dict[str, str | None]:
    """The backends in a folder that are libraries of their own: None for one that is loaded.

    Otherwise the reason why not. Of the CPU's, one for each kind of processor, only the loaded
    one is named; none at all if backends are part of llama.cpp.
    """
    if not any(folder.glob("libggml-cpu-*.so")):
        return {}
    found: dict[str, str | None] = {}
    for file in sorted(folder.glob("libggml-*.so")):
        name = file.stem.removeprefix("libggml-")
        if name == "base":
            continue
        if _is_loaded(file):
            found[name] = None
        elif not name.startswith("cpu-"):
            found[name] = _reason(file)
    return found


def _is_loaded(file: Path) -> bool:
    try:
        ctypes.CDLL(str(file), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def cpu_libraries() -> list[Any]:
    """Loaded libraries in which a function of the CPU's backend is found, if it has it."""
    files = libraries().glob("libggml-cpu-*.so")
    own = [ctypes.CDLL(str(file)) for file in sorted(files) if _is_loaded(file)]
    return own or [ggml()]  # which depends on the CPU's backend


def _reason(file: Path) -> str:
    """Why a backend's library is not loaded."""
    try:
        ctypes.CDLL(str(file))
    except OSError as error:
        return str(error)
    return "it finds no device"


@contextmanager
def interruptible(context: Any) -> Iterator[None]:
    """Let Ctrl-C, or `stopped_when`, end a pass between two operations of its graph.

    llama.cpp checks for it on the CPU and on Metal; elsewhere the pass is not begun, or its end is
    waited for. For passes that take long: 240 checks add 2 % to one token of a small model.
    Raises KeyboardInterrupt or Cancelled, also if the pass was complete by then.
    """
    llama = library()
    require_wanted()
    with held_interrupt() as pressed:
        ask = llama.ggml_abort_callback(lambda data: bool(pressed) or is_unwanted())
        llama.llama_set_abort_callback(context, ask, None)
        try:
            yield
        finally:
            llama.llama_set_abort_callback(context, llama.ggml_abort_callback(), None)
    require_wanted()


@functools.cache
def ggml() -> Any:
    """libggml, for the functions of devices and tensors that the bindings leave out."""
    library()
    from llama_cpp._ctypes_extensions import load_shared_library

    # Not llama_cpp._ggml: it ignores LLAMA_CPP_LIB_PATH, and a second copy has devices of its own.
    libggml = load_shared_library("ggml", libraries())
    _load_backends(libggml)  # pip's copies of one library do not share their lists of backends
    for name, result, arguments in (
        ("ggml_backend_dev_count", ctypes.c_size_t, []),
        ("ggml_backend_dev_get", ctypes.c_void_p, [ctypes.c_size_t]),
        ("ggml_backend_dev_name", ctypes.c_char_p, [ctypes.c_void_p]),
        ("ggml_backend_dev_description", ctypes.c_char_p, [ctypes.c_void_p]),
        ("ggml_backend_dev_by_type", ctypes.c_void_p, [ctypes.c_int]),
        ("ggml_backend_dev_type", ctypes.c_int, [ctypes.c_void_p]),
        ("ggml_backend_dev_memory", None, [ctypes.c_void_p] + [ctypes.c_void_p] * 2),
        ("ggml_backend_dev_buffer_type", ctypes.c_void_p, [ctypes.c_void_p]),
        ("ggml_backend_dev_backend_reg", ctypes.c_void_p, [ctypes.c_void_p]),
        ("ggml_backend_dev_init", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
        ("ggml_backend_buft_name", ctypes.c_char_p, [ctypes.c_void_p]),
        ("ggml_backend_register", None, [ctypes.c_void_p]),
        ("ggml_backend_reg_by_name", ctypes.c_void_p, [ctypes.c_char_p]),
        ("ggml_backend_reg_name", ctypes.c_char_p, [ctypes.c_void_p]),
        ("ggml_backend_reg_dev_count", ctypes.c_size_t, [ctypes.c_void_p]),
        ("ggml_backend_reg_dev_get", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]),
        ("ggml_backend_reg_get_proc_address", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
        ("ggml_op_name", ctypes.c_char_p, [ctypes.c_int]),
        ("ggml_set_abort_callback", ctypes.c_void_p, [ctypes.c_void_p]),
    ):
        function = getattr(libggml, name)
        function.restype, function.argtypes = result, arguments
    for i in range(libggml.ggml_backend_dev_count()):
        device = libggml.ggml_backend_dev_get(i)
        if libggml.ggml_backend_dev_description(device).startswith(_SOFTWARE):
            os.environ.setdefault("GGML_VK_DISABLE_FUSION", "1")  # read at the device's first use
    return libggml


def devices() -> list[Device]:
    """Every device of this build and of the RPC servers that were added, the CPU included."""
    library = ggml()
    found = []
    for i in range(library.ggml_backend_dev_count()):
        handle = library.ggml_backend_dev_get(i)
        name = library.ggml_backend_dev_name(handle).decode()
        description = library.ggml_backend_dev_description(handle).decode().strip()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        library.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        kind = _kind(handle)
        found.append(Device(name, description, kind, free.value, total.value, handle))
    return found


def _kind(device: int) -> str:
    library = ggml()
    registry = library.ggml_backend_dev_backend_reg(device)
    if library.ggml_backend_reg_name(registry) == b"RPC":  # as llama_prepare_model_devices asks
        return RPC_SERVER
    kind = library.ggml_backend_dev_type(device)
    return _DEVICE_KINDS[kind] if kind < len(_DEVICE_KINDS) else "other"


def choose_devices(names: str) -> list[Device]:
    """Devices for a comma-separated list of names; none for ``none`` or ``cpu``.

    Raises UsageError for a name this build does not know.
    """
    if names.lower() in ("none", "cpu"):
        return []
    known = {device.name.lower(): device for device in devices() if device.kind != "CPU"}
    chosen = []
    for name in names.split(","):
        device = known.get(name.strip().lower())
        if device is None:
            raise UsageError(
                f"There is no device {name.strip()!r}.",
                f"This build knows: {', '.join(d.name for d in known.values())}, none."
                if known
                else "This build has no GPU: leave --device out. See localspec doctor for devices",
            )
        chosen.append(device)
    return chosen


def buffer_types() -> dict[str, int]:
    """Buffer type handles by name (``CPU``, ``CUDA0``, …), as ``--override-tensor`` wants them."""
    library = ggml()
    handles = [library.ggml_backend_dev_buffer_type(device.handle) for device in devices()]
    return {library.ggml_backend_buft_name(handle).decode(): handle for handle in handles}


def extra_buffer_types() -> list[str]:
    """Names of the CPU's layouts of weights for faster kernels, in the order they are tried."""
    return [ggml().ggml_backend_buft_name(each).decode() for each in _extra_buffer_types()]


def _extra_buffer_types() -> Any:
    """llama.cpp's own list, which it reads up to NULL (make_cpu_buft_list in llama-model.cpp)."""
    library = ggml()
    cpu = library.ggml_backend_dev_by_type(_DEVICE_KINDS.index("CPU"))
    registry = library.ggml_backend_dev_backend_reg(cpu)
    name = b"ggml_backend_dev_get_extra_bufts"
    address = library.ggml_backend_reg_get_proc_address(registry, name)
    get = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
    types = get(cpu)
    count = sum(1 for _ in itertools.takewhile(bool, types))
    return (ctypes.c_void_p * count).from_address(ctypes.addressof(types.contents))


@functools.cache
def leave_out_amx() -> None:
    """Keep the weights of models loaded from now on out of AMX buffers.

    As GCC 12 compiles llama.cpp's AMX kernels, the first pass with quantised weights ends the
    process (docs/hardware/cpu.md), and pip may have such a build in its cache.
    """
    types = _extra_buffer_types()
    kept = [each for each, name in zip(types, extra_buffer_types(), strict=True) if name != "AMX"]
    types[:] = kept + [None] * (len(types) - len(kept))


def identity() -> list[str]:
    """Data that distinguish the installed llama.cpp from others, without loading it."""
    files = sorted(libraries().glob("*"))
    return [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]


def build() -> Build:
    llama = library()
    import llama_cpp

    # With the patch that `scripts/build_cuda.sh` applies.
    count = getattr(llama._lib, "llama_kept_graphs", None)
    return Build(
        llama_cpp.__version__,
        llama.llama_version().decode(),
        llama.llama_print_system_info().decode().strip(),
        any(device.is_gpu for device in devices()),
        bool(llama.llama_supports_rpc()),
        int(count()) if count is not None else 0,
    )
