"""Machine: facts from the system's own files, written here by hand, and sane answers without."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec.core import machine

linux_only = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="needs the Linux affinity call"
)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root folder in which the module looks for the files of /sys and /proc."""
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(machine, "Path", lambda path: root / str(path).lstrip("/"))
    monkeypatch.setattr(machine, "_CPUS", root / "sys/devices/system/cpu")
    monkeypatch.setattr(machine, "_FAST", root / "sys/devices/cpu_core/cpus")
    monkeypatch.setattr(machine, "_CGROUP", root / "sys/fs/cgroup")
    monkeypatch.setattr(machine, "_GRAPHICS", root / "sys/class/drm")
    monkeypatch.setattr(machine, "_sysctl", lambda name: None)
    monkeypatch.setenv("PATH", str(root))
    return root


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def control_groups(files: Mapping[str, str]) -> dict[str, str]:
    """Files of control groups, by their paths below /sys/fs/cgroup, and of /proc."""
    return {
        name if name.startswith("proc/") else f"sys/fs/cgroup/{name}": text
        for name, text in files.items()
    }


def allow(monkeypatch: pytest.MonkeyPatch, cpus: set[int]) -> None:
    """Let the system say that this process may run on these CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        (None, 8),
        ("max 100000\n", 8),
        ("400000 100000\n", 4),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1600000 100000\n", 8),
        ("nonsense\n", 8),
        ("", 8),
    ],
)
def test_affinity_and_container_limit_the_cores(
    quota: str | None, cores: int, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, {2, 5, 7, *range(10, 15)})
    if quota is not None:
        write(system, {"sys/fs/cgroup/cpu.max": quota})
    assert machine.logical_cores() == cores


@pytest.mark.parametrize(
    ("siblings", "allowed", "cores"),
    [
        ({}, {0, 1, 2, 3}, 4),  # nothing known: every CPU is a core
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, {0, 1, 2, 3}, 2),
        ({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}, {0, 1, 4, 5}, 2),
        ({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}, {0, 4}, 1),
        ({0: "0-1", 1: "0-1", 2: "2", 3: "3"}, {0, 1, 2, 3}, 3),  # fast and slow cores
        ({0: "0", 1: "1"}, {0, 1}, 2),
    ],
)
def test_hyper_threads_share_a_core(
    siblings: dict[int, str],
    allowed: set[int],
    cores: int,
    system: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow(monkeypatch, allowed)
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write(system, {folder.format(cpu): text + "\n" for cpu, text in siblings.items()})
    assert machine.physical_cores() == cores


UNIT = {"proc/self/cgroup": "0::/system.slice/app.service\n"}
V1 = {"proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/a\n1:cpu,cpuacct:/docker/a\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        (UNIT | {"system.slice/app.service/cpu.max": "200000 100000\n"}, 2),
        (UNIT | {"system.slice/cpu.max": "300000 100000\n", "cpu.max": "max 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/../../app\n", "cpu.max": "100000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        (
            V1
            | {
                "cpu,cpuacct/docker/a/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        # The container's own group is mounted as the root.
        (V1 | {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
    ],
)
def test_quotas_of_both_versions_of_control_groups(
    files: Mapping[str, str], cores: int, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, set(range(8)))
    write(system, control_groups(files))
    assert machine.logical_cores() == cores


def test_physical_cores_obey_the_container_too(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, set(range(16)))
    write(system, {"sys/fs/cgroup/cpu.max": "200000 100000\n"})
    assert machine.physical_cores() == 2


@pytest.mark.parametrize(
    ("fast", "allowed", "cores"),
    [
        ("0-3\n", set(range(8)), 2),  # two P-cores of two threads, four E-cores
        ("0-1,2-3\n", set(range(8)), 2),
        ("0,2\n", set(range(8)), 2),
        ("0-3\n", {0, 1, 4, 5}, 1),
        ("0-3\n", {5, 6, 7}, 3),  # only E-cores may be used
        (None, set(range(8)), 6),
        ("\n", set(range(8)), 6),
    ],
)
def test_efficiency_cores_of_intel_do_not_count(
    fast: str | None,
    allowed: set[int],
    cores: int,
    system: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow(monkeypatch, allowed)
    threads = ["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"]
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write(system, {folder.format(cpu): text + "\n" for cpu, text in enumerate(threads)})
    if fast is not None:
        write(system, {"sys/devices/cpu_core/cpus": fast})
    assert machine.physical_cores() == cores


@pytest.mark.parametrize(
    ("answers", "cores"),
    [
        ({"hw.perflevel0.physicalcpu": 6, "hw.physicalcpu": 8}, 6),
        ({"hw.physicalcpu": 4}, 4),
        ({}, 3),
    ],
)
def test_apple_counts_performance_cores(
    answers: dict[str, int], cores: int, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, {0, 1, 2})
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine, "_sysctl", answers.get)
    assert machine.physical_cores() == cores


MEMINFO = "MemTotal:     2000 kB\nMemFree: 10 kB\nMemAvailable:   1500 kB\nHugePages_Total: 0\n"


@pytest.mark.parametrize(
    ("meminfo", "sysctl", "expected"),
    [
        (MEMINFO, None, (1500 * 1024, 2000 * 1024)),
        (None, 4096, (4096, 4096)),
        (None, None, None),
        ("MemTotal: 2000 kB\n", None, None),  # a kernel too old to say what is available
        ("MemTotal: much\n", None, None),
        ("MemTotal:\n", None, None),
    ],
)
def test_memory(
    meminfo: str | None,
    sysctl: int | None,
    expected: tuple[int, int] | None,
    system: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_sysctl", lambda name: sysctl)
    if meminfo is not None:
        write(system, {"proc/meminfo": meminfo})
    assert machine.memory() == expected


def test_cpu_name(system: Path) -> None:
    assert machine.cpu_name()  # the machine type, without the file
    write(system, {"proc/cpuinfo": "processor : 0\nmodel name\t: Some CPU: @ 3 GHz\n"})
    assert machine.cpu_name() == "Some CPU: @ 3 GHz"


def test_an_nvidia_card_shows_by_driver_or_tool(system: Path) -> None:
    assert not machine.has_nvidia_gpu()
    write(system, {"proc/driver/nvidia/version": "NVRM"})
    assert machine.has_nvidia_gpu()
    (system / "proc/driver/nvidia/version").unlink()
    write(system, {"nvidia-smi": "#!/bin/sh\n"})
    (system / "nvidia-smi").chmod(0o755)
    assert machine.has_nvidia_gpu()


@linux_only
def test_this_machine_makes_sense() -> None:
    assert 1 <= machine.physical_cores() <= machine.logical_cores() <= (os.cpu_count() or 1)
    sizes = machine.memory()
    assert sizes is None or 0 < sizes[0] <= sizes[1]


def test_a_missing_sysctl_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._sysctl("hw.memsize") is None


MEMINFO = "MemTotal:       1000 kB\nMemAvailable:    600 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (600, 1000)),
        ({"memory.max": "max\n", "memory.current": "0\n", "memory.stat": ""}, (600, 1000)),
        ({"memory.max": f"{500 << 10}\n"}, (600, 1000)),  # what it uses is not told
        (
            {
                "memory.max": f"{500 << 10}\n",
                "memory.current": f"{300 << 10}\n",
                "memory.stat": f"anon 1\ninactive_file {100 << 10}\nactive_file {50 << 10}\n",
            },
            (350, 500),
        ),
        (
            UNIT
            | {
                "system.slice/app.service/memory.high": f"{400 << 10}\n",
                "system.slice/app.service/memory.max": "max\n",
                "system.slice/app.service/memory.current": f"{300 << 10}\n",
                "system.slice/app.service/memory.stat": f"slab_reclaimable {20 << 10}\n",
            },
            (120, 400),
        ),
        (
            V1
            | {
                "memory/docker/a/memory.limit_in_bytes": f"{500 << 10}\n",
                "memory/docker/a/memory.usage_in_bytes": f"{490 << 10}\n",
                "memory/docker/a/memory.stat": f"inactive_file 0\ntotal_active_file {400 << 10}\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "5\n",
                "memory/memory.stat": "",
            },
            (410, 500),
        ),
        (
            {
                "memory.max": f"{500 << 10}\n",
                "memory.current": f"{900 << 10}\n",
                "memory.stat": "inactive_file 0\n",
            },
            (0, 500),
        ),
    ],
)
def test_a_container_limits_the_memory(
    files: Mapping[str, str], expected: tuple[int, int], system: Path
) -> None:
    write(system, {"proc/meminfo": MEMINFO})
    write(system, control_groups(files))
    found = machine.memory()
    assert found is not None and tuple(size >> 10 for size in found) == expected


def test_the_memory_of_a_mac(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_sysctl", lambda name: 8 << 30)
    assert machine.memory() == (8 << 30, 8 << 30)  # vm_stat is not there
    told = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                               10.\n"
        "Pages active:                            500.\n"
        "Pages inactive:                           20.\n"
        "Pages speculative:                         5.\n"
        "Pages purgeable:                           1.\n"
    )
    tool = system / "vm_stat"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{told}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{system}:/bin:/usr/bin")
    assert machine.memory() == (36 * 16384, 8 << 30)


@pytest.mark.parametrize(("worked", "busy"), [(0, False), (1, False), (3, True), (10, True)])
def test_a_busy_machine_works_for_others(
    worked: int, busy: bool, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_ticks(ticks: int) -> None:
        write(system, {"proc/stat": f"cpu  {ticks} 20 30 4000 50 0 0 0 0 0\ncpu0 1 2 3 4\n"})

    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr("time.sleep", lambda seconds: set_ticks(10 + worked))
    assert machine.is_busy() and machine.other_work() is None  # unknown
    set_ticks(10)
    assert machine.is_busy(0.05) is busy


@pytest.mark.parametrize(
    ("worked", "said"), [(9, None), (10, "0.5 of 2"), (32, "1.6 of 2"), (99, "2.0 of 2")]
)
def test_other_work_is_told_in_cores(
    worked: int, said: str | None, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_ticks(ticks: int) -> None:
        write(system, {"proc/stat": f"cpu  {ticks} 20 30 4000 50 0 0 0 0 0\n"})

    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr(machine, "logical_cores", lambda: 2)
    monkeypatch.setattr("time.sleep", lambda seconds: set_ticks(10 + worked))
    set_ticks(10)
    sentence = machine.other_work()
    assert sentence == (said and f"Other programs use {said} cores: figures are uncertain.")


def test_makers_of_gpus(system: Path) -> None:
    assert machine.gpu_makers() == []
    cards = {"card0": "0x8086\n", "card1": "0x1002\n", "card2": "0x1af4\n", "card3": "0x8086\n"}
    write(system, {f"sys/class/drm/{card}/device/vendor": made for card, made in cards.items()})
    assert machine.gpu_makers() == ["AMD", "Intel"]


def test_a_limit_of_the_shell_counts(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, size = 1000, os.sysconf("SC_PAGE_SIZE")
    write(system, {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n"})
    write(system, {"proc/self/statm": f"{used} 5 5 5 0 5 0\n"})
    assert machine.memory() == (8_000_000 * 1024, 9_000_000 * 1024)
    monkeypatch.setattr(machine, "allowed", lambda name: 2**30)
    assert machine.memory() == (2**30 - used * size - machine._LATER, 2**30)
    monkeypatch.setattr(machine, "allowed", lambda name: 2**20)
    assert machine.memory() == (0, 2**20)


def test_a_pause_counts_as_two_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    time = SimpleNamespace(at=100.0)
    time.monotonic = lambda: time.at
    monkeypatch.setattr(machine, "time", time)
    clock, unwatched = machine.AwakeClock(1.0), machine.AwakeClock()
    for _ in range(10):
        time.at += 1.5
        assert clock.now() == clock.tick()
    assert clock.now() == 15
    time.at += 310
    assert clock.now() == 17  # before the thread that ticks has run again, too
    assert clock.tick() == 17 and unwatched.now() == 325
    time.at += 1
    assert clock.now() == 18
