"""Models some of whose layers add nothing, to compare with models that lack those layers."""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.llama.model import LlamaModel
from tests.support.real_pair import load_model, random_ids

# What a layer adds to its input goes through one of these last.
_LAST = re.compile(
    r"blk\.(\d+)\.(attn_output|attn_out|ffn_down(_exps|_shexp)?|ssm_out|shortconv\.out_proj"
    r"|time_mix_output|channel_mix_value|layer_output_scale)\.(weight|bias)"
)


def silenced(path: Path, layers: Collection[int], copy: Path) -> Path:
    """A copy of the model in F32 whose ``layers`` return their inputs."""
    from gguf import GGUFReader

    shutil.copyfile(path, copy)
    reader = GGUFReader(copy, "r+")
    for tensor in reader.tensors:
        found = _LAST.fullmatch(tensor.name)
        if found and int(found[1]) in layers:
            tensor.data[:] = 1 if found[2] == "layer_output_scale" else 0
    reader.data.flush()
    return copy


def logits(path: Path, tokens: int = 48) -> NDArray[np.float32]:
    """The logits after each of some tokens, which are more than the tiny models' windows."""
    model = load_model(path, ctx_size=256)
    try:
        return rows(model, random_ids(tokens))
    finally:
        model.close()


def rows(model: LlamaModel, ids: list[int]) -> NDArray[np.float32]:
    """A row of logits for each of the tokens."""
    model.truncate(0)
    return np.array(model.decode(ids, len(ids)), np.float32)
