"""Errors that are built-in errors too: their text, copies, and code that turns one into another."""

import ast
import pickle
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from localspec.core import errors
from localspec.core.errors import LocalspecError, PromptTooLong

SOURCES = Path(errors.__file__).parents[1]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]
BUILT_IN = {
    base.__name__
    for kind in KINDS
    for base in kind.__mro__
    if base.__module__ == "builtins" and base not in LocalspecError.__mro__
}


@pytest.mark.parametrize("kind", KINDS)
def test_text_and_copies(kind: type[LocalspecError]) -> None:
    error = kind("A sentence.", "A step.")
    copied = pickle.loads(pickle.dumps(error))
    for each in (error, copied):
        assert (str(each), each.message, each.hint) == (
            "A sentence. A step.", "A sentence.", "A step."
        )  # fmt: skip
        assert repr(each) == f"{kind.__name__}('A sentence.')" and type(each) is kind
        shown = "".join(traceback.format_exception(each))
        assert shown.endswith(f"{kind.__name__}: A sentence. A step.\n")


def test_figures_are_copied() -> None:
    copied = pickle.loads(pickle.dumps(PromptTooLong("Long.", n_prompt=9, n_ctx=8)))
    assert (copied.n_prompt, copied.n_ctx) == (9, 8)


def test_each_but_the_base_is_a_built_in_error() -> None:
    assert BUILT_IN == {
        "FileNotFoundError", "MemoryError", "OSError", "RuntimeError", "ValueError",
    }  # fmt: skip
    for kind in set(KINDS) - {LocalspecError}:
        assert {base.__name__ for base in kind.__mro__} & BUILT_IN, kind


def names_in(kind: ast.expr | None) -> set[str]:
    found = set[str]()
    for node in [] if kind is None else ast.walk(kind):
        found |= {node.id} if isinstance(node, ast.Name) else set()
        found |= {node.attr} if isinstance(node, ast.Attribute) else set()
    return found


def within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a block, without those of functions in it."""
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from within(ast.iter_child_nodes(node))


def swallowed(source: str) -> list[int]:
    """Lines of blocks in which a LocalspecError may be taken for the built-in error that it is.

    Such a block raises one itself, or is that of a context manager, in which anything may be
    raised; and its first handler for built-in errors comes before one for ours.
    """
    ours, found = {kind.__name__ for kind in KINDS}, []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Try):
            continue
        handlers = [names_in(handler.type) for handler in node.handlers]
        caught = [bool(names & BUILT_IN) for names in handlers]
        before = handlers[: caught.index(True)] if any(caught) else handlers
        if before == handlers or any("LocalspecError" in names for names in before):
            continue
        raised = [each.exc for each in within(node.body) if isinstance(each, ast.Raise)]
        yields = any(isinstance(each, ast.Yield) for each in within(node.body))
        is_late = any(names & ours for names in handlers[len(before) + 1 :])
        if is_late or yields or any(names_in(each) & ours for each in raised):
            found.append(node.lineno)
    return found


def test_no_error_of_ours_is_taken_for_a_built_in_one() -> None:
    files = sorted(SOURCES.rglob("*.py"))
    found = {path: swallowed(path.read_text(encoding="utf-8")) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {} and len(files) > 100


@pytest.mark.parametrize("body", ["yield", "raise FileProblem('A sentence.')"])
def test_such_a_block_is_found(body: str) -> None:
    handler = "    except OSError as error:\n        raise"
    block = f"def f():\n    try:\n        {body}\n"
    assert swallowed(f"{block}{handler}") == [2]
    assert swallowed(f"{block}    except LocalspecError:\n        raise\n{handler}") == []
