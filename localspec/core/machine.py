"""Cores, memory, GPUs and pauses of this computer, without llama.cpp."""

import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from localspec.core.limits import allowed

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
_GRAPHICS = Path("/sys/class/drm")
_MAKERS = {"0x1002": "AMD", "0x8086": "Intel"}  # by PCI's number
_LATER = 128 * 2**20  # bytes of address space that llama.cpp's threads and libraries may take
_BUSY = 0.5  # cores that other processes use
_LONG_LOOK = 0.2  # seconds
_FAST = Path("/sys/devices/cpu_core/cpus")  # P-cores; Linux has it on hybrid Intel processors only


def logical_cores() -> int:
    """Cores this process may run on, container limits included."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, _cgroup_cores() or allowed))


def physical_cores() -> int:
    """Physical cores this process may use, as hyper-threads share their arithmetic units.

    Efficiency cores do not count, as in llama.cpp's ``common_cpu_get_num_math``: all threads would
    wait for them after each operation.
    """
    if sys.platform == "darwin":
        return _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu") or logical_cores()
    allowed = os.sched_getaffinity(0)
    cores = len({_siblings(cpu) for cpu in allowed & _fast_cpus() or allowed})
    return max(1, min(cores, logical_cores()))


def _fast_cpus() -> set[int]:
    """CPUs of P-cores, from a list such as ``0-7,9``; none if Linux does not distinguish them."""
    try:
        spans = [span.split("-") for span in _FAST.read_text().split(",")]
        return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}
    except (OSError, ValueError):
        return set()


def _siblings(cpu: int) -> str:
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_cores() -> int | None:
    """Whole cores of the smallest CPU quota of this process's control groups, None without one."""
    found = []
    for folder in _cgroup_folders("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(OSError, ValueError, ZeroDivisionError):  # "max" and -1 are no quota
                quota, period = map(int, _words(folder, *names))
                found += [max(1, quota // period)] if quota > 0 else []
    return min(found, default=None)


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """Folders of the control groups (version 1 or 2) that limit this process, to the root.

    In a container the root may be the container's own group, whose path outside is listed here.
    """
    listed = ""
    with suppress(OSError):
        listed = Path("/proc/self/cgroup").read_text()
    lines = re.findall(r"^\d+:(.*?):(/.*)$", listed, re.M)
    for names, path in [*lines, ("", "/"), (controller, "/")]:
        if names and controller not in names.split(","):
            continue
        inside = PurePosixPath("/" if "/.." in path else path)
        for each in (inside, *inside.parents):
            for mount in (names, controller) if names else ("", "unified"):
                yield _CGROUP / mount / str(each).lstrip("/")


def _words(folder: Path, *names: str) -> list[str]:
    return " ".join((folder / name).read_text() for name in names).split()


def _output(*command: str) -> str:
    """Output of a command; empty if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _sysctl(name: str) -> int | None:
    found = _output("sysctl", "-n", name).strip()
    return int(found) if found.isdecimal() else None


def memory() -> tuple[int, int] | None:
    """(available, total) bytes of RAM if known, limits of containers and of this shell included."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
        available, total = sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        total = _sysctl("hw.memsize") or 0
        return (_mac_available() or total, total) if total else None
    for limit in (_cgroup_memory(), _shell_memory()):
        if limit is not None:
            available, total = min(available, limit[0]), min(total, limit[1])
    return available, total


def _shell_memory() -> tuple[int, int] | None:
    """(available, limit) bytes of this process's address space; None without a limit."""
    limit = allowed("RLIMIT_AS")
    if limit is None:
        return None
    used = 0
    with suppress(OSError, ValueError, IndexError):  # elsewhere than on Linux
        used = int(_words(Path("/proc/self"), "statm")[0]) * os.sysconf("SC_PAGE_SIZE")
    return max(0, limit - used - _LATER), limit


def _cgroup_memory() -> tuple[int, int] | None:
    """(available, limit) bytes by the smallest of the control groups' limits, None without one."""
    found = []
    for folder in _cgroup_folders("memory"):
        for names in (
            ("memory.max", "memory.current"),
            ("memory.high", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with suppress(OSError, ValueError):  # "max" is not a number, and means no limit
                limit, used = map(int, _words(folder, *names))
                found.append((max(0, limit - used + _reclaimable(folder)), limit))
    if not found:
        return None
    return min(available for available, _ in found), min(limit for _, limit in found)


def _reclaimable(folder: Path) -> int:
    """Bytes of a control group that count as used, but are given back when memory is short."""
    words = _words(folder, "memory.stat")
    sizes = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    kinds = ("inactive_file", "active_file", "slab_reclaimable")
    return sum(sizes.get(f"total_{kind}", sizes.get(kind, 0)) for kind in kinds)


def _mac_available() -> int | None:
    """Bytes available on macOS: pages that are free or can be dropped."""
    text = _output("vm_stat")
    size = re.search(r"page size of (\d+) bytes", text)
    pages = re.findall(r"Pages (?:free|inactive|speculative|purgeable): +(\d+)\.", text)
    return int(size[1]) * sum(map(int, pages)) if size and pages else None


def resident_bytes(process: int) -> int:
    """Bytes of RAM that a process uses, by its id; 0 if unknown."""
    kilobytes = _output("ps", "-o", "rss=", "-p", str(process)).strip()
    return int(kilobytes) * 1024 if kilobytes.isdecimal() else 0


def family_bytes(process: int) -> int:
    """Bytes of RAM that a process and its children use; 0 if unknown."""
    lines = _output("ps", "-A", "-o", "pid=,ppid=,rss=").splitlines()
    rows = [[*map(int, line.split())] for line in lines]
    return 1024 * sum(kilobytes for *ids, kilobytes in rows if process in ids)


def is_busy(seconds: float = 0.05) -> bool:
    """Whether other processes use half a core or more; True if unknown."""
    cores = cores_in_use(seconds)
    return cores is None or cores >= _BUSY


def cores_in_use(seconds: float) -> float | None:
    """Cores that other processes use, observed for ``seconds``; None if unknown."""
    try:
        before = _working_ticks()
        time.sleep(seconds)
        return (_working_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def other_work() -> str | None:
    """A sentence on other processes that take half a core or more; None if none is known."""
    cores, most = cores_in_use(_LONG_LOOK), logical_cores()
    if cores is None or cores < _BUSY:
        return None
    return f"Other programs use {min(cores, most):.1f} of {most} cores: figures are uncertain."


def _working_ticks() -> int:
    """Clock ticks that all cores worked since the start (`/proc/stat`)."""
    user, nice, system = Path("/proc/stat").read_text().split(maxsplit=4)[1:4]
    return int(user) + int(nice) + int(system)


def has_nvidia_gpu() -> bool:
    """True when the NVIDIA driver or its tool is present, whatever llama.cpp was built with."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def gpu_makers() -> list[str]:
    found = set[str]()
    for file in _GRAPHICS.glob("card*/device/vendor"):
        with suppress(OSError, KeyError):
            found.add(_MAKERS[file.read_text().strip()])
    return sorted(found)


def cpu_name() -> str:
    text = ""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
    named = re.search(r"^model name[^:\n]*:(.*)$", text, re.M)
    return named[1].strip() if named else os.uname().machine


class AwakeClock:
    """Seconds in which this process ran, if one thread calls `tick` every ``period`` seconds.

    If no tick comes in time, the machine slept or the process was stopped: two periods count.
    """

    def __init__(self, period: float = math.inf) -> None:
        self._most = 2 * period
        self._last = (time.monotonic(), 0.0)

    def now(self) -> float:
        """Seconds since the clock was made; thread-safe."""
        at, awake = self._last
        return awake + min(time.monotonic() - at, self._most)

    def tick(self) -> float:
        """`now`, from which the next gap is measured."""
        at, awake = self._last
        now = time.monotonic()
        self._last = (now, awake + min(now - at, self._most))
        return self._last[1]
