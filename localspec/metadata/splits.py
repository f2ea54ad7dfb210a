"""Split GGUF models: reads all parts, and checks that they belong together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from localspec.core.errors import FileProblem, MissingFile, NotAGGUF
from localspec.core.formatting import one_line
from localspec.metadata.byte_reader import MAX_HEADER_BYTES, open_file
from localspec.metadata.filenames import (
    MAX_PARTS,
    PART_NAME,
    cut_from,
    how_to_join,
    part_name,
    sibling_name,
)
from localspec.metadata.gguf_file import MAX_TENSORS, HeaderReader, PartHeader


def read_parts(path: Path) -> list[PartHeader]:
    """Parse a file, and all other parts if it is the first of a split model.

    Raises `FileProblem` if a file is missing or unreadable, and `NotAGGUF` if it is not a valid
    little-endian GGUF file of version 2 or 3.
    """
    first = read_part(path)
    return _joined(first, map(read_part, _other_parts(first)))


def read_part(path: Path) -> PartHeader:
    """Parse one file; raises as `read_parts`."""
    with open_file(path) as file:
        if whole := cut_from(path.name):
            names = (one_line(each.name) for each in path.parent.iterdir())
            raise NotAGGUF(
                f"{one_line(str(path))} is a part of a file that another tool cut.",
                f"Join all parts, in their folder: {how_to_join(one_line(whole), names)}.",
            )
        return HeaderReader(file).finish()


def finish_parts(readers: Sequence[HeaderReader]) -> list[PartHeader]:
    """Read the headers of all parts of a model, part 1 first, to their ends.

    Raises the errors of the sources, and `NotAGGUF` for a damaged header or parts of other models.
    """
    first, count = readers[0].finish(), len(readers)
    claimed = first.number("split.count") or 1
    if claimed != count:
        first.fail(f"says that its model has {claimed:,} parts, but {count:,} are there")
    return _joined(first, (reader.finish() for reader in readers[1:]))


def _joined(first: PartHeader, others: Iterable[PartHeader]) -> list[PartHeader]:
    parts = [first]
    for other in others:
        parts.append(other)
        _join(parts)
    _check_tensors(parts)
    return parts


def _join(parts: list[PartHeader]) -> None:
    """Check that the last part is the next one, and drop its keys.

    Otherwise a thousand parts, which may be links to one file, would fill the memory.
    """
    last, index, count = parts[-1], len(parts) - 1, parts[0].number("split.count")
    if last.number("split.no") != index or last.number("split.count") not in (None, count):
        last.fail(f"does not say that it is part {index + 1} of {count}")
    for kept in (last.values, last.arrays, last.announced, last.types, last.spans):
        kept.clear()
    if sum(len(part.tensors) for part in parts) > MAX_TENSORS:
        last.fail(f"and the parts before it describe over {MAX_TENSORS:,} tensors")
    if sum(part.n_header for part in parts[1:]) > MAX_HEADER_BYTES:
        last.fail(f"and the parts before it have headers over {MAX_HEADER_BYTES // 10**6} MB")


def _other_parts(first: PartHeader) -> list[Path]:
    """Paths of the parts after the first one (`llama_get_list_splits`)."""
    count = first.number("split.count") or 0
    if count < 2:
        return []
    if count > MAX_PARTS:
        first.fail(f"claims {count:,} parts; the limit is {MAX_PARTS:,}")
    shown, name = one_line(str(first.path)), PART_NAME.fullmatch(first.path.name)
    number = first.number("split.no") or 0
    if number:
        raise FileProblem(
            f"{shown} is part {number + 1} of {count} of a split model.",
            f"Give the first part, {one_line(sibling_name(first.path.name, 1)) if name else '…'}.",
        )
    if name is None or (int(name[2]), int(name[3])) != (1, count):
        raise FileProblem(
            f"{shown} is part 1 of {count} of a split model, but its name does not say so.",
            f"Rename the parts to {part_name('NAME', 1, count)} and so on.",
        )
    others = [sibling_name(first.path.name, n) for n in range(2, count + 1)]
    missing = [one_line(other) for other in others if not first.path.with_name(other).exists()]
    if missing:
        listed = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise MissingFile(
            f"{shown} is split into {count} parts and {len(missing)} are missing: {listed}.",
            "Download the missing parts into the same folder.",
        )
    return [first.path.with_name(other) for other in others]


def _check_tensors(parts: list[PartHeader]) -> None:
    """Raise NotAGGUF if a tensor is duplicated or missing (`llama_model_loader`)."""
    if len(parts) == 1:
        return
    first, tensors = parts[0], [tensor for part in parts for tensor in part.tensors]
    twice = [name for name, count in Counter(t.name for t in tensors).items() if count > 1]
    if twice:
        first.fail(f"and its other parts describe the tensor '{one_line(twice[0])}' twice")
    expected = first.number("split.tensors.count")
    if expected is not None and expected != len(tensors):
        first.fail(f"promises {expected:,} tensors in all parts, but they hold {len(tensors):,}")
