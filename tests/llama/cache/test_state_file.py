"""State files: what comes back is what was there; anything else is refused with the reason."""

import hashlib
import json
import os
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.core.errors import EngineError, FileProblem
from localspec.core.options.load_options import Lora
from localspec.llama.cache import state_file
from localspec.llama.cache.copies import ReusableLengths
from localspec.llama.cache.state_file import read_state, require_state_file, write_state
from localspec.llama.model import LlamaModel
from localspec.metadata.splits import read_parts
from tests.support.files.lora_files import write_lora
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles, load_model, random_ids

pytestmark = pytest.mark.llama

IDS = random_ids(80)


@pytest.fixture
def model(tiny: TinyFiles) -> Iterator[LlamaModel]:
    model = load_model(tiny.target, ctx_size=256)
    yield model
    model.close()


@pytest.fixture
def kept(model: LlamaModel, tmp_path: Path) -> Path:
    """A file with the first 60 tokens."""
    path = tmp_path / "kept"
    model.decode(IDS[:60], 0)
    assert write_state(path, model) == path.stat().st_size
    model.truncate(0)
    return path


def changed(path: Path, **changes: Any) -> Path:
    """The file with another header, and the rest as it is."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data, 16)
    header = json.loads(data[20 : 20 + length]) | changes
    text = json.dumps(header).encode()
    path.write_bytes(data[:16] + struct.pack("<I", len(text)) + text + data[20 + length :])
    return path


def test_what_was_read_comes_back(model: LlamaModel, kept: Path) -> None:
    model.decode(IDS[:60], 0)
    expected = model.decode(IDS[60:], 20).copy()
    model.truncate(0)
    read_state(kept, model)
    assert model.tokens == IDS[:60]
    assert np.array_equal(model.decode(IDS[60:], 20), expected)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_what_the_model_held_is_replaced(model: LlamaModel, kept: Path) -> None:
    held = model.tokens
    model.decode(random_ids(100, seed=7), 0)
    read_state(kept, model)
    assert model.tokens is held and held == IDS[:60]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_byte_never_changes_what_comes_back(
    model: LlamaModel, kept: Path, data: st.DataObject
) -> None:
    good = kept.read_bytes()
    place = data.draw(st.integers(0, 1500) | st.integers(0, len(good) - 1), label="place")
    bad = bytearray(good)
    bad[place] ^= data.draw(st.integers(1, 255), label="difference")
    changed_file = kept.with_name("changed")
    changed_file.write_bytes(bad)
    model.truncate(0)
    try:
        read_state(changed_file, model)
    except ValueError:
        assert model.tokens == []
    else:  # the name, which is only shown, or where the file was
        assert place < 100 or good.index(b'"place"') <= place < good.index(b'"changed"')
        assert model.tokens == IDS[:60] and good.endswith(model.state().tobytes())


@pytest.mark.parametrize("size", [0, 19, 30, -1])
def test_missing_bytes_are_noticed(model: LlamaModel, kept: Path, size: int) -> None:
    kept.write_bytes(kept.read_bytes()[:size])
    with pytest.raises(ValueError, match="cut short|damaged"):
        read_state(kept, model)


def test_added_bytes_are_noticed(model: LlamaModel, kept: Path) -> None:
    kept.write_bytes(kept.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="cut short or damaged"):
        read_state(kept, model)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("format", 99, "another version of localspec"),
        ("model", "0" * 64, "another model, Tiny"),
        ("settings", {}, "made with rope None, not {}"),
        ("settings", None, "made with rope"),
        ("tokens", -1, "header is damaged"),
        ("tokens", 60.0, "header is damaged"),
        ("tokens", True, "header is damaged"),
        ("tokens", 1, "cut short or damaged"),
        ("tokens", 10**9, "holds 1000000000 tokens, and the context has room for no more than 256"),
        ("state", 2**62, "larger than the context"),
        ("state", -5, "larger than the context"),
        ("sha256", "0" * 64, "it is damaged"),
        ("sha256", None, "it is damaged"),
    ],
)
def test_a_header_that_cannot_be(
    model: LlamaModel, kept: Path, name: str, value: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        read_state(changed(kept, **{name: value}), model)


def test_a_state_of_other_adapters_says_so(tiny: TinyFiles, tmp_path: Path) -> None:
    path, lora, moved = tmp_path / "kept", tmp_path / "lora.gguf", tmp_path / "moved.gguf"
    write_lora(lora, seed=1)
    moved.write_bytes(lora.read_bytes())
    model = load_model(tiny.target, ctx_size=256, loras=(Lora(lora),))
    model.decode(IDS[:60], 0)
    write_state(path, model)
    model.close()
    write_lora(lora, seed=2)
    for loras, reason in (
        ((Lora(lora),), "made with other adapters"),
        ((), "made with other adapters"),
        ((Lora(moved, 0.5),), r"made with loras \[1.0\], not \[0.5\]"),
        ((Lora(moved),), ""),
    ):
        model = load_model(tiny.target, ctx_size=256, loras=loras)
        with pytest.raises(ValueError, match=reason) if reason else nullcontext():
            read_state(path, model)
        model.close()


def test_a_state_without_adapters_is_not_taken_with_one(
    tiny: TinyFiles, kept: Path, tmp_path: Path
) -> None:
    write_lora(tmp_path / "lora.gguf", seed=1)
    model = load_model(tiny.target, ctx_size=256, loras=(Lora(tmp_path / "lora.gguf"),))
    with pytest.raises(ValueError, match="made with other adapters"):
        read_state(kept, model)
    model.close()


@pytest.mark.parametrize("header", [b"{", b"[]", b"\xff", b"[" * 60_000])
def test_a_header_that_is_none(model: LlamaModel, kept: Path, header: bytes) -> None:
    kept.write_bytes(state_file._START.pack(state_file._MAGIC, len(header)) + header)
    with pytest.raises(ValueError, match="header is damaged"):
        read_state(kept, model)


def test_a_header_without_end_is_not_read(model: LlamaModel, kept: Path) -> None:
    kept.write_bytes(state_file._START.pack(state_file._MAGIC, 2**31))
    with pytest.raises(ValueError, match="damaged"):
        read_state(kept, model)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"cache_type_k": "q8_0"}, "cache_type_k f16, not q8_0"), ({"exact": True}, "exact False"),
     ({"flash_attention": "off"}, "flash_attention on, not"), ({"ctx_size": 50}, "no more than")],
)  # fmt: skip
def test_other_settings(
    tiny: TinyFiles, kept: Path, changes: dict[str, object], reason: str
) -> None:
    other = load_model(tiny.target, **{"ctx_size": 256, **changes})
    with pytest.raises(ValueError, match=reason):
        read_state(kept, other)
    other.close()


def test_settings_that_do_not_matter(tiny: TinyFiles, kept: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(tiny.target.read_bytes())
    other = load_model(moved, ctx_size=512, threads=2)
    read_state(kept, other)
    assert other.tokens == IDS[:60]
    other.close()


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_twin_is_another_model(kept: Path, tmp_path: Path, noise: float) -> None:
    """Of the same size and with the same beginning."""
    path = write_tiny_model(tmp_path / "t.gguf", seed=1, noise=noise, context_length=1024)
    twin = load_model(path, ctx_size=256)
    if noise:
        with pytest.raises(ValueError, match="belongs to another model"):
            read_state(kept, twin)
    else:
        read_state(kept, twin)
    twin.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most of its tensors lie between samples at equal distances."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    sizes: dict[str, Any] = {"embedding": 512, "heads": 8, "feed_forward": 1024, "layers": 4}
    return write_tiny_model(path, seed=1, context_length=1024, **sizes)


def edited(source: Path, copy: Path, name: str, place: float) -> Path:
    """A copy of the same time in which one number of a tensor is another."""
    (part,) = read_parts(source)
    tensor = next(each for each in part.tensors if each.name == name)
    data = bytearray(source.read_bytes())
    data[part.data_start + tensor.offset + 4 * int(place * (tensor.n_bytes // 4))] ^= 1
    copy.write_bytes(data)
    os.utime(copy, ns=(0, source.stat().st_mtime_ns))
    return copy


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *((f"blk.{i}.{norm}_norm.weight", 0.3) for i in range(4) for norm in ("attn", "ffn")),
        ("output_norm.weight", 0.9),
        *((f"blk.{i}.ffn_down.weight", 0.5) for i in range(4)),
        ("token_embd.weight", 0.5),
    ],
)
def test_other_weights_of_any_tensor_are_another_model(
    large: Path, tmp_path: Path, name: str, place: float
) -> None:
    model = load_model(large, ctx_size=256)
    model.decode(IDS[:60], 0)
    write_state(tmp_path / "kept", model)
    model.close()
    other = load_model(edited(large, tmp_path / "edited.gguf", name, place), ctx_size=256)
    with pytest.raises(ValueError, match="another model"):
        read_state(tmp_path / "kept", other)
    other.close()


def test_a_file_that_was_edited_anywhere_is_another_model(large: Path, tmp_path: Path) -> None:
    """Its time is another one, unless it is a copy elsewhere."""
    path = Path(shutil.copy2(large, tmp_path / "model.gguf"))
    model = load_model(path, ctx_size=256)
    model.decode(IDS[:60], 0)
    write_state(tmp_path / "kept", model)
    model.close()
    edited(large, tmp_path / "edited.gguf", "blk.2.ffn_gate.weight", 0.1).replace(path)
    os.utime(path, ns=(0, large.stat().st_mtime_ns + 1))
    other = load_model(path, ctx_size=256)
    with pytest.raises(ValueError, match="file was changed since"):
        read_state(tmp_path / "kept", other)
    other.close()


def test_a_state_that_somebody_made_up_does_no_harm(model: LlamaModel, kept: Path) -> None:
    """Its checksum is right, and llama.cpp reads it: no crash, and the model is fit for use."""
    model.decode(IDS[:60], 0)
    expected, state = model.decode([1], 1).copy(), model.state()
    rng = np.random.default_rng(0)
    taken = 0
    for _ in range(400):
        wrong = state[: rng.integers(1, len(state) + 1)].copy()
        words = wrong[: len(wrong) // 4 * 4].view("<i4")
        if len(words):
            place = rng.integers(0, min(len(words), rng.choice([8, 250, 10**6])))
            words[place] = rng.choice([-1, 0, 1, 2, 61, 256, 2**31 - 1, -(2**31)])
        taken += model.restore([*IDS[:60], 1], wrong)
        try:
            model.decode([1, 2], 1)
        except EngineError:
            pass
        model.truncate(0)
    assert taken < 400
    model.decode(IDS[:60], 0)
    assert np.array_equal(model.decode([1], 1), expected)


def test_tokens_the_model_does_not_have(model: LlamaModel, kept: Path) -> None:
    data = bytearray(kept.read_bytes())
    (length,) = struct.unpack_from("<I", data, 16)
    struct.pack_into("<i", data, 20 + length, model.n_vocab)
    kept.write_bytes(data)
    digest = hashlib.sha256(data[20 + length :]).hexdigest()
    with pytest.raises(ValueError, match="tokens that the model does not have"):
        read_state(changed(kept, sha256=digest), model)


def test_other_files_are_not_replaced(tiny: TinyFiles, tmp_path: Path, kept: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for fine in (kept, tmp_path / "empty", tmp_path / "new"):
        require_state_file(fine)
    refused: list[tuple[Path, str]] = [
        (tiny.target, "is no prompt cache, and would be overwritten"),
        (tmp_path, "is no prompt cache"),
        (tmp_path / "pipe", "is no prompt cache"),
        (tmp_path / ("x" * 300), "cannot be read: File name too long"),
        (tmp_path / "no folder" / "new", "There is no folder"),
    ]
    for path, reason in refused:
        with pytest.raises(FileProblem, match=reason):
            require_state_file(path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    model: LlamaModel, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept.read_bytes()
    model.decode(IDS, 0)

    def full(path: Path, mode: str) -> Any:
        if mode == "rb":
            return open(path, mode)
        with open(path, mode) as file:
            file.write(b"a part")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "open", full)
        write_state(kept, model)
    assert kept.read_bytes() == before
    assert not list(kept.parent.glob(".kept*"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [4000, -800])
def test_a_state_without_numbers_is_refused(
    model: LlamaModel, tmp_path: Path, value: float, place: int
) -> None:
    """Though its checksum is right: keys of the first layer, or values of the last one."""
    model.decode(IDS[:60], 0)
    path, state = tmp_path / "crafted", model.state().copy()
    state[place:][:400].view(np.float16)[:] = value
    crafted = StubHolder(model.tokens[:], state)
    write_state(path, model, crafted)  # type: ignore[arg-type]
    model.truncate(0)
    with pytest.raises(ValueError, match="not numbers"):
        read_state(path, model)
    assert model.tokens == []
    assert np.isfinite(model.decode(IDS[:5], 1)).all()


class StubHolder:
    """Tokens with a made-up state."""

    def __init__(self, tokens: list[int], state: Any) -> None:
        self.tokens = tokens
        self._state = state

    def reusable_lengths(self) -> ReusableLengths:
        return ReusableLengths()

    def state(self) -> Any:
        return self._state
