"""The Python standard library as training text: its files, definitions and language reference."""

import ast
import inspect
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics as reference

from scripts.train_demo_models.text.tokenizer import SPECIAL_TOKENS

HELD_OUT = ("csv", "email", "graphlib", "html", "json", "textwrap", "tomllib", "wave")
SKIPPED_FOLDERS = {"__pycache__", "encodings", "lib-dynload", "pydoc_data", "site-packages"}
SKIPPED_FILES = ("html/entities.py", "_sysconfigdata", "config-", "ensurepip/_bundled")
TEST_FOLDERS = {"idle_test", "test", "tests"}  # trained on as source, but no questions about them
MAX_FILE_CHARACTERS = 400_000  # longer files are tables

DefinitionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Definition:
    """One function, class or module with its documentation and source."""

    name: str
    module: str
    kind: str
    doc: str
    source: str
    signature: str

    @property
    def short_name(self) -> str:
        """The last part of the qualified name."""
        return self.name.rsplit(".", 1)[-1]


def library_files() -> Iterator[tuple[str, str]]:
    """Yield (module name, text) of each standard library file that is used, in sorted order."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS & set(relative.parts):
            continue
        if relative.as_posix().startswith(SKIPPED_FILES):
            continue
        text = _read_source(path)
        if text is not None and _is_usable(text):
            yield _module_name(relative), text


def _read_source(path: Path) -> str | None:
    """The text of a Python file with tabs expanded; None where it cannot be decoded."""
    try:
        with tokenize.open(path) as stream:
            return stream.read().expandtabs(8)
    except (SyntaxError, UnicodeDecodeError):
        return None


def _is_usable(text: str) -> bool:
    if not text.strip() or len(text) > MAX_FILE_CHARACTERS:
        return False
    return not any(token in text for token in SPECIAL_TOKENS)


def _module_name(relative: Path) -> str:
    parts = relative.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_held_out(module: str) -> bool:
    """Whether a module belongs to a package kept for the evaluation."""
    return module.split(".")[0] in HELD_OUT


def is_test(module: str) -> bool:
    """Whether a module lies in a test folder."""
    return not TEST_FOLDERS.isdisjoint(module.split("."))


def tests_held_out(module: str) -> bool:
    """Whether a module tests a held-out package and would leak it into the training text."""
    subjects = {part.removeprefix("test_") for part in module.split(".")}
    return is_test(module) and not subjects.isdisjoint(HELD_OUT)


def reference_topics() -> dict[str, str]:
    """The language reference by topic, as Python's own help() holds it."""
    return {name: text.strip() for name, text in reference.topics.items()}


def definitions_in(module: str, text: str) -> Iterator[Definition]:
    """Yield the module itself if it has a docstring, then every definition in it."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    doc = ast.get_docstring(tree) or ""
    if doc:
        yield Definition(module, module, "module", doc.strip(), "", "")
    lines = text.splitlines()
    for name, kind, node in _named_nodes(tree.body, module, in_class=False):
        doc = inspect.cleandoc(ast.get_docstring(node) or "")
        yield Definition(name, module, kind, doc, _dedented_source(lines, node), _signature(node))


def _named_nodes(
    body: list[ast.stmt], prefix: str, in_class: bool
) -> Iterator[tuple[str, str, DefinitionNode]]:
    """Yield (qualified name, kind, node) of each function, class and method."""
    for node in body:
        if isinstance(node, DefinitionNode):
            name = f"{prefix}.{node.name}"
            yield name, _kind(node, in_class), node
            if isinstance(node, ast.ClassDef):
                yield from _named_nodes(node.body, name, in_class=True)


def _kind(node: DefinitionNode, in_class: bool) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    return "method" if in_class else "function"


def _signature(node: DefinitionNode) -> str:
    """A function's parameters as they stand in its source; empty for a class."""
    return "" if isinstance(node, ast.ClassDef) else f"({ast.unparse(node.args)})"


def _dedented_source(lines: list[str], node: DefinitionNode) -> str:
    """The lines of a definition, decorators included, shifted to the left margin."""
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    block = lines[first - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] if line.strip() else "" for line in block)
