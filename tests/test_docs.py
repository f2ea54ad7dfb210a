"""README and docs: short, with links that lead somewhere, commands that exist, code that runs."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

from localspec import cli
from localspec.commands.flags.serving import ServingFlags
from localspec.core.options.option import Bounds, options
from localspec.core.options.sampling_params import SamplingParams
from localspec.core.origins import ORIGINS
from localspec.engine.session.session import Session
from localspec.metadata.checks.heads import LAYER_TAPS
from localspec.metadata.draft_kind import MTP_CHAINS, MTP_GRAPHS
from localspec.server.api.chat import ChatRequest
from localspec.server.api.completions import CompletionRequest
from localspec.server.metrics import Metrics
from scripts import write_reference
from tests.support.llama.today import table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
RESULTS = DOCS / "measurements" / "results.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]


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
    typed = re.findall(r"^localspec (.+)", shell.replace("\\\n", " "), re.MULTILINE)
    for page in PAGES:
        typed += re.findall(r"`localspec ([^`]+)`", page.read_text(encoding="utf-8"))
    return [shlex.split(line, comments=True) for line in typed]


def section(page: Path, heading: str) -> str:
    """What stands below a heading of the second level."""
    text = page.read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return str(found)


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, each with its anchor."""
    found = re.findall(r"\]\((?!https://)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8"))
    return [((page.parent / target).resolve() if target else page, at) for target, at in found]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_readme_shows_an_answer_and_its_speed() -> None:
    shown = r"^[\d.]+ tok/s · .*\nMeasured: [\d.]+ times as fast as plain decoding"
    assert any(re.search(shown, block, re.MULTILINE) for block in blocks(README, "text"))


def test_the_figures_of_the_readme_have_their_source() -> None:
    """Rows of measurements are rows of the results; gains are figures there, or quotients."""
    results = RESULTS.read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\d.*", section(README, "Measured"), re.MULTILINE)
    assert len(rows) > 3 and [row for row in rows if row not in results] == []
    cells = [
        row.split("|")
        for row in re.findall(r"^\|.*\]\(.*", section(README, r"Does it pay for you\?"), re.M)
    ]
    assert len(cells) >= 5
    known = set(re.findall(r"\d+\.\d+", results))
    for _, _, _, gain, source, *_ in cells:
        assert re.search(r"results\.md#\S+\),.* \d{4}-\d\d-\d\d$", source), source
        pairs = re.findall(r"([\d.]+) \(([\d.]+) for ([\d.]+)", gain)
        quotients = {
            ratio for ratio, new, old in pairs if f"{float(new) / float(old):.2f}" == ratio
        }
        figures = set(re.findall(r"\d+\.\d+", gain))
        assert figures and figures <= known | quotients, gain


def test_the_first_pairs_of_the_readme_are_the_catalogues() -> None:
    rows = re.findall(r"^\|\d+ GB\|.*", section(README, "First chat"), re.MULTILINE)
    every = (DOCS / "choose" / "memory.md").read_text(encoding="utf-8")
    assert len(rows) > 2 and [row for row in rows if f"\n{row}" not in every] == []


def test_generated_pages_are_up_to_date() -> None:
    """`python scripts/write_reference.py` writes them."""
    found = {path: path.read_text(encoding="utf-8") for path in write_reference.pages()}
    assert found == write_reference.pages()


def test_the_long_prompt_fits_into_the_context_of_the_demo() -> None:
    """Of 2,048 tokens; one is more than two bytes of English text."""
    example = section(DOCS / "use" / "scripting.md", "A long prompt, read once")
    pages = set(re.findall(r"\(cat (\S+); echo", example))
    assert [(ROOT / page).stat().st_size < 2 * 2048 for page in pages] == [True]


def test_links_lead_somewhere() -> None:
    missing = [
        f"{page.name}: {target.name}#{at}"
        for page in PAGES
        for target, at in links(page)
        if not target.exists() or (at and at not in anchors(target))
    ]
    assert missing == []


def test_every_page_is_linked_and_in_the_navigation() -> None:
    """From the README by two links at most, and in the site's menu; a level has at most twelve."""
    near = {target for page in (README, DOCS / "index.md") for target, _ in links(page)}
    assert [page for page in PAGES[1:] if page not in near] == []
    site = tomllib.loads((DOCS / "zensical.toml").read_text(encoding="utf-8"))["project"]
    groups = [pages for group in site["nav"] for pages in group.values()]
    assert max(len(groups), *map(len, groups)) <= 12
    named = [DOCS / page for pages in groups for page in pages]
    assert sorted(named) == PAGES[1:]


def test_the_tree_names_every_package_and_no_other() -> None:
    page = DOCS / "internals" / "architecture.md"
    (tree,) = [block for block in blocks(page, "text") if block.startswith("localspec/\n")]
    named = set(re.findall(r"^  (\S+)", tree, re.MULTILINE))
    there = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "localspec").iterdir()
        if path.suffix in ("", ".py") and not path.name.startswith("__")
    }
    assert named == there


