"""Checks of names: architectures and tensors that llama.cpp knows; it loads no others."""

import re
from collections.abc import Iterator
from pathlib import Path

from localspec.core.files import read_toml
from localspec.core.formatting import one_line
from localspec.metadata.header import ModelHeader

_NAMES = read_toml(Path(__file__).parent / "names.toml")
ARCHITECTURES = frozenset[str](_NAMES["architectures"].split())
# Each pre-tokenizer with the first of its names.
PRE_GROUPS: dict[str, str] = {
    name: line.split()[0]
    for line in (*_NAMES["same_pre_tokenizers"], *_NAMES["other_pre_tokenizers"].split())
    for name in line.split()
}
# The parts of a model that tensors belong to (`LLM_TENSOR_NAMES`).
_PARTS = re.compile(
    r"(altup|blk|cls|conf|conv1d|convnext|d2t|dec|dense|enc|fc|hrm|markov|masked|nextn|output|per"
    r"|position|posnet|rope|selector|token)[._]|(d2t|fc)$"
)
_VISION = re.compile(r"(v|mm|a|vision|audio)\w*\.")
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


def architecture_faults(header: ModelHeader) -> Iterator[str]:
    """An architecture that llama.cpp does not know."""
    if header.complete and header.architecture not in ARCHITECTURES:
        yield f"has the unknown architecture '{one_line(header.architecture)}'"


def tensor_faults(header: ModelHeader) -> Iterator[str]:
    """The first tensor that llama.cpp would leave out, whereupon it refuses the file."""
    layers = header.block_count
    for tensor in header.tensors:
        shown, block = f"the tensor '{one_line(tensor.name)}'", _BLOCK.match(tensor.name)
        if not _PARTS.match(tensor.name):
            of_eyes = " of vision or audio" * bool(_VISION.match(tensor.name))
            yield f"holds {shown}{of_eyes}, which is no part of a text model"
            return
        if block and layers and int(block[1]) >= layers:
            yield f"holds {shown}, but has only {layers:,} layers"
            return
