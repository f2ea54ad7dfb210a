"""The command chat: a conversation through pipes, and what goes wrong in it."""

import json
import re
from pathlib import Path

import pytest

from localspec.commands.flags.settings import setting_value
from localspec.commands.session import open_engine
from localspec.core.errors import NotEnoughMemory
from localspec.core.options.sampling_params import SamplingParams, sampling_fields
from localspec.engine.engine import Engine
from localspec.library.pairs.request import PairRequest
from tests.support.command import HELLO, Command
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles, interrupt

pytestmark = pytest.mark.llama


def test_a_conversation_through_pipes(chat: Command, run: Command) -> None:
    done = chat("--seed", "5", stdin=f"{HELLO}\nand again\n")
    assert done.code == 0
    first = run(HELLO, "--seed", "5").out
    assert done.out.startswith(first) and len(done.out) > len(first) + 8
    one, two = done.err.splitlines()
    assert one.startswith("8 tokens · ") and two.startswith("8 tokens · ")


def test_a_turn_reads_only_what_is_new(chat: Command) -> None:
    long = "many words " * 30
    done = chat("--temp", "0", "--draft", "off", stdin=f"{long}\nshort\n/regen\n")
    found = re.findall(r"prompt (\d+) tokens[^·]*?(?:, (\d+) cached)? ·", done.err)
    counts = [int(whole) - int(cached or 0) for whole, cached in found]
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
            assert ("drafted tokens accepted" in done.err) == (length != "off")
    assert chat("--seed", "12", "-n", "30", "--system", "Be brief", stdin=script).out != plain.out
    middle = script.replace("zwei", "zwei\n/draft 4").replace("drei", "/draft off\ndrei")
    assert chat(*seeded, "-md", tiny.draft, "--draft", "1", stdin=middle).out == plain.out


@pytest.mark.parametrize(("flags", "tokens"), [((), 5), (("--think",), 5), (("--no-think",), 9)])
def test_thinking_reaches_the_template(
    localspec: Command, tmp_path: Path, flags: tuple[str, ...], tokens: int
) -> None:
    template = (
        "{% if enable_thinking is not defined %}b{% elif enable_thinking %}bcde"
        "{% else %}bcdefghi{% endif %}"
    )
    path = write_tiny_model(tmp_path / "thinks.gguf", seed=1, chat_template=template)
    done = localspec("chat", "-m", path, "-t", "1", "-n", "2", "--stats", *flags, stdin="hi\n")
    assert done.code == 0 and f"prompt {tokens} tokens" in done.err


def test_what_goes_wrong_in_a_chat_is_told_and_the_chat_goes_on(
    chat: Command, tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    long = "words " * 100
    script = f"{long}\n/draft 3\n/load {file}\n/set seed x\n/what\n{HELLO}\n/save {file}\n"
    done = chat("-c", "100", "--temp", "0", stdin=script)
    assert done.code == 1 and "Traceback" not in done.err
    problems = re.findall("Error: (.*)", done.err)
    words = ("context size of 100", "No draft model", "talk.json", "no value for seed", "/what")
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True))
    assert done.out == chat("--temp", "0").out
    assert [turn["role"] for turn in json.loads(file.read_text("utf-8"))["messages"]] == [
        "user",
        "assistant",
    ]


@pytest.mark.parametrize(
    ("line", "code"), [("/what", 1), ("/load none.json", 1), ("words " * 40, 1), ("/stats", 0)]
)
def test_a_script_hears_of_what_failed(chat: Command, line: str, code: int) -> None:
    done = chat("-c", "100", stdin=f"{HELLO}\n{line}\n{HELLO}\n")
    assert done.code == code and done.err.count("8 tokens · ") >= 2


def test_more_messages_than_the_context_holds(chat: Command) -> None:
    done = chat("-c", "100", stdin="and so on\n" * 60)
    assert done.code == 0 and "Error" not in done.err
    assert done.err.count("8 tokens · ") == 60
    assert "no longer sees the oldest" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--draft", "3"], 2, "no draft model"),
        (["-md", "BAD/other.gguf"], 1, "other.gguf cannot draft for"),
        (["--json"], 2, "No such option"),
        (["a prompt"], 2, "Two targets were given: a prompt and"),
    ],
)
def test_a_chat_that_cannot_begin(
    chat: Command, bad_files: Path, arguments: list[str], code: int, words: str
) -> None:
    done = chat(*(text.replace("BAD", str(bad_files)) for text in arguments))
    assert (done.code, done.out) == (code, "")
    assert words in done.sentences and "Traceback" not in done.err


