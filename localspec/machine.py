"""What this computer has: cores, memory, an NVIDIA card.

This room owns facts about the machine that llama.cpp does not tell. It reads the operating
system's own files, loads no library and gives no advice.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


def logical_cores() -> int:
    """Cores this process may run on, container limits included."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, _cgroup_cores() or allowed))


def physical_cores() -> int:
    """Physical cores this process may use: hyper-threads share the unit that multiplies.

    On Apple silicon only performance cores count, as in llama.cpp's ``common_cpu_get_num_math``.
    """
    if sys.platform == "darwin":
        return _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu") or logical_cores()
    if not hasattr(os, "sched_getaffinity"):
        return logical_cores()
    groups = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, min(len(groups), logical_cores()))


def _siblings(cpu: int) -> str:
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_cores() -> int | None:
    """The whole cores of a container's CPU quota (cgroup v2), None without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def _sysctl(name: str) -> int | None:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
        return int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def memory() -> tuple[int, int] | None:
    """(available, total) bytes of RAM; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
        return sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError):
        total = _sysctl("hw.memsize")
        return None if total is None else (total, total)


def has_nvidia_gpu() -> bool:
    """True when the NVIDIA driver or its tool is present, whatever llama.cpp was built with."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def cpu_name() -> str:
    """The processor's model name, or the machine type where the system does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return os.uname().machine if hasattr(os, "uname") else "unknown"
