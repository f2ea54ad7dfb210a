"""Memory: what llama.cpp's log says of buffers, and that it says it of a real model."""

import pytest

from localspec.llama.memory.use import MemoryUse, read_buffers
from localspec.metadata.header import read_header
from tests.support.real_pair import TinyFiles, load_model

MIB = 2**20
LOG = """load_tensors:   CPU_Mapped model buffer size =   100.00 MiB
load_tensors:        CUDA0 model buffer size =  4000.50 MiB
load_tensors:   CPU_REPACK model buffer size =    50.00 MiB
llama_context:        CPU  output buffer size =     0.50 MiB
llama_kv_cache:      CUDA0 KV buffer size =   256.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =    64.00 MiB
llama_memory_recurrent:        CPU RS buffer size =     8.00 MiB
sched_reserve:      CUDA0 compute buffer size =   300.00 MiB
sched_reserve:        CPU compute buffer size =    20.00 MiB
sched_reserve:      CUDA0 compute buffer size =   280.00 MiB
load_tensors: layer   0 assigned to device CPU, is_swa = 0
"""


def test_buffers_are_summed_over_devices_and_kinds() -> None:
    use = read_buffers(LOG.splitlines())
    assert use.weights == 4150.5 * MIB
    assert use.kv == 328 * MIB
    assert use.compute == (0.5 + 280 + 20) * MIB  # laid out anew: the last size counts
    assert use.mapped == 100 * MIB
    assert use.on_devices == (4000.5 + 256 + 64 + 280) * MIB
    assert read_buffers(["x: Vulkan_Host output buffer size = 2.00 MiB"]).on_devices == 0
    assert use.total == use.weights + use.kv + use.compute


def test_a_silent_log_is_nothing() -> None:
    assert read_buffers(["llama_kv_cache: size = 12.00 MiB", ""]) == MemoryUse()


def test_uses_add_up() -> None:
    use = MemoryUse(1, 2, 3, 1, 2) + MemoryUse(10, 20, 30, 4, 5)
    assert (use.mapped, use.on_devices) == (5, 7)
    assert use.as_json() == {"weights": 11, "kv": 22, "compute": 33, "total": 66}


@pytest.mark.llama
def test_a_real_model_reports_its_buffers(tiny: TinyFiles) -> None:
    header = read_header(tiny.target)
    small, large = (load_model(tiny.target, ctx_size=size) for size in (256, 1024))
    size = tiny.target.stat().st_size
    for model in (small, large):
        assert 0.9 * 2 * header.parameters < model.memory.weights <= size + 64 * 1024
        assert model.memory.compute > 0
    # llama.cpp rounds to hundredths of a MiB.
    assert large.memory.kv == pytest.approx(4 * small.memory.kv, abs=0.03 * MIB)
    assert small.memory.kv > 0
    small.close()
    large.close()
