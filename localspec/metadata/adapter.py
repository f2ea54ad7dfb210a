"""Checks of LoRA adapter files against the model they adapt, by their headers."""

from pathlib import Path
from typing import NoReturn

from localspec.core.errors import FileProblem
from localspec.core.formatting import one_line
from localspec.metadata.gguf_file import FLOAT32
from localspec.metadata.header import ModelHeader
from localspec.metadata.splits import read_part

_HINT = "Give a LoRA adapter in GGUF, as convert_lora_to_gguf.py makes them."
_INVOCATION = "adapter.alora.invocation_tokens"


def check_adapter(path: Path, model: ModelHeader) -> None:
    """Raise FileProblem unless the file is a LoRA adapter of this model's architecture.

    By the rules of `llama_adapter_lora_init_impl`, which ends the process at a key of another type;
    whether the tensors fit is left to it. Raises NotAGGUF for a damaged file.
    """
    part = read_part(path)
    kinds = [part.text(key) for key in ("general.type", "adapter.type")]
    if kinds != ["adapter", "lora"]:
        _refuse(path, f"is no LoRA adapter: its type is {_named(kinds[0], 'model')}")
    if part.types.get("adapter.lora.alpha", FLOAT32) != FLOAT32:
        _refuse(path, "holds no 32-bit number in its key 'adapter.lora.alpha'")
    architecture = part.text("general.architecture") or ""
    if architecture != model.architecture:
        _refuse(
            path,
            f"adapts {_named(architecture, 'no architecture')}, but {one_line(model.path.name)} is "
            f"{one_line(model.architecture)}",
        )
    if _INVOCATION in part.types:
        _refuse(path, "is an activated LoRA, which starts at certain tokens; that is not supported")
    if not part.tensors:
        _refuse(path, "holds no tensors")


def _named(text: str | None, otherwise: str) -> str:
    return one_line(text[:80]) if text else otherwise


def _refuse(path: Path, sentence: str) -> NoReturn:
    raise FileProblem(f"{one_line(str(path))} {sentence}.", _HINT)
