"""The commands about models as a user meets them: find, judge, fetch and verify."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from localspec.commands.start import choose_model
from localspec.core import paths
from localspec.hub import client as hub_client
from localspec.hub.remote_header import FIRST_BYTES
from localspec.library import acquire
from localspec.library.pairs import user_pairs
from tests.support.command import Command
from tests.support.fake_hub import GOOD_TOKEN, FakeHub, drop
from tests.support.files.gguf_files import gguf_bytes, model_tensors, write_with_gguf
from tests.support.files.tiny_models import read_all
from tests.support.library import zoo
from tests.support.library.hub_pair import DRAFTED, FLAGS, PAIR, Pair, Reads, states, told
from tests.support.programs.streams import Streams
from tests.support.programs.terminal import Terminal, Window

CLI = "from localspec.cli import main; main()"
LLAMA_1B = "bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q8_0.gguf"


# --- the zoo: list and suggest ------------------------------------------------------------


def test_list_shows_every_model_once(localspec: Command, lonely: zoo.Zoo) -> None:
    done = localspec("list", "--no-header")
    assert done.code == 0 and len(done.out.splitlines()) == 20
    for names in lonely.shown.values():
        for name in names:
            assert re.search(rf"^{re.escape(name)}\s", done.out, re.MULTILINE)
    notes = done.err.splitlines()
    assert len(notes) == 6 and all(note.startswith("Left out of ") for note in notes)

    document = json.loads(localspec("list", "--json").out)
    assert document["notes"] == notes
    by_source: dict[str, list[str]] = {}
    for model in document["models"]:
        by_source.setdefault(model["source"], []).append(model["name"])
        assert Path(model["path"]).stat().st_size <= model["size"]
    assert {source: set(each) for source, each in by_source.items()} == {
        source: set(each) for source, each in lonely.shown.items()
    }
    shared = {m["name"]: tuple(m["also_in"]) for m in document["models"] if m["also_in"]}
    assert shared == lonely.shared


def test_list_of_some_sources_and_folders(
    localspec: Command, lonely: zoo.Zoo, tmp_path: Path, pair: Pair
) -> None:
    some = json.loads(localspec("list", "--source", "Jan", "--source", "LM-Studio", "--json").out)
    assert {model["source"] for model in some["models"]} == {"jan", "lm studio"}
    zoo.put(tmp_path / "more" / "sub" / "mine.gguf", pair.target.read_bytes())
    done = localspec("list", "--no-header", "--source", "gpt4all", "--folder", tmp_path / "more")
    assert [line.split()[0] for line in done.out.splitlines()] == [
        *("mamba-2.8b.Q4_0.gguf", "sub/mine.gguf")
    ]


def test_models_of_the_current_folder_are_listed_and_offered(
    localspec: Command, tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo.put(tmp_path / "mine" / "big.gguf", pair.target.read_bytes())
    (tmp_path / "empty").mkdir()
    zoo.put(tmp_path / "models" / "bigger.gguf", pair.target.read_bytes() + b"0")
    monkeypatch.setenv("LOCALSPEC_MODELS", str(tmp_path / "models"))
    typed = iter(["3", "x", "1", ""])
    monkeypatch.setattr("builtins.input", lambda words: next(typed))
    for folder, names in ((tmp_path / "mine", ["big.gguf"]), (tmp_path / "empty", [])):
        monkeypatch.chdir(folder)
        listed = json.loads(localspec("list", "--json").out.splitlines()[-1])["models"]
        assert {each["name"] for each in listed} == {*names, "bigger.gguf"}
        assert choose_model() == (names[0] if names else None)
    monkeypatch.chdir(tmp_path / "mine")
    listed = localspec("list", "--json", "--source", "jan").out.splitlines()[-1]
    assert json.loads(listed)["models"] == []


def test_list_of_nothing(localspec: Command, tmp_path: Path) -> None:
    done = localspec("list", "--no-header")
    assert (done.code, done.out) == (0, "")
    assert "There are no GGUF models in the folders searched: " in done.err
    assert str(paths.models_folder()) in done.err
    assert json.loads(localspec("list", "--json").out) == {
        "models": [], "sidecars": [], "notes": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "draft", "reasons"),
    [
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", LLAMA_1B, "8.0 times smaller; Q8_0; "),
        (
            "hf:Qwen/Qwen3-8B-GGUF",
            "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf",
            "8.0 times smaller; Q8_0; ",
        ),
    ],
)
def test_suggest_names_the_best_draft_and_what_to_type(
    localspec: Command, lonely: zoo.Zoo, target: str, draft: str, reasons: str
) -> None:
    done = localspec("suggest", target)
    assert (done.code, done.err) == (0, "")
    first, why, command = done.out.splitlines()[:3]
    assert first == f"1. {draft}" and why.strip().startswith(reasons)
    assert shlex.split(command) == ["localspec", "chat", "--target", target, "--draft", draft]
    document = json.loads(localspec("suggest", target, "--json").out)
    assert document["drafts"][0]["name"] == draft
    assert document["drafts"][0]["command"] == command.strip()
    assert "; ".join(document["drafts"][0]["reasons"]) == why.strip()
    assert Path(document["drafts"][0]["path"]).exists()


def test_suggest_says_why_nothing_fits(localspec: Command, lonely: zoo.Zoo) -> None:
    reason = "1 unused or reserved token differs: 503: "
    done = localspec("suggest", "llama3:8b")
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0] == "No model on this disk can draft for it in its own vocabulary."
    assert lines[1].startswith(f"   {LLAMA_1B}: ") and reason in lines[1]
    assert done.err == (
        "The nearest runs with --lenient: its differences cannot corrupt text.\n"
        "See the known pairs with: localspec pairs\n"
    )
    document = json.loads(localspec("suggest", "llama3:8b", "--json").out)
    assert document["drafts"] == [] and document["refused"][0]["name"] == LLAMA_1B
    assert reason in document["refused"][0]["reason"] and document["refused"][0]["hint"]
    refused, by_text = len(document["refused"]), document["by_text"]
    assert len(lines) == 1 + min(5, refused) + 3 * 3 and len(by_text) > 3
    shown = next(i for i, line in enumerate(lines) if line == by_text[0]["name"])
    assert lines[shown + 1].startswith("   of another vocabulary: drafts by text; ")
    recurrent = localspec("suggest", "mamba-2.8b.Q4_0.gguf")  # is as another target
    assert recurrent.code == 1 and recurrent.out.startswith(f"{lines[0]}\n")
    assert recurrent.out.count(": ") >= 3  # with reasons for each of the nearest
    assert "--lenient" not in recurrent.err


def test_suggest_names_known_pairs_of_the_target(localspec: Command, lonely: zoo.Zoo) -> None:
    done = localspec("suggest", "ggml-org/gemma-3-27b-it-GGUF")
    assert "known pair: gemma3-27b, draft hf:ggml-org/gemma-3-1b-it-GGUF/" in done.out
    assert "localspec download gemma3-27b\n" in done.out
    known = json.loads(localspec("suggest", "ggml-org/gemma-3-27b-it-GGUF", "--json").out)
    assert known["known_pairs"] == ["gemma3-27b"]


def test_what_suggest_offers_can_be_typed(
    localspec: Command, lonely: zoo.Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acquire, "proven", lambda check: check)  # there are no weights to load
    target = "hf:Qwen/Qwen3-8B-GGUF"
    drafts = json.loads(localspec("suggest", target, "--json").out)["drafts"]
    assert len(drafts) == 3
    for draft in drafts:
        done = localspec("check", target, draft["name"])
        assert (done.code, done.err) == (0, ""), draft["name"]


# --- before the download: check, inspect and suggest on references --------------------------


@pytest.mark.llama
@pytest.mark.parametrize(
    ("target", "draft", "code"),
    [
        ("org/big-GGUF:q4_k_m", "org/small-GGUF:Q8_0", 0),
        ("org/big-GGUF:q4_k_m", "org/other-GGUF:Q8_0", 1),
        ("hf:org/big-GGUF/big-Q4_K_M.gguf", "https://huggingface.co/org/tuned-GGUF", 1),
        ("org/big-GGUF", "DRAFT", 0),
        ("TARGET", "org/small-GGUF", 0),
        ("TARGET", "org/other-GGUF", 1),
    ],
)
def test_check_reads_only_headers(
    stocked: FakeHub, localspec: Command, pair: Pair, target: str, draft: str, code: int
) -> None:
    here = {"TARGET": str(pair.target), "DRAFT": str(pair.draft)}
    names = [here.get(name, name) for name in (target, draft)]
    done = localspec("check", *names)
    assert done.code == code
    verdict = done.out.splitlines()[-1]
    assert verdict.startswith("compatible; " if code == 0 else "not compatible; ")
    n_remote = sum(name not in here for name in (target, draft))
    served = sum(stocked.served.values())
    assert served == n_remote * FIRST_BYTES
    read = re.fullmatch(r"Read ([\d,]+) of ([\d,]+) bytes on the Hub.", done.err.splitlines()[-1])
    assert read and read[1] == f"{served:,}" and served < int(read[2].replace(",", ""))
    document = json.loads(localspec("check", *names, "--json").out)
    assert document["compatible"] is (code == 0) and document["bytes_read"] == served
    assert not any(paths.models_folder().rglob("*"))


def test_inspect_and_suggest_read_only_the_header(
    stocked: FakeHub, localspec: Command, pair: Pair
) -> None:
    done = localspec("inspect", "org/big-GGUF")
    assert done.code == 0 and done.out.startswith("file ")
    assert "hf:org/big-GGUF/big-Q4_K_M.gguf\n" in done.out
    assert sum(stocked.served.values()) == FIRST_BYTES
    assert f"Read {FIRST_BYTES:,} of {pair.target.stat().st_size:,} bytes of " in done.err
    zoo.put(paths.models_folder() / "mine.gguf", pair.draft.read_bytes()[:-64] + bytes(32))
    document = json.loads(localspec("inspect", "org/big-GGUF", "--json").out)
    assert document["runs"] is True and document["architecture"] == "llama"
    suggested = json.loads(localspec("suggest", "org/other-GGUF", "--json").out)
    assert suggested["drafts"] == []
    assert sum(stocked.served.values()) == 3 * FIRST_BYTES


# --- downloads ----------------------------------------------------------------------------


def everything_works(localspec: Command, pair: Pair, files: list[Path]) -> None:
    """What a pair is for, without a Hub."""
    assert [path.read_bytes() for path in files] == [
        *(pair.target.read_bytes(), pair.draft.read_bytes())
    ]
    verified = localspec("verify")
    assert verified.code == 0 and states(verified) == ["right", "right"]
    assert localspec("verify", *PAIR).out == verified.out
    assert localspec("check", *PAIR).code == 0
    again = localspec("download", *PAIR)
    assert (again.code, again.err) == (0, "")
    assert again.out.splitlines() == [str(path) for path in files]
    listed = [line.split()[0] for line in localspec("list", "--no-header").out.splitlines()]
    assert listed == ["org/big-GGUF/big-Q4_K_M.gguf", "org/small-GGUF/small-Q8_0.gguf"]
    assert localspec("suggest", PAIR[0]).out.startswith("1. org/small-GGUF/small-Q8_0.gguf\n")
    plain = localspec("run", "-m", PAIR[0], "--draft", "off", "--exact", "--temp", "0", *FLAGS)
    drafted = localspec("run", "-m", PAIR[0], "-md", PAIR[1], *DRAFTED, *FLAGS, "--json")
    answer = json.loads(drafted.out)
    assert plain.code == drafted.code == 0
    assert answer["text"] + "\n" == plain.out and answer["drafted"] > 0
    assert answer["settings"]["target"]["file"] == str(files[0])
    assert answer["settings"]["draft"]["file"] == str(files[1])


@pytest.mark.llama
def test_a_pair_survives_dropped_connections(
    stocked: FakeHub, localspec: Command, pair: Pair
) -> None:
    stocked.faults.append(drop(70_000, times=4))
    done = localspec("download", *PAIR)
    assert done.code == 0
    assert "trying again" in done.err
    assert "licence mit." in done.err and "licence apache-2.0." in done.err
    starts = [r.range for r in stocked.asked("/big-GGUF/resolve/") if r.range != "bytes=0-65535"]
    assert starts[1].startswith("bytes=70000-")  # type: ignore[union-attr]
    stocked.stop()
    everything_works(localspec, pair, [Path(line) for line in done.out.splitlines()])


def test_ctrl_c_keeps_what_came(
    stocked: FakeHub, localspec: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hub_client.stream_resuming

    def interrupted(*arguments: object) -> object:
        for piece in real(*arguments):  # type: ignore[arg-type]
            yield piece[:30_000]
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hub_client, "stream_resuming", interrupted)
        done = localspec("download", PAIR[0])
    assert (done.code, done.out) == (130, "") and "Traceback" not in done.err
    assert [p.suffix for p in paths.models_folder().rglob("*") if p.is_file()] == [".part"]
    again = localspec("download", PAIR[0])
    assert again.code == 0 and "Resuming big-Q4_K_M.gguf" in again.err
    assert Path(again.out.strip()).read_bytes() == pair.target.read_bytes()


def test_verify_finds_wrong_bytes(
    stocked: FakeHub, localspec: Command, pair: Pair, fetched: list[Path]
) -> None:
    big, small = fetched
    data = bytearray(pair.target.read_bytes())
    data[100_000] ^= 1
    big.write_bytes(data)
    done = localspec("verify")
    assert done.code == 1 and states(done) == ["wrong", "right"]
    line = done.out.splitlines()[0]
    assert "its sha256 begins with" in line and f"rm {big} && localspec download" in line
    assert localspec("verify", small).code == 0
    assert localspec("verify", PAIR[1]).code == 0
    assert localspec("verify", big).code == localspec("verify", *PAIR).code == 1
    big.write_bytes(data[:-1])
    assert f"it has {len(data) - 1:,} bytes" in localspec("verify", big).out
    big.unlink()
    missing = localspec("verify")
    assert missing.code == 1 and states(missing) == ["missing", "right"]
    assert "localspec download hf:org/big-GGUF/big-Q4_K_M.gguf" in missing.out


def test_verify_of_other_tools_blobs(localspec: Command, lonely: zoo.Zoo) -> None:
    done = localspec("verify", "llama3:8b", "llama3.1-8b")  # Ollama's, and a known pair
    assert done.code == 0 and states(done) == ["right"] * 3


@pytest.mark.llama
def test_a_missing_half_is_fetched_by_whoever_needs_it(
    stocked: FakeHub, localspec: Command, pair: Pair
) -> None:
    done = localspec("run", "-m", pair.target, "-md", PAIR[1], *DRAFTED, *FLAGS)
    assert done.code == 0 and done.out
    assert f"hf:{PAIR[1]}: " in done.err and "drafted tokens accepted" in done.err
    assert localspec("verify").code == 0
    assert localspec("list", "--no-header").out.count("\n") == 1


def test_a_pair_that_cannot_work_is_not_fetched(stocked: FakeHub, localspec: Command) -> None:
    for command in (
        ("download", "org/big-GGUF", "org/other-GGUF"),
        ("run", "-m", "org/big-GGUF", "-md", "org/other-GGUF", *DRAFTED, *FLAGS),
        ("chat", "-m", "org/big-GGUF", "-md", "org/other-GGUF", "--draft", "2"),
    ):
        done = localspec(*command)
        message, hint = told(done)
        assert done.code == 1
        assert message.startswith(
            "hf:org/other-GGUF cannot draft for hf:org/big-GGUF, so nothing was fetched: "
        )
        assert "localspec check hf:org/big-GGUF hf:org/other-GGUF" in hint
    assert not any(paths.models_folder().rglob("*.gguf"))


def test_pull_is_another_word_for_download(stocked: FakeHub, localspec: Command) -> None:
    done = localspec("pull", "org/small-GGUF", "--json")
    (path,) = json.loads(done.out)["files"]
    assert done.code == 0 and Path(path).name == "small-Q8_0.gguf"


def test_what_is_no_reference_and_no_file_cannot_be_downloaded(
    stocked: FakeHub, localspec: Command, tmp_path: Path
) -> None:
    for name in ("nosuch.gguf", "org/small-GGUF/small-Q8_0.gguf", str(tmp_path / "nosuch.gguf")):
        done = localspec("download", name)
        assert (done.code, done.out) == (1, ""), name
        message, _ = told(done)
        assert name in message


@pytest.mark.parametrize("name", [".", "/", ".."])
def test_a_folder_cannot_be_downloaded(localspec: Command, name: str) -> None:
    done = localspec("download", name)
    assert (done.code, done.out) == (1, "") and told(done)[0] == f"{name} is a directory."


def test_each_of_two_pairs_is_judged(stocked: FakeHub, localspec: Command) -> None:
    for name in ("one", "two"):
        user_pairs.add(name, "hf:org/big-GGUF:Q4_K_M", "hf:org/other-GGUF", {})
    assert localspec("download", "one").code == 1
    assert localspec("download", "one", "two").code == 1
    assert not any(paths.models_folder().rglob("*.gguf"))


# --- the question before a large download ---------------------------------------------------


@pytest.fixture
def large(stocked: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setattr(acquire, "LARGE", 150_000)  # the pair is, and its draft alone is not
    return stocked


def test_a_large_download_waits_for_a_yes(large: FakeHub, localspec: Command) -> None:
    # Nobody types at this terminal.
    asked = localspec("download", *PAIR)
    assert asked.code != 0 and asked.out == ""
    assert re.search(r"^Fetch \d+ kB\? \[y/N\] ", asked.err, re.MULTILINE)
    assert "Error: Nothing was fetched.\n" in asked.err and "--yes" in asked.err
    # No pipe is asked, and what comes through it is no answer.
    piped = localspec("download", *PAIR, stdin="y\n")
    assert piped.code != 0 and piped.out == "" and "[y/N]" not in piped.err
    assert not any(paths.models_folder().rglob("*.gguf"))
    done = localspec("download", *PAIR, "--yes", stdin="")
    assert done.code == 0 and "[y/N]" not in done.err
    assert localspec("verify").code == 0


def test_what_is_small_or_here_is_not_asked_about(large: FakeHub, localspec: Command) -> None:
    for names, flags in ((PAIR[1:], ()), (PAIR[:1], ("--yes",)), (PAIR, ())):
        done = localspec("download", *names, *flags)
        assert done.code == 0 and "[y/N]" not in done.err


def test_a_large_download_that_is_not_agreed_to_names_the_command_for_it(
    large: FakeHub, localspec: Command
) -> None:
    done = localspec("run", "-m", PAIR[0], "--draft", "off", *FLAGS, stdin="")
    message, hint = told(done)
    assert message == "Nothing was fetched."
    assert "localspec download --yes" in hint


@pytest.mark.parametrize("answer", ["y", "n"])
def test_the_question_on_a_terminal(large: FakeHub, pair: Pair, answer: str) -> None:
    code = f"from localspec.library import acquire; acquire.LARGE = 150_000\n{CLI}"
    with Terminal(code, "download", *PAIR, columns=60, rows=12) as terminal:
        terminal.wait(lambda window: window.text.endswith("? [y/N]"), 60)
        terminal.type(f"{answer}\n")
        left = terminal.leave(60)
        text = terminal.window.text
    files = sorted(paths.models_folder().rglob("*.gguf"))
    if answer == "y":
        assert left == 0 and [path.name for path in files] == [
            *("big-Q4_K_M.gguf", "small-Q8_0.gguf")
        ]
        assert "".join(text.split()).endswith("".join(map(str, files)))  # and no bar is left
        assert "━" in terminal.raw  # there was one
    else:
        assert left != 0 and files == [] and "Error: Nothing was fetched.\n" in text
    assert "licence mit." in text and "Traceback" not in text


# --- a draft that is found ------------------------------------------------------------------


@pytest.mark.llama
def test_the_best_draft_of_this_disk_is_found(fetched: list[Path], localspec: Command) -> None:
    done = localspec("run", "-m", PAIR[0], "--draft", "find", *DRAFTED, *FLAGS)
    named = localspec("run", "-m", PAIR[0], "-md", PAIR[1], *DRAFTED, *FLAGS)
    assert done.code == 0 and done.out == named.out
    note = done.err.splitlines()[0]
    assert note.startswith(f"Draft: {fetched[1]} (") and "times smaller" in note
    assert "drafted tokens accepted" in done.err
    chat = localspec(
        *("chat", "--target", PAIR[0], "--draft", "find", *DRAFTED, "-t", "1", "-n", "4"),
        stdin="Say the thing\n",
    )
    assert chat.code == 0 and chat.err.startswith(f"Draft: {fetched[1]} (")


@pytest.mark.llama
def test_a_draft_that_llama_cpp_refuses_is_left_out(
    fetched: list[Path], localspec: Command
) -> None:
    keys, tensors = read_all(fetched[1])
    eyes = {**tensors, "v.blk.0.attn_q.weight": tensors["output_norm.weight"]}
    write_with_gguf(fetched[0].with_name("a-with-eyes.gguf"), keys, eyes)
    del tensors["blk.0.ffn_down.weight"]  # which no header says is needed
    broken = fetched[0].with_name("b-broken.gguf")
    write_with_gguf(broken, keys, tensors)
    done = localspec("run", "-m", PAIR[0], "--draft", "find", *DRAFTED, *FLAGS)
    first, second = done.err.splitlines()[:2]
    assert first.startswith(f"{broken} is left out. ") and "not found" in first
    assert done.code == 0 and second.startswith(f"Draft: {fetched[1]} (")
    assert "a-with-eyes" not in localspec("suggest", PAIR[0]).out


def test_no_draft_can_be_found(localspec: Command, lonely: zoo.Zoo) -> None:
    done = localspec("run", "-m", "llama3:8b", "--draft", "find", "--draft", "3", *FLAGS)
    *left, message, hint = done.err.splitlines()  # files without weights, which draft by text
    assert 1 <= sum("is left out." in line for line in left) <= 3
    message = message.removeprefix("Error: ")
    assert done.code == 1 and message.startswith("No model on this disk can draft for ")
    assert hint.endswith(shlex.join(["localspec", "suggest", message.split()[-1].rstrip(".")]))


# --- one search and one reading a command ---------------------------------------------------


SEARCHES: list[tuple[str, int]] = [
    ("suggest TARGET", 1),
    ("suggest llama3:8b", 1),
    ("suggest hf:Qwen/Qwen3-8B-GGUF --folder FOLDER", 1),
    ("check hf:Qwen/Qwen3-8B-GGUF hf:Qwen/Qwen3-0.6B-GGUF", 1),
    ("check TARGET DRAFT", 0),
    ("inspect TARGET", 0),
    ("verify llama3:8b llama3.1-8b", 1),
    ("download llama3.1-8b", 1),
    ("pairs", 1),
    ("pair show llama3.1-8b", 1),
]


def test_a_command_searches_the_disk_once_at_most(
    localspec: Command, lonely: zoo.Zoo, pair: Pair, reads: Reads, subtests: pytest.Subtests
) -> None:
    names = {"TARGET": pair.target, "DRAFT": pair.draft, "FOLDER": pair.target.parent}
    for command, searched in SEARCHES:
        with subtests.test(command):
            reads.searches = 0
            assert localspec(*(names.get(word, word) for word in command.split())).code in (0, 1)
            assert reads.searches == searched


@pytest.mark.llama
def test_an_answer_searches_the_disk_once_at_most(
    localspec: Command, pair: Pair, home: Path, reads: Reads, subtests: pytest.Subtests
) -> None:
    cache = home / ".cache" / "huggingface" / "hub"
    zoo.put_in_hub_cache(cache, "org/big-GGUF", "big-Q4_K_M.gguf", pair.target.read_bytes())
    zoo.put_in_hub_cache(cache, "org/small-GGUF", "small-Q8_0.gguf", pair.draft.read_bytes())
    for models, searched in (
        (("-m", *PAIR[:1], "-md", *PAIR[1:]), 1),
        (("-m", *PAIR[:1], "--draft", "find"), 1),
        (("-m", pair.target, "-md", pair.draft), 0),
    ):
        with subtests.test(" ".join(map(str, models))):
            reads.searches = 0
            assert localspec("run", *models, *DRAFTED, *FLAGS).code == 0
            assert reads.searches == searched


def test_suggest_reads_each_header_once(
    localspec: Command, lonely: zoo.Zoo, pair: Pair, reads: Reads
) -> None:
    for target in ("hf:Qwen/Qwen3-8B-GGUF", str(pair.target)):
        reads.headers.clear()
        assert localspec("suggest", target, "--folder", pair.target.parent).code in (0, 1)
        assert len(reads.headers) > 20 and set(reads.headers.values()) == {1}


# --- errors ---------------------------------------------------------------------------------


PROBLEMS: list[tuple[str, int, str]] = [
    ("list --source nosuch", 2, "No source of models is called 'nosuch'"),
    ("list --folder nosuch", 1, "nosuch is not a folder"),
    ("inspect nosuch.gguf", 1, "There is no file nosuch.gguf"),
    ("inspect org/junk-GGUF", 1, "it is a text file"),
    ("inspect org/nosuch-GGUF", 1, "There is no public repository org/nosuch-GGUF"),
    ("suggest nosuch", 1, "There is no file and no pair named 'nosuch'"),
    ("inspect", 2, "No model was given"),
    ("suggest DRAFT -m TARGET", 2, "Two models were given"),
    ("suggest -m nosuch.gguf", 1, "There is no file nosuch.gguf"),
    ("suggest org/junk-GGUF", 1, "it is a text file"),
    ("check nosuch", 2, "There is no file and no pair named 'nosuch'"),
    ("check org/big-GGUF:Q2_K DRAFT", 2, "no model with the quantisation Q2_K; it has Q4_K_M"),
    ("check org/big-GGUF@dev DRAFT", 2, "org/big-GGUF has no revision dev"),
    ("check TARGET org/gated-GGUF", 2, "org/gated-GGUF is gated"),
    ("pairs --family nosuch", 1, "No known pair is of the family 'nosuch'"),
    ("download nosuch", 1, "There is no file and no pair named 'nosuch'"),
    ("download qwen3-14", 1, "near it: qwen3-14b"),
    ("download hf:bad", 2, "'hf:bad' names no model on the Hub"),
    ("download https://example.org/x", 2, "none of the Hugging Face Hub"),
    ("download org/nosuch-GGUF:Q8_0", 1, "There is no public repository org/nosuch-GGUF"),
    ("download org/gated-GGUF", 1, "org/gated-GGUF is gated: its terms must be accepted"),
    ("download org/none-GGUF", 1, "org/none-GGUF holds no GGUF file"),
    ("download org/Original", 1, "org/Original holds only safetensors, and no GGUF file"),
    ("run -m org/Original hi", 1, "org/Original holds only safetensors, and no GGUF file"),
    ("check TARGET org/Original", 2, "org/Original holds only safetensors, and no GGUF file"),
    ("download org/eyes-GGUF", 1, "holds only sidecars of a model: mmproj-eyes-F16.gguf"),
    ("download org/two-GGUF:Q8_0", 1, "one-Q8_0.gguf, another-Q8_0.gguf"),
    ("download hf:org/big-GGUF/big-Q2_K.gguf", 1, "has no file big-Q2_K.gguf; the nearest are"),
    ("download org/junk-GGUF", 1, "it is a text file"),
    ("download qwen3-14b", 1, "There is no public repository Qwen/Qwen3-14B-GGUF"),
    ("verify nosuch", 1, "There is no file and no pair named 'nosuch'"),
    ("verify org/small-GGUF", 1, "org/small-GGUF is not on this disk"),
    ("pair add mine -m TARGET", 2, "A pair needs a target and a draft"),
    ("pair add mine -m TARGET --draft 3", 2, "A pair needs a target and a draft"),
    ("pair add mine -m TARGET -md DRAFT --draft 0,2", 2, "one draft length, not a list"),
    ("pair add a/b -m TARGET -md DRAFT", 2, "A pair cannot be named 'a/b'"),
    ("pair add mine -m TARGET -md DRAFT -l 5", 2, "The pair mine cannot be stored"),
    ("pair add mine -m TARGET -md nosuch.gguf", 1, "There is no file nosuch.gguf"),
    ("pair show nosuch", 1, "There is no pair named 'nosuch'"),
    ("pair show ../nosuch", 1, "There is no pair named '../nosuch'"),
    ("pair remove nosuch", 1, "There is no pair named 'nosuch'"),
    ("run -m nosuch hello", 1, "There is no file and no pair named 'nosuch'"),
    ("run -m TARGET -md nosuch --draft 2 hello", 1, "There is no file and no pair named"),
    ("run -m org/nosuch-GGUF hello", 1, "There is no public repository org/nosuch-GGUF"),
    ("run -m TARGET --draft find --draft 2 hello", 1, "No model on this disk can draft for"),
    ("chat nosuch", 1, "There is no file and no pair named 'nosuch'"),
    ("chat qwen3-14b -m TARGET", 2, "Two targets were given: qwen3-14b and "),
    ("bench nosuch", 1, "There is no file and no pair named 'nosuch'"),
]


def test_every_problem_is_a_sentence_and_what_to_type_next(
    stocked: FakeHub,
    localspec: Command,
    pair: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"TARGET": str(pair.target), "DRAFT": str(pair.draft)}
    for command, code, words in PROBLEMS:
        with subtests.test(command):
            given = [names.get(word, word) for word in command.split()]
            done = localspec(*given)
            message, _ = told(done)
            assert done.code == code and words in message
            assert not any(paths.models_folder().rglob("*.gguf"))


NO_DOCUMENTS: list[str] = [
    *("list --source nosuch", "inspect nosuch.gguf", "suggest nosuch", "check nosuch"),
    *("pairs --family nosuch", "download org/none-GGUF", "pair show nosuch", "run -m nosuch x"),
]


def test_a_problem_is_no_document(
    stocked: FakeHub, localspec: Command, subtests: pytest.Subtests
) -> None:
    for command in NO_DOCUMENTS:
        with subtests.test(command):
            assert told(localspec(*command.split(), "--json")) == told(localspec(*command.split()))


def test_a_token_opens_what_is_gated(
    stocked: FakeHub, localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    message, hint = told(localspec("download", "org/gated-GGUF"))
    assert "your access token may not read it" in message and "Accept the terms" in hint
    stocked.granted.add("org/gated-GGUF")
    assert localspec("download", "org/gated-GGUF").code == 0


# --- documents and tables --------------------------------------------------------------------


DOCUMENTS: list[str] = [
    *("list", "pairs", "pairs --family qwen --fits", "pair show llama3.1-8b"),
    *("suggest llama3:8b", "suggest hf:Qwen/Qwen3-8B-GGUF", "check llama3.1-8b"),
    f"check llama3:8b {LLAMA_1B}",
    *("inspect llama3:8b", "inspect nomic-embed-text:latest", "download llama3.1-8b"),
]


def test_every_document_parses_and_agrees_with_the_text(
    localspec: Command, lonely: zoo.Zoo, subtests: pytest.Subtests
) -> None:
    for command in DOCUMENTS:
        with subtests.test(command):
            done = localspec(*command.split(), "--json")
            assert done.out.count("\n") == 1 and isinstance(json.loads(done.out), dict)
            assert "Error" not in done.err
            assert localspec(*command.split()).code == done.code


HOSTILE = "evil\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e\x7f\rname"


SHOWN_NAMES: list[str] = [
    *("list", "list --json", "list --folder FOLDER", "inspect DRAFT", "inspect DRAFT --json"),
    *("suggest TARGET", "suggest DRAFT", "suggest mine", "suggest TARGET --json"),
    *("check TARGET DRAFT", "check TARGET OTHER", "check TARGET OTHER --json", "check mine"),
    *("verify TARGET", "verify mine", "download TARGET", "download mine", "pair show mine"),
    *("pairs --family mine", "pair show HOSTILE", "pairs --family HOSTILE", "suggest HOSTILE"),
    *("run -m TARGET --draft find --draft 2 hello", "run -m DRAFT --draft find hello"),
    *("chat HOSTILE -m TARGET", "list --source HOSTILE", "inspect HOSTILE.gguf"),
]


def test_no_name_of_a_stranger_moves_the_cursor(
    localspec: Command,
    streams: Streams,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:
    folder = paths.models_folder() / HOSTILE
    owl = {"general.basename": f"Owl{HOSTILE}", "general.license": HOSTILE}
    files = {}
    for name, family, thousands in (
        ("TARGET", zoo.LLAMA31, 9),
        ("DRAFT", zoo.LLAMA31, 1),
        ("OTHER", zoo.LLAMA30, 2),
    ):
        keys = zoo.model_keys("llama", HOSTILE, family, "Q8_0", {}) | owl
        data = gguf_bytes(keys, model_tensors(1000 * thousands))
        files[name] = str(zoo.put(folder / f"{name}{HOSTILE}.gguf", data))
    user_pairs.add("mine", files["TARGET"], files["DRAFT"], {})
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    names = files | {"FOLDER": str(folder)}
    for command in SHOWN_NAMES:
        given = [names.get(word, word.replace("HOSTILE", HOSTILE)) for word in command.split()]
        with subtests.test(command):
            done = localspec(*given)
            for text in (done.out, done.err):
                Window(100, 100).write(text.replace("\n", "\r\n"))  # fails at what it must not see
            assert "Traceback" not in done.err and done.out + done.err
