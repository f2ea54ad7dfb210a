"""Memory of a loaded model as llama.cpp reports it: weights, KV cache, compute buffers."""

import operator
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from localspec.core.formatting import size

_MIB = 2**20
_CACHE = re.compile(r"size = +(?P<size>\d+\.\d+) MiB \( *\d+ cells")
_REPORT = re.compile(
    r"(?P<device>\S+)\s+(?P<kind>model|LoRA|KV|RS|output|compute) "
    r"buffer size = +(?P<size>\d+\.\d+) MiB"
)
_IN_RAM = re.compile(r"^CPU|_Host$")  # buffers of the CPU, and those that a device can reach


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes, over all devices. ``kv`` includes the state of recurrent layers.

    ``mapped`` are the weights that stay pages of their file: the system counts these as available.
    ``on_devices`` is the part that lies elsewhere than in RAM.
    """

    weights: int = 0
    kv: int = 0
    compute: int = 0
    mapped: int = 0
    on_devices: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute

    def __str__(self) -> str:
        return f"{size(self.total)} ({self.parts})"

    @property
    def parts(self) -> str:
        return f"weights {size(self.weights)}, KV {size(self.kv)}, compute {size(self.compute)}"

    def __add__(self, other: "MemoryUse") -> "MemoryUse":
        return MemoryUse(*map(operator.add, astuple(self), astuple(other)))

    def as_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("weights", "kv", "compute", "total")}


def read_buffers(log: Iterable[str]) -> MemoryUse:
    """Sum the buffers that llama.cpp's log lines announce.

    A model may have several buffers on one device, and several caches; all of them count. Compute
    buffers are announced again whenever they are laid out again: the last size on a device counts.
    Caches that are only planned have buffers of size 0, but their size is logged.
    """
    sums = {"model": 0, "LoRA": 0, "KV": 0, "RS": 0, "output": 0}
    compute: dict[str, int] = {}
    planned = mapped = on_devices = 0
    for line in log:
        planned += sum(_bytes(found) for found in _CACHE.finditer(line))
        for found in _REPORT.finditer(line):
            device, kind, size = found["device"], found["kind"], _bytes(found)
            if kind == "compute":
                compute[device] = size
                continue
            sums[kind] += size
            mapped += size * (kind == "model" and device.endswith("_Mapped"))
            on_devices += size * (not _IN_RAM.search(device))
    return MemoryUse(
        weights=sums["model"] + sums["LoRA"],
        kv=max(planned, sums["KV"] + sums["RS"]),
        compute=sums["output"] + sum(compute.values()),
        mapped=mapped,
        on_devices=on_devices
        + sum(size for device, size in compute.items() if not _IN_RAM.search(device)),
    )


def _bytes(found: re.Match[str]) -> int:
    return round(float(found["size"]) * _MIB)
