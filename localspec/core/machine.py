"""Cores, memory and GPUs of this computer, without llama.cpp."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
_GRAPHICS = Path("/sys/class/drm")
_MAKERS = {"0x1002": "AMD", "0x8086": "Intel"}  # by PCI's number
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
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        cores = len({_siblings(cpu) for cpu in allowed & _fast_cpus() or allowed})
    else:
        cores = _windows_cores(_windows_core_records()) or logical_cores()
    return max(1, min(cores, logical_cores()))


def _fast_cpus() -> set[int]:
    """CPUs of P-cores, from a list such as ``0-7,9``; none if Linux does not distinguish them."""
    try:
        spans = [span.split("-") for span in _FAST.read_text().split(",")]
        return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}
    except (OSError, ValueError):
        return set()


def _windows_core_records() -> bytes:
    """A SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX for each physical core, none elsewhere."""
    if sys.platform != "win32":
        return b""
    size = ctypes.c_ulong()
    ask = ctypes.windll.kernel32.GetLogicalProcessorInformationEx
    ask(0, None, ctypes.byref(size))  # RelationProcessorCore
    records = ctypes.create_string_buffer(size.value)
    return records.raw if ask(0, records, ctypes.byref(size)) else b""


def _windows_cores(records: bytes) -> int:
    """How many cores the records describe; on Intel's processors, of the fastest kind only."""
    kinds = []
    while records:
        kinds.append(records[9])  # EfficiencyClass: greater is faster
        records = records[int.from_bytes(records[4:8], "little") :]
    hybrid = "GenuineIntel" in os.environ.get("PROCESSOR_IDENTIFIER", "")
    return kinds.count(max(kinds)) if kinds and hybrid else len(kinds)


def _siblings(cpu: int) -> str:
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_cores() -> int | None:
    """Whole cores of a container's CPU quota (cgroup v2), None without one."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def _output(*command: str) -> str:
    """Output of a command; empty where it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _sysctl(name: str) -> int | None:
    found = _output("sysctl", "-n", name).strip()
    return int(found) if found.isdecimal() else None


def memory() -> tuple[int, int] | None:
    """(available, total) bytes of RAM, container limits included; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
        available, total = sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        total = _sysctl("hw.memsize") or 0
        return (_mac_available() or total, total) if total else None
    limit = _cgroup_memory()
    return (available, total) if limit is None else (min(available, limit[0]), min(total, limit[1]))


def _cgroup_memory() -> tuple[int, int] | None:
    """(available, limit) bytes of a container (cgroup v2), None without one.

    Cached file pages count as used there, but are given back when memory is short.
    """
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, IndexError):  # "max" is no number, and no limit
        return None
    return max(0, limit - used + cached), limit


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


def is_busy(seconds: float = 0.05) -> bool:
    """Whether other processes use half a core or more; True if unknown."""
    try:
        before = _working_ticks()
        time.sleep(seconds)
        worked = _working_ticks() - before
        return worked / os.sysconf("SC_CLK_TCK") >= 0.5 * seconds
    except (OSError, ValueError, IndexError, AttributeError):
        return True


def _working_ticks() -> int:
    """Clock ticks that all cores worked since the start (`/proc/stat`)."""
    user, nice, system = Path("/proc/stat").read_text().split(maxsplit=4)[1:4]
    return int(user) + int(nice) + int(system)


def has_nvidia_gpu() -> bool:
    """True when the NVIDIA driver or its tool is present, whatever llama.cpp was built with."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def gpu_makers() -> list[str]:
    """Makers (AMD, Intel) of GPUs that Linux has a driver for."""
    found = set[str]()
    for file in _GRAPHICS.glob("card*/device/vendor"):
        with suppress(OSError, KeyError):
            found.add(_MAKERS[file.read_text().strip()])
    return sorted(found)


def cpu_name() -> str:
    """The processor's model name, or else the machine type."""
    named = re.search(r"^model name[^:\n]*:(.*)$", _cpuinfo(), re.M)
    machine = os.uname().machine if hasattr(os, "uname") else "unknown"
    return named[1].strip() if named else machine


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
