"""Proof that llama.cpp runs a draft: a child process decodes with it, since llama.cpp may abort.

Hybrid models without a layer of each kind load, but abort in their first pass. The child runs this
module too.
"""

import json
import subprocess
import sys
from pathlib import Path

from localspec.core import child
from localspec.core.config import LoadOptions
from localspec.core.errors import EngineError
from localspec.llama.memory.probe import require_loadable
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header

_PATIENCE = 600.0  # seconds: all weights are read
_CTX_SIZE = 256  # tokens


def require_decodable(path: Path) -> None:
    """Raise EngineError, with llama.cpp's reason, for a file that llama.cpp cannot run."""
    require_loadable(path)
    try:
        code, _ = child.ask(__name__, str(path), _PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"llama.cpp did not decode with {path.name}: {error}.") from None
    if code:
        raise EngineError(f"llama.cpp crashes when it decodes with {path.name}.")


def _decode() -> None:
    """Read a path as a line of JSON from stdin, and decode a few tokens with that model."""
    path = Path(json.loads(sys.stdin.readline()))
    child.end_with_parent()
    model = LlamaModel(read_header(path), LoadOptions(path, ctx_size=_CTX_SIZE, gpu_layers=0))
    model.decode([0, 0], 1)
    model.decode([0], 1)


if __name__ == "__main__":
    _decode()
