"""GGUF files through the `gguf` library: opened, their header copied into a new file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.core.errors import FileProblem, LocalspecError, NotAGGUF

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    from localspec.metadata.gguf_file import Value


@dataclass(frozen=True, slots=True)
class HeaderField:
    """One header value with its GGUF types: its own, and for an array the elements' too."""

    value: Any
    kinds: list[GGUFValueType]


def open_gguf(path: Path) -> tuple[GGUFReader, dict[str, HeaderField]]:
    """The mapped file and its header, without the reader's own `GGUF.` entries.

    Raises FileProblem for a file that cannot be read, NotAGGUF for one that the library refuses.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        return reader, {
            key: HeaderField(field.contents(), field.types)
            for key, field in reader.fields.items()
            if not key.startswith("GGUF.")
        }
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}.", "Check the path.") from None
    except (ValueError, KeyError, IndexError, OverflowError) as problem:
        # The library's for a wrong magic, unknown types, lengths beyond the end, bad UTF-8.
        raise NotAGGUF(
            f"{path} is not a GGUF file, or it is damaged: {problem}.", "Fetch it once more."
        ) from problem


@contextmanager
def new_gguf(path: Path, architecture: str) -> Iterator[GGUFWriter]:
    """A writer of a file at ``path``, closed at the end."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    try:
        yield writer
    finally:
        writer.close()


def copy_fields(
    writer: GGUFWriter, fields: Mapping[str, HeaderField], ours: Mapping[str, Value | None]
) -> None:
    """Add a header's fields, and in the place of those that are ``ours`` these; None leaves out.

    Of ours, whole numbers are written as u32, others as f32; arrays keep the type they had.
    """
    from gguf import GGUFValueType

    for key, field in fields.items():
        # The writer states the architecture and aligns by its default; it cannot write an empty
        # array, and readers take an absent one for that.
        if key in ours or key in ("general.architecture", "general.alignment"):
            continue
        if field.kinds[0] != GGUFValueType.ARRAY:
            writer.add_key_value(key, field.value, field.kinds[0])
        elif field.value:
            writer.add_key_value(key, field.value, field.kinds[0], field.kinds[-1])
    kinds = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
    for key, value in ours.items():
        if isinstance(value, tuple):
            kept = fields[key].kinds[-1] if key in fields else kinds[type(value[0])]
            writer.add_key_value(key, list(value), GGUFValueType.ARRAY, kept)
        elif value is not None:
            writer.add_key_value(key, value, kinds[type(value)])


def write_start(writer: GGUFWriter) -> None:
    """Write everything before the tensor data."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def refuse_full_disk(folder: Path, needed: int, what: str, elsewhere: str) -> None:
    """Raise LocalspecError where ``needed`` bytes do not fit; ``what`` would be written there."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LocalspecError(
            f"{what} needs {needed / 1e6:.0f} MB, and {folder} has {free / 1e6:.0f} MB left.",
            f"Make room there. {elsewhere}",
        )
