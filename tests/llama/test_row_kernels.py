"""Row kernels: found in a build, refused where they are wrong, used by one setting a process."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from localspec.core.options.load_options import LoadOptions, Lora
from localspec.llama import llama_library, row_kernels
from localspec.llama.parameters import model_parameters
from localspec.llama.pass_class import all_alike
from localspec.llama.row_kernels import LeftOperation, RowKernels
from localspec.metadata.header import read_header
from tests.support.files.lora_files import write_lora
from tests.support.files.tiny_models import write_tiny_model
from tests.support.llama.heads import PAIRS, head_pair
from tests.support.llama.row_kernels import FakeLibrary, number_of
from tests.support.real_pair import TinyFiles, load_model, random_ids

pytestmark = pytest.mark.llama

ANY = LoadOptions(Path("model.gguf"))
MUL_MAT, FLASH = "MUL_MAT", "FLASH_ATTN_EXT"


def test_a_build_without_them_uses_none(no_kernels: None) -> None:
    assert row_kernels.form() is None and row_kernels.find() is None
    assert not row_kernels.in_use(ANY) and not row_kernels.effective(ANY).row_kernels
    row_kernels.switch(True)
    assert model_parameters(ANY).use_extra_bufts


def test_kernels_are_in_use_unless_they_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeLibrary("AVX-512 VNNI")
    fake.install(monkeypatch)
    assert row_kernels.form() == "AVX-512 VNNI"
    assert row_kernels.in_use(ANY) and row_kernels.effective(ANY) is ANY
    assert not model_parameters(ANY).use_extra_bufts
    off = LoadOptions(ANY.path, row_kernels=False)
    assert not row_kernels.in_use(off) and model_parameters(off).use_extra_bufts
    monkeypatch.setenv("ROW_KERNELS", "off")
    assert not row_kernels.in_use(ANY) and not row_kernels.effective(ANY).row_kernels
    row_kernels.switch(False)
    row_kernels.switch(True)
    assert fake.calls == ["enable 0", "enable 1"]


def test_functions_without_kernels_for_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLibrary("").install(monkeypatch)
    assert row_kernels.form() == "" and not row_kernels.in_use(ANY)


def test_wrong_kernels_are_refused_by_the_type_that_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeLibrary(wrong=11).install(monkeypatch)
    refused = row_kernels.refusal()
    assert refused is not None and "weights in Q3_K is wrong" in refused
    assert row_kernels.form() == "AVX2" and not row_kernels.in_use(ANY)


def test_other_functions_of_that_name_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_kernels, "_built_in", row_kernels._built_in.__wrapped__)
    for version in (1, 2):
        library = FakeLibrary(version=version).functions
        monkeypatch.setattr(llama_library, "cpu_libraries", lambda each=library: [object(), each])
        assert row_kernels.form() == ("AVX2" if version == 1 else None)


def test_what_is_left_is_named_with_its_tensors(tiny: TinyFiles) -> None:
    left = [(number_of(MUL_MAT), 11), (number_of(FLASH), 0), (number_of(MUL_MAT), 1)]
    fake = FakeLibrary(left=left)
    found = RowKernels(fake.functions).left()
    assert found == [
        LeftOperation(FLASH, "F32"), LeftOperation(MUL_MAT, "F16"), LeftOperation(MUL_MAT, "Q3_K")
    ]  # fmt: skip
    tensors = [each for each in read_header(tiny.target).tensors if each.type_name != "F16"]
    said = row_kernels.described(found, tensors)
    assert said == "attention, F16 in products, Q3_K in products"
    several = row_kernels.described([LeftOperation(MUL_MAT, tensors[0].type_name)], tensors)
    assert several.startswith(f"{tensors[0].type_name} in products (")


def test_types_are_asked_for_by_name() -> None:
    found = RowKernels(FakeLibrary().functions)
    assert found.takes("Q4_K") and not found.takes("Q3_K") and not found.takes("unknown")


def test_those_of_the_build_are_right_and_round_alike(kernels: RowKernels, tiny: TinyFiles) -> None:
    assert kernels.form and kernels.wrong_type() is None
    kernels.reset()
    model = load_model(tiny.target)
    assert model.options.row_kernels and model.options.flash_attention == "on"
    past, tokens = random_ids(40), random_ids(24)
    model.decode(past, 0)
    whole = model.decode(tokens, len(tokens)).copy()
    for width in (1, 2, 3, 5, 8, 9):
        model.truncate(len(past))
        np.testing.assert_array_equal(model.decode(tokens[:width], width), whole[:width])
    model.close()
    assert kernels.left() == []


def test_a_lora_adapter_rounds_alike_too(
    kernels: RowKernels, tiny: TinyFiles, tmp_path: Path
) -> None:
    path = write_lora(tmp_path / "a.gguf", strength=0.1)
    kernels.reset()
    assert all_alike(load_model(tiny.target, loras=(Lora(path, 0.5),))) and kernels.left() == []


@pytest.mark.parametrize(("target", "heads"), PAIRS)
def test_targets_that_heads_read_round_alike_too(
    kernels: RowKernels, architecture: Callable[[str], Path], target: str, heads: str | None
) -> None:
    f16 = {"cache_type_k": "f16", "cache_type_v": "f16", "flash_attention": "on"}
    kernels.reset()
    with head_pair(architecture, target, heads, **f16) as pair:
        assert all_alike(pair.target) and kernels.left() == []


def test_weights_stay_mapped(kernels: RowKernels, tiny: TinyFiles) -> None:
    model = load_model(tiny.target)
    model.close()
    assert model.memory.mapped == model.memory.weights


def test_a_load_switches_them_for_the_process(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeLibrary()
    fake.install(monkeypatch)
    for on in (False, True):
        model = load_model(tiny.target, row_kernels=on)
        model.close()
        assert model.settings()["row_kernels"] is on
    assert fake.calls == ["enable 0", "enable 1"]


@pytest.mark.parametrize(("window", "exact"), [(0, False), (24, True), (24, False)])
def test_rejected_drafts_and_restored_states_change_no_bit(
    kernels: RowKernels, tmp_path: Path, window: int, exact: bool
) -> None:
    """But where sliding windows use cells again, whose order rejected drafts change."""
    path = write_tiny_model(
        tmp_path / "m.gguf", seed=1, layers=4, window=window, context_length=1024
    )
    model = load_model(path, ctx_size=512, batch_size=64, ubatch_size=64, exact=exact)
    cells = model.window_cells
    assert cells == (256 if window and not exact else 0)
    ids, random, begin = random_ids(400), Random(0), 200
    model.decode(ids[:begin], 0)
    plain = [model.decode([token], 1)[0].copy() for token in ids[begin:]]
    model.truncate(0)
    model.decode(ids[:begin], 0)
    differ = []
    while (position := len(model.tokens)) < len(ids) - 8:
        width = random.randint(1, 8)
        kept = random.randint(1, width)
        wrong = random_ids(width - kept, position)
        rows = model.decode([*ids[position : position + kept], *wrong], width)
        expected = plain[position - begin :][:kept]
        differ += [position + i for i, row in enumerate(expected) if (rows[i] != row).any()]
        model.truncate(position + kept)
        if random.random() < 0.05 and not cells:  # windows return in other cells
            tokens, state = list(model.tokens), model.state()
            model.truncate(0)
            assert model.restore(tokens, state)
    model.close()
    assert not differ or min(differ) >= cells - 8 > 0  # a draft reaches past the last cell
