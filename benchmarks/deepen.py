"""Makes a model cost as much as a larger one: more layers, which change nothing.

    python benchmarks/deepen.py SOURCE.gguf OUTPUT.gguf --factor 4

Each added layer is a copy of one of the source's, whose output projections are zero, so that the
copy computes the same function: text and acceptance are those of the source, costs those of
``--factor`` times the layers. Tensors stay in their types. With a factor of 4 a model of 1.5B costs
as much as one of 6B.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from common import Parser

SILENT = ("attn_output.weight", "ffn_down.weight")  # what a layer adds to the residual stream


def copy_keys(source: gguf.GGUFReader, output: gguf.GGUFWriter, count: str, factor: int) -> None:
    """All keys of the header, the number of layers multiplied."""
    for key, field in source.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue  # the writer's own
        value, kind = field.contents(), field.types[0]
        if key == count:
            value *= factor
        inner = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        output.add_key_value(key, value, kind, inner)


def deepened(source: gguf.GGUFReader, layers: int, factor: int) -> Iterator[tuple[str, int, bool]]:
    """The tensors of the output: name, index in the source, and whether it is zero."""
    for i, tensor in enumerate(source.tensors):
        if not tensor.name.startswith("blk."):
            yield tensor.name, i, False
            continue
        _, layer, name = tensor.name.split(".", 2)
        for copy in range(factor):
            place = int(layer) + copy * layers
            yield f"blk.{place}.{name}", i, copy > 0 and name in SILENT


def deepen(path: Path, output: Path, factor: int) -> None:
    """Write the copy."""
    source = gguf.GGUFReader(path)
    architecture = source.fields["general.architecture"].contents()
    count = f"{architecture}.block_count"
    writer = gguf.GGUFWriter(output, architecture)
    copy_keys(source, writer, count, factor)
    for name, i, is_zero in deepened(source, source.fields[count].contents(), factor):
        tensor = source.tensors[i]
        data = np.zeros_like(tensor.data) if is_zero else tensor.data
        writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Read the arguments, and write the copy."""
    parser: argparse.ArgumentParser = Parser(__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--factor", type=int, default=4)
    args = parser.parse_args()
    deepen(args.source, args.output, args.factor)


if __name__ == "__main__":
    main()
