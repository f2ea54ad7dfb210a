"""Makes targets of a real size out of a small real model: padded, and in several types.

    python benchmarks/gpu/models.py SMALL.gguf --to FOLDER [--shape 3584,28,18944,28]
        [--types Q4_K_M F16 Q8_0]

The padded model computes the small one's function at the cost of its shape (`bench.padding`), so a
draft is accepted as often as for the small model. The default shape is that of Qwen2.5 7B; with
"none" the model is only written in other types. Weights that are quantised already are first
written as F16, which loses nothing. Files that are there are not made again.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import Parser, unheard

from localspec.bench.padding.layout import PaddedShape
from localspec.bench.padding.pad import padded_copy
from localspec.core.files import appearing_when_complete
from localspec.llama.quantize import write_quantized


def shape_of(text: str) -> PaddedShape | None:
    """Width, query heads, feed-forward width, layers; None for the model as it is."""
    if text == "none":
        return None
    embedding, heads, feed_forward, layers = map(int, text.split(","))
    return PaddedShape(embedding, heads, feed_forward, layers)


def quantize(source: Path, output: Path, type_name: str) -> None:
    """Write a model in another type, complete or not at all."""
    with appearing_when_complete(output) as partial:
        write_quantized(source, partial, type_name)


def make(small: Path, folder: Path, shape: PaddedShape | None, types: list[str]) -> dict[str, Path]:
    """The padded model in each type."""
    folder.mkdir(parents=True, exist_ok=True)
    floats = folder / f"{small.stem}-F16.gguf"
    if not floats.exists():
        quantize(small, floats, "F16")
    padded = floats if shape is None else padded_copy(floats, folder, shape, "F16", unheard)
    found = {}
    for name in types:
        found[name] = folder / f"target-{name}.gguf"
        if name == "F16":
            found[name].unlink(missing_ok=True)
            found[name].symlink_to(padded.resolve())
        elif not found[name].exists():
            quantize(padded, found[name], name)
    return found


def main() -> None:
    """Print each file, its size and the seconds it took."""
    parser = Parser(__doc__ or "")
    parser.add_argument("small", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--shape", type=shape_of, default="3584,28,18944,28")
    parser.add_argument("--types", nargs="+", default=["Q4_K_M", "F16", "Q8_0"])
    args: argparse.Namespace = parser.parse_args()
    began = time.monotonic()
    for name, path in make(args.small, args.to, args.shape, args.types).items():
        size = path.stat().st_size
        print(f"{name}: {path}, {size:,} bytes, after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
