"""README and docs: short, with links that lead somewhere, commands that exist, code that runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from localspec import cli

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """What stands between fences of this language; a longer fence may hold shorter ones."""
    found: list[str] = []
    fence = opened = ""
    body: list[str] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        if not fence and (start := re.fullmatch(r"(`{3,})(\w*)", line)):
            (fence, opened), body = start.groups(), []
        elif fence and line == fence:
            if opened == language:
                found.append("".join(f"{each}\n" for each in body))
            fence = ""
        else:
            body.append(line)
    return found


def command_lines() -> list[list[str]]:
    """What the pages tell to type after ``localspec``, a list of words for each line."""
    shell = "".join(block for page in PAGES for block in blocks(page, "sh"))
    lines = shell.replace("\\\n", " ").splitlines()
    typed = [line.partition("localspec ")[2] for line in lines if re.match(r"localspec ", line)]
    return [shlex.split(line, comments=True) for line in typed]


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 900


def test_the_readme_shows_an_answer_and_a_speed() -> None:
    text = README.read_text(encoding="utf-8")
    assert any(re.search(r"tok/s · acceptance \d+%", block) for block in blocks(README, "text"))
    assert re.search(r"^## Speed\n.*?^\|.*tok/s.*\|$", text, re.DOTALL | re.MULTILINE)


def test_links_lead_somewhere() -> None:
    missing = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
        if not target.startswith("https://") and not (page.parent / target).exists()
    ]
    assert missing == []


def test_every_page_is_reachable_from_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    assert [page.stem for page in PAGES[1:] if page.stem not in text] == []


def test_the_tree_names_every_package_and_no_other() -> None:
    (tree,) = [block for block in blocks(README, "text") if block.startswith("localspec/\n")]
    named = set(re.findall(r"^  (\S+)", tree, re.MULTILINE))
    there = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "localspec").iterdir()
        if path.suffix in ("", ".py") and not path.name.startswith("__")
    }
    assert named == there


def test_commands_and_flags_of_the_pages_exist() -> None:
    program = typer.main.get_command(cli.app)
    lines = command_lines()
    assert len(lines) > 10
    unknown = []
    for words in lines:
        command = program
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]  # type: ignore[attr-defined]
        known = {
            name for option in command.params for name in (*option.opts, *option.secondary_opts)
        }
        unknown += [word for word in words if re.match(r"--?[a-z]", word) and word not in known]
        if command is program:
            unknown += words
    assert unknown == []


@pytest.mark.llama
def test_the_library_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = blocks(README, "python")
    monkeypatch.chdir(ROOT)
    exec(compile(example, "README.md", "exec"), {})
    assert re.search(r"\n\d+% of the drafted tokens were accepted\n$", capsys.readouterr().out)
