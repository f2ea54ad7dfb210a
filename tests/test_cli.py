"""The program as a whole: help, version, streams that are closed or narrow, what is imported."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from localspec import __version__, cli
from tests.support.command import Command, Done, process
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.usefixtures("shared_cache")

COMMANDS = (
    *(
        "demo",
        "doctor",
        "run",
        "chat",
        "bench",
        "tune",
        "check",
        "inspect",
        "list",
        "suggest",
        "pairs",
    ),
    *("download", "verify", "rm", "serve", "export", "ps", "stop", "top"),
)


@pytest.mark.llama
@pytest.mark.parametrize(
    ("closed", "code"), [("<&-", 0), (">&-", 0), ("2>&-", 0), (">/dev/null", 0)]
)
def test_closed_streams_are_no_traceback(tiny: TinyFiles, closed: str, code: int) -> None:
    words = (
        f'"{sys.executable}" -m localspec run -m "{tiny.target}" -t 1 -n 2 --draft off ab {closed}'
    )
    done = subprocess.run(
        ["sh", "-c", words], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code and "Traceback" not in done.stderr


@pytest.mark.llama
def test_a_stream_that_cannot_show_every_character(tiny: TinyFiles) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = process(
        *("run", "-m", tiny.target, "-t", "1", "-n", "20", "--seed", "1", "--draft", "off", "ab"),
        env=environment,
    )
    assert done.returncode == 0 and "?" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.llama
def test_a_standard_input_that_cannot_be_read_is_none(tiny: TinyFiles) -> None:
    """As nohup leaves it, when it is called in a terminal."""
    flags = ("-m", tiny.target, "-t", "1", "-n", "2", "--draft", "off")
    with Path(os.devnull).open("w") as unreadable:
        done = process("run", *flags, "ab", stdin=unreadable)
        assert done.returncode == 0 and " tok/s · stopped at " in done.stderr
        none = process("run", *flags, stdin=unreadable)
        assert none.returncode == 2 and "There is no prompt." in none.stderr
        chat = process("chat", *flags, stdin=unreadable)
    assert chat.returncode == 1 and "Traceback" not in chat.stderr
    assert "Error: Standard input cannot be read: Bad file descriptor." in chat.stderr


def test_a_window_size_that_is_none() -> None:
    wide = process("check", "none.gguf", "none.gguf", env=os.environ | {"COLUMNS": "80"})
    assert wide.stderr.startswith("Error: ")
    for columns in ("0", "\u00b2", "-5", "", "9" * 30):
        done = process("check", "none.gguf", "none.gguf", env=os.environ | {"COLUMNS": columns})
        assert (done.returncode, done.stderr) == (wide.returncode, wide.stderr), columns
    usage = process("--help", env=os.environ | {"COLUMNS": "\u00b2"})
    assert usage.returncode == 0 and "localspec demo" in usage.stdout


@pytest.mark.parametrize("locale", [{"PYTHONIOENCODING": "utf-8:strict"}, {"PYTHONUTF8": "1"}])
def test_bytes_that_are_no_text_in_a_pipe(tiny: TinyFiles, locale: dict[str, str]) -> None:
    done = process(
        *("run", "-m", tiny.target, "-t", "1", "-n", "2", "--draft", "off", "ab"),
        text=False, stdin=None, input=b"caf\xe9 \xff",
        env=os.environ | locale,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: The piped input is not UTF-8")  # type: ignore[arg-type]
    assert b"Traceback" not in done.stderr  # type: ignore[operator]


def test_help_of_everything(localspec: Command) -> None:
    top = localspec("--help")
    assert (top.code, top.err) == (0, "")
    assert localspec("-h").out == top.out
    assert "localspec demo" in top.out and "Models and pairs" in top.out
    assert " pull " not in top.out
    for command in COMMANDS:
        assert f"│ {command} " in top.out
        done = localspec(command, "--help")
        assert (done.code, done.err) == (0, "")
        assert f"localspec {command} [OPTIONS]" in done.out
        without = ("chat", "serve", "export", "stop", "rm")
        assert bool(re.search(r"--json\s", done.out)) == (command not in without)


def test_a_paragraph_of_the_help_breaks_where_the_line_is_full() -> None:
    done = process("export", "--help", env=os.environ | {"COLUMNS": "400"})
    assert "or with auto, it is the best fixed one by the figures that auto learnt" in done.stdout


def test_help_of_pairs(localspec: Command) -> None:
    for command in ("add", "list", "show", "remove"):
        done = localspec("pair", command, "--help")
        assert done.code == 0 and f"localspec pair {command} [OPTIONS]" in done.out


def test_version_and_nothing(localspec: Command) -> None:
    assert localspec("--version") == Done(0, f"localspec {__version__}\n", "")
    nothing = localspec()
    assert nothing.code == 2 and "Usage: " in nothing.out and "localspec demo" in nothing.out
    unknown = localspec("frobnicate")
    assert unknown.code == 2 and "No such command 'frobnicate'" in unknown.sentences


def test_python_m_localspec() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"localspec {__version__}\n", "")


# Ctrl-C at the moment when a module is looked for.
INTERRUPTED = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            signal.raise_signal(signal.SIGINT)
form, module = sys.argv.pop(1), sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
if form == "script":
    from localspec.__main__ import main
    main()
import runpy
runpy.run_module("localspec", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("form", "module", "arguments"),
    [
        ("script", "localspec.cli", ["--version"]),
        ("module", "localspec.cli", ["--version"]),
        ("module", "typer", ["--version"]),
        ("script", "localspec.commands.models.models", ["--version"]),
        ("script", "localspec.engine.engine", ["run", "-m", "TARGET", "--draft", "off", "ab"]),
        ("module", "numpy", ["run", "-m", "TARGET", "--draft", "off", "ab"]),
    ],
)
def test_ctrl_c_during_an_import(
    tiny: TinyFiles, form: str, module: str, arguments: list[str]
) -> None:
    given = [str(tiny.target) if text == "TARGET" else text for text in arguments]
    command = [sys.executable, "-c", INTERRUPTED, form, module, *given]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_the_script_begins_where_python_m_does() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["scripts"] == {"localspec": "localspec.__main__:main"}


HEAVY = ("llama_cpp", "gguf", "huggingface_hub", "jinja2")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], (*HEAVY, "numpy")),
        (["run", "--help"], (*HEAVY, "numpy")),
        (["chat", "--help"], (*HEAVY, "numpy")),
        (["serve", "--help"], (*HEAVY, "numpy", "fastapi", "uvicorn")),
        (["--version"], (*HEAVY, "numpy", "rich")),
        (["check", "TARGET", "DRAFT"], HEAVY[1:3]),  # its devices are a part of what is kept
        (["run", "-m", "TARGET"], HEAVY),
        (["chat", "-m", "TARGET", "--temp", "-1"], HEAVY),
        (["bench", "--help"], (*HEAVY, "numpy")),
        (["bench", "-m", "TARGET", "--tasks", "none"], ("llama_cpp", "gguf")),
    ],
)
def test_what_needs_no_library_loads_none(
    tiny: TinyFiles, arguments: list[str], absent: tuple[str, ...]
) -> None:
    names = {"TARGET": str(tiny.target), "DRAFT": str(tiny.draft)}
    given = [names.get(text, text) for text in arguments]
    code = (
        "import sys\nfrom localspec.cli import main\ntry:\n    main()\nfinally:\n"
        "    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True, input=""
    )
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "localspec.cli" in loaded
    assert loaded.isdisjoint(absent)


def test_the_commands_are_those_of_the_readme() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    shell = "".join(re.findall(r"```sh\n(.*?)```", readme, re.DOTALL))
    used = set(re.findall(r"(?:^|\| |/bin/)localspec (\w+)", shell, re.MULTILINE))
    known = {
        command.name or command.callback.__name__  # type: ignore[union-attr]
        for command in cli.app.registered_commands
        if not command.hidden
    }
    groups = {group.name for group in cli.app.registered_groups}
    assert used and used <= known | groups
    assert known == set(COMMANDS) and groups == {"pair", "draft", "config", "sessions"}


@pytest.mark.parametrize(
    ("word", "meant"),
    [("help", "--help"), ("ask", "run MODEL PROMPT"), ("demo.gguf", "chat demo.gguf")],
)
def test_words_of_other_programs_name_the_command_here(
    word: str, meant: str, localspec: Command
) -> None:
    done = localspec(word)
    assert done.code == 2 and f"Here it is: localspec {meant} " in done.err


_COMPLETING = """
import socket, sys
socket.socket.connect = None
sys.argv = ["localspec"]
from localspec.cli import main
try:
    main()
