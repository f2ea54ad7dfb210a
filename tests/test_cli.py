"""The command line as a user meets it: text on stdout, all else on stderr, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from localspec import __version__, cli
from localspec.commands import run as run_command
from localspec.core import paths
from localspec.core.errors import EngineError, FileProblem
from localspec.engine import doctor, llama_library
from localspec.engine.doctor import DoctorReport
from tests.support.command import Command, Done
from tests.support.real_pair import TinyFiles, retuned
from tests.support.tiny_models import write_tiny_model

COMMANDS = (
    *("demo", "doctor", "run", "chat", "bench", "check", "inspect", "list", "suggest", "pairs"),
    *("download", "verify"),
)
HELLO = "Say the thing"


def plainly(arguments: Sequence[str | Path]) -> Sequence[str]:
    """Flags for plain decoding, unless the arguments say something of drafting."""
    said = {"--draft", "-md", "--draft-model", "--draft-tokens", "--suffix"} & {
        *map(str, arguments)
    }
    return () if said else ("--draft", "off")


@pytest.fixture
def run(localspec: Command, tiny: TinyFiles) -> Command:
    """`localspec run` on the tiny target, one thread, eight tokens, plain unless told to draft."""

    def call(*arguments: str | Path, stdin: str | None = None) -> Done:
        flags = ("-m", tiny.target, "-t", "1", "-n", "8", *plainly(arguments))
        return localspec("run", *flags, *arguments, stdin=stdin)

    return call


def process(*arguments: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    """`python -m localspec` as a process of its own."""
    keywords = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL} | more
    return subprocess.run([sys.executable, "-m", "localspec", *arguments], **keywords)  # type: ignore[call-overload, no-any-return]


# -- run: text and streams -----------------------------------------------------------------


def test_text_on_stdout_and_figures_on_stderr(run: Command) -> None:
    done = run(HELLO, "--seed", "5")
    assert done.code == 0 and done.out
    assert re.fullmatch(
        r"8 tokens · [\d.]+ tok/s · prompt \d+ tokens at [\d.]+ tok/s · TTFT [\d.]+ s · "
        r"seed 5 · stopped at --max-tokens\n",
        done.err,
    )
    answer = json.loads(run(HELLO, "--seed", "5", "--json").out)
    assert done.out == answer["text"]


def test_a_greedy_answer_names_no_seed(run: Command) -> None:
    assert "seed" not in run(HELLO, "--temp", "0").err


def test_the_prompt_comes_from_argument_file_or_pipe(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Größe: 3 €\nSay the thing", encoding="utf-8")
    prompt = file.read_text(encoding="utf-8")
    expected = run(prompt, "--temp", "0").out
    assert run("-f", file, "--temp", "0").out == expected
    assert run("--temp", "0", stdin=prompt).out == expected
    assert run("Größe: 3 €\nSay the thing", "--temp", "0", stdin="").out == expected
    assert run("Größe: 3 €\nSay the thing", "--temp", "0", stdin=" \n").out == expected
    joined = run(f"Explain\n\n{prompt}", "--temp", "0").out
    assert joined != expected
    assert run("Explain", "--temp", "0", stdin=prompt).out == joined
    assert run("Explain", "-f", file, "--temp", "0").out == joined
    assert run("Explain", "-f", file, "--temp", "0", stdin="not read beside -f").out == joined


def test_raw_text_has_no_template(run: Command) -> None:
    chat, raw = (json.loads(run("ab", "--json", *more).out) for more in ((), ("--raw",)))
    assert raw["prompt_tokens"] == 3  # BOS and two bytes
    assert chat["prompt_tokens"] > 10
    system = json.loads(run("ab", "--json", "--system", "Be brief").out)
    assert system["prompt_tokens"] > chat["prompt_tokens"] + 5


def test_json_holds_everything(run: Command, tiny: TinyFiles) -> None:
    done = run(HELLO, "-md", tiny.draft, "--draft", "4", "--seed", "3", "--json", "-n", "20")
    assert done.code == 0 and done.out.count("\n") == 1
    answer = json.loads(done.out)
    assert answer.keys() >= {
        "text", "tokens", "finish_reason", "prompt_tps", "generation_tps", "ttft_s", "drafted",
        "accepted", "acceptance_rate", "mean_accepted_length", "rounds", "seed", "settings",
    }  # fmt: skip
    assert answer["tokens"] == len(answer["token_ids"]) == 20
    assert answer["finish_reason"] == "length" and answer["seed"] == 3
    assert answer["drafted"] >= answer["accepted"] >= 0 and answer["drafted"] > 0
    assert answer["acceptance_rate"] == answer["accepted"] / answer["drafted"]
    assert answer["mean_accepted_length"] == 20 / answer["rounds"]
    settings = answer["settings"]
    assert settings["draft_tokens"] == 4 and settings["version"] == __version__
    assert settings["target"]["file"] == str(tiny.target)
    assert settings["draft"]["file"] == str(tiny.draft)
    assert settings["sampling"]["seed"] == 3 and settings["sampling"]["temperature"] == 0.8
    plain = json.loads(run(HELLO, "--json").out)
    assert plain["acceptance_rate"] is None and plain["settings"]["draft"] is None
    assert plain["settings"]["draft_tokens"] == 0


def test_the_same_seed_says_the_same_with_any_draft(run: Command, tiny: TinyFiles) -> None:
    seeded = (HELLO, "--seed", "11", "-n", "40", "--exact")
    plain = run(*seeded)
    assert run(*seeded, "--draft", "off").out == plain.out
    for length in ("off", "1", "4", "9", "auto"):
        done = run(*seeded, "--draft", tiny.draft, "--draft", length)
        assert done.out == plain.out
        if length != "auto":  # which need not draft: that follows what passes cost here
            assert ("acceptance" in done.err) == (length != "off")
    assert run(HELLO, "--seed", "12", "-n", "40").out != plain.out


@pytest.mark.parametrize(
    ("flags", "length"),
    [
        (("--draft", "DRAFT"), "auto"),
        (("-md", "DRAFT"), "auto"),
        (("--draft-model", "DRAFT", "--draft-tokens", "5"), 5),
        (("--draft", "7", "--draft", "DRAFT"), 7),
        (("--draft", "DRAFT", "--draft", "auto"), "auto"),
        (("--draft", "DRAFT", "--draft", "off"), 0),
        (("--draft", "0"), 0),
        (("--draft", "off"), 0),
    ],
)
def test_every_way_to_name_the_draft(
    run: Command, tiny: TinyFiles, flags: tuple[str, ...], length: int | str
) -> None:
    given = [str(tiny.draft) if flag == "DRAFT" else flag for flag in flags]
    settings = json.loads(run(HELLO, "--json", *given).out)["settings"]
    assert settings["draft_tokens"] == length
    assert (settings["draft"] is None) == (length == 0)


def test_stop_ends_before_the_text(run: Command) -> None:
    whole = run(HELLO, "--temp", "0", "-n", "30").out
    middle = whole[len(whole) // 2 :][:2]
    done = run(HELLO, "--temp", "0", "-n", "30", "--stop", "never said", "--stop", middle)
    assert done.out == whole[: whole.index(middle)]
    assert done.code == 0 and "stopped" not in done.err


def test_the_end_of_the_context_is_told(run: Command) -> None:
    done = run("ab", "--raw", "-c", "16", "-n", "100")
    assert done.code == 0
    assert done.err.startswith("13 tokens")
    assert done.err.endswith("stopped at the end of the context (--ctx-size)\n")


def test_the_models_own_sampling_is_told(run: Command, localspec: Command, tmp_path: Path) -> None:
    import gguf

    path = write_tiny_model(tmp_path / "advice.gguf", seed=1)
    copy = tmp_path / "with advice.gguf"
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(copy, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kinds = (field.types[0], field.types[-1] if len(field.types) > 1 else None)
            writer.add_key_value(key, field.contents(), *kinds)
    writer.add_float32("general.sampling.temp", 0.25)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    flags = ("-t", "1", "-n", "2", "--json", HELLO)
    done = localspec("run", "-m", copy, *flags)
    assert "Sampling recommended by the model: temperature 0.25." in done.err
    assert json.loads(done.out)["settings"]["sampling"]["temperature"] == 0.25
    over = localspec("run", "-m", copy, "--temp", "0.5", *flags)
    assert "recommended" not in over.err
    assert json.loads(over.out)["settings"]["sampling"]["temperature"] == 0.5


def test_notes_go_to_stderr(localspec: Command, tiny: TinyFiles) -> None:
    flags = ("-t", "1", "-n", "4", "--temp", "0", "ab", "--raw")
    plain = localspec("run", "-m", tiny.recurrent, *flags)
    noted = localspec("run", "-m", tiny.recurrent, "-md", tiny.draft, *flags)
    assert noted.out == plain.out and noted.code == 0
    assert "running plain, the draft is not used" in noted.err


def test_verbose_shows_llama_cpps_log(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_library.log, "verbose", False)
    assert "llama_model_loader" not in run(HELLO).err
    done = run(HELLO, "--verbose")
    assert "llama_model_loader" in done.err and "llama_model_loader" not in done.out
    assert "llama_model_loader" not in run(HELLO).err


# -- run: what goes wrong ------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad_files(tiny: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad files")
    (folder / "cut.gguf").write_bytes(tiny.target.read_bytes()[:9000])
    (folder / "text.gguf").write_text("words " * 100)
    (folder / "empty.txt").write_text(" \n")
    (folder / "latin1.txt").write_bytes("größer".encode("latin-1"))
    (folder / "folder.gguf").mkdir()
    write_tiny_model(folder / "other.gguf", seed=0, extra_tokens=["more"])
    return folder


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-m", "BAD/none.gguf"], 1, "There is no file"),
        (["-m", "BAD/cut.gguf"], 1, "cut short"),
        (["-m", "BAD/folder.gguf"], 1, "is a directory"),
        (["-m", "BAD/text.gguf"], 1, "it is a text file"),
        (["-md", "BAD/none.gguf"], 1, "There is no file"),
        (["-md", "BAD/cut.gguf"], 1, "cut short"),
        (["-md", "BAD/other.gguf"], 1, "other.gguf cannot draft for"),
        (["-c", "8"], 1, "the context holds 8, answer included"),
        (["-f", "BAD/none.txt"], 1, "none.txt cannot be read"),
        (["-f", "BAD/latin1.txt"], 1, "Give a UTF-8 text file"),
        (["-f", "BAD/folder.gguf"], 1, "cannot be read"),
        (["-fa", "off", "-ctv", "q8_0"], 1, "cannot make a context"),
        (["--draft", "3"], 2, "no draft model"),
        (["--draft", "DRAFT", "--draft", "0,2"], 2, "one draft length, not a list"),
        (["--draft", "DRAFT", "--draft", "DRAFT"], 2, "Two draft models"),
        (["--draft", "DRAFT", "--draft", "1", "--draft", "2"], 2, "Two draft lengths"),
        (["--draft", "DRAFT", "--draft", "99"], 2, "draft of 99 tokens"),
        (["-md", "DRAFT", "--draft-tokens", "few"], 2, "no draft length"),
        (["--raw", "--system", "x"], 2, "--raw uses no template"),
        (["--temp", "-1"], 2, "temperature is -1"),
        (["--temp", "nan"], 2, "temperature is nan"),
        (["--temp", "warm"], 2, "Invalid value for '--temperature'"),
        (["--top-p", "1.5"], 2, "top-p is 1.5"),
        (["--top-k", "-1"], 2, "top-k is -1"),
        (["--seed", "-1"], 2, "seed is -1"),
        (["-n", "0"], 2, "Invalid value for '--max-tokens'"),
        (["-c", "1"], 2, "Invalid value for '--ctx-size'"),
        (["-t", "0"], 2, "Invalid value for '--threads'"),
        (["-dev", "TPU7"], 2, "There is no device 'TPU7'"),
        (["-ctk", "q3"], 2, "'q3' is not one of"),
        (["-ot", "x=TPU7"], 2, "no buffer type 'TPU7'"),
        (["--frobnicate"], 2, "No such option: --frobnicate"),
    ],
)
def test_what_the_user_can_mend_is_told_in_a_sentence(
    run: Command, tiny: TinyFiles, bad_files: Path, arguments: list[str], code: int, words: str
) -> None:
    given = [text.replace("BAD", str(bad_files)) for text in arguments]
    given = [str(tiny.draft) if text == "DRAFT" else text for text in given]
    for more in ((), ("--json",)):
        done = run(*given, HELLO, *more)
        assert (done.code, done.out) == (code, "")
        assert words in done.sentences and "Traceback" not in done.err
        if done.err.startswith("Error: "):
            message, hint = done.err.splitlines()
            assert message.endswith(".") and hint


def test_nothing_to_answer(run: Command, localspec: Command, bad_files: Path) -> None:
    for done in (run(), run(""), run(stdin=" \n"), run("-f", bad_files / "empty.txt")):
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("Error: There is no prompt.\nType: localspec run --target")
    done = localspec("run", HELLO)
    assert done.code == 2 and done.err.startswith("Error: No target model was given.\n")


def test_a_broken_template_is_told(localspec: Command, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "broken.gguf", seed=0, chat_template="{% if %}")
    done = localspec("run", "-m", path, "-t", "1", HELLO)
    assert done.code == 1 and "chat template cannot be rendered" in done.err
    assert "--raw" in done.err and "Traceback" not in done.err
    assert localspec("run", "-m", path, "-t", "1", "-n", "2", "--raw", HELLO).code == 0


def test_a_bug_keeps_its_traceback(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(run_command, "_read_prompt", broken)
    with pytest.raises(ZeroDivisionError):
        run(HELLO)


@pytest.mark.parametrize("rule", ["coupled", "match"])
def test_the_seed_decides_with_these_rules(run: Command, tiny: TinyFiles, rule: str) -> None:
    seeded = (HELLO, "--seed", "11", "-n", "40", "--exact", "--acceptance", rule)
    plain = run(*seeded)
    for length in ("4", "auto"):
        assert run(*seeded, "-md", tiny.draft, "--draft", length).out == plain.out


def test_rejection_drafts_a_fixed_length(run: Command, tiny: TinyFiles, chat: Command) -> None:
    rejecting = (HELLO, "-md", tiny.draft, "--acceptance", "rejection", "--seed", "3", "-n", "40")
    answer = json.loads(run(*rejecting, "--json").out)
    assert answer["settings"]["draft_tokens"] == 4 and answer["drafted"] > 0
    assert answer["settings"]["sampling"]["acceptance"] == "rejection"
    assert run(*rejecting).out == answer["text"]  # the same pair, length and seed
    refused = run(*rejecting, "--draft", "auto")
    assert refused.code == 2 and "the draft length must be fixed" in refused.sentences
    assert run(*rejecting, "--draft", "auto", "--temp", "0").code == 0
    assert run(*rejecting, "--acceptance", "perhaps").code == 2
    done = chat(
        "-md",
        tiny.draft,
        stdin="/set acceptance rejection\n/draft 4\n/set acceptance rejection\n/draft auto\n",
    )
    assert done.err.count("must be fixed") == 2


def test_what_drafting_gained_is_measured_on_demand(run: Command, tiny: TinyFiles) -> None:
    flags = (HELLO, "--seed", "3", "-n", "30", "-md", tiny.draft, "--draft", "4", "--compare")
    done = run(*flags)
    figures, compared = done.err.splitlines()[-2:]
    assert figures.startswith("30 tokens") and "acceptance" in figures
    assert re.fullmatch(r"Without drafting [\d.]+ tok/s: [\d.]+x, the same text\.", compared)
    answer = json.loads(run(*flags, "--json").out)
    assert answer["plain"]["token_ids"] == answer["token_ids"] and answer["plain"]["drafted"] == 0
    other = json.loads(run(*flags, "--json", "--acceptance", "rejection").out)
    assert other["plain"]["text"] == answer["text"]


# -- auto ----------------------------------------------------------------------------------


def test_auto_measures_a_pair_once(run: Command, tiny: TinyFiles, tmp_path: Path) -> None:
    flags = (HELLO, "-md", tiny.draft, "--draft", "auto", "--temp", "0")
    first, second = run(*flags), run(*flags)
    assert "New on this machine" in first.err and "New on this machine" not in second.err
    assert first.out == second.out == run(HELLO, "--temp", "0").out
    assert "New on this machine" in run(*flags, "--recalibrate").err
    (profile,) = (tmp_path / "cache" / "profiles").iterdir()
    profile.write_text("{")
    again = run(*flags)
    assert again.code == 0 and "profile of this pair is discarded" in again.err
    assert json.loads(profile.read_text())["verify"]


def test_auto_needs_no_draft_model(run: Command) -> None:
    text = "one two three four five six seven " * 8
    plain = json.loads(run(text, "--raw", "--temp", "0", "--json", "-n", "40").out)
    auto = json.loads(
        run(text, "--raw", "--temp", "0", "--json", "-n", "40", "--draft", "auto").out
    )
    assert auto["text"] == plain["text"]
    assert auto["settings"]["draft_tokens"] == "auto" and auto["settings"]["draft"] is None
    assert set(auto["sources"]) <= {"suffix"} and auto["estimated_speedup"] > 0
    off = run(text, "--raw", "--temp", "0", "--json", "--draft", "auto", "--suffix", "off")
    assert json.loads(off.out)["settings"]["draft_tokens"] == 0
    assert run(HELLO, "--suffix", "perhaps").code == 2


def test_a_target_alone_is_measured_once(localspec: Command, tiny: TinyFiles) -> None:
    flags = ("run", "-m", tiny.target, "-t", "1", "-n", "4", HELLO)
    assert "New on this machine" in localspec(*flags).err
    again = localspec(*flags).err
    assert "New on this machine" not in again and "discarded" not in again


def test_auto_is_the_default(localspec: Command, tiny: TinyFiles) -> None:
    flags = ("-m", tiny.target, "-t", "1", "-n", "4", HELLO)
    alone, paired = (
        localspec("run", *flags, "--json", *more) for more in ((), ("-md", tiny.draft))
    )
    for done in (alone, paired):
        assert json.loads(done.out)["settings"]["draft_tokens"] == "auto"
        assert "New on this machine" in done.err
    assert (
        localspec("run", *flags, "-c", "16").code == 1
    )  # measured, and then the prompt is too long


# -- chat ----------------------------------------------------------------------------------


@pytest.fixture
def chat(localspec: Command, tiny: TinyFiles) -> Command:
    """`localspec chat`, like `run`, with messages piped in."""

    def call(*arguments: str | Path, stdin: str = HELLO + "\n") -> Done:
        flags = ("-m", tiny.target, "-t", "1", "-n", "8", *plainly(arguments))
        return localspec("chat", *flags, *arguments, stdin=stdin)

    return call


def test_a_conversation_through_pipes(chat: Command, run: Command) -> None:
    done = chat("--seed", "5", stdin=f"{HELLO}\nand again\n")
    assert done.code == 0
    first = run(HELLO, "--seed", "5").out
    assert done.out.startswith(first + "\n") and len(done.out) > len(first) + 8
    one, two = done.err.splitlines()
    assert one.startswith("8 tokens · ") and two.startswith("8 tokens · ")


def test_a_turn_reads_only_what_is_new(chat: Command) -> None:
    long = "many words " * 30
    done = chat("--temp", "0", "--draft", "off", stdin=f"{long}\nshort\n/regen\n")
    counts = [int(count) for count in re.findall(r"prompt (\d+) tokens", done.err)]
    assert len(counts) == 3 and counts[0] > 200
    assert counts[1] < 100 and counts[2] == 1


def test_the_same_seed_talks_the_same_with_any_draft(chat: Command, tiny: TinyFiles) -> None:
    script = f"{HELLO}\nzwei\n/undo\ndrei\n/set seed 4\nvier\n/clear\nfünf\n"
    seeded = ("--seed", "11", "-n", "30", "--system", "Be brief")
    plain = chat(*seeded, stdin=script)
    assert plain.code == 0 and plain.err.count("30 tokens · ") == 5
    for length in ("off", "1", "4", "9", "auto"):
        done = chat(*seeded, "-md", tiny.draft, "--draft", length, stdin=script)
        assert done.out == plain.out
        if length != "auto":  # which need not draft: that follows what passes cost here
            assert ("acceptance" in done.err) == (length != "off")
    assert chat("--seed", "12", "-n", "30", "--system", "Be brief", stdin=script).out != plain.out
    middle = script.replace("zwei", "zwei\n/draft 4").replace("drei", "/draft off\ndrei")
    assert chat(*seeded, "-md", tiny.draft, "--draft", "1", stdin=middle).out == plain.out


@pytest.mark.parametrize(("flags", "tokens"), [((), 2), (("--think",), 5), (("--no-think",), 9)])
def test_thinking_reaches_the_template(
    localspec: Command, tmp_path: Path, flags: tuple[str, ...], tokens: int
) -> None:
    template = (
        "{% if enable_thinking is not defined %}b{% elif enable_thinking %}bcde"
        "{% else %}bcdefghi{% endif %}"
    )
    path = write_tiny_model(tmp_path / "thinks.gguf", seed=1, chat_template=template)
    done = localspec("chat", "-m", path, "-t", "1", "-n", "2", *flags, stdin="hi\n")
    assert done.code == 0 and f"prompt {tokens} tokens" in done.err


def test_what_goes_wrong_in_a_chat_is_told_and_the_chat_goes_on(
    chat: Command, tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    long = "words " * 100
    script = f"{long}\n/draft 3\n/load {file}\n/set seed x\n/what\n{HELLO}\n/save {file}\n"
    done = chat("-c", "100", "--temp", "0", stdin=script)
    assert done.code == 0 and "Traceback" not in done.err
    problems = re.findall("Error: (.*)", done.err)
    words = ("context holds 100", "No draft model", "talk.json", "no value for seed", "/what")
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True))
    assert done.out == chat("--temp", "0").out
    assert [turn["role"] for turn in json.loads(file.read_text("utf-8"))["messages"]] == [
        "user",
        "assistant",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--temp", "-1"], 2, "temperature is -1"),
        (["--draft", "3"], 2, "no draft model"),
        (["-md", "DRAFT", "--draft", "0,2"], 2, "one draft length, not a list"),
        (["-md", "BAD/other.gguf"], 1, "other.gguf cannot draft for"),
        (["-n", "0"], 2, "Invalid value for '--max-tokens'"),
        (["--json"], 2, "No such option"),
        (["a prompt"], 2, "Two targets were given: a prompt and"),
    ],
)
def test_a_chat_that_cannot_begin(
    chat: Command, tiny: TinyFiles, bad_files: Path, arguments: list[str], code: int, words: str
) -> None:
    given = [text.replace("BAD", str(bad_files)) for text in arguments]
    given = [str(tiny.draft) if text == "DRAFT" else text for text in given]
    done = chat(*given)
    assert (done.code, done.out) == (code, "")
    assert words in done.sentences and "Traceback" not in done.err


def test_ctrl_c_ends_an_answer_and_not_the_chat(
    chat: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"{HELLO}\n/undo\n{HELLO}\n"
    whole = chat("--temp", "0", "-n", "40", stdin=HELLO + "\n")
    with monkeypatch.context() as patch:
        interrupt_decode(patch, 20)
        done = chat("--temp", "0", "-n", "40", stdin=script)
    assert done.code == 0
    first, _, rest = done.err.partition("\n")
    assert first.startswith("17 tokens") and first.endswith(" · cancelled")
    assert "cancelled" not in rest
    assert done.out.endswith(whole.out) and done.out != whole.out
    assert whole.out.startswith(done.out.removesuffix(whole.out).removesuffix("\n"))


# -- interrupted and cut off ---------------------------------------------------------------


def interrupt_decode(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    real = llama_library.library().llama_decode
    calls = iter(range(1, 10_000))

    def decode(*arguments: object) -> object:
        if next(calls) == call:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(llama_library.library(), "llama_decode", decode)


def test_ctrl_c_keeps_what_was_said(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(HELLO, "--temp", "0", "-n", "40")
    with monkeypatch.context() as patch:
        interrupt_decode(patch, 20)  # one of them probes, one reads the prompt
        done = run(HELLO, "--temp", "0", "-n", "40")
    assert done.code == 130
    assert done.out and whole.out.startswith(done.out) and done.out != whole.out
    assert done.err.startswith("17 tokens") and done.err.endswith(" · cancelled\n")
    with monkeypatch.context() as patch:
        interrupt_decode(patch, 20)
        done = run(HELLO, "--temp", "0", "-n", "40", "--json")
    answer = json.loads(done.out)
    assert (done.code, answer["finish_reason"], answer["tokens"]) == (130, "cancelled", 17)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_ctrl_c_before_the_first_token(
    run: Command, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    interrupt_decode(monkeypatch, call)  # while loading, while reading the prompt
    done = run(HELLO)
    assert (done.code, done.out) == (130, "") and "Traceback" not in done.err


def endless(tiny: TinyFiles) -> list[str]:
    """A command that talks for many seconds."""
    settings = ["-t", "1", "-c", "60000", "--temp", "0.8", "--seed", "1", "--draft", "off"]
    settings += ["--raw", "ab"]
    return [sys.executable, "-m", "localspec", "run", "-m", str(tiny.target), *settings]


def test_a_real_ctrl_c(tiny: TinyFiles, localspec: Command) -> None:
    with subprocess.Popen(
        endless(tiny),
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None
        first = started.stdout.read(1)
        started.send_signal(signal.SIGINT)
        rest, err = started.communicate()
    said, figures = (first + rest).decode(), err.decode().splitlines()[-1]
    assert started.returncode == 130
    assert figures.endswith(" · cancelled") and "Traceback" not in err.decode()
    again = localspec(*endless(tiny)[3:], "-n", figures.split()[0])
    assert again.out.startswith(said)
    assert len(again.out) - len(said) < 20  # the piece that was just being written


def test_a_reader_that_leaves(tiny: TinyFiles) -> None:
    with subprocess.Popen(
        endless(tiny),
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None and started.stderr is not None
        assert started.stdout.read(1)
        started.stdout.close()
        err = started.stderr.read().decode()
        started.wait()
    assert started.returncode != 0
    assert "Traceback" not in err and "Error" not in err


# -- odd surroundings ----------------------------------------------------------------------


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


def test_a_stream_that_cannot_show_every_character(tiny: TinyFiles) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = process(
        *("run", "-m", tiny.target, "-t", "1", "-n", "20", "--seed", "1", "--draft", "off", "ab"),
        env=environment,
    )
    assert done.returncode == 0 and "?" in done.stdout and "Traceback" not in done.stderr


def test_bytes_that_are_no_text_in_a_pipe(tiny: TinyFiles) -> None:
    done = process(
        *("run", "-m", tiny.target, "-t", "1", "-n", "2", "--draft", "off", "ab"),
        text=False, stdin=None, input=b"caf\xe9 \xff",
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: What was piped in is not UTF-8")  # type: ignore[arg-type]
    assert b"Traceback" not in done.stderr  # type: ignore[operator]


# -- check ---------------------------------------------------------------------------------


def test_check_says_yes(localspec: Command, tiny: TinyFiles) -> None:
    done = localspec("check", tiny.target, tiny.draft)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("target  target.gguf: llama, ")
    assert done.out.endswith("compatible; llama.cpp's own rule accepts this pair\n")
    t, d = str(tiny.target), str(tiny.draft)
    for spelling in (
        ["--target", t, "--draft", d],
        ["-m", t, "-md", d],
        ["--draft-model", d, "--target", t],
        ["--draft", d, t],
        ["--target", t, d],
    ):
        assert localspec("check", *spelling).out == done.out


def test_check_names_what_differs_first(
    localspec: Command, tiny: TinyFiles, tmp_path: Path
) -> None:
    data = tiny.draft.read_bytes()
    assert data.count("\u0120the".encode()) == 1
    other = tmp_path / "other.gguf"
    other.write_bytes(data.replace("\u0120the".encode(), "\u0120tho".encode()))
    done = localspec("check", tiny.target, other)
    assert (done.code, done.err) == (1, "")
    verdict = done.out.splitlines()[-1]
    assert verdict == "not compatible; llama.cpp's own rule refuses (token-text) this pair"
    (error,) = [line for line in done.out.splitlines() if line.startswith("error")]
    assert "260" in error and "the" in error and "tho" in error

    report = json.loads(localspec("check", tiny.target, other, "--json").out)
    assert report["compatible"] is False
    assert report["llama_cpp"]["accepts"] is False
    assert report["llama_cpp"]["rule"] == "token-text"
    finding = report["findings"][0]
    assert finding.keys() == {"level", "rule", "message", "hint"}
    assert finding["level"] == "error" and "260" in finding["message"]
    for role, path in (("target", tiny.target), ("draft", other)):
        facts = report[role]
        assert facts["path"] == str(path) and facts["n_vocab"] == 272
        assert facts["architecture"] == "llama"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "two models, not 0"),
        (["T"], 2, "two models, not 1"),
        (["T", "D", "--draft", "D"], 2, "two models, not 3"),
        (["T", "D", "D"], 2, "unexpected extra argument"),
        (["T", "BAD/none.gguf"], 1, "There is no file"),
        (["BAD/cut.gguf", "D"], 1, "cut short"),
        (["T", "BAD/text.gguf"], 1, "text file"),
        (["BAD/folder.gguf", "D"], 1, "directory"),
    ],
)
def test_check_of_bad_input(
    localspec: Command,
    tiny: TinyFiles,
    bad_files: Path,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    names = {"T": str(tiny.target), "D": str(tiny.draft)}
    given = [names.get(text, text.replace("BAD", str(bad_files))) for text in arguments]
    done = localspec("check", *given)
    assert (done.code, done.out) == (code, "")
    assert words in done.sentences and "Traceback" not in done.err


def test_lenient_in_check_and_run(localspec: Command, run: Command, tiny: TinyFiles) -> None:
    other = retuned(tiny.draft)
    strict = localspec("check", tiny.target, other)
    assert strict.code == 1 and "\nnot compatible; " in strict.out
    lenient = localspec("check", "--lenient", tiny.target, other)
    assert lenient.code == 0 and "control token" in lenient.out
    assert "llama.cpp's own rule refuses (token-text)" in lenient.out
    refused = run(HELLO, "-md", other, "--draft", "4")
    assert refused.code == 1 and "--lenient runs the pair" in refused.err
    assert run(HELLO, "-md", other, "--draft", "4", "--lenient").code == 0


def test_inspect_shows_a_file(localspec: Command, tiny: TinyFiles, tmp_path: Path) -> None:
    done = localspec("inspect", tiny.target)
    assert done.code == 0 and done.err == ""
    lines = done.out.splitlines()
    assert lines[0].startswith("file ") and any(line.startswith("as a draft") for line in lines)
    facts = json.loads(localspec("inspect", tiny.target, "--json").out)["facts"]
    assert facts["architecture"] == "llama"
    nothing = tmp_path / "nothing.gguf"
    nothing.write_bytes(b"GGUF")
    refused = localspec("inspect", nothing)
    assert refused.code == 1 and refused.out == "" and "Traceback" not in refused.err


# -- doctor and demo -----------------------------------------------------------------------


def test_doctor(localspec: Command) -> None:
    done = localspec("doctor")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("localspec") and "\ndemo              runs: " in done.out
    facts = json.loads(localspec("doctor", "--json").out)
    assert facts["healthy"] is True and facts["facts"]["localspec"] == __version__


def test_an_unhealthy_doctor(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    ill = DoctorReport({"demo": "fails: so it is"}, ["Mend it."], healthy=False)
    monkeypatch.setattr(doctor, "examine", lambda: ill)
    done = localspec("doctor")
    assert (done.code, done.out) == (1, "demo              fails: so it is\nadvice: Mend it.\n")
    assert localspec("doctor", "--json").code == 1


@pytest.fixture
def small_demo(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.bench.demo import padded_pair
    from localspec.bench.padding import PaddedShape

    shapes = (PaddedShape(128, 2, 128, 3), PaddedShape(128, 2, 96, 2))
    monkeypatch.setattr(paths, "demo_pair", lambda: (tiny.target, tiny.draft))
    monkeypatch.setattr(padded_pair, "__defaults__", (shapes,))


@pytest.mark.usefixtures("small_demo")
def test_demo(localspec: Command) -> None:
    flags = ("--repeats", "1", "-n", "4", "-t", "1", "--draft", "2")
    done = localspec("demo", *flags)
    assert done.code == 0
    assert "Draft length 2" in done.err and done.err.count("\n") == 1
    assert "F16: the 87k target" in done.out and "Q4_0: the 87k target" in done.out
    done = localspec("demo", *flags, "--json")
    assert (done.code, done.err) == (0, "")
    pairs = json.loads(done.out)["pairs"]
    assert [pair["quantization"] for pair in pairs] == ["F16", "Q4_0"]
    assert all(pair["sides"][1]["text"] in ("same", "rounding") for pair in pairs)
    for nonsense in (("--draft", "0"), ("--repeats", "0"), ("-n", "257"), ("-t", "none")):
        assert localspec("demo", *nonsense).code == 2
    assert "shows drafting" in localspec("demo", "--draft", "off").err


@pytest.mark.usefixtures("small_demo")
def test_ctrl_c_ends_the_demo(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_decode(monkeypatch, 20)
    done = localspec("demo", "--repeats", "1", "-n", "4", "-t", "1", "--json")
    assert (done.code, done.out) == (130, "") and "Traceback" not in done.err


# -- bench ---------------------------------------------------------------------------------


@pytest.fixture
def bench(localspec: Command, tiny: TinyFiles, tmp_path: Path) -> Command:
    """`localspec bench` on the tiny pair, two tasks, one thread, four tokens, two repeats."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"task": task, "prompt": f"the {word}"} for task in ("one", "two") for word in "ab"]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    pair = ("-m", tiny.target, "-md", tiny.draft)

    def call(*arguments: str | Path, pair: Sequence[str | Path] = pair) -> Done:
        flags = ("-t", "1", "-n", "4", "--repeats", "2", "--prompts", prompts)
        return localspec("bench", *pair, *flags, *arguments)

    return call


