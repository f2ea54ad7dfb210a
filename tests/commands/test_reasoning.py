"""Thoughts and templates through the commands: two turns, both streams, JSON, what is noted."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.support.chat import templates
from tests.support.chat.reciting import reciting, write_reciter
from tests.support.command import Command, Done
from tests.support.files.tiny_models import CHATML

pytestmark = pytest.mark.llama

SHOWN = (templates.HARMONY, templates.NEW_MODEL)  # all: chat/templates/test_template.py
FLAGS = ("--stats", "-t", "1", "--temp", "0", "--draft", "off")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str | None], Path]]:
    """A tiny model with this chat template, written once."""
    folder, paths = tmp_path_factory.mktemp("reciters"), dict[str | None, Path]()

    def written(template: str | None) -> Path:
        if template not in paths:
            paths[template] = write_reciter(folder / f"{len(paths)}.gguf", template)
        return paths[template]

    yield written


Model = Callable[[str | None], Path]


@pytest.mark.parametrize("template", SHOWN, ids=lambda source: source[:12])
def test_a_conversation_of_two_turns(
    localspec: Command, model: Model, tmp_path: Path, template: str
) -> None:
    file = tmp_path / "talk.json"
    script = f"First?\nSecond?\n/save {file}\n"
    with reciting(templates.SPOKEN[template]) as prompts:
        done = localspec("chat", "-m", model(template), *FLAGS, stdin=script)
        assert (done.code, done.out) == (0, "Yes.\nYes.\n")
        assert "Error" not in done.err and done.err.count("I think.\n") == 2
        # The answer was stored, and of the thoughts what the template itself writes down again.
        assert "First?" in prompts[1] and "Yes." in prompts[1]
        assert ("I think." in prompts[1]) == (template == templates.NEW_MODEL)
        turns = json.loads(file.read_text("utf-8"))["messages"]
        assert turns[1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "I think."}
        loaded = localspec("chat", "-m", model(template), *FLAGS, stdin=f"/load {file}\nThird?\n")
        assert loaded.out == "Yes.\n" and prompts[2].count("Yes.") == 2


def test_thoughts_stay_out_of_a_pipe(localspec: Command, model: Model) -> None:
    flags = ("run", "-m", model(templates.HARMONY), *FLAGS, "Ask")
    with reciting(templates.SPOKEN[templates.HARMONY]):
        shown, hidden = localspec(*flags), localspec(*flags, "--hide-reasoning")
        document = json.loads(localspec(*flags, "--json").out)
    assert shown.out == hidden.out == "Yes.\n"
    assert shown.err.startswith("I think.\n")
    assert hidden.err.startswith("36 tokens · ") and "think" not in hidden.err
    assert (document["text"], document["reasoning"]) == ("Yes.", "I think.")
    assert len(document["token_ids"]) == document["tokens"] > 6


@pytest.mark.parametrize("template", SHOWN, ids=lambda source: source[:12])
def test_an_answer_cut_inside_its_thoughts(localspec: Command, model: Model, template: str) -> None:
    before = templates.SPOKEN[template].partition("think.")[0]
    with reciting(before + "and think " * 50) as prompts:
        chat = ("chat", "-m", model(template), *FLAGS, "-n", "20")
        done = localspec(*chat, stdin="First?\nSecond?\n")
        once = localspec("run", "-m", model(template), *FLAGS, "-n", "20", "Ask", "--json")
    assert (done.code, done.out) == (0, "\n\n")
    assert done.err.count("The model was still thinking: there is no answer.") == 2
    assert "Error" not in done.err and "Second?" in prompts[1]
    document = json.loads(once.out)
    assert (document["text"], document["finish_reason"]) == ("", "length")
    assert document["reasoning"].startswith("I")


def test_the_document_tells_how_the_prompt_was_made(localspec: Command, model: Model) -> None:
    flags = ("run", "-m", model(templates.QWEN3), *FLAGS, "Ask", "--json")
    told = ("--no-think", "--chat-template-kwargs", '{"more": [1]}')
    with reciting("Yes."):
        plain, changed, other, raw = (
            json.loads(localspec(*flags, *more).out)["settings"]["template"]
            for more in ((), told, ("--chat-template", "chatml"), ("--raw",))
        )
    assert plain | {"thinking": False, "variables": {"more": [1]}} == changed
    assert plain["thinking"] is None and plain["variables"] == {} and raw is None
    assert len(plain["sha256"]) == 64 and other == plain | {"sha256": other["sha256"]} != plain


# -- a model without a template ------------------------------------------------------------


def test_no_template_means_chatml(localspec: Command, model: Model) -> None:
    # Its vocabulary may not know ChatML's marks: then they are spelled out, and end the answer.
    with reciting("Yes.<|im_end", "Yes.") as prompts:
        done = localspec("run", "-m", model(None), *FLAGS, "--system", "Brief", "Ask")
    assert (done.code, done.out) == (0, "Yes.<|im_end\n")
    assert "no chat template" in done.err and "ChatML" in done.err
    assert prompts[0].endswith(
        "<|im_start|>system\nBrief<|im_end|>\n<|im_start|>user\nAsk<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_spelled_out_end_stops_an_answer_in_chatml(
    localspec: Command, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.llama.model import LlamaModel

    piece = LlamaModel.piece
    monkeypatch.setattr(
        LlamaModel,
        "piece",
        lambda self, token, special=False: (
            b"<|im_end|>" if piece(self, token, special) == b"#" else piece(self, token, special)
        ),
    )
    with reciting("Yes.#No."):
        done = localspec("run", "-m", model(None), *FLAGS, "Ask")
    assert done.out == "Yes.\n"


# -- flags of the template -----------------------------------------------------------------


@pytest.mark.parametrize("draft", ["off", "auto"])
def test_thoughts_end_after_their_budget(localspec: Command, model: Model, draft: str) -> None:
    before, _, after = templates.SPOKEN[templates.QWEN3].partition("I think.")
    flags = ("-m", model(templates.QWEN3), *FLAGS[1:-1], draft, "--json", "-n", "300")
    with reciting(f"{before}{'and think ' * 20}{after}"):
        whole = json.loads(localspec("run", *flags, "Ask").out)
        cut = json.loads(localspec("run", *flags, "--reasoning-budget", "40", "Ask").out)
        ended = ("--reasoning-budget", "30", "--reasoning-budget-message", " Enough.")
        said = json.loads(localspec("run", *flags, *ended, "Ask").out)
    assert len(whole["reasoning"]) > 150
    assert cut["reasoning"] == whole["reasoning"][: len(cut["reasoning"])] and cut["text"]
    assert len(said["reasoning"]) < len(cut["reasoning"]) < len(whole["reasoning"]) - 50
    assert said["reasoning"].endswith(" Enough.")


@pytest.mark.parametrize("budget", ["5", "0", "-1"])
def test_a_template_without_thoughts_ignores_their_budget(
    localspec: Command, model: Model, budget: str
) -> None:
    with reciting("Yes."):
        done = localspec("run", "-m", model(CHATML), *FLAGS, "--reasoning-budget", budget, "Ask")
    assert (done.code, done.out) == (0, "Yes.\n")
    assert ("no marks of thoughts: --reasoning-budget is ignored" in done.sentences) == (
        budget != "-1"
    )


@pytest.mark.parametrize(
    ("template", "flags", "prompt", "note"),
    [
        (templates.QWEN3, ["--no-think"], "<think>\n\n</think>", ""),
        (templates.QWEN3, ["--think"], "<|im_start|>assistant\n", ""),
        (templates.GRANITE, ["--think"], "Write your thoughts", ""),
        (templates.GRANITE, ["--no-think"], "You are helpful.", ""),
        (templates.GRANITE, ["--think", "--system", "Be brief."], "Be brief.", "ignores --think"),
        (templates.HARMONY, ["--reasoning-effort", "low"], "Reasoning: low", ""),
        (templates.HARMONY, ["--reasoning-effort", "default"], "Reasoning: medium", ""),
        (templates.HARMONY, ["--no-think"], "Reasoning: medium", "It reads reasoning_effort"),
        (templates.LLAMA3, ["--no-think"], "Ask", "--no-think changes nothing"),
        (
            templates.LLAMA3,
            ["--reasoning-effort", "low"],
            "Ask",
            "does not read reasoning_effort",
        ),
        (
            templates.HARMONY,
            ["--chat-template-kwargs", '{"reasoning_effort": "high"}'],
            "Reasoning: high",
            "",
        ),
        (templates.GEMMA2, ["--system", "Be brief."], "user\nBe brief.\nAsk<", "no place for"),
        (templates.GEMMA2, ["--chat-template", "chatml"], "<|im_start|>user\nAsk<|im_end|>", ""),
        (templates.GEMMA2, ["--chat-template", "A{{ messages[0].content }}"], "AAsk", ""),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_the_template_is_told(
    localspec: Command,
    model: Model,
    template: str,
    flags: list[str],
    prompt: str,
    note: str,
) -> None:
    with reciting("Yes.") as prompts:
        done = localspec("run", "-m", model(template), *FLAGS, *flags, "Ask")
    assert done.code == 0 and prompt in prompts[0]
    notes = done.err[: done.err.index("tokens · ")]
    assert note in " ".join(notes.split())
    assert bool(note) == ("template" in notes)


@pytest.mark.parametrize(
    ("template", "note"),
    [
        (templates.GRANITE, "With a system message, this chat template ignores --think."),
        (templates.GEMMA2, "no place for a system message: it goes in front of the first question"),
        (templates.QWEN3, ""),
    ],
)
def test_a_system_message_set_in_a_chat_is_judged_as_one_from_the_start(
    localspec: Command, model: Model, tmp_path: Path, template: str, note: str
) -> None:
    file = tmp_path / "talk.json"
    think = ("--think",) if template != templates.GEMMA2 else ()
    script = f"/system Brief\n/system\n/save {file}\n/load {file}\n/system off\n"
    with reciting("Yes."):
        done = localspec("chat", "-m", model(template), *FLAGS, *think, stdin=script)
    told = " ".join(done.err.split())
    assert (done.code, done.out) == (0, "")
    assert told.count(note) == 2 if note else "chat template" not in told


def test_a_template_from_a_pipe_is_read_once(
    localspec: Command, model: Model, tmp_path: Path
) -> None:
    pipe = tmp_path / "template"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=("Q: {{ messages[-1].content }} A:",))
    writer.start()
    with reciting("Yes.") as prompts:
        done = localspec("run", "-m", model(CHATML), *FLAGS, "--chat-template-file", pipe, "Ask")
    writer.join()
    assert done.code == 0 and prompts[0].endswith("Q: Ask A:")


def test_bench_takes_the_template_flags(localspec: Command, model: Model, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"task": "one", "prompt": "Ask"}\n', "utf-8")
    with reciting("Yes.") as prompts:
        done = localspec(
            "bench", "-m", model(templates.QWEN3), "-t", "1", "-n", "4", "-r", "1",
            "--draft", "off", "--prompts", file, "--no-think",
        )  # fmt: skip
    assert done.code == 0 and prompts[0].endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--chat-template", "llama9"], 2, "'llama9' is not a chat template"),
        (["--chat-template", "llama9"], 2, "Give one in Jinja"),
        (["--chat-template", "{% if %}"], 1, "The chat template cannot be rendered"),
        (["--chat-template", "chatml", "--chat-template-file", "x"], 2, "Two chat templates"),
        (["--chat-template-file", "nowhere.jinja"], 1, "nowhere.jinja cannot be read"),
        (["--chat-template-file", pytest.__file__], 1, "no Jinja"),
        (["--chat-template-kwargs", "no"], 2, "is not JSON"),
        (["--chat-template-kwargs", "[1]"], 2, "is not a JSON object"),
        (["--chat-template-kwargs", "[" * 9000], 2, "is not JSON"),
        (["--chat-template-kwargs", '{"messages": 1}'], 2, "cannot set messages"),
        (["--reasoning-effort", "lots"], 2, "'lots' is not one of default, minimal, low"),
        (["--raw", "--no-think"], 2, "so --no-think has no place"),
        (["--raw", "--chat-template", "chatml"], 2, "so --chat-template has no place"),
        (["--special"], 2, "--special belongs to --raw"),
    ],
)
def test_flags_that_cannot_be(
    localspec: Command, model: Model, flags: list[str], code: int, words: str
) -> None:
    done = localspec("run", "-m", model(CHATML), *FLAGS, *flags, "Ask")
    assert (done.code, done.out) == (code, "")
    assert words in done.sentences and "Traceback" not in done.err


# -- raw prompts ---------------------------------------------------------------------------


def raw(localspec: Command, model: Model, *flags: str) -> tuple[Done, str]:
    with reciting("return a[THINK] + b\n") as prompts:
        done = localspec(
            "run", "-m", model(CHATML), *FLAGS, "--raw", *flags, "<|fim_prefix|>def<|fim_suffix|>"
        )
    return done, prompts[0]


def test_special_obeys_and_shows_markup(localspec: Command, model: Model) -> None:
    plain, _ = raw(localspec, model)
    special, prompt = raw(localspec, model, "--special")
    short, _ = raw(localspec, model, "-sp")
    assert plain.out == "return a + b\n"
    assert special.out == short.out == "return a[THINK] + b\n"
    assert prompt.endswith("<|fim_prefix|>def<|fim_suffix|>")

    def length(done: Done) -> int:
        return int(done.err.split("prompt ")[1].split()[0])

    with reciting("Yes.") as prompts:
        flags = ("run", "-m", model(CHATML), *FLAGS, "--raw", "--special")
        assert localspec(*flags, "<|endoftext|>def").code == 0
    assert prompts == ["<|endoftext|>def"]  # BOS as it was written, not twice
    # Two marks, three letters and BOS; --special is about the answer alone.
    assert length(special) == length(plain) == 1 + 2 + len("def")
