"""llama.cpp's own tests of llama-server, run against `localspec serve`.

    pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36
    tar xf llama_cpp_python-0.3.36.tar.gz
    python benchmarks/llama_server_tests.py llama_cpp_python-0.3.36 --models FOLDER

The tests come with the source distribution of llama-cpp-python; they are copied to a temporary
folder. They start the program that LLAMA_SERVER_BIN_PATH names: here this script, which translates
llama-server's flags and puts files of this machine in place of the Hub's models: the bundled pair,
and Qwen2.5-Coder 0.5B of --models for tests of /infill. A flag that localspec does not have ends
the program, and the test with it.

Other models write other texts, and count other tokens: the checks in EDITS are changed. --strict
keeps them. --reference LLAMA_SERVER runs llama-server with the same models instead: a test that it
fails too says nothing about localspec. Tests of what localspec does not do at all do not apply:
those of the files in ELSEWHERE do not run by default, those in NOT_APPLICABLE are not counted.

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
_FILE_SECONDS = 3600.0  # of a file of tests, on a busy machine
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
    (r' == "<s> (<\|start.*")', r'.endswith("\1)', "BOS of another model"),
    (
        r"server\.start\(\)\n(    # tokenize\n.*\n    bosId = )1",
        r'server.model_hf_repo = "with-bos"\n    server.start()\n\g<1>2',
        "BOS of another model",
    ),
    (
        r"\n.*\"adaptive_(target|decay)\" in data.*",
        "",
        "adaptive-p, a sampler that is not there",
    ),
    (
        r'"predicted_n"\] == n_token_output',
        '"predicted_n"] in (n_token_output, 256 - res.body["timings"]["prompt_n"])',
        "tokens of another model",
    ),
    (r'"prompt": LONG_TEXT', '"prompt": LONG_TEXT * 3', "tokens of another model"),
    (r'"Hello " \* 248', '"Hello " * 80', "tokens of another model"),
    (
        r'\+ timings\["cache_n"\] == n_prompt',
        '+ timings["cache_n"] >= 40',
        "tokens of another model",
    ),
    (
        r'"exceeds the available context size" in res\.body\["error"\]\["message"\]',
        'res.body["error"]["type"] == "exceed_context_size_error"',
        "wording of an error",
    ),
    (
        r'\["type"\] == "response.completed"',
        '["type"] in ("response.completed", "response.incomplete")',
        "an answer that ends at its limit is incomplete, as OpenAI's",
    ),
    (
        r'"stop_reason"\] == "tool_use"',
        '"stop_reason"] in ("tool_use", "max_tokens")',
        "text of another model",
    ),
    (r"total_batch_count == batch_count", "total_batch_count >= 2", "passes of another width"),
    (r'len\(tok\["top_probs"\]\) == 10', 'len(tok["top_probs"]) > 0', "text of another model"),
    (r"total_probs >= 2 \* n_predict", "total_probs >= n_predict", "text of another model"),
    (
        r'(?s)        "llamacpp:n_tokens_max",\n(.*?expected_gauges = \[\n)',
        r'\1        "llamacpp:n_tokens_max",\n',
        "a maximum is a gauge",
    ),
    (
        r"fetch_metrics\(server\) == metrics_awake",
        "re.findall('llamacpp:.*', fetch_metrics(server)) == "
        "re.findall('llamacpp:.*', metrics_awake)",
        "metrics of localspec's own, which count the requests for metrics",
    ),
    (
        r"(?s)(assert tokens_no_draft == tokens_draft\n).*?(?=\n\ndef )",
        r"\1",
        "acceptance by given rates",
    ),
    (
        r'"/sw.js", "/manifest.webmanifest", "/_app/version.json"',
        '"/page/page.js", "/page/page.css"',
        "the page's files have other names",
    ),
    (r"DEFAULT_REQUEST_TIMEOUT = 600", "DEFAULT_REQUEST_TIMEOUT = 60", "the time of a lost reply"),
)
# Tests that do not apply, by patterns of their names, and why.
NOT_APPLICABLE = (
    (r"with_image|two_images|image_payload|without_mmproj|vision_|local_media_file", "images"),
    ("embedding_prompt", "embeddings"),
    ("tools_enabled|cors_proxy", "tools on the server, and a proxy for web pages"),
    ("ctx_shift_enabled|with_ctx_shift", "--context-shift: an answer ends where the context does"),
    ("reload_models|dedup_cache|remote_preset", "presets of a router (--models-preset)"),
    ("download_model|delete_model", "downloads that a client asks for; see localspec pull"),
    (r"test_stream_(resume|stop)", "streams that are taken up again (GET /v1/stream)"),
    ("test_synth", "acceptance by given rates, for benchmarks (--spec-synth-rates)"),
    ("clear_and_restore|disabled_with_flag", "lines of llama-server's log"),
    ("legacy_token_list", "a file of a slot in llama-server's own form"),
    ("client_disconnect_keeps_model", "llama-server's delay for debugging"),
)
# Tests that fail on purpose, and what localspec does instead.
DIFFERENT = (
    ("empty_messages", "a conversation without a message is refused, as by Anthropic"),
    (r"invalid_chat_completion_req\[messages7", "two answers in a row are taken"),
    (
        r"assistant_prefill\[prefill1",
        "parts of a text are joined by one line break",
    ),
    ("aliases_and_tags", "models have an entry for each alias, and no tags"),
    (r"cors_options.*Allow-Headers", "the headers that were asked for are allowed, by name"),
    ("This is not a chat template", "a template without Jinja is refused"),
    ("sleep_metrics_buckets", "speeds are means since the start: a scrape changes nothing"),
)
# Repositories of the Hub that the tests name, by the file of this machine in place of each.
# Files of --models, by a part of the repositories for which they stand.
_MODELS = {
    "infill": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "coder": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "with-bos": "gemma-3-270m-q4_k_m.gguf",
}
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
    "--slots", "--no-slots", "--metrics", "--no-ui", "--no-models-autoload",
)  # fmt: skip
_NOTHING = (
    "--offline", "--jinja", "--no-jinja", "--cont-batching", "--verbose", "--kv-unified",
    "--swa-full", "--no-cache-idle-slots", "--backend_sampling",
)  # fmt: skip
_WITHOUT_VALUE = (
    *_NOTHING, "--slots", "--no-slots", "--metrics", "--no-ui", "--no-models-autoload",
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
    _explain(results)
    print(_line("all", results))


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


def _why(reasons: Sequence[tuple[str, str]], name: str) -> str | None:
    """The reason of the first pattern that fits the name of a test."""
    return next((why for pattern, why in reasons if re.search(pattern, name)), None)


def _line(name: str, results: Sequence[Result]) -> str:
    """How many of the tests that apply have passed."""
    apply = [each for each in results if not _why(NOT_APPLICABLE, each.name)]
    counts = Counter(each.outcome for each in apply)
    ran = counts["passed"] + counts["failed"]
    share = f" ({counts['passed'] / ran:.1%})" if ran else ""
    others = {"skipped": counts["skipped"], "do not apply": len(results) - len(apply)}
    more = "".join(f", {count} {what}" for what, count in others.items() if count)
    return f"{name}: {counts['passed']} of {ran} passed{share}{more}"


def _explain(results: Sequence[Result]) -> None:
    """Print why tests do not apply, how many for each reason, and why others fail, each by name."""
    reasons = [_why(NOT_APPLICABLE, each.name) for each in results]
    for why, count in Counter(each for each in reasons if each).most_common():
        print(f"{count:4} do not apply: {why}")
    for each, reason in zip(results, reasons, strict=True):
        if each.outcome == "failed" and reason is None:
            choice = _why(DIFFERENT, each.name)
            known = f"on purpose: {choice}" if choice else f"not explained: {each.reason}"
            print(f"     {each.file} {each.name}: {known}")


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
        has_value = rest and flag not in _WITHOUT_VALUE and not rest[0].startswith("--")
        yield flag, rest.pop(0) if has_value else None


def _stand_in(repository: str, models: str | None) -> str:
    """The file of this machine for a repository on the Hub."""
    for part, name in _MODELS.items():
        file = Path(models or "", name)
        if part in repository.lower() and file.is_file():
            return str(file)
    return str(_DEMO / "target.gguf")


def _translated(given: Sequence[tuple[str, str | None]]) -> Iterator[str]:
    """Arguments of localspec; ends the program for a flag without a counterpart."""
    flags = {flag for flag, _ in given}
    if "--metrics" not in flags:  # llama-server's default
        yield "--no-metrics"
    if "--api-key" in flags and "--cors-origins" not in flags:  # so is this
        yield from ("--cors-origins", "*")
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
            yield from (flag, *([] if value is None else [value]))
        elif flag not in _NOTHING:
            sys.exit(f"localspec serve has no {flag}.")


if __name__ == "__main__":
    if settings := os.environ.get(_SETTINGS):
        command = program(sys.argv[1:], **json.loads(settings))
        print("starting:", *command, flush=True)
        os.execv(command[0], command)
    main()