finally:
    assert not {"llama_cpp", "numpy", "httpx"} & set(sys.modules), "slow"
"""


_HUB_FILE = "hub/models--org--small-GGUF/snapshots/0a1b/small-Q8_0.gguf"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("run de", {"demo"}),
        ("chat -m my-p", {"my-pair"}),
        ("run --draft-model org/", {"org/small-GGUF", "org/small-GGUF/small-Q8_0.gguf"}),
        ("run --draft o", {"off", "olmo2-32b"}),
        ("run -hf org/small-GGUF/", {"org/small-GGUF/small-Q8_0.gguf"}),
        ("run -ctk q8", {"q8_0"}),
        ("export demo --to vl", {"vllm"}),
        ("pair remove m", {"my-pair"}),
        ("config set temp", {"temperature"}),
    ],
)
def test_the_shell_completes_names(tmp_path: Path, line: str, offered: set[str]) -> None:
    for file in (_HUB_FILE, "models/pairs/my-pair.toml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"GGUF")
    asked = {"_LOCALSPEC_COMPLETE": "complete_bash", "COMP_WORDS": f"localspec {line}"}
    places = {"LOCALSPEC_MODELS": f"{tmp_path}/models", "HF_HUB_CACHE": f"{tmp_path}/hub"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPLETING],
        env={**os.environ, **asked, **places, "COMP_CWORD": str(len(line.split()))},
        capture_output=True,
        text=True,
    )
    assert set(done.stdout.split()) >= offered and done.stderr == "", done


LONG = "a" * 300  # more than file systems let a name have
TOO_LONG: list[list[str]] = [
    ["inspect", LONG],
    ["check", LONG, LONG],
    ["verify", LONG],
    ["suggest", LONG],
    ["rm", LONG],
    ["pair", "add", "mine", LONG],
    ["export", LONG, "--to", "vllm"],
    ["run", LONG, "hi"],
    ["run", f"{LONG} {LONG}"],
    ["chat", LONG],
    ["bench", LONG],
    ["serve", LONG],
    ["draft", "make", LONG],
    ["config", "set", "--for", LONG, "top-k", "3"],
    ["config", "set", "target", LONG],
    ["config", "set", "models-dir", LONG],
    *(
        ["run", "demo", "hi", "-n", "1", flag, LONG]
        for flag in (
            "--file", "--grammar-file", "--json-schema-file", "--chat-template",
            "--chat-template-file", "--lora", "--lookup-files", "--lookup-cache", "--prompt-cache",
        )
    ),
    ["run", "demo", "--batch", LONG, "-o", "answers"],
    ["run", "demo", "hi", "--trace", f"{LONG}.html"],
    ["bench", "demo", "--prompts", LONG],
    ["serve", "demo", "--slot-save-path", LONG],
    ["chat", "demo", "--session", LONG],
]  # fmt: skip


@pytest.mark.llama
@pytest.mark.parametrize("arguments", TOO_LONG, ids=lambda given: " ".join(given)[:24])
def test_a_text_too_long_for_a_path_is_no_traceback(
    localspec: Command,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("LOCALSPEC_CONFIG", "LOCALSPEC_MODELS"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    done = localspec(*arguments)  # which raises what would be a traceback
    assert done.code in (0, 1, 2) and (done.code == 0 or done.err or done.out)


def test_settings_in_a_place_that_cannot_be(
    localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (LONG, "/dev/null/settings.toml"):
        monkeypatch.setenv("LOCALSPEC_CONFIG", place)
        done = localspec("config", "set", "top-k", "3")
        assert done.code == 1 and "Error: " in done.err and place[:30] in done.err
