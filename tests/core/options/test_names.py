"""Names of options in Python: flags in sentences, and what other libraries call them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import localspec
from localspec.core.errors import UsageError
from localspec.core.options.names import in_python, reword, unknown_option


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Try a smaller --ctx-size.", "Try a smaller ctx_size."),
        ("What fits is --ctx-size 4096.", "What fits is ctx_size=4096."),
        ("Run plain: --draft off.", 'Run plain: draft="off".'),
        ("Or --draft FILE.gguf, if any.", 'Or draft="FILE.gguf", if any.'),
        ("Read it: --no-mmap.", "Read it: mmap=False."),
        ("See the log with --verbose.", "See the log with verbose=True."),
        ("Fetch it: localspec download --yes x.", "Fetch it: localspec download --yes x."),
        ("Ask it by `run --raw`.", "Ask it by `run --raw`."),
        ("With --acceptance rejection it must.", 'With acceptance="rejection" it must.'),
        ("Name it with --draft FILE.gguf.", 'Name it with draft="FILE.gguf".'),
        ("Lower --temp 0.5 or so.", "Lower temperature=0.5 or so."),
        ("Give --draft 4, or /draft 4 in chat; or not.", "Give draft_tokens=4; or not."),
        ("Lend fewer: ggml-rpc-server --device.", "Lend fewer: ggml-rpc-server --device."),
        ("Use pip install --force-reinstall.", "Use pip install --force-reinstall."),
    ],
)
def test_flags_in_a_sentence_become_arguments(text: str, expected: str) -> None:
    assert in_python(text) == expected
    assert in_python(expected) == expected


# Of these only commands and servers show sentences.
OTHERS = (
    "bench cli.py commands display export self_draft server chat/conversation_store.py "
    "chat/slash_commands.py engine/caches llama/quantize.py"
).split()
_COMMAND = (
    r"`[^`]*`|-m pip install|"
    r"\b(localspec|bash|ggml-rpc-server|pip|python|ssh|ulimit) .*?(?=[.;,)] |$)"
)


def texts(source: str) -> Iterator[str]:
    """The texts of a module but for docstrings, with 9 for each value in them."""
    tree = ast.parse(source)
    bodies = [
        node.body
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    left_out = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= set(map(id, node.values))
            parts = (part.value if isinstance(part, ast.Constant) else 9 for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in left_out:
            yield str(node.value)


def test_no_sentence_of_the_library_names_a_flag() -> None:
    folder, found, reworded = Path(localspec.__file__).parent, [], 0
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if any(name == other or name.startswith(f"{other}/") for other in OTHERS):
            continue
        for text in texts(path.read_text(encoding="utf-8")):
            if " " not in text or text.startswith("-"):
                continue  # no sentence: flags of a row
            reworded += in_python(text) != text
            left = re.findall(r"(?<![\w-])--?[a-z][\w-]*", re.sub(_COMMAND, "", in_python(text)))
            found += [f"{name}: {flag}: {text}" for flag in left]
    assert found == [] and reworded > 30


def test_a_reworded_error_shows_its_hint_once() -> None:
    error = UsageError("--draft 4 is too much.", "Try --draft 2.")
    reword(error)
    reword(error)
    assert (error.message, error.hint) == ("draft_tokens=4 is too much.", "Try draft_tokens=2.")
    assert str(error) == "draft_tokens=4 is too much. Try draft_tokens=2."


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("n_ctx", "It is ctx_size here."),
        ("n_gpu_layers", "It is gpu_layers here."),
        ("temp", "It is an option of there: temperature."),
        ("ctx_sise", "Did you mean ctx_size? Options are: ctx_size, gpu_layers."),
        ("zzz", "Options are: ctx_size, gpu_layers."),
    ],
)
def test_another_name_is_answered_with_ours(name: str, hint: str) -> None:
    error = unknown_option(name, {"ctx_size", "gpu_layers"}, "there", {"temperature"})
    assert (error.message, error.hint) == (f"There is no option {name}.", hint)
