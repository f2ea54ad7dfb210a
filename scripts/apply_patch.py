"""Applies a unified diff, only if each of its hunks fits exactly one place.

    python scripts/apply_patch.py FILE.patch FOLDER

`patch` is missing on some machines, and tolerates sources that have changed around a hunk. A hunk
whose lines are found elsewhere than at its number is accepted, one that fits twice is not. Either
all files are changed or none. Paths begin with a/ and b/, as git writes them.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


class PatchDoesNotFit(Exception):
    """The sources are not those that the patch was made for."""


def hunks(patch: str) -> Iterator[tuple[str, str, str]]:
    """The file of each hunk, its lines before, and its lines after."""
    name, lines = "", list[str]()
    for line in [*patch.splitlines(keepends=True), "@@"]:
        if line.startswith(("@@", "--- ")) and lines:
            yield name, _side(lines, "-"), _side(lines, "+")
            lines = []
        if line.startswith("+++ b/"):
            name = line.removeprefix("+++ b/").strip()
        elif not line.startswith(("@@", "--- ")):
            lines.append(line)


def _side(lines: Sequence[str], sign: str) -> str:
    """The lines of a hunk before (-) or after (+) the change."""
    return "".join(line[1:] for line in lines if line[0] in (" ", sign))


def _what(before: str, after: str) -> str:
    """The first line that a hunk adds, or else removes."""
    old, new = before.splitlines(), after.splitlines()
    return next((line for line in [*new, *old] if line not in old or line not in new), "").strip()


def patched(patch: str, folder: Path) -> dict[Path, str]:
    """The new content of each file; raises PatchDoesNotFit."""
    files: dict[Path, str] = {}
    for name, before, after in hunks(patch):
        path = folder / name
        if path not in files and not path.is_file():
            raise PatchDoesNotFit(f"there is no {name}")
        text = files[path] if path in files else path.read_text("utf-8")
        if (places := text.count(before)) != 1:
            raise PatchDoesNotFit(
                f"{name} has {places} places for the change {_what(before, after)!r}"
            )
        files[path] = text.replace(before, after)
    if not files:
        raise PatchDoesNotFit("the patch changes nothing")
    return files


def main() -> None:
    """Apply the patch, or end with the reason why it does not fit."""
    patch, folder = map(Path, sys.argv[1:])
    try:
        files = patched(patch.read_text("utf-8"), folder)
    except PatchDoesNotFit as reason:
        raise SystemExit(f"{patch.name} does not fit: {reason}.") from reason
    for path, text in files.items():
        path.write_text(text, "utf-8")
        print(f"patched {path.relative_to(folder)}")


if __name__ == "__main__":
    main()