def test_files_that_architecture_names_exist() -> None:
    """A name without its folder is in that of one before it in the row."""
    named, missing = 0, []
    for row in re.findall(
        r"^\|.*", (DOCS / "internals" / "architecture.md").read_text(), re.MULTILINE
    ):
        folders = [ROOT, ROOT / "localspec"]
        for name in re.findall(r"`([\w./-]+(?:\.(?:py|sh|md|toml|txt|js)|/))`", row):
            found = next((f / name for f in reversed(folders) if (f / name).exists()), None)
            if found is None:
                missing.append(name)
            else:
                folders.append(found if found.is_dir() else found.parent)
            named += 1
    assert missing == [] and named > 40


def test_programs_that_pages_name_exist_and_have_the_flags() -> None:
    """A name is that of a file or the end of its path."""
    others = {"/a.py", "/code.py", "/serve.sh", "/convert_hf_to_gguf.py"}  # of users, of llama.cpp
    removed = re.search(r"commit \w+ has `benchmarks/` with\n(.*)\n", RESULTS.read_text())
    assert removed is not None
    others |= {f"/{name}.py" for name in re.findall(r"`(\w+)`", removed[1])}
    found = (path for name in ("localspec", "benchmarks", "scripts", "tests", "docs")
             for path in (ROOT / name).rglob("*.*"))  # fmt: skip
    there = {path.relative_to(ROOT).as_posix(): path for path in found}
    ends = {f"/{name[i:]}" for name in there for i in range(len(name)) if name[i - 1] == "/"}
    named, unknown = 0, []
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for name in re.findall(r"[\w./-]*\w\.(?:py|sh|js)\b", text):
            end = "/" + re.sub(r"^(\.\.?/)+", "", name)
            named += 1
            if end not in ends | others and end[1:] not in there:
                unknown.append(f"{page.name}: {name}")
        for name, words in re.findall(r"(?:python|bash) (\w+/[\w/]+\.\w+)([^`\n#&]*)", text):
            code = there[name].read_text() + (ROOT / "benchmarks" / "common.py").read_text()
            known = set(re.findall(r"[^\W_]\w*", code.replace("-", "_")))  # or of a field
            flags = [each.replace("-", "_") for each in re.findall(r" --(\w[\w-]*)", words)]
            unknown += [f"{page.name}: {name} {flag}" for flag in flags if flag not in known]
    assert unknown == [] and named > 100


def test_commands_and_flags_of_the_pages_exist() -> None:
    program = typer.main.get_command(cli.app)
    lines = command_lines()
    assert len(lines) > 50
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
            unknown += [word for word in words if not word.startswith("-")]
    assert unknown == []


@pytest.mark.llama
@pytest.mark.parametrize("page", ["README.md", "docs/library/api.md"])
def test_the_library_examples_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    examples = blocks(ROOT / page, "python")
    for example in examples:
        exec(compile(example, page, "exec"), {"__name__": "__main__"})
        assert capsys.readouterr().out.strip()
    assert examples


def test_the_page_of_models_says_what_is_tested() -> None:
    text = (DOCS / "choose" / "models.md").read_text(encoding="utf-8")
    shown = [line for line in text.splitlines() if re.match(r"\|[a-z][\w-]+\|", line)]
    assert shown[1:] == table()  # below its head
    items = re.findall(r"^- (\w[\w-]+(?:,\s+[\w-]+)+)$", text, re.M)
    lists = {tuple(re.split(r",\s+", item)) for item in items}
    known = (MTP_CHAINS, MTP_GRAPHS - MTP_CHAINS, LAYER_TAPS)
    assert {tuple(sorted(names)) for names in known} <= lists


def server_pages() -> str:
    """The texts about the server, one behind the other."""
    pages = [*(DOCS / "serve").glob("*.md"), DOCS / "reference" / "http.md"]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def test_the_pages_of_the_server_names_every_flag_field_and_figure() -> None:
    text = server_pages()
    serve = typer.main.get_command(cli.app).commands["serve"]  # type: ignore[attr-defined]
    own = [each for each in serve.params if getattr(each, "rich_help_panel", None) == "Server"]
    assert own
    fields = ChatRequest.model_fields | CompletionRequest.model_fields
    metrics = Metrics(Session([])).text().decode()
    figures = re.findall(r"^# TYPE localspec_(\S+) ", metrics, re.M)
    figures = [name for name in figures if not name.endswith("_created")]
    figures += ORIGINS
    codes = re.findall(r"`([^`\n]+)`", text)
    named = {name for code in codes for name in re.findall(r"[\w-]+", code)}
    assert {each.opts[0] for each in own} | fields.keys() | set(figures) <= named


