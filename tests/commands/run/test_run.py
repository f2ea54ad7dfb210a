"""The command run: text on stdout, figures on stderr, and what goes wrong."""

import json
import re
import signal
import subprocess
from html import escape
from pathlib import Path

import pytest

from localspec import __version__
from localspec.commands import session
from localspec.llama import llama_library
from localspec.llama.rpc import servers
from tests.support.command import HELLO, Command, endless
from tests.support.files.tiny_models import copy_with, write_tiny_model
from tests.support.llama.rpc_workers import free_port
from tests.support.programs.terminal import Terminal
from tests.support.real_pair import TinyFiles, interrupt

pytestmark = pytest.mark.llama


def test_the_trace_is_a_page_of_the_answers_rounds(
    localspec: Command, tiny: TinyFiles, tmp_path: Path
) -> None:
    flags = (HELLO, "--seed", "3", "-n", "30", "-md", tiny.draft, "--draft", "4")
    page, done = tmp_path / "trace.html", localspec("run", "-m", tiny.target, *flags)
    traced = localspec("run", "-m", tiny.target, *flags, "--trace", page)
    assert traced.out == done.out
    written = page.read_text(encoding="utf-8")
    assert written.count('<th scope="row">') == written.count('<span class="round"') > 1
    assert "by the target" in written and "drafted tokens accepted" in written
    compared = localspec("run", "-m", tiny.target, *flags, "--trace", page, "--compare")
    written = page.read_text(encoding="utf-8")
    assert "x plain" not in written and escape(compared.err.splitlines()[-1]) in written
    refused = localspec("run", "-m", tiny.target, *flags, "--trace", tmp_path / "a.txt")
    assert refused.code == 2 and "ends in .html" in refused.err


def test_text_on_stdout_and_figures_on_stderr(
    run: Command, localspec: Command, tiny: TinyFiles
) -> None:
    done = run(HELLO, "--seed", "5")
    assert done.code == 0 and done.out
    assert re.fullmatch(
        r"8 tokens · [\d.]+ tok/s · prompt \d+ tokens at [\d.]+ tok/s · TTFT [\d.]+ s · "
        r"seed 5 · stopped at --max-tokens\n",
        done.err,
    )
    answer = json.loads(run(HELLO, "--seed", "5", "--json").out)
    assert done.out == answer["text"] + "\n"
    assert "seed" not in run(HELLO, "--temp", "0").err
    few = localspec("run", "-m", tiny.target, "-n", "2", "--draft", "off", HELLO)
    assert re.fullmatch(r"[\d.]+ tok/s · stopped at --max-tokens\n", few.err)
    quiet = run(HELLO, "--seed", "5", "--quiet", "--compare", "--show-draft")
    assert (quiet.code, quiet.err) == (0, "")


