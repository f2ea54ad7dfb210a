"""Writes the generated pages of docs/: commands, options, pairs by memory, and the library.

    python scripts/write_reference.py

They come from the command line, the table of options, the catalogue of pairs and the docstrings of
the library. A test compares the files with them.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import typer.main

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import localspec  # noqa: E402
from localspec import cli  # noqa: E402
from localspec.api import OPTIONS  # noqa: E402
from localspec.commands.flags.settings import setting_rows  # noqa: E402
from localspec.core.options.keywords import AnswerKeywords, LoadKeywords  # noqa: E402
from localspec.library.pairs.catalog import Gain, PairSpec  # noqa: E402
from localspec.library.pairs.listing import pair_rows, recommended  # noqa: E402

DOCS = ROOT / "docs"
BY = "<!-- scripts/write_reference.py writes this page. -->"
SIZES = (8, 16, 24, 48)  # GB of memory
SHARED_SIZES = ((16, 8), (32, 8), (32, 16), (64, 24))  # GB of RAM, and of a GPU with it
LONG = 32768  # tokens of context
MEMORY = """# Which pair for this memory

`localspec pairs` shows this list for the machine that it runs on, with the pair to try first.

A GB has 10^9 bytes and a MB 10^6, here, in all messages and on the Hub. Only `--cache-ram` and
`--max-body` count MiB, as llama-server does.

