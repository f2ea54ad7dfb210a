"""Cuts files into pieces that fit a small upload, and prints the command that each one needs.

    python benchmarks/gpu/pieces.py FILE... --pieces FOLDER [--work /tmp/work] [--size 55]

For a rented machine with a GPU that takes at most so many MiB at a time and keeps its files between
two commands. One piece is to be carried there with each command, under its own path as given here;
the command checks its sha256 and writes it to its place in a file in --work, so that pieces may
arrive in any order, and twice. Files that fit into one piece together, such as wheels, make an
archive, which its command unpacks. The plan is also written to FOLDER/plan.json.
"""

import argparse
import hashlib
import json
import shlex
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import Parser

MEBIBYTE = 1 << 20
_BLOCK = 1 << 22  # bytes read at once
_OVERHEAD = 2048  # bytes of an archive for each file, or more for a long name


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file, from the byte ``offset`` to ``end``, and its own sha256."""

    path: str
    file: str
    offset: int
    end: int
    sha256: str
    unpacks: bool  # the last one of an archive

    def command(self, work: Path) -> str:
        """Check it on the other machine, and write it to its place."""
        folder, target = shlex.quote(str(work)), shlex.quote(str(work / self.file))
        path = shlex.quote(self.path)
        place = f"bs={MEBIBYTE} seek={self.offset} oflag=seek_bytes conv=notrunc status=none"
        words = [
            f"echo {self.sha256} {path} | sha256sum --check",
            f"mkdir -p {folder}",
            f"dd if={path} of={target} {place}",
        ]
        if self.unpacks:
            words.append(f"tar xf {target} -C {folder}")
        return " && ".join(words)


def cut(source: Path, folder: Path, size: int, *, unpacks: bool) -> Iterator[Piece]:
    """Write the pieces of a file."""
    offset, total = 0, source.stat().st_size
    with source.open("rb") as file:
        while offset < total or not total:
            path = folder / f"{source.name}.{offset // size:03}"
            end, digest = min(total, offset + size), hashlib.sha256()
            with path.open("wb") as piece:
                while left := end - file.tell():
                    block = file.read(min(_BLOCK, left))
                    digest.update(block)
                    piece.write(block)
            last = unpacks and end == total
            yield Piece(str(path), source.name, offset, end, digest.hexdigest(), last)
            offset = end
            if not total:
                return


def bundles(files: Sequence[Path], size: int) -> list[list[Path]]:
    """Files that make an archive together, in their order; each fits into one piece."""
    found, room = list[list[Path]](), 0
    for file in files:
        needed = file.stat().st_size + _OVERHEAD
        if needed > room:
            found.append([])
            room = size - tarfile.RECORDSIZE
        if needed <= room:
            found[-1].append(file)
            room -= needed
    return [each for each in found if len(each) > 1]


def archive(files: Sequence[Path], path: Path) -> Path:
    """An archive of small files; compressed ones gain nothing by being compressed again."""
    with tarfile.open(path, "w") as tar:
        for file in files:
            tar.add(file, file.name)
    return path


def plan(files: Sequence[Path], folder: Path, size: int) -> list[Piece]:
    """The pieces of all files; those that fit into one piece together make an archive."""
    folder.mkdir(parents=True, exist_ok=True)
    found, together = list[Piece](), bundles(files, size)
    for number, bundle in enumerate(together):
        path = archive(bundle, folder / f"bundle{number}.tar")
        found += cut(path, folder, size, unpacks=True)
        path.unlink()
    for file in files:
        if not any(file in bundle for bundle in together):
            found += cut(file, folder, size, unpacks=False)
    return found


def show(pieces: Sequence[Piece], work: Path) -> None:
    """Print what each command carries, and the command."""
    for number, piece in enumerate(pieces, start=1):
        print(f"# {number} of {len(pieces)}: carry {piece.path}")
        print(piece.command(work))
    total = sum(piece.end - piece.offset for piece in pieces)
    print(f"# {len(pieces)} pieces, {total / MEBIBYTE:.0f} MiB", file=sys.stderr)


def main() -> None:
    """Cut the files and print the commands, in the order of the files."""
    parser = Parser(__doc__ or "")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--pieces", type=Path, required=True, help="folder of the pieces")
    parser.add_argument("--work", type=Path, default=Path("/tmp/work"), help="on the other machine")
    parser.add_argument("--size", type=float, default=55, help="most MiB of a piece")
    args: argparse.Namespace = parser.parse_args()
    pieces = plan(args.files, args.pieces, int(args.size * MEBIBYTE))
    document = [asdict(each) | {"command": each.command(args.work)} for each in pieces]
    (args.pieces / "plan.json").write_text(json.dumps(document, indent=1) + "\n")
    show(pieces, args.work)


if __name__ == "__main__":
    main()