def test_the_page_of_sampling_has_the_bounds_of_every_number() -> None:
    """Flag, default, bounds, and the bounds in a request of the server."""

    def bounds(of: Bounds[float]) -> str:
        return " to ".join(f"{value:,.12g}" for value in of)

    rows = []
    for row in options(SamplingParams).values():
        if row.bounds is None:
            continue
        asked = row.asked or row.bounds
        request = row.request if isinstance(row.request, Bounds) else asked
        default = "random" if row.name == "seed" else f"{row.default:g}"
        served = bounds(request) if row.request else ""
        rows.append(f"|`{row.flags[0]}`|{default}|{bounds(asked)}|{served}|")
    lines = (DOCS / "use" / "sampling.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("|flag|default|bounds|in a request|") + 2
    assert lines[start : start + len(rows) + 1] == [*rows, ""], "\n".join(rows)


def test_the_page_of_sampling_names_every_sampler() -> None:
    text = (DOCS / "use" / "sampling.md").read_text(encoding="utf-8")
    table = text.partition("|step|flags|off at|")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(--[\w-]+)`", table))
    flags = {row.flags[0] for row in options(SamplingParams).values()}
    assert named == flags - {"--seed", "--acceptance"}


def test_the_pages_of_the_server_has_the_defaults() -> None:
    text = server_pages()
    shown = dict(re.findall(r"^\|`(--[\w-]+)`[^|]*\|([\d.]+)[^|]*\|", text, re.MULTILINE))
    rows = {row.flags[0]: row for row in options(ServingFlags).values()}
    assert len(shown) > 4
    assert {flag: float(value) for flag, value in shown.items()} == {
        flag: float(rows[flag].default) for flag in shown
    }


def flag_rows() -> list[tuple[list[str], str]]:
    """llama.cpp's flags of each row, and the cell that says what they are here."""
    text = (DOCS / "reference" / "llama-cpp-flags.md").read_text(encoding="utf-8")
    cells = [line.split("|") for line in text.splitlines() if line.startswith("|`")]
    return [(re.findall(r"`(-[\w-]+)`", there), here) for _, there, here, *_ in cells]


def our_flags() -> set[str]:
    """Every option of run and chat."""
    program = typer.main.get_command(cli.app)
    commands = [program.commands[name] for name in ("run", "chat")]  # type: ignore[attr-defined]
    options = [option for command in commands for option in command.params]
    return {"-h", "--help"} | {
        name for option in options for name in (*option.opts, *option.secondary_opts)
    }


def llama_cpp_flags() -> list[list[str]]:
    """The options of llama-cli, llama-completion and llama-speculative, each with its spellings."""
    lines = (ROOT / "tests" / "data" / "llama_cpp_flags.txt").read_text().splitlines()
    return [line.split() for line in lines]


def test_flags_of_llama_cpp_exist_where_they_are_said_to() -> None:
    ours, same = our_flags(), [flags for flags, here in flag_rows() if here == "same"]
    missing = {flag for flags in same for flag in flags} - ours
    assert missing == set()
    elsewhere = [here for _, here in flag_rows() if here not in ("same", "–")]
    assert len(elsewhere) > 10
    named = {flag for here in elsewhere for flag in re.findall(r"`(-[\w-]+)`", here)}
    assert named - ours == set()


def test_every_flag_of_llama_cpp_has_one_row() -> None:
    told = [flag for flags, _ in flag_rows() for flag in flags]
    assert sorted(told) == sorted(set(told))
    assert [flags for flags in llama_cpp_flags() if not set(flags) <= set(told)] == []


def test_what_is_spelled_as_in_llama_cpp_is_in_the_table() -> None:
    spelled = our_flags() & {flag for flags in llama_cpp_flags() for flag in flags}
    said_here = {flag for flags, here in flag_rows() if here != "–" for flag in flags}
    assert spelled - said_here == set()
    assert len(spelled) > 60


def test_the_commands_that_compile_work_in_any_folder(tmp_path: Path) -> None:
    """The words that the build reads from CMAKE_ARGS, in a folder with an odd name."""
    folder, programs = tmp_path / "Ann's own $copy", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    read = "import os, shlex; print(shlex.split(os.environ['CMAKE_ARGS']))"
    for name in "pip", "uv":
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -c "{read}"\n')
        (programs / name).chmod(0o755)
    shell = "".join(block for page in PAGES for block in blocks(page, "sh"))
    typed = re.findall(r"^ *(CMAKE_ARGS=\"-DCMAKE_PROJECT.*?)(?: &&)?$", shell, re.MULTILINE)
    assert len(typed) >= 4
    script = (ROOT / "scripts" / "test.sh").read_text("utf-8")
    (arguments,) = re.findall(r"llama_only=(\".*\")$", script, re.MULTILINE)
    for line in [*typed, f"CMAKE_ARGS={arguments} pip --no-cache"]:
        assert "--no-cache" in line, "pip's cache would give the build to other projects"
        path = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", line], cwd=folder, env=path, capture_output=True)
        expected = [f"-DCMAKE_PROJECT_INCLUDE={folder}/scripts/llama_only.cmake"]
        assert done.stdout.decode().strip() == str(expected), done.stderr


def test_sizes_are_in_one_unit() -> None:
    """Decimal, but for two options that count MiB as llama-server's do, and its own output."""
    units = re.compile(r"\b[KMG]iB\b")
    found = [
        f"{page.name}: {line}"
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if units.search(line) and not re.search(r"--(cache-ram|max-body)|MiB free\)", line)
    ]
    assert found == []