def test_another_model_goes_on(
    chat: Command, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"/set top_k 7\n{HELLO}\n/model {{}}\nand?\n/set top_k\n"
    done = chat("--temp", "0", stdin=script.format(tiny.draft))
    assert done.code == 0 and f"{tiny.draft} goes on with the conversation." in done.err
    first, other = done.out.splitlines()
    stays = chat("--temp", "0", stdin=script.format("nothing"))
    assert stays.code == 1 and "'nothing'" in stays.err
    assert stays.out.splitlines()[0] == first and stays.out.splitlines()[1] != other
    failures = iter([False, True, False])

    def failing(request: PairRequest) -> Engine:
        if next(failures):
            raise NotEnoughMemory("It does not fit.", "Buy more.")
        return open_engine(request)

    monkeypatch.setattr("localspec.commands.session.open_engine", failing)
    again = chat("--temp", "0", stdin=script.format(tiny.draft))
    assert again.code == 1 and "Error: It does not fit." in again.err
    assert again.out == stays.out
    assert all("top_k 7" in each.err.splitlines()[-1] for each in (done, stays, again))


def test_ctrl_c_ends_an_answer_and_not_the_chat(
    chat: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"{HELLO}\n/undo\n{HELLO}\n"
    whole = chat("--temp", "0", "-n", "40", stdin=HELLO + "\n")
    with monkeypatch.context() as patch:
        interrupt(patch, 20)
        done = chat("--temp", "0", "-n", "40", stdin=script)
    assert done.code == 0
    first, _, rest = done.err.partition("\n")
    assert first.startswith("18 tokens") and first.endswith(" · cancelled")
    assert "cancelled" not in rest
    assert done.out.endswith(whole.out) and done.out != whole.out
    assert whole.out.startswith(done.out.removesuffix(whole.out).removesuffix("\n"))


def test_a_conversation_goes_on_from_its_prompt_cache(chat: Command, tmp_path: Path) -> None:
    cache, saved = tmp_path / "cache", tmp_path / "saved.json"
    flags = ("--temp", "0", "--prompt-cache", cache)
    first = chat(*flags, stdin=f"{HELLO}\nAnd then?\n/save {saved}\n")
    assert f"tokens in {cache}" in first.err
    again = chat(*flags, stdin=f"/load {saved}\nAnd in the end?\n")
    plain = chat("--temp", "0", stdin=f"/load {saved}\nAnd in the end?\n")
    assert again.out == plain.out
    sizes = re.search(r"prompt (\d+) tokens .*, (\d+) cached", again.err)
    assert sizes is not None and int(sizes[1]) > int(sizes[2]) > int(sizes[1]) / 2 > 5
    assert "cached" not in plain.err


# -- saved conversations -------------------------------------------------------------------


def test_a_named_conversation_continues_with_its_settings(
    chat: Command, localspec: Command, tiny: TinyFiles
) -> None:
    chat("--session", "work", "--system", "Be brief", stdin=f"{HELLO}\n/set temperature 0.25\n")
    done = localspec("chat", "--continue", "-n", "4", stdin="more\n/set\n/system\n")
    assert done.code == 0 and "temperature 0.25 ·" in done.err and "Be brief" in done.err
    (listed,) = json.loads(localspec("sessions", "--json").out)["sessions"]
    assert (listed["name"], listed["messages"], listed["models"]) == ("work", 4, tiny.target.name)
    assert "temperature 0.75 ·" in chat("--continue", "--temp", "0.75", stdin="/set\n").err
    shown = json.loads(localspec("sessions", "show", "work", "--json").out)
    assert shown["pair"]["files"][0]["size"] == tiny.target.stat().st_size
    assert localspec("sessions", "show", "work").out.startswith(f">>> {HELLO}\n\n")
    assert localspec("sessions", "rm", "work").code == 0
    assert "No conversation is saved yet" in localspec("sessions").err


def test_another_model_is_noted_and_gets_no_settings(
    chat: Command, localspec: Command, tiny: TinyFiles
) -> None:
    chat("--session", "work", "--temp", "0.25")
    flags = ("-m", tiny.draft, "-n", "4", "--session", "work")
    done = localspec("chat", *flags, stdin="/set\n")
    assert f"was with {tiny.target.name}; now {tiny.draft.name} answers" in done.sentences
    assert "temperature 0.25" not in done.err


@pytest.mark.parametrize(
    ("flags", "count"),
    [([], 0), (["--save"], 1), (["--session", "a"], 1), (["--session", "a", "--no-save"], 0)],
)
def test_a_script_leaves_no_conversation_unasked(
    chat: Command, localspec: Command, flags: list[str], count: int
) -> None:
    assert chat(*flags).code == 0
    assert len(json.loads(localspec("sessions", "--json").out)["sessions"]) == count


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--continue"], 1, "There is no saved conversation"),
        (["--continue", "--session", "a"], 2, "Leave one of them out"),
        (["--session", "../a"], 2, "cannot be named"),
    ],
)
def test_conversations_that_cannot_continue(
    chat: Command, flags: list[str], code: int, words: str
) -> None:
    done = chat(*flags)
    assert (done.code, done.out) == (code, "") and words in done.sentences


def test_a_setting_that_is_damaged_is_left_out(chat: Command, localspec: Command) -> None:
    chat("--session", "work")
    path = Path(json.loads(localspec("sessions", "--json").out)["sessions"][0]["path"])
    document = json.loads(path.read_text())
    document["pair"]["settings"] |= {"temperature": "hot", "unknown": 1}
    path.write_text(json.dumps(document))
    done = localspec("chat", "--continue", "-n", "4", stdin="more\n")
    assert done.code == 0 and "A setting of" in done.err and "temperature" in done.err


def test_every_sampling_parameter_survives_a_conversation() -> None:
    values = {name: getattr(SamplingParams(), name) for name in sampling_fields()}
    stored = json.loads(json.dumps(values))
    assert {name: setting_value(name, value) for name, value in stored.items()} == values
