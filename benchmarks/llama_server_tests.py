"""llama.cpp's own tests of llama-server, run against `localspec serve`.

    pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36
    tar xf llama_cpp_python-0.3.36.tar.gz
    python benchmarks/llama_server_tests.py llama_cpp_python-0.3.36 --models FOLDER

The tests come with the source distribution of llama-cpp-python; they are copied to a temporary
folder. They start the program that LLAMA_SERVER_BIN_PATH names: here this script, which translates
llama-server's flags and puts files of this machine in place of the Hub's models: the bundled pair,
and Qwen2.5-Coder 0.5B of --models for tests of /infill. A flag that localspec does not have ends
the program, and the test with it.

Other models write other texts, and count other tokens: the checks in EDITS are left out. --strict
keeps them. --reference LLAMA_SERVER runs llama-server with the same models instead: a test that it
fails too says nothing about localspec. Tests of what localspec does not do at all (embeddings,
images, adapters, tools on the server) are in the files of ELSEWHERE, which do not run by default.

The packages pytest, requests, openai, filelock and numpy are needed.
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_DEMO = _ROOT / "models" / "demo"
_SETTINGS = "LOCALSPEC_LLAMA_SERVER_TESTS"  # the environment variable for the started program
_TESTS = Path("tools", "server", "tests")
_FILE_SECONDS = 900.0
ELSEWHERE = {
    "test_embedding": "embeddings",
    "test_rerank": "reranking",
    "test_vision_api": "images",
    "test_lora": "adapters",
    "test_mcp_servers": "tools on the server",
    "test_tools_builtin": "tools on the server",
    "test_proxy": "a proxy for web pages",
    "test_compat_gcp": "Vertex AI's form",
}
# Checks of the tests that hold for one model or one program: what is replaced, by what, and why.
EDITS = (
    (r"def match_regex\([^)]*\) -> bool:\n", r"\g<0>    return True\n", "text of another model"),
    (r'\.startswith\("b"\)', '.startswith(("b", "localspec"))', "name of the program"),
    (
        r'\["(prompt_n|n_saved|n_restored|prompt_tokens|cached_tokens)"\] == (n_\w+|\d+)',
        r'["\1"] >= 0',
        "tokens of another model",
    ),
    (r'"<s> " \+ prompt', 'res.body["prompt"][:-len(prompt)] + prompt', "BOS of another model"),
    (r'"max_tokens": 8,(?=\n)', '"max_tokens": 8, "verbose": True,', "debugging by request"),
    (r"delta\.content is None", 'delta.content in (None, "")', "the first event has an empty text"),
    (r'\["content"\] is None', r'["content"] in (None, "")', "the first event has an empty text"),
    (
        r"\['delta'\]\.get\('content'\) is not None",
        "['delta'].get('content')",
        "the first event has an empty text",
    ),
    (r"dict\(response\.headers\)", "response.headers", "headers whose names are in lower case"),
    (r"DEFAULT_REQUEST_TIMEOUT = 600", "DEFAULT_REQUEST_TIMEOUT = 60", "the time of a lost reply"),
)
_FEATURE, _CHOICE, _ARTEFACT = "not there", "differs on purpose", "artefact"
# Why tests fail, by a pattern of their names: the first that fits. docs/serving.md lists the kinds.
KNOWN = (
    ("return_progress|prompt_progress|llama_telemetry", _FEATURE, "progress of a prompt"),
    ("post_sampling|post_backend", _FEATURE, "probabilities after sampling"),
    ("chat_template$|apply_chat_template|not a chat template", _FEATURE, "templates by name"),
    ("mutual_exclusion", _FEATURE, "templates by name"),
    ("ctx_shift_enabled|with_ctx_shift", _FEATURE, "--context-shift"),
    ("reload_models|dedup_cache|remote_preset", _FEATURE, "presets of a router"),
    ("download_model|delete_model", _FEATURE, "downloads by a router"),
    ("router_props|no_models_autoload", _FEATURE, "--no-models-autoload"),
    ("test_stream_", _FEATURE, "streams that are taken up again"),
    ("synth|with_and_without_draft", _FEATURE, "acceptance by given rates"),
    ("server_sleep", _FEATURE, "the state of an idle model, and metrics without its name"),
    ("assistant_prefill|continue_final_message", _FEATURE, "an answer that goes on"),
    ("multiple_addresses", _FEATURE, "several addresses"),
    ("no_ui|server_slots|metrics_disabled", _FEATURE, "switches for page, slots and metrics"),
    ("test_completion_stream\\[", _FEATURE, "adaptive-p"),
    ("prometheus_format", _FEATURE, "metrics of batches"),
    ("idle_slot|clear_and|keep_only", _FEATURE, "its lines in the log"),
    ("image|vision|media|multimodal", _FEATURE, "images"),
    ("embedding|tools_enabled|cors_proxy", _FEATURE, "embeddings, and tools on the server"),
    ("cors_options|localhost_rejects", _CHOICE, "no page of another origin is let in"),
    ("static_assets", _CHOICE, "the page has other files"),
    ("messages_basic", _CHOICE, "timings in Messages"),
    ("empty_messages", _CHOICE, "a conversation without a message is refused"),
    (r"invalid_chat_completion_req\[messages7", _CHOICE, "two answers in a row are taken"),
    ("aliases_and_tags", _CHOICE, "an entry for each alias"),
    ("first_token", _CHOICE, "speed counts the first token"),
    ("legacy_token_list", _CHOICE, "slot files of another form"),
    ("ctx_shift_disabled|slot_ctx_not|prompt_cache", _ARTEFACT, "counts of tokens"),
    ("tokenize_with_bos", _ARTEFACT, "BOS of another model"),
    ("client_disconnect_keeps_model", _ARTEFACT, "the time that a request takes"),
)
# Repositories of the Hub that the tests name, by the file of this machine in place of each.
_CODER = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
_LISTED = {
    "ggml-org/tinygemma3-GGUF": "tinygemma3-Q8_0.gguf",
    "ggml-org/test-model-stories260K": "stories260K-F32.gguf",
    "ggml-org/test-model-stories260K-infill": "stories260K-infill-F32.gguf",
}
_ENDLESS = "--ignore-eos"  # the model of the tests ends no answer that early
# llama-server's flags under localspec's names; None for those that change nothing here.
_FLAGS: Mapping[str, str | None] = {
    "--temp": "--temperature",
    "--n-predict": "--max-tokens",
    "--spec-draft-n-max": "--draft-tokens",
    "--sleep-idle-seconds": "--idle-timeout",
    "--model-draft": "--draft-model",
    **dict.fromkeys(("--spec-type", "--spec-draft-n-min", "--hf-file", "--tags"), None),
}
_SAME = (
    "--port", "--host", "--seed", "--api-key", "--alias", "--threads",
    "--slot-save-path", "--cache-ram", "--chat-template", "--chat-template-file",
    "--models-max", "--models-dir", "--cors-origins", "--parallel", "-ctk", "-ctv", "-fa",
)  # fmt: skip
_NOTHING = (
    "--offline", "--no-slots", "--slots", "--metrics", "--jinja", "--no-jinja", "--cont-batching",
    "--verbose", "--kv-unified", "--swa-full", "--no-cache-idle-slots",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """A test, how it ended (passed, failed, skipped), and the first line of its error."""

    file: str
    name: str
    outcome: str
    reason: str = ""


def main() -> None:
    """Run the tests, and print their results by file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path, help="the unpacked source distribution")
    parser.add_argument("files", nargs="*", help="files of tests, such as test_basic; default: all")
    parser.add_argument("-k", dest="expression", help="tests to run, as for pytest")
    parser.add_argument("--models", type=Path, help="a folder with other GGUF files")
    parser.add_argument("--reference", type=Path, help="run this llama-server instead")
    parser.add_argument("--strict", action="store_true", help="keep the checks in EDITS")
    parser.add_argument("--output", type=Path, help="write the results there, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tests = prepared(_found(arguments.sources), Path(folder), strict=arguments.strict)
        names = arguments.files or sorted(
            file.stem for file in tests.glob("unit/test_*.py") if file.stem not in ELSEWHERE
        )
        environment = _environment(Path(folder), arguments.models, arguments.reference)
        results: list[Result] = []
        for name in names:
            found = [*run(tests, name, arguments.expression, environment)]
            results += found
            print(_line(name, found), flush=True)
            if arguments.output is not None:
                arguments.output.write_text(
                    json.dumps([asdict(each) for each in results], indent=1)
                )
    print(_line("all", results))
    _explain([each for each in results if each.outcome == "failed"])


def _found(sources: Path) -> Path:
    """The root of llama.cpp in a folder of sources."""
    for root in (sources, sources / "vendor" / "llama.cpp"):
        if (root / _TESTS / "utils.py").is_file():
            return root
    sys.exit(f"There is no {_TESTS} in {sources}: name an unpacked source distribution.")


def prepared(root: Path, folder: Path, *, strict: bool) -> Path:
    """A copy of the tests, with EDITS unless ``strict``, and files of this machine."""
    tests = folder / "llama.cpp" / _TESTS
    shutil.copytree(root / _TESTS, tests)
    (folder / "llama.cpp" / "models").symlink_to((root / "models").resolve())
    (tests / "tmp").mkdir(exist_ok=True)
    draft = str(_DEMO / "draft.gguf")
    (tests / "wget.py").write_text(
        f"import shutil\n\ndef download(url, out):\n    shutil.copy({draft!r}, out)\n"
    )
    # The presets' models are of this machine already.
    with (tests / "conftest.py").open("a") as conftest:
        conftest.write("\n\nServerPreset.load_all = staticmethod(lambda: None)\n")
    for file in () if strict else tests.rglob("*.py"):
        text = file.read_text()
        for pattern, replacement, _ in EDITS:
            text = re.sub(pattern, replacement, text)
        file.write_text(text)
    return tests


def _environment(folder: Path, models: Path | None, reference: Path | None) -> dict[str, str]:
    """Variables for the tests and the program that they start."""
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    program.chmod(0o755)
    cache = folder / "hub"
    for repository, name in _LISTED.items():
        snapshot = cache / f"models--{repository.replace('/', '--')}" / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        shutil.copy(_DEMO / "target.gguf", snapshot / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "models": str(models.resolve()) if models else None,
        "reference": str(reference.resolve()) if reference else None,
    }
    return {
        **os.environ,
        "LLAMA_SERVER_BIN_PATH": str(program),
        "PORT": str(port),
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONPATH": str(_ROOT),
        _SETTINGS: json.dumps(settings),
    }


def run(
    tests: Path, name: str, expression: str | None, environment: Mapping[str, str]
) -> Iterator[Result]:
    """The results of a file of tests."""
    report = tests / f"{name}.xml"
    command = [
        sys.executable, "-m", "pytest", f"unit/{name}.py", "-m", "not slow", "-q",
        "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}",
    ]  # fmt: skip
    command += ["-k", expression] if expression else []
    with (tests / f"{name}.log").open("w") as log:
        try:
            subprocess.run(
                command, cwd=tests, env=environment, stdout=log, stderr=log, timeout=_FILE_SECONDS
            )
        except subprocess.TimeoutExpired:
            yield Result(name, "all", "failed", f"more than {_FILE_SECONDS:g} s")
            return
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if problem is None else problem.tag.replace("failure", "failed")
        reason = "" if problem is None else problem.get("message", "").partition("\n")[0]
        yield Result(name, case.get("name", ""), outcome.replace("error", "failed"), reason)


def _line(name: str, results: Sequence[Result]) -> str:
    counts = Counter(each.outcome for each in results)
    ran = counts["passed"] + counts["failed"]
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    return f"{name}: {counts['passed']} of {ran} passed{skipped}"


def _explain(failed: Sequence[Result]) -> None:
    """Print why tests fail, and how many for each reason; those without a known one by name."""
    known = [
        next(((kind, why) for pattern, kind, why in KNOWN if re.search(pattern, each.name)), None)
        for each in failed
    ]
    for (kind, why), count in Counter(each for each in known if each).most_common():
        print(f"{count:4} {kind}: {why}")
    for each, reason in zip(failed, known, strict=True):
        if reason is None:
            print(f"     not explained: {each.file} {each.name}: {each.reason}")


def program(arguments: list[str], models: str | None, reference: str | None) -> list[str]:
    """The command in place of llama-server with these arguments."""
    given = list(_parted(arguments))
    repository = next((value for flag, value in given if flag == "--hf-repo"), None)
    rest = [(flag, value) for flag, value in given if flag not in ("--hf-repo", "--hf-file")]
    model = None if repository is None else _stand_in(str(repository), models)
    if reference is not None:
        kept = [each for flag, value in rest for each in (flag, value) if each is not None]
        targets = ["--model", model] if model else []
        return [reference, *kept, *targets, "--threads", "1", _ENDLESS]
    several = [f"{name}:{file.rpartition('-')[2][:-5]}" for name, file in _LISTED.items()]
    targets = ["--target", model] if model else several
    own = [*_translated(rest), "--threads", "1", _ENDLESS]
    return [sys.executable, "-m", "localspec", "serve", *targets, *own]


def _parted(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Flags with their values."""
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        has_value = rest and flag not in _NOTHING and not rest[0].startswith("--")
        yield flag, rest.pop(0) if has_value else None


def _stand_in(repository: str, models: str | None) -> str:
    """The file of this machine for a repository on the Hub."""
    if "infill" in repository.lower() or "coder" in repository.lower():
        if models and (Path(models) / _CODER).is_file():
            return str(Path(models) / _CODER)
    return str(_DEMO / "target.gguf")


def _translated(given: Sequence[tuple[str, str | None]]) -> Iterator[str]:
    """Arguments of localspec; ends the program for a flag without a counterpart."""
    flags = {flag for flag, _ in given}
    slots = int(next((value for flag, value in given if flag == "--parallel"), None) or 1)
    for flag, value in given:
        if flag == "--ctx-size":
            shared = 1 if "--kv-unified" in flags else slots
            yield from (flag, str(int(value or 0) // shared))
        elif flag in ("--batch-size", "--ubatch-size"):
            yield from (flag, str(max(64, int(value or 0))))  # localspec takes no smaller ones
        elif flag == "--spec-draft-n-max" and "--model-draft" not in flags:
            continue
        elif flag == "--reasoning":
            yield from {"on": ["--think"], "off": ["--no-think"]}.get(value or "", [])
        elif flag in _FLAGS:
            ours = _FLAGS[flag]
            yield from (ours, str(value)) if ours else ()
        elif flag in _SAME:
            yield from (flag, str(value))
        elif flag not in _NOTHING:
            sys.exit(f"localspec serve has no {flag}.")


if __name__ == "__main__":
    if settings := os.environ.get(_SETTINGS):
        command = program(sys.argv[1:], **json.loads(settings))
        print("starting:", *command, flush=True)
        os.execv(command[0], command)
    main()