def test_bench_shows_a_table_and_what_it_means(bench: Command) -> None:
    done = bench("--draft-tokens", "3,0,auto")
    assert done.code == 0
    assert "New on this machine" in done.err and "localspec bench" not in done.err
    head, *rest, memory = done.out.splitlines()
    rows, (verdict, limits, *_) = rest[:9], rest[9:]
    assert limits.startswith("Limits here: ")
    assert head.split()[:3] == ["task", "draft", "tok/s"]
    assert [row.split()[:2] for row in rows if row[0] != " "] == [
        ["one", "off"], ["two", "off"], ["all", "off"],
    ]  # fmt: skip
    assert [row.split()[0] for row in rows if row[0] == " "] == ["3", "auto"] * 3
    assert all(row.endswith(("same", "rounding")) for row in rows if row[0] == " ")
    assert verdict.startswith("Fastest here: --draft ")
    assert re.fullmatch(r"memory: target \d+ MiB \(weights .*; with the draft .*\)", memory)


def test_bench_ends_with_one_json_document(bench: Command, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ("--draft", "2", "--temp", "0.8", "--seed", "9", "--audit")
    done = bench(*flags, "--json", "--output", path)
    assert done.code == 0
    document = json.loads(done.out)
    assert done.out.count("\n") == 1 and "\ntask " in done.err
    assert json.loads(path.read_text()) == document
    assert document["complete"] is True
    assert document["settings"]["draft_tokens"] == [0, 2]
    assert document["settings"]["sampling"]["seed"] == 9
    assert document["settings"]["sampling"]["temperature"] == 0.8
    assert [task["task"] for task in document["tasks"]] == ["one", "two"]
    for task in document["tasks"]:
        assert [side["draft_tokens"] for side in task["sides"]] == [0, 2]
        assert len(task["sides"][1]["speedup_by_repeat"]) == 2
        assert [audit["tokens"] for audit in task["audits"]] == [4] * 4
    assert "\nAudit: 32 tokens of 8 drafted answers" in done.err


def test_bench_of_rejection_explains_no_text(bench: Command) -> None:
    done = bench("--acceptance", "rejection", "--temp", "0.8", "-n", "20")
    assert done.code == 0
    rows = [row for row in done.out.splitlines() if row[0] == " "]
    assert [row.split()[0] for row in rows] == ["2", "4", "8"] * 3
    assert all(row.endswith("redrawn") for row in rows)
    refused = bench("--acceptance", "rejection", "--temp", "0.8", "--audit")
    assert refused.code == 2 and "which rejection does not" in refused.sentences


def test_bench_measures_our_own_prompts_greedily(localspec: Command, tiny: TinyFiles) -> None:
    pair = ("-m", tiny.target, "-md", tiny.draft)
    flags = ("-t", "1", "-n", "2", "-r", "1", "-c", "1024", "--json", "--tasks", "edit,code")
    done = localspec("bench", *pair, *flags)
    document = json.loads(done.out)
    names = [prompt["name"] for prompt in document["prompts"]]
    assert names == ["code 1", "code 2", "edit 1", "edit 2"]
    assert document["settings"]["draft_tokens"] == [0, 2, 4, 8, "auto"]
    assert document["settings"]["sampling"]["temperature"] == 0
    assert document["settings"]["sampling"]["seed"] == 0


def test_bench_without_a_draft(bench: Command, tiny: TinyFiles) -> None:
    done = bench("--suffix", "off", pair=("-m", tiny.target))
    assert done.code == 0 and "Name a draft to compare it" in done.out
    assert len(done.out.splitlines()) == 6
    done = bench(pair=("-m", tiny.target))
    assert done.code == 0 and "auto found nothing worth drafting" in done.out
    assert len(done.out.splitlines()) == 9
    refused = bench("--draft", "4", pair=("-m", tiny.target))
    assert refused.code == 2 and "no draft model" in refused.err and refused.out == ""


def test_bench_of_a_target_that_cannot_forget(bench: Command, tiny: TinyFiles) -> None:
    done = bench("--json", pair=("-m", tiny.recurrent, "-md", tiny.draft))
    assert done.code == 0 and "running plain" in done.err
    assert json.loads(done.out)["settings"]["draft_tokens"] == [0]


def test_an_unexplained_difference_is_a_failure(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.engine.model import LlamaModel

    honest = LlamaModel.decode

    def moody(self: LlamaModel, tokens: Sequence[int], rows: int) -> object:
        logits = honest(self, tokens, rows)
        return -logits if rows > 1 else logits

    monkeypatch.setattr(LlamaModel, "decode", moody)
    done = bench("--draft", "3", "--json")
    assert done.code == 1
    assert "DIFFERENT" in done.err and "NOT rounding" in done.err
    document = json.loads(done.out)
    assert document["overall"]["sides"][1]["text"] == "different"
    assert document["overall"]["differences"][0]["proven_at"] is None


@pytest.mark.parametrize(
    ("problem", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "Stopped"),
        (EngineError("Out of memory.", "Buy some."), 1, "Error: Out of memory."),
    ],
)
def test_what_ends_a_bench_early_keeps_what_was_measured(
    bench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    problem: BaseException, code: int, sentence: str,
) -> None:  # fmt: skip
    from localspec.bench import run as room

    left = iter(range(2 + 3 * 4 + 1))  # warm-up, three prompts, and one answer of the fourth
    answer = room.answer

    def interrupted(*arguments: Any) -> object:
        if next(left, None) is None:
            raise problem
        return answer(*arguments)

    monkeypatch.setattr(room, "answer", interrupted)
    path = tmp_path / "result.json"
    done = bench("--draft", "2", "--output", path, "--json")
    assert done.code == code and "Traceback" not in done.err
    assert "Stopped early: 3 prompts measured." in done.err and sentence in done.err
    document = json.loads(path.read_text())
    assert document["complete"] is False
    assert document["overall"]["prompts"] == ["one 1", "one 2", "two 1"]
    assert json.loads(done.out) == document


def test_results_survive_a_file_that_cannot_be_written(
    bench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    from localspec.bench import report

    done = iter([True, True])
    write = report._write

    def full(path: Path, document: Any) -> None:
        if next(done, None) is None:
            raise FileProblem("No room.", "Make some.")
        write(path, document)

    monkeypatch.setattr(report, "_write", full)
    finished = bench("--draft", "2", "--output", folder / "result.json", "--json")
    assert finished.code == 1 and "No room." in finished.err
    assert json.loads(finished.out)["complete"] is True


def test_results_survive_a_reader_that_leaves(tiny: TinyFiles, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ("-t", "1", "-n", "64", "-r", "2", "-c", "1024", "--tasks", "code,edit", "-o", path)
    pair = ("-m", tiny.target, "-md", tiny.draft)
    arguments = [str(argument) for argument in ("bench", *pair, *flags)]
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline().startswith("task")
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()
    assert json.loads(path.read_text())["tasks"][0]["task"] == "code"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--tasks", ","], 2, "There is no task ','. Tasks here: one, two."),
        (["--tasks", "one,three"], 2, "There is no task 'three'. Tasks here: one, two."),
        (["--prompts", "none.jsonl"], 1, "none.jsonl cannot be read: No such file"),
        (["--output", "none/result.json"], 1, "cannot be written to none/result.json"),
        (["--repeats", "0"], 2, "greater than or equal to 1"),
        (["--temp", "-1"], 2, "temperature is -1.0, expected a value from 0 to 100."),
        (["--draft", "99"], 2, "exceeds what we verify"),
        (["-n", "9999"], 1, "it needs a context of"),
        (["-c", "8"], 1, "it needs a context of"),
    ],
)
def test_bench_of_bad_input(bench: Command, arguments: list[str], code: int, sentence: str) -> None:
    done = bench(*arguments)
    assert done.code == code and "Traceback" not in done.err
    assert sentence in " ".join(done.sentences.split())


# -- help and version ----------------------------------------------------------------------


def test_help_of_everything(localspec: Command) -> None:
    top = localspec("--help")
    assert (top.code, top.err) == (0, "")
    assert localspec("-h").out == top.out
    assert "localspec demo" in top.out
    for command in COMMANDS:
        assert f"│ {command} " in top.out
        done = localspec(command, "--help")
        assert (done.code, done.err) == (0, "")
        assert f"localspec {command} [OPTIONS]" in done.out
        assert ("--json" in done.out) == (command != "chat")


def test_version_and_nothing(localspec: Command) -> None:
    assert localspec("--version") == Done(0, f"localspec {__version__}\n", "")
    nothing = localspec()
    assert nothing.code == 2 and "Usage: " in nothing.out and "localspec demo" in nothing.out
    unknown = localspec("frobnicate")
    assert unknown.code == 2 and "No such command 'frobnicate'" in unknown.sentences


def test_python_m_localspec() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"localspec {__version__}\n", "")


HEAVY = ("llama_cpp", "gguf", "huggingface_hub", "jinja2")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], (*HEAVY, "numpy")),
        (["run", "--help"], (*HEAVY, "numpy")),
        (["chat", "--help"], (*HEAVY, "numpy")),
        (["--version"], (*HEAVY, "numpy", "rich")),
        (["check", "TARGET", "DRAFT"], HEAVY),
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
    assert known == set(COMMANDS) and groups == {"pair"}
