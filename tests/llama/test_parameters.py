"""How a model is loaded: every option reaches llama.cpp, as its log or its logits show.

No GPU was there: of options that only GPUs heed, the fields that llama.cpp reads are looked at.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.core.errors import EngineError, UsageError
from localspec.core.options.load_options import (
    MAX_PATHS,
    MAX_ROWS,
    KeyValue,
    LoadOptions,
    Lora,
    RopeOptions,
    Shares,
)
from localspec.core.options.option import options as table
from localspec.engine.engine import Engine
from localspec.llama import llama_library, parameters
from localspec.llama.memory.layer_cache import SNAPSHOTS
from localspec.llama.model import LlamaModel
from localspec.llama.parameters import (
    SINGLE_STEPS,
    context_parameters,
    model_parameters,
    prompt_step,
    width_remedies,
)
from localspec.metadata.header import read_header
from localspec.speculative.loop import Logits
from tests.support.files.lora_files import write_lora
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles, load_model, options, random_ids

pytestmark = pytest.mark.llama


def said(monkeypatch: pytest.MonkeyPatch, path: Path, **changes: object) -> str:
    """What llama.cpp logs of a load."""
    lines: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(llama_library.log, "write", lambda level, text: lines.append(text))
        load_model(path, **changes).close()
    return "".join(lines)


def logits(model: LlamaModel) -> Logits:
    try:
        return model.decode(random_ids(40), 1).copy()
    finally:
        model.close()


def test_batch_sizes(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    log = said(monkeypatch, tiny.target, batch_size=256, ubatch_size=128)
    assert re.search(r"n_batch += 256\n", log) and re.search(r"n_ubatch += 128\n", log)


@pytest.mark.parametrize(
    ("keys", "changes", "step"),
    [
        ({}, {}, 64),
        ({}, {"threads": 4}, 64),
        ({}, {"threads": 5}, 128),
        ({}, {"threads": 2, "threads_batch": 16}, 256),
        ({}, {"threads": 64}, 512),
        ({}, {"batch_size": 64}, 64),
        ({"expert_count": 8, "expert_used_count": 2}, {}, 128),
        ({"expert_count": 32, "expert_used_count": 4}, {}, 256),
        ({"expert_count": 128, "expert_used_count": 8}, {"batch_size": 256}, 256),
        ({"expert_count": 8, "expert_used_count": 0}, {}, 64),
    ],
)
def test_prompts_are_read_in_steps_that_take_a_moment(
    tmp_path: Path, keys: dict[str, int], changes: dict[str, int], step: int
) -> None:
    values = tuple(KeyValue(f"llama.{name}", value) for name, value in keys.items())
    path = write_tiny_model(tmp_path / "tiny.gguf", seed=1)
    asked = options(path, gpu_layers=0, **changes)
    assert prompt_step(read_header(path, values), asked, asked.threads or 1) == step


def test_on_a_device_a_prompt_is_read_in_whole_batches(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.llama.parameters.uses_devices", lambda options: True)
    assert prompt_step(read_header(tiny.target), options(tiny.target), 1) == 512


def test_a_prompt_is_read_in_batches_of_any_size(tiny: TinyFiles) -> None:
    prompt = random_ids(300)
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
    rows = []
    for batch_size, ubatch_size in ((512, 512), (64, 64), (128, 100)):
        batches = {"batch_size": batch_size, "ubatch_size": ubatch_size}
        model = load_model(tiny.floats, **exact | batches)
        rows.append(model.decode(prompt, 60).copy())
        model.close()
    for other in rows[1:]:
        assert np.abs(other - rows[0]).max() < 1e-3


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({}, "mmap"),
        ({"mmap": False}, "none"),
        ({"mlock": True}, "mmap+mlock"),
        ({"mlock": True, "mmap": False}, "mlock"),
    ],
)
def test_load_modes(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, changes: dict[str, bool], mode: str
) -> None:
    assert f"(load_mode = {mode})" in said(monkeypatch, tiny.target, **changes)


def test_settings_tell_of_every_option_of_loading(tiny: TinyFiles) -> None:
    """But for what changes neither results nor costs; profiles are named by what they tell."""
    told = load_model(tiny.target).settings().keys()
    rows = {name for name in table(LoadOptions) if not name.startswith("draft_")}
    assert rows - told == {"kv_unified", "mlock", "trust_rpc_network"}


def test_the_trained_context(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target, ctx_size=0)) as engine:
        assert engine.target.n_ctx == 1024 and engine.notes == []


@pytest.mark.parametrize(
    ("rope", "line"),
    [
        (RopeOptions(rope_freq_base=20_000.0), r"freq_base += 20000\.0\n"),
        (RopeOptions(rope_freq_scale=0.25), r"freq_scale += 0\.25\n"),
        (RopeOptions("none", rope_freq_scale=0.25), r"freq_scale += 1\n"),
        (RopeOptions("yarn", None, 0.25, 256), r"n_ctx_train adjusted to 1024\n"),
    ],
)
def test_rope_in_the_log(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, rope: RopeOptions, line: str
) -> None:
    assert re.search(line, said(monkeypatch, tiny.target, rope=rope))


def test_each_factor_of_yarn_changes_the_logits(tiny: TinyFiles) -> None:
    yarn = RopeOptions("yarn", rope_freq_scale=0.25, yarn_orig_ctx=256)
    plain, scaled = (logits(load_model(tiny.target, rope=r)) for r in (RopeOptions(), yarn))
    assert not np.array_equal(plain, scaled)
    others = [
        replace(yarn, rope_scaling_type="linear"), replace(yarn, yarn_ext_factor=0.5),
        replace(yarn, yarn_ext_factor=0.0, yarn_attn_factor=3.0), replace(yarn, yarn_beta_slow=4.0),
        replace(yarn, yarn_beta_fast=8.0), replace(yarn, yarn_orig_ctx=64),
    ]  # fmt: skip
    for other in others:
        assert not np.array_equal(scaled, logits(load_model(tiny.target, rope=other))), other
    assert np.array_equal(scaled, logits(load_model(tiny.target, rope=yarn)))


def test_a_lora_adapter_counts_by_its_weight(tiny: TinyFiles, tmp_path: Path) -> None:
    path = write_lora(tmp_path / "a.gguf", strength=0.1)
    found = {
        scale: logits(load_model(tiny.target, loras=(Lora(path, scale),)))
        for scale in (0.0, 0.5, 1.0)
    }
    assert np.array_equal(found[0.0], logits(load_model(tiny.target)))
    half, whole = (np.abs(found[scale] - found[0.0]).max() for scale in (0.5, 1.0))
    assert 0.01 < half < whole
    twice = load_model(tiny.target, loras=(Lora(path, 0.5), Lora(path, 0.5)))
    assert np.allclose(logits(twice), found[1.0], atol=0.05)


def test_an_engine_takes_an_adapter_and_tells_of_it(tiny: TinyFiles, tmp_path: Path) -> None:
    path = write_lora(tmp_path / "a.gguf")
    with Engine.load(options(tiny.target, loras=(Lora(path, 0.5),))) as engine:
        assert engine.target.settings()["loras"] == [{"file": str(path), "scale": 0.5}]
        mine = engine.profile.path
    with Engine.load(options(tiny.target)) as engine:
        assert engine.profile.path != mine


def test_what_llama_cpp_refuses_of_an_adapter_is_told(tiny: TinyFiles, tmp_path: Path) -> None:
    # Engine.load would refuse it before.
    with pytest.raises(EngineError, match=r"LoRA adapter .*other\.gguf: .*arch mismatch"):
        path = write_lora(tmp_path / "other.gguf", architecture="qwen3")
        load_model(tiny.target, loras=(Lora(path),))


@pytest.mark.parametrize(
    ("replaced", "line"),
    [
        (KeyValue("tokenizer.ggml.add_bos_token", False), "( bool) .* = false"),
        (KeyValue("llama.context_length", 333), "(  int) .* = 333"),
        (KeyValue("llama.rope.freq_base", 5000.0), "(float) .* = 5000.0"),
        (KeyValue("tokenizer.ggml.pre", "gpt-2"), "(  str) .* = gpt-2"),
    ],
)
def test_a_replaced_value_is_taken(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, replaced: KeyValue, line: str
) -> None:
    log = said(monkeypatch, tiny.target, override_kv=(replaced,))
    pattern = line.replace("(", r"\(", 1).replace(")", r"\)", 1)
    assert re.search(rf"Using metadata override {pattern}", log)
    model = load_model(tiny.target, override_kv=(replaced,))
    model.close()
    assert model.overridden == {replaced.key}


def test_our_reading_of_the_file_follows_a_replaced_value(tiny: TinyFiles) -> None:
    replaced = (KeyValue("tokenizer.ggml.add_bos_token", False), KeyValue("no.such", 3))
    with Engine.load(options(tiny.target)) as engine:
        bos = engine.encode_text("the")[0]
    with Engine.load(options(tiny.target, override_kv=replaced)) as engine:
        assert bos not in engine.encode_text("the")
        assert engine.target.header.vocab is not None and not engine.target.header.vocab.add_bos
        (note,) = engine.notes
        assert "--override-kv no.such has no effect" in note
        assert engine.target.settings()["override_kv"] == dict(replaced)
    shorter = (KeyValue("llama.context_length", 64),)
    with Engine.load(options(tiny.target, override_kv=shorter)) as engine:
        assert engine.target.n_ctx == 64


def test_fields_for_several_gpus() -> None:
    params = model_parameters(
        options(Path("m.gguf"), tensor_split=Shares((3, 1)), split_mode="row", main_gpu=2)
    )
    assert (params.split_mode, params.main_gpu) == (2, 2)
    most = llama_library.library().llama_max_devices()
    assert list(params.tensor_split[:most]) == [3.0, 1.0] + [0.0] * (most - 2)
    for mode, number in (("none", 0), ("layer", 1), ("tensor", 3)):
        assert model_parameters(options(Path("m.gguf"), split_mode=mode)).split_mode == number
    with pytest.raises(UsageError, match="fewer than"):
        model_parameters(options(Path("m.gguf"), tensor_split=Shares([1.0] * most)))


def test_what_has_no_effect_without_a_gpu_is_said(tiny: TinyFiles) -> None:
    if any(device.is_gpu for device in llama_library.devices()):
        pytest.skip("a GPU is there")
    spread = options(tiny.target, tensor_split=Shares((3, 1)), split_mode="row", gpu_layers=3)
    with Engine.load(spread) as engine:
        (note,) = engine.notes
        assert note == (
            "No effect without a GPU that llama.cpp can use: --n-gpu-layers, --tensor-split, "
            "--split-mode."
        )


def test_draft_caches_are_of_their_own_type(tiny: TinyFiles) -> None:
    pair = options(tiny.target), options(tiny.draft, cache_type_k="f32", cache_type_v="f32")
    with Engine.load(*pair) as engine:
        assert engine.draft is not None
        assert engine.draft.memory.kv == 2 * engine.target.memory.kv


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(" * 3000 + ")" * 3000, "32 nested parentheses"),
        ("(" * 33 + "a" + ")" * 33, "32 nested parentheses"),
        ("a" * 1025, "at most 1,024 characters"),
        ("(", "missing ), unterminated subpattern"),
        ("a{99999999999999}", "too large"),
    ],
)
def test_patterns_that_llama_cpp_would_die_of(pattern: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        model_parameters(options(Path("m.gguf"), override_tensors=(f"{pattern}=CPU",)))
    assert words in caught.value.message and len(caught.value.message) < 300


def test_the_deepest_pattern_is_survived(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    for pattern in ("(" * 32 + "attn_q" + ")" * 32, "attn_q|" + "(a|b?)" * 169):
        override = f"{pattern}=CPU"
        assert "overridden to CPU" in said(monkeypatch, tiny.target, override_tensors=(override,))


def test_contexts_get_what_is_asked(tiny: TinyFiles) -> None:
    asked = options(tiny.target, exact=True, threads_batch=3, flash_attention="on")
    params = context_parameters(asked, 64, 2, "trim")
    assert (params.n_ctx, params.n_threads, params.n_threads_batch) == (64 + MAX_ROWS, 2, 3)
    assert params.flash_attn_type == 1
    assert read_header(tiny.target).context_length == 1024
    assert (params.n_seq_max, params.kv_unified, params.n_rs_seq) == (1, False, 0)
    fork, snapshots = (
        context_parameters(asked, 64, 2, strategy) for strategy in ("fork", "snapshots")
    )
    assert (fork.n_seq_max, fork.kv_unified, fork.n_rs_seq) == (2, True, 0)
    assert (snapshots.n_seq_max, snapshots.n_rs_seq) == (1, SNAPSHOTS)
    slots = options(tiny.target, parallel=3)
    shared = context_parameters(slots, 64, 2, "trim")
    assert (shared.n_seq_max, shared.kv_unified, shared.n_ctx) == (3, True, 192)
    own = [context_parameters(replace(slots, own_cells=True), 64, 2, s) for s in ("trim", "fork")]
    assert [each.kv_unified for each in own] == [False, True]
    branched = context_parameters(options(tiny.target, branches=2), 64, 2, "trim")
    assert (branched.n_seq_max, branched.kv_unified, branched.n_ctx) == (MAX_PATHS, True, 64)


def test_values_that_llama_cpp_would_die_of_are_refused(tiny: TinyFiles) -> None:
    experts = options(tiny.target, override_kv=(KeyValue("llama.expert_count", 4),))
    with pytest.raises(EngineError, match=r"ends by SIGABRT .*n_expert"):
        Engine.load(experts)
    shapes = options(tiny.target, override_kv=(KeyValue("llama.attention.head_count", 3),))
    with pytest.raises(EngineError, match=r"attn_q\.weight' has wrong shape"):
        Engine.load(shapes)


def on_a_device(monkeypatch: pytest.MonkeyPatch, remedies: str) -> None:
    """Let the processor count as a device, with remedies for changing widths."""
    monkeypatch.setattr(parameters, "uses_devices", lambda options: True)
    monkeypatch.setenv("LOCALSPEC_PASS_WIDTHS", remedies)


def test_remedies_for_changing_widths_are_for_devices_and_off_unless_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCALSPEC_PASS_WIDTHS", "single,filled")
    assert width_remedies(LoadOptions(Path("x.gguf"), gpu_layers=0)) == set()
    on_a_device(monkeypatch, "single filled")
    assert width_remedies(LoadOptions(Path("x.gguf"))) == {"single", "filled"}
    monkeypatch.delenv("LOCALSPEC_PASS_WIDTHS")
    assert width_remedies(LoadOptions(Path("x.gguf"))) == set()
    monkeypatch.setenv("LOCALSPEC_PASS_WIDTHS", "singel")
    with pytest.raises(UsageError, match="knows no 'singel'"):
        width_remedies(LoadOptions(Path("x.gguf")))


def test_single_steps_read_two_tokens_one_by_one(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = random_ids(3)
    model = load_model(tiny.draft)
    together = [model.decode([first, second], 1)[0].copy(), model.decode([third], 1)[0].copy()]
    model.close()
    on_a_device(monkeypatch, SINGLE_STEPS)
    model, widths = load_model(tiny.draft), list[tuple[int, int]]()
    model.listener = lambda tokens, position, rows: widths.append((len(tokens), rows))
    apart = [model.decode([first, second], 1)[0].copy(), model.decode([third], 1)[0].copy()]
    assert model.tokens == [first, second, third]
    model.truncate(1)
    model.decode([second, third], 0)  # as a prompt is read
    model.close()
    assert np.allclose(together, apart, atol=0.05)
    assert widths == [(1, 1), (1, 1), (1, 1), (2, 0)]
