"""The command run --batch: results of a file, its flags, what an interruption leaves."""

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from localspec.commands.run import batch
from localspec.commands.serve import serve
from localspec.core.files import lock
from tests.support.command import Command
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama


def results_of(path: Path) -> dict[str, Any]:
    """The bodies of the results by their ids; no id twice."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    bodies = {each["custom_id"]: each["response"]["body"] for each in found}
    assert len(bodies) == len(found)
    return bodies


def test_a_line_has_the_text_of_a_prompt(run: Command, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('"Say the thing"\n{"custom_id": "b", "prompt": "ab", "max_tokens": 3}\n')
    done = run("--batch", prompts, "-o", answers, "--temp", "0", "-np", "2", "--system", "Be brief")
    assert done.code == 0 and done.out == "" and "2 of 2 lines have a result" in done.err
    results = results_of(answers)
    one = run("Say the thing", "--temp", "0", "--system", "Be brief").out
    assert results["1"]["choices"][0]["message"]["content"] + "\n" == one
    assert results["b"]["usage"]["completion_tokens"] == 3
    before = answers.read_bytes()
    again = run("--batch", prompts, "-o", answers)
    assert again.code == 0 and "All 2 lines have a result" in again.err
    assert answers.read_bytes() == before


def test_lines_of_a_pipe_are_answered_into_a_pipe(tiny: TinyFiles) -> None:
    code = "from localspec.cli import main\nmain()\n"
    flags = ["-m", str(tiny.target), "--draft", "off", "-t", "1", "-n", "2"]
    command = [sys.executable, "-c", code, "run", *flags, "--batch", "-", "-o", "-"]
    done = subprocess.run(command, input='ab\n"cd"\n', capture_output=True, text=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and {each["custom_id"] for each in results} == {"1", "2"}
    assert "2 of 2 lines have a result" in done.stderr


def test_settings_that_only_show_an_answer_refuse_no_batch(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, prompts = tmp_path / "config.toml", tmp_path / "prompts.jsonl"
    settings.write_text("hide_reasoning = true\n")
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(settings))
    prompts.write_text('"ab"\n')
    assert run("--batch", prompts, "-o", tmp_path / "answers.jsonl").code == 0


def test_after_ctrl_c_the_rest_is_answered(run: Command, tiny: TinyFiles, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    short = [{"prompt": "ab", "max_tokens": 4}, {"prompt": "cd", "max_tokens": 4}]
    prompts.write_text("".join(json.dumps(each) + "\n" for each in [*short, "endless"]))
    flags = ["-t", "1", "-c", "60000", "--ignore-eos", "--draft", "off", "-m", str(tiny.target)]
    batch = ["--batch", str(prompts), "-o", str(answers)]
    command = [sys.executable, "-m", "localspec", "run", *flags, *batch]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not answers.exists() or answers.read_text().count("\n") < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        err = process.communicate()[1]
    assert process.returncode == 130 and "2 of 3 lines have a result" in err
    assert "Traceback" not in err
    before = results_of(answers)
    assert run(*batch).code == 0
    after = results_of(answers)
    assert after.keys() == {"1", "2", "3"} and after["1"] == before["1"]
    assert after["3"]["usage"]["completion_tokens"] == 8


def test_an_array_is_refused_before_anything_is_answered(run: Command, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.json", tmp_path / "answers.jsonl"
    prompts.write_text('[\n"ab",\n"cd"\n]\n')
    done = run("--batch", prompts, "-o", answers)
    assert done.code == 1 and "prompts.json, line 1: one prompt is not one line" in done.sentences
    assert not answers.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--batch", "x.jsonl"], "--batch has no file for the answers. Add -o"),
        (["-o", "y.jsonl", "hello"], "--output belongs to --batch."),
        (["-np", "2", "hello"], "--parallel belongs to --batch."),
        (["--kv-unified", "hello"], "--kv-unified belongs to --batch."),
        (["-kvu", "hello"], "--kv-unified belongs to --batch."),
        (["--batch", "x.jsonl", "-o", "y.jsonl", "hello"], "A prompt has no effect"),
        (["--batch", "x.jsonl", "-o", "y.jsonl", "--raw"], "--raw has no effect with --batch."),
        (["--batch", "x.jsonl", "-o", "y.jsonl", "--json"], "--json has no effect"),
        (["--batch", "x.jsonl", "-o", "y.jsonl", "--show-draft"], "--show-draft has no effect"),
        (["--batch", "missing.jsonl", "-o", "y.jsonl"], "missing.jsonl cannot be read"),
    ],
)
def test_what_makes_no_sense_is_said_first(run: Command, flags: list[str], said: str) -> None:
    done = run(*flags)
    assert done.code in (1, 2) and said in done.sentences


def test_a_second_run_on_the_same_results_is_refused(run: Command, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('"ab"\n')
    with answers.open("a") as other:
        assert lock(other)
        refused = run("--batch", prompts, "-o", answers)
        assert refused.code == 1 and "Another run writes its results to" in refused.err
    assert run("--batch", prompts, "-o", answers).code == 0


def test_lines_that_failed_end_with_1_and_are_asked_again(run: Command, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('"ab"\n{"prompt": "cd", "temperature": -5}\n')
    for answered in (True, False):
        done = run("--batch", prompts, "-o", answers)
        assert done.code == 1 and "Errors among them: 1;" in done.err
        assert ("tok/s" in done.err) == answered
        assert {*results_of(answers)} == {"1", "2"}  # each once
    prompts.write_text('"ab"\n{"prompt": "cd"}\n')
    assert run("--batch", prompts, "-o", answers).code == 0
    assert results_of(answers)["2"]["usage"]["completion_tokens"] > 0


def test_errors_that_passed_are_replaced_and_no_line_times_out_in_the_queue(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('"ab"\n')
    answers.write_text('{"custom_id": "1", "response": {"status_code": 503, "body": {}}}\n')
    limits = []
    make = serve.make_service

    def noted(*given: Any) -> Any:
        limits.append(given[3].limits())
        return make(*given)

    monkeypatch.setattr(batch, "make_service", noted)
    assert run("--batch", prompts, "-o", answers).code == 0
    assert [each.queue_seconds for each in limits] == [math.inf]
    assert results_of(answers)["1"]["usage"]["completion_tokens"] > 0
