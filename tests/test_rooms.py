"""Rooms: each says what it is, the README's tree repeats it, and none imports a room below it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "localspec"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = [path for path in MODULES if not path.name.startswith("__")]
README = ROOT / "README.md"


def tree() -> dict[str, str]:
    """The rooms of the README's tree, in its order: dotted name and comment."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (block,) = [text for text in blocks if text.startswith("localspec/\n")]
    rooms: dict[str, str] = {}
    folder = ""
    for line in block.splitlines()[1:]:
        if not line.startswith("  "):
            break
        indent = len(line) - len(line.lstrip())
        name, _, comment = line.strip().partition(" ")
        if name.endswith("/"):
            folder = name.removesuffix("/") + "."
        else:
            prefix = folder if indent > 2 else ""
            rooms[prefix + name.removesuffix(".py")] = comment.strip()
    return rooms


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def first_sentence(name: str) -> str:
    source = PACKAGE.joinpath(*name.split(".")).with_suffix(".py").read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_module_opens_with_a_sentence(path: Path) -> None:
    assert re.fullmatch(r"\S.*\.", first_sentence(dotted(path)))


def test_the_readme_names_every_room() -> None:
    assert set(tree()) == set(map(dotted, ROOMS))


@pytest.mark.parametrize("name", list(map(dotted, ROOMS)))
def test_the_readme_repeats_the_first_sentence(name: str) -> None:
    comment, sentence = tree()[name], first_sentence(name).removesuffix(".")
    assert comment[:1].lower() + comment[1:] == sentence[:1].lower() + sentence[1:]


def imported_rooms(name: str) -> set[str]:
    """Rooms that a room imports anywhere, those that only its annotations need left out."""
    source = PACKAGE.joinpath(*name.split(".")).with_suffix(".py").read_text("utf-8")
    found: set[str] = set()
    body = ast.parse(source)
    for node in ast.walk(body):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {room.removeprefix("localspec.") for room in found} & set(tree())


def test_no_room_imports_one_below_it() -> None:
    order = list(tree())
    assert imported_rooms("cli") and imported_rooms("engine")
    below = [
        f"{name} imports {other}"
        for name in order
        for other in imported_rooms(name)
        if order.index(other) >= order.index(name)
    ]
    assert below == []