*With caches* adds the KV caches of both models in F16, by their published shapes, for a context of
8,192 or 32,768 tokens, and 0.2 GB of buffers. If layers have caches of different sizes, it is the
size of both files times 1.15. [`localspec inspect NAME`](downloads.md#memory) computes it from the
files.

## The pair to try first

In RAM a pair takes at most half of the memory, so that other programs have room. On a GPU it may
take all of the memory. It is the largest pair that is known to work; if none is known, the largest.
Pairs from which little gain is expected are left out.

TABLE

With RAM and a GPU together, half of the RAM and all of the GPU hold the pair. localspec puts as
many layers on the GPU as fit there. Of a model with experts, `-ncmoe 999` leaves all experts in
RAM, and `-ncmoe N` those of the first N layers. None of these was measured.

SHARED

We ran `qwen2.5-coder-1.5b` alone. The rest of the catalogue is from public reports; `localspec pair
show NAME` names them. For a coding agent a model must call tools and hold a long context:
[agents](../serve/agents.md#which-model) has the sums for 16 and 24 GB.

## All pairs

*RAM*: the pair needs at most half of a computer's memory. *GPU*: a graphics card with that much
memory holds it. *Gain* is a measured or reported speed; (?) stands for
a claim of one user, an expectation, or an estimate. An estimate, as *CPU 1.5x, GPU 1.6x*, follows
from the sizes of both files if 70 % of the drafted tokens are accepted and passes cost as much as
on an EPYC and an RTX 3090. `localspec pairs --memory 16 --vram 8` lists pairs for a machine with
16 GB of RAM and 8 GB on its GPU.
"""
SHARED = 2  # commands that have an option before it is among the shared ones


def pages() -> dict[Path, str]:
    """The text of each page by its file."""
    written = {
        DOCS / "reference" / "commands.md": commands(),
        DOCS / "reference" / "options.md": shared_options(),
        DOCS / "choose" / "memory.md": memory(),
        DOCS / "library" / "reference.md": library(),
    }
    return {path: "\n".join([BY, "", *lines, ""]) for path, lines in written.items()}


def commands() -> Iterator[str]:
    """Every command, with the options that it alone has."""
    yield "# Commands"
    yield ""
    yield "`--help` after a command shows the same, `--help-all` every option."
    yield "Options that several commands have are on the page of [options](options.md)."
    shared = {(option.opts[0], option.help) for option, where in _options() if len(where) >= SHARED}
    for name, command in _commands():
        arguments = [each for each in command.params if not each.opts[0].startswith("-")]
        usage = " ".join([f"localspec {name}", *(each.metavar or "" for each in arguments)])
        yield from ("", f"## `{name}`", "", _sentence(command.help), "", "```text", usage, "```")
        own = [each for each in command.params if each.opts[0].startswith("-")]
        own = [each for each in own if (each.opts[0], each.help) not in shared]
        if own := [each for each in own if not each.hidden]:
            yield from ("", "|option|what|", "|---|---|")
            yield from (f"|{_spelled(each)}|{_cell(each.help)}|" for each in own)


def shared_options() -> Iterator[str]:
    """The options that several commands have, by their panel in the help."""
    names = {f"LOCALSPEC_{name.upper()}": name for name in setting_rows()}
    yield "# Options"
    yield ""
    yield "Options that several commands have. Each with a name in the column *setting* may also be"
    yield "kept by `localspec config set NAME VALUE`, or given in the environment variable"
    yield "`LOCALSPEC_NAME`, in capitals: `temperature` as `LOCALSPEC_TEMPERATURE`. The order is in"
    yield "[settings](../use/settings.md)."
    panels: dict[str, list[str]] = defaultdict(list)
    for option, where in _options():
        if len(where) < SHARED or option.hidden or not option.opts[0].startswith("-"):
            continue
        setting = names.get(option.envvar or "", "")
        setting = f"`{setting}`" if setting else ""
        used = ", ".join(where)
        panel = option.rich_help_panel or "All kinds"
        panels[panel].append(f"|{_spelled(option)}|{setting}|{_cell(option.help)}|{used}|")
    for panel, rows in panels.items():
        yield from ("", f"## {panel}", "", "|option|setting|what|commands|", "|---|---|---|---|")
        yield from rows


def memory() -> Iterator[str]:
    """The pairs of the catalogue by the memory that they take."""
    rows = [row for row in pair_rows([]) if row.spec]
    first, together, every = re.split("TABLE\n|SHARED\n", MEMORY)
    yield from first.splitlines()
    yield "|memory|in RAM|download (with caches)|on a GPU|download (with caches)|"
    yield "|---|---|---|---|---|"
    for size in SIZES:
        cells = [f"{size} GB"]
        for memory in (size, 2 * size):  # of which a pair takes half
            best = recommended(rows, memory * 10**9)
            assert best and best.spec
            sizes = f"{best.spec.size_gb:.1f} GB ({best.spec.memory_gb():.1f})"
            cells += [f"`localspec chat {best.name}`", sizes]
        yield f"|{'|'.join(cells)}|"
    yield from together.splitlines()
    yield "|RAM and GPU|command|download (with caches)|"
    yield "|---|---|---|"
    for ram, gpu in SHARED_SIZES:
        best = recommended(rows, (ram + 2 * gpu) * 10**9, shared=True)
        assert best and best.spec
        experts = " -ncmoe 999" if best.experts else ""
        sizes = f"{best.spec.size_gb:.1f} GB ({best.spec.memory_gb():.1f})"
        yield f"|{ram} GB and {gpu} GB|`localspec chat {best.name}{experts}`|{sizes}|"
    yield from (*every.splitlines(), "")
    columns = f"with caches|of {LONG:,} tokens|{'|'.join(f'{n} GB' for n in SIZES)}"
    yield f"|pair|target|draft|download|{columns}|gain|"
    yield "|---" * (len(SIZES) + 7) + "|"
    known = [(row.spec, row.gain) for row in rows if row.spec]
    yield from (_pair_row(*each) for each in sorted(known, key=lambda each: each[0].size_gb))


def library() -> Iterator[str]:
    """Signatures and docstrings of the library's public names."""
    yield "# Names of the library"
    yield ""
    yield "The [guide](api.md) has examples, and a list of [errors](api.md#errors)."
    yield from ("", "## load", "", *_signature(localspec.load), "", _doc(localspec.load))
    for cls in (localspec.Model, localspec.Answer, localspec.Piece):
        yield from ("", f"## {cls.__name__}", "", _doc(cls))
        if declared := _declared(cls):
            yield from ("", "|field|type|", "|---|---|")
            yield from (f"|`{name}`|`{_cell(kind)}`|" for name, kind in declared.items())
        for name, member in vars(cls).items():
            if not name.startswith("_") and isinstance(member, FunctionType | property):
                signature = [] if isinstance(member, property) else [*_signature(member), ""]
                yield from ("", f"### {cls.__name__}.{name}", "", *signature, _doc(member))
    answer = _declared(AnswerKeywords)
    yield from ("", "## Options of loading", "", "Keywords of `load`, besides those of an answer.")
    yield from _keywords({k: v for k, v in _declared(LoadKeywords).items() if k not in answer})
    yield from ("", "## Options of an answer", "")
    yield f"Keywords of `load` and of each answer. {_doc(localspec.GenerateOptions)}"
    yield from _keywords(answer)


def _pair_row(pair: PairSpec, expected: Gain | None) -> str:
    """A row of the table of all pairs."""
    total = pair.memory_gb()
    is_known = pair.target.cache_kb is not None and pair.target.context >= LONG
    long = f"{pair.memory_gb(LONG):.1f} GB" if is_known else ""
    fits = ["RAM, GPU" if 2 * total <= n else "GPU" if total <= n else "" for n in SIZES]
    assert expected, pair.name
    gain = expected.what + ("" if pair.gain and pair.gain.source else " (?)")
    draft = f"{pair.draft.size_gb:.1f} GB {pair.draft.quantization}" if pair.draft else "its heads"
    draft = draft.removesuffix(" unknown")
    target = f"{pair.target.size_gb:.1f} GB {pair.target.quantization}"
    sizes = f"{target}|{draft}|{pair.size_gb:.1f} GB|{total:.1f} GB|{long}"
    return f"|`{pair.name}`|{sizes}|{'|'.join(fits)}|{_cell(gain)}|"


def _commands(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each command that help shows, by its name."""
    command = command or typer.main.get_command(cli.app)
    below = getattr(command, "commands", {})
    if name and (not below or command.invoke_without_command):
        yield name, command
    for each, found in below.items():
        if not found.hidden:
            yield from _commands(found, f"{name} {each}".strip())


def _options() -> list[tuple[Any, list[str]]]:
    """Each option with the commands that have it."""
    found: dict[tuple[object, ...], tuple[Any, list[str]]] = {}
    for name, command in _commands():
        for option in command.params:
            found.setdefault((*option.opts, option.help), (option, []))[1].append(name)
    return list(found.values())


def _spelled(option: Any) -> str:
    """The spellings of an option, with the word for its value."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return f"{names} {_cell(option.metavar)}" if option.metavar else names


def _sentence(text: str) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _signature(function: Callable[..., object]) -> Iterator[str]:
    """A function as it is declared, an argument a line."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    node.body, node.decorator_list = [ast.Pass()], []
    node.args.args = [each for each in node.args.args if each.arg != "self"]
    for index, default in enumerate(node.args.kw_defaults):
        if isinstance(default, ast.Lambda):
            node.args.kw_defaults[index] = ast.Constant(...)
    (inside,) = re.findall(r"def (.*):\n", ast.unparse(node))
    inside = re.sub(r"(?<=\()(?=\w)|(?<=, )(?=\*|\w+: )", "\n    ", inside)
    yield from ("```text", *(line.rstrip() for line in inside.splitlines()), "```")


def _doc(thing: object) -> str:
    text, _, _ = (thing.__doc__ or "").partition(OPTIONS)
    return inspect.cleandoc(text).replace("``", "`")


def _declared(kind: type) -> dict[str, str]:
    """The fields of a class with their types, as they are declared."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _keywords(declared: dict[str, str]) -> Iterator[str]:
    """A row for each option, with its help: `--no-mmap` is False."""
    yield from ("", "|keyword|type|what|", "|---|---|---|")
    for name, kind in declared.items():
        row = setting_rows().get(name)
        text = row.help_text if row else ""
        if row and row.flags[0].startswith("--no-"):
            text = f"False: {text[0].lower()}{text[1:]}"
        yield f"|`{name}`|`{_cell(kind)}`|{_cell(text)}|"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
