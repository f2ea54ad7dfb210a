"""Pairs on a device, held to the CPU; docs/hardware/gpu.md has one in software."""

import os

import numpy as np
import pytest

from localspec.chat.answer import collect
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import ALL_LAYERS, LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.llama import llama_library
from localspec.llama.memory.estimate import estimate_run
from tests.support.real_pair import TinyFiles, load_model, options

pytestmark = [pytest.mark.llama, pytest.mark.device]

PROMPT = [(13 * i + 5) % 64 for i in range(20)]
DEVICE = {"gpu_layers": ALL_LAYERS}
CPU = {"gpu_layers": 0, "device": "none"}
ROUNDING = 0.02  # of the greatest logit


@pytest.fixture(autouse=True)
def device() -> llama_library.Device:
    found = [each for each in llama_library.devices() if each.is_gpu]
    if not found:
        pytest.skip("no GPU that this build can use; docs/hardware/gpu.md has one in software")
    return found[0]


def text(target: LoadOptions, draft: LoadOptions | None, length: int) -> list[int]:
    with Engine.load(target, draft, trial=False) as engine:
        greedy = SamplingParams(temperature=0, ignore_eos=True)
        return collect(
            stream_generate(engine, PROMPT, GenerateOptions(greedy, length, max_tokens=24))
        ).tokens


def test_software_devices_run_without_fused_shaders(device: llama_library.Device) -> None:
    if device.description.startswith("llvmpipe"):
        assert os.environ["GGML_VK_DISABLE_FUSION"] == "1"


@pytest.mark.parametrize("width", [1, 2, 5, 9, 16])
def test_logits_are_those_of_the_cpu_but_for_rounding(tiny: TinyFiles, width: int) -> None:
    found = []
    for place in (CPU, DEVICE):
        model = load_model(tiny.target, **place)
        model.decode(PROMPT, 0)
        found.append(model.decode((PROMPT * 2)[:width], width).copy())
        model.close()
    cpu, device = found
    assert np.abs(cpu - device).max() <= ROUNDING * np.abs(cpu).max()
    assert model.memory.on_devices > 0


@pytest.mark.parametrize(
    ("target", "draft"),
    [(DEVICE, DEVICE), (DEVICE, CPU), (CPU, DEVICE), ({"gpu_layers": 1}, {"gpu_layers": 1})],
)
@pytest.mark.parametrize("branches", [1, 3])
def test_drafted_text_is_plain_text_wherever_models_lie(
    tiny: TinyFiles, target: dict[str, object], draft: dict[str, object], branches: int
) -> None:
    place = options(tiny.target, branches=branches, **target)
    plain = text(place, None, 0)
    assert text(place, options(tiny.draft, **draft), 4) == plain


def test_memory_on_the_device_is_about_what_was_predicted(tiny: TinyFiles) -> None:
    model = load_model(tiny.target, ctx_size=1024, **DEVICE)
    predicted = estimate_run(model.header, model.n_ctx, model.options).on_gpu(ALL_LAYERS)
    taken = model.memory.on_devices
    model.close()
    assert predicted == pytest.approx(taken, rel=0.5)
    none = load_model(tiny.target, **CPU)
    none.close()
    assert none.memory.on_devices == 0


def test_tensors_stay_in_ram_where_they_were_told_to(tiny: TinyFiles) -> None:
    usual = load_model(tiny.target, **DEVICE)
    held = load_model(tiny.target, override_tensors=("ffn_.*=CPU",), **DEVICE)
    assert held.memory.on_devices < usual.memory.on_devices
    usual.close()
    held.close()


def test_a_state_comes_back_to_the_device(tiny: TinyFiles) -> None:
    model = load_model(tiny.target, **DEVICE)
    model.decode(PROMPT, 0)
    state = model.state().copy()
    before = model.decode([7], 1).copy()
    assert model.restore(PROMPT, state)
    assert np.array_equal(model.decode([7], 1), before)
    model.close()


def test_the_first_use_is_tried_in_a_child(tiny: TinyFiles) -> None:
    said: list[str] = []
    pair = options(tiny.target, **DEVICE), options(tiny.draft, **DEVICE)
    for times in (1, 2):
        with Engine.load(*pair, say=said.append) as engine:
            assert engine.draft is not None
        assert len([each for each in said if "process of its own" in each]) == 1, times
