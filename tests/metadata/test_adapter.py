"""LoRA adapters: others are refused, by their keys or by llama.cpp."""

import re
from pathlib import Path

import pytest

from localspec.core.errors import EngineError, FileProblem, NotAGGUF
from localspec.core.options.load_options import Lora
from localspec.engine.engine import Engine
from localspec.metadata.adapter import check_adapter
from localspec.metadata.header import read_header
from tests.support.files.gguf_files import U32, Tensor, Typed, write_gguf
from tests.support.files.lora_files import QUERY, write_lora
from tests.support.real_pair import TinyFiles, options

KEYS: dict[str, object] = {
    "general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora",
}  # fmt: skip


def pair(name: str = QUERY, **changes: object) -> list[Tensor]:
    shapes = {"lora_a": (64, 4), "lora_b": (4, 64)} | changes
    return [Tensor(f"{name}.{side}", shape) for side, shape in shapes.items()]  # type: ignore[arg-type]


def refusal(path: Path, tiny: TinyFiles) -> str:
    with pytest.raises(FileProblem) as caught:
        check_adapter(path, read_header(tiny.target))
    assert str(path) in caught.value.message and caught.value.hint
    return caught.value.message


def test_an_adapter_of_the_model_is_let_through(tiny: TinyFiles, tmp_path: Path) -> None:
    header = read_header(tiny.target)
    check_adapter(write_lora(tmp_path / "a.gguf"), header)
    check_adapter(write_gguf(tmp_path / "b.gguf", KEYS, pair()), header)
    norm = Tensor("blk.0.attn_norm.weight", (64,))
    check_adapter(write_gguf(tmp_path / "c.gguf", KEYS, [*pair(), norm]), header)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.type": "model"}, "no LoRA adapter: its type is model"),
        ({"adapter.type": "control"}, "no LoRA adapter"),
        ({"general.type": Typed(U32, 1)}, "holds no text in its key 'general.type'"),
        ({"general.architecture": "qwen3"}, "adapts qwen3, but target.gguf is llama"),
        ({"adapter.lora.alpha": 3}, "adapter.lora.alpha"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, "activated LoRA"),
    ],
)
def test_keys_that_do_not_fit(
    tiny: TinyFiles, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    assert words in refusal(write_gguf(tmp_path / "a.gguf", KEYS | changes, pair()), tiny)


@pytest.mark.llama
@pytest.mark.parametrize(
    "tensors",
    [
        [Tensor("blk.0.attn_q.bias")],
        pair("blk.9.attn_q.weight"),
        pair()[:1],
        pair(lora_a=(32, 4)),
        pair(lora_b=(8, 64)),
        pair(lora_a=(64, 4, 2), lora_b=(4, 64, 2)),
        [Tensor(t.name, t.shape, type_id=26) for t in pair()],
        pair("token_embd.weight", lora_a=(4, 272), lora_b=(4, 64)),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit(tiny: TinyFiles, tmp_path: Path, tensors: list[Tensor]) -> None:
    """llama.cpp refuses most of them, and ends the child of a first use for the others."""
    path = write_gguf(tmp_path / "a.gguf", KEYS, tensors)
    with pytest.raises(EngineError, match=re.escape(str(path))) as caught:
        Engine.load(options(tiny.target, loras=(Lora(path),)))
    assert caught.value.hint


def test_no_adapter_at_all(tiny: TinyFiles, tmp_path: Path) -> None:
    assert "holds no tensors" in refusal(write_gguf(tmp_path / "empty.gguf", KEYS, []), tiny)
    assert "There is no file" in refusal(tmp_path / "none.gguf", tiny)
    assert "no LoRA adapter" in refusal(tiny.draft, tiny)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(write_lora(tmp_path / "a.gguf").read_bytes()[:200])
    with pytest.raises(NotAGGUF):
        check_adapter(cut, read_header(tiny.target))