def test_the_prompt_comes_from_argument_file_or_pipe(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Größe: 3 €\nSay the thing", encoding="utf-8")
    prompt = file.read_text(encoding="utf-8")
    expected = run(prompt, "--temp", "0").out
    assert run("-f", file, "--temp", "0").out == expected
    file.write_text(f"{prompt}\n", encoding="utf-8")  # an editor ends the last line too
    assert run("-f", file, "--temp", "0").out == expected
    file.write_text(prompt, encoding="utf-8-sig")  # with a byte order mark
    assert run("-f", file, "--temp", "0").out == expected
    assert run("--temp", "0", stdin=f"\ufeff{prompt}").out == expected
    assert run("--temp", "0", stdin=prompt).out == expected
    assert run("--temp", "0", stdin=f"{prompt}\n").out == expected  # as echo writes it
    assert run("Größe: 3 €\nSay the thing", "--temp", "0", stdin="").out == expected
    assert run("Größe: 3 €\nSay the thing", "--temp", "0", stdin=" \n").out == expected
    assert run("-", "--temp", "0", stdin=prompt).out == expected
    assert run("-f", "-", "--temp", "0", stdin=prompt).out == expected
    empty = run("-", stdin="")
    assert empty.code == 2 and "There is no prompt." in empty.err
    joined = run(f"Explain\n\n{prompt}", "--temp", "0").out
    assert joined != expected
    assert run("Explain", "--temp", "0", stdin=prompt).out == joined
    assert run("Explain", "-f", file, "--temp", "0").out == joined
    assert run("Explain", "-f", file, "--temp", "0", stdin="not read beside -f").out == joined


def test_the_model_is_the_first_argument_or_an_option(localspec: Command, tiny: TinyFiles) -> None:
    flags = ("-t", "1", "-n", "8", "--draft", "off", "--temp", "0")
    expected = localspec("run", "-m", tiny.target, HELLO, *flags)
    assert expected.code == 0
    for given in ((tiny.target, HELLO), (tiny.target, *HELLO.split()), (tiny.target, "-p", HELLO)):
        assert localspec("run", *given, *flags).out == expected.out
    assert localspec("run", *flags, "-m", tiny.target, *HELLO.split()).out == expected.out
    assert localspec("run", tiny.target, *flags, stdin=HELLO).out == expected.out


def test_a_prompt_without_end_is_refused(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.commands.run.prompt._MOST", 10)
    file = tmp_path / "long.txt"
    file.write_text("A" * 11)
    for done, words in (
        (run("-f", file), "it is larger than 10 bytes"),
        (run(stdin="A" * 11), "there are more than 10 characters"),
    ):
        assert done.code == 1 and words in done.err
    file.write_text("A" * 10)
    assert run("-f", file).code == 0


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
        "accepted", "branched", "acceptance_rate", "mean_accepted_length", "rounds", "seed",
        "settings",
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
            assert ("drafted tokens accepted" in done.err) == (length != "off")
    assert run(HELLO, "--seed", "12", "-n", "40").out != plain.out


def test_stop_ends_before_the_text(run: Command) -> None:
    whole = run(HELLO, "--temp", "0", "-n", "30").out
    middle = whole[len(whole) // 2 :][:2]
    done = run(HELLO, "--temp", "0", "-n", "30", "--stop", "never said", "--stop", middle)
    assert done.out == whole[: whole.index(middle)] + "\n"
    assert done.code == 0 and "stopped" not in done.err


def test_the_end_of_the_context_is_told(run: Command) -> None:
    done = run("ab", "--raw", "-c", "16", "-n", "100")
    assert done.code == 0
    assert done.err.startswith("13 tokens")
    assert done.err.endswith("stopped at the end of the context (--ctx-size)\n")


def test_the_models_own_sampling_is_told(localspec: Command, tmp_path: Path) -> None:
    plain = write_tiny_model(tmp_path / "plain.gguf", seed=1)
    advice: dict[str, object] = {"temp": 0.25, "xtc_probability": 0.5, "top_p": 7.0, "mirostat": 2}
    advice["sequence"] = "top_k\x1b[2J"
    keys = {f"general.sampling.{name}": value for name, value in advice.items()}
    copy = copy_with(plain, tmp_path / "with advice.gguf", keys)
    flags = ("-t", "1", "-n", "2", "--json", HELLO)
    done = localspec("run", "-m", copy, *flags)
    told = " ".join(done.err.split())
    assert "Sampling recommended by the model: temperature 0.25, xtc_probability 0.5." in told
    assert "and not used: top_p 7, mirostat 2, sequence top_k\\x1b[2J." in told
    sampling = json.loads(done.out)["settings"]["sampling"]
    assert (sampling["temperature"], sampling["xtc_probability"]) == (0.25, 0.5)
    over = localspec("run", "-m", copy, "--temp", "0.5", "--xtc-probability", "0", *flags)
    assert "recommended by" not in over.err
    assert json.loads(over.out)["settings"]["sampling"]["temperature"] == 0.5


def test_a_bias_of_no_token_ends_the_run(run: Command) -> None:
    done = run(HELLO, "--logit-bias", "99999999+1")
    assert done.code == 2 and done.out == ""
    assert "--logit-bias 99999999+1 names a token that the model does not have." in done.err


def test_notes_go_to_stderr(localspec: Command, tiny: TinyFiles) -> None:
    flags = ("-t", "1", "-n", "4", "--temp", "0", "ab", "--raw")
    plain = localspec("run", "-m", tiny.recurrent, *flags)
    noted = localspec("run", "-m", tiny.recurrent, "-md", tiny.draft, *flags)
    assert noted.out == plain.out and noted.code == 0
    assert "The draft is the larger model" in noted.err


def test_verbose_shows_llama_cpps_log(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_library.log, "verbose", False)
    assert "llama_model_loader" not in run(HELLO).err
    done = run(HELLO, "--verbose")
    assert "llama_model_loader" in done.err and "llama_model_loader" not in done.out
    assert "llama_model_loader" not in run(HELLO).err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-m", "BAD/none.gguf"], 1, "There is no file"),
        (["-m", "BAD/cut.gguf"], 1, "cut short"),
        (["-m", "BAD/folder.gguf"], 1, "is a directory"),
        (["-m", "BAD/text.gguf"], 1, "it is a text file"),
        (["-md", "BAD/cut.gguf"], 1, "cut short"),
        (["-md", "BAD/other.gguf"], 1, "other.gguf cannot draft for"),
        (["-c", "8"], 1, "available context size of 8 tokens, answer included"),
        (["-f", "BAD/none.txt"], 1, "none.txt cannot be read"),
        (["-f", "BAD/latin1.txt"], 1, "Give a text file in UTF-8"),
        (["-fa", "off", "-ctv", "q8_0"], 1, "cannot make a context"),
        (["--draft", "3"], 2, "no draft model"),
        (["--draft", "DRAFT", "--draft", "0,2"], 2, "one draft length, not a list"),
        (["--raw", "--system", "x"], 2, "--raw uses no template"),
        (["--temp", "-1"], 2, "expected a number from 0 to 100, not '-1'."),
        (["--logit-bias", "5"], 2, "5 is no logit bias"),
        (["-n", "-3"], 2, "Invalid value for '--max-tokens' / '-n'"),
        (["-dev", "TPU7"], 2, "There is no device 'TPU7'"),
        (["-ot", "x=TPU7"], 2, "no buffer type 'TPU7'"),
        (["--prompt-cache", "/"], 1, "is no prompt cache"),
        (["--frobnicate"], 2, "No such option: --frobnicate"),
        (
            ["demo", "- one\n- two"],
            2,
            "A prompt that begins with a dash comes after -- or -p: -p '- one",
        ),
        (["demo", "-5 + 3?"], 2, "comes after -- or -p: -p '-5 + 3?'"),
        (["demo", "--what is it?"], 2, "comes after -- or -p: -p '--what is it?'"),
        (["demo", "-xyz"], 2, "comes after -- or -p."),
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


def test_a_terminal_without_a_prompt_is_a_chat(tiny: TinyFiles) -> None:
    """As `ollama run MODEL`; what is asked for one answer alone still wants a prompt."""
    flags = ("-m", str(tiny.target), "-md", str(tiny.draft), "-t", "1", "-c", "512", "-n", "4")
    cli = "from localspec.cli import main; main()"
    with Terminal(cli, "run", *flags, columns=80, rows=24) as terminal:
        terminal.prompt(1)
        assert "this is localspec chat" in terminal.window.text
        terminal.type("hello\n")
        terminal.prompt(2)
        assert " tok/s" in terminal.window.text
        terminal.type("/bye\n")
        assert terminal.leave(60) == 0
    for more in ("--json", "--raw", "--compare"):
        with Terminal(cli, "run", *flags, more, columns=80, rows=24) as terminal:
            assert terminal.leave(60) == 2
            assert "There is no prompt." in terminal.window.text


def test_nothing_to_answer(run: Command, localspec: Command, bad_files: Path) -> None:
    for done in (run(), run(""), run(stdin=" \n"), run("-f", bad_files / "empty.txt")):
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("Error: There is no prompt.\nType: localspec run MODEL ")
    for given, said in (((), "No target model was given."), ((HELLO,), "No model was given: ")):
        done = localspec("run", *given)
        assert done.code == 2 and done.err.startswith(f"Error: {said}")


def test_a_broken_template_is_told(localspec: Command, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "broken.gguf", seed=0, chat_template="{% if %}")
    done = localspec("run", "-m", path, "-t", "1", HELLO)
    assert done.code == 1 and "chat template of broken.gguf cannot be rendered" in done.err
    assert "--raw" in done.err and "Traceback" not in done.err
    assert localspec("run", "-m", path, "-t", "1", "-n", "2", "--raw", HELLO).code == 0


def test_a_hostile_template_is_told_by_its_file(localspec: Command, tmp_path: Path) -> None:
    source = "{{ 'a' | center(5 * 10**9) }}"
    path = write_tiny_model(tmp_path / "hostile.gguf", seed=0, chat_template=source)
    done = localspec("run", "-m", path, "-t", "1", HELLO)
    assert done.code == 1 and "Traceback" not in done.err
    assert "chat template of hostile.gguf needed more than 1.1 GB of memory." in done.err


def test_a_bug_keeps_its_traceback(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(session, "make_request", broken)
    with pytest.raises(ZeroDivisionError):
        run(HELLO)


def test_rejection_drafts_a_fixed_length(run: Command, tiny: TinyFiles, chat: Command) -> None:
    rejecting = (HELLO, "-md", tiny.draft, "--acceptance", "rejection", "--seed", "3", "-n", "40")
    answer = json.loads(run(*rejecting, "--json").out)
    assert answer["settings"]["draft_tokens"] == 4 and answer["drafted"] > 0
    assert answer["settings"]["sampling"]["acceptance"] == "rejection"
    assert run(*rejecting).out == answer["text"] + "\n"  # the same pair, length and seed
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
    flags = (HELLO, "--seed", "3", "-n", "40", "-md", tiny.draft, "--draft", "4", "--compare")
    done = run(*flags)
    figures, compared = done.err.splitlines()[-2:]
    assert "drafted tokens accepted" in figures and "about" not in figures
    gained = r"[\d.]+ times as fast as plain decoding \(.* tok/s\).*; the same text\."
    words = rf"(Measured|No clear winner): {gained}"
    assert re.fullmatch(words, compared)
    answer = json.loads(run(*flags, "--json").out)
    assert answer["plain"]["token_ids"] == answer["token_ids"] and answer["plain"]["drafted"] == 0
    assert answer["measured_speedup"] > 0 and answer["same_text"] is True
    other = json.loads(run(*flags, "--json", "--acceptance", "rejection").out)
    assert other["plain"]["text"] == answer["text"]
    assert other["same_text"] == (other["text"] == answer["text"])


def test_auto_measures_a_pair_once(run: Command, tiny: TinyFiles, tmp_path: Path) -> None:
    flags = (HELLO, "-md", tiny.draft, "--draft", "auto", "--temp", "0")
    first, second = run(*flags), run(*flags)
    assert "New on this machine" in first.err and "New on this machine" not in second.err
    assert first.out == second.out == run(HELLO, "--temp", "0").out
    assert "New on this machine" in run(*flags, "--recalibrate").err
    (profile,) = (tmp_path / "found" / "pairs").glob("*+*.json")
    profile.write_text("{")
    again = run(*flags)
    assert again.code == 0 and "profile of this pair is discarded" in again.err
    assert json.loads(profile.read_text())["profile"]["verify"]


def test_auto_needs_no_draft_model(run: Command) -> None:
    text = "one two three four five six seven " * 8
    plain = json.loads(run(text, "--raw", "--temp", "0", "--json", "-n", "40").out)
    auto = json.loads(
        run(text, "--raw", "--temp", "0", "--json", "-n", "40", "--draft", "auto").out
    )
    assert auto["text"] == plain["text"]
    assert auto["settings"]["draft_tokens"] == "auto" and auto["settings"]["draft"] is None
    assert set(auto["sources"]) <= {"lookup"}
    assert (auto["estimated_speedup"] is None) == (not auto["sources"])  # nothing drafted, no gain
    off = run(text, "--raw", "--temp", "0", "--json", "--draft", "auto", "--prompt-lookup", "off")
    assert json.loads(off.out)["settings"]["draft_tokens"] == 0
    assert run(HELLO, "--prompt-lookup", "perhaps").code == 2


def test_auto_is_the_default_and_measures_a_target_once(
    localspec: Command, tiny: TinyFiles
) -> None:
    flags = ("run", "-m", tiny.target, "-t", "1", "-n", "4", HELLO, "--json")
    for more, measured in (((), True), ((), False), (("-md", tiny.draft), True)):
        done = localspec(*flags, *more)
        assert json.loads(done.out)["settings"]["draft_tokens"] == "auto"
        assert ("New on this machine" in done.err) == measured and "discarded" not in done.err
    # Measured, and then the prompt is too long.
    assert localspec(*flags, "-c", "16").code == 1


def test_ctrl_c_keeps_what_was_said(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(HELLO, "--temp", "0", "-n", "40")
    with monkeypatch.context() as patch:
        interrupt(patch, 20)  # one of them probes, one reads the prompt
        done = run(HELLO, "--temp", "0", "-n", "40")
    assert done.code == 130
    assert done.out and whole.out.startswith(done.out[:-1]) and done.out != whole.out
    assert done.err.startswith("18 tokens") and done.err.endswith(" · cancelled\n")
    with monkeypatch.context() as patch:
        interrupt(patch, 20)
        done = run(HELLO, "--temp", "0", "-n", "40", "--json")
    answer = json.loads(done.out)
    assert (done.code, answer["finish_reason"], answer["tokens"]) == (130, "cancelled", 18)


@pytest.mark.parametrize("call", [1, 2])
def test_ctrl_c_before_the_first_token(
    run: Command, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    interrupt(monkeypatch, call)  # while loading, while reading the prompt
    done = run(HELLO)
    assert (done.code, done.out) == (130, "") and "Traceback" not in done.err


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


def test_the_prompt_may_be_a_flag(run: Command) -> None:
    plain = run(HELLO, "--temp", "0")
    assert plain.code == 0
    for flag in ("-p", "--prompt"):
        assert run(flag, HELLO, "--temp", "0").out == plain.out
    both = run("-p", HELLO, HELLO)
    assert both.code == 2 and "Two prompts were given." in both.err
    piped = run("-p", "One", "--temp", "0", stdin="Two")
    assert piped.out == run("One\n\nTwo", "--temp", "0").out


def test_what_looks_like_a_flag_may_be_a_value(run: Command) -> None:
    assert run("--stop", "-cnv", HELLO).code == 0
    assert run("--", "-cnv").code == 0


def test_what_was_given_is_in_the_document(run: Command) -> None:
    done = run(
        *("-fa", HELLO, "--json", "-b", "256", "-ub", "128", "--rope-scale", "2", "--no-mmap"),
        *("--override-kv", "llama.context_length=int:500", "-c", "0"),
    )
    target = json.loads(done.out)["settings"]["target"]
    expected = {
        "batch_size": 256, "ubatch_size": 128, "rope": {"rope_freq_scale": 0.5}, "mmap": False,
        "override_kv": {"llama.context_length": 500}, "ctx_size": 500, "flash_attention": "on",
    }  # fmt: skip
    assert {name: target[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-ot", "(" * 3000 + ")" * 3000 + "=CPU"), "32 nested parentheses"),
        (("-otd", "(" * 3000 + ")" * 3000 + "=CPU", "--draft", "DRAFT"), "32 nested parentheses"),
        (("--override-kv", "llama.context_length=str:a"), "is of the type int, not str"),
        (("--lora", "DRAFT"), "no LoRA adapter"),
        (("--lora", "none.gguf"), "There is no file none.gguf"),
        (("-c", "1000000000"), "1,000,000,000 tokens need"),
        (("--swa-full",), "No such option: --swa-full. Names of llama.cpp's flags here"),
        (("-fa", "-mli"), "No such option: -mli."),
    ],
)
def test_loading_that_cannot_be(
    run: Command, tiny: TinyFiles, arguments: tuple[str, ...], words: str
) -> None:
    given = [str(tiny.draft) if text == "DRAFT" else text for text in arguments]
    done = run(HELLO, *given)
    assert done.code in (1, 2) and done.out == "" and words in done.sentences
    assert "Traceback" not in done.err


def test_a_prompt_cache(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "cache"
    flags = ("--temp", "0", "--prompt-cache", file)
    first = run(HELLO, *flags)
    assert f"tokens in {file}" in first.err and "cached" not in first.err.splitlines()[-1]
    again = run(HELLO, *flags)
    assert again.out == first.out and re.search(r"prompt \d+ tokens, \d+ cached", again.err)
    document = json.loads(run(HELLO, *flags, "--json").out)
    assert document["prompt_tokens"] == document["cached_tokens"] + 1 > 6
    other = run(HELLO, *flags, "-ctk", "q8_0", "--prompt-cache-ro")
    assert "made with cache_type_k f16, not q8_0; the prompt is read." in other.err


def test_a_prompt_cache_never_replaces_another_file(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("years of work")
    done = run(HELLO, "--prompt-cache", file)
    assert done.code == 1 and "is no prompt cache" in done.err
    assert file.read_text() == "years of work"
    assert run(HELLO, "--prompt-cache-ro").code == 2


def test_rpc_is_refused_by_sentences(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("--rpc", "worker", "x")
    assert done.code == 2 and "expected HOST:PORT" in done.sentences
    monkeypatch.setattr(servers, "is_available", lambda: False)
    done = run("--rpc", "127.0.0.1:1", "x")
    assert (done.code, done.out) == (1, "")
    assert "no RPC backend" in done.err and "bash scripts/build_rpc.sh" in done.err
    monkeypatch.setattr(servers, "is_available", lambda: True)
    done = run("--rpc", "8.8.8.8:1", "x")
    assert (done.code, done.out) == (2, "") and "--trust-rpc-network" in done.err
    done = run("--rpc", f"127.0.0.1:{free_port()}", "x")
    assert (done.code, done.out) == (1, "") and "cannot be reached" in done.err
