"""Grammar flags of run and chat: answers that obey, and what is wrong with what was given."""

import json
import re
from pathlib import Path

import pytest

from tests.support.command import HELLO, Command
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama

COLOURS = 'root ::= "red" | "green" | "blue"'
SCHEMA = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'


def test_run_obeys_with_any_draft(run: Command, tiny: TinyFiles) -> None:
    for temperature in ("0", "0.8"):
        flags = (HELLO, "--temp", temperature, "--seed", "4", "-n", "40", "-md", tiny.draft)
        plain = run(*flags, "--draft", "off", "--grammar", COLOURS)
        assert plain.code == 0 and plain.out.strip() in ("red", "green", "blue")
        for length in ("1", "4", "9", "auto"):
            assert run(*flags, "--draft", length, "--grammar", COLOURS).out == plain.out


def test_a_schema_gives_json(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(f"\ufeff{SCHEMA}", encoding="utf-8")  # as editors of Windows save it
    for flags in (("-j", SCHEMA), ("--json-schema", SCHEMA), ("-jf", file)):
        done = run(HELLO, "--seed", "2", "-n", "40", *flags)
        assert isinstance(json.loads(done.out)["ok"], bool)
        assert done.err.count("\n") == 1  # the figures alone
    wrong = run(HELLO, "--json-schema", file)
    assert wrong.code == 2 and f"--json-schema-file {file}" in wrong.err


@pytest.mark.parametrize("length", [100, 300, 900, 5000])
def test_texts_of_any_length_are_no_paths(run: Command, length: int) -> None:
    schema = json.dumps({"description": "a" * length, "enum": [1]})
    assert run(HELLO, "-j", schema).out.strip() == "1"
    choice = "b" * length
    assert run(HELLO, "-n", "1", "--grammar", f'root ::= "{choice}"').out.strip()[:1] == "b"


def test_an_empty_grammar_is_none(run: Command) -> None:
    plain = run(HELLO, "-n", "9", "--temp", "0").out
    for flags in (("--grammar", ""), ("--regex", ""), ("--grammar", "", "--regex", "")):
        assert run(HELLO, "-n", "9", "--temp", "0", *flags).out == plain
    assert run(HELLO, "--grammar", "", "--regex", "b+!").out.strip().endswith("!")


def test_json_holds_the_grammar(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "colours.gbnf"
    file.write_text(COLOURS)
    document = json.loads(run(HELLO, "--json", "--compare", "--grammar-file", file).out)
    assert document["settings"]["grammar"] == COLOURS
    assert document["text"] in ("red", "green", "blue") and document["finish_reason"] == "stop"
    assert document["plain"]["token_ids"] == document["token_ids"]
    assert json.loads(run(HELLO, "--json").out)["settings"]["grammar"] is None


def test_every_answer_of_a_chat_begins_anew(chat: Command, tiny: TinyFiles) -> None:
    done = chat("-md", tiny.draft, "--draft", "4", "--grammar", COLOURS, stdin="a\nb\n/regen\n")
    assert done.code == 0
    assert re.fullmatch("((red|green|blue)\n){3}", done.out)


def test_what_a_schema_asks_beyond_a_grammar_is_said(run: Command) -> None:
    schema = '{"type": "array", "items": {"type": "null"}, "maxItems": 2, "uniqueItems": true}'
    done = run(HELLO, "-n", "40", "-j", schema)
    assert done.code == 0 and "Not enforced: " in done.err and "uniqueItems" in done.err


def test_a_regular_expression_is_matched_by_the_whole_answer(run: Command, chat: Command) -> None:
    for flags in (("--temp", "0"), ("--seed", "3")):
        assert re.fullmatch("[a-c]{4}!", run(HELLO, *flags, "--regex", "[a-c]{4}!").out.strip())
    assert re.fullmatch("([a-c]{4}!\n){2}", chat("--regex", "[a-c]{4}!", stdin="a\nb\n").out)


WRONG = {
    "regex": (("--regex", "(a"), "unclosed group", 1),
    "grammar": (("--grammar", "root ::= [a"), "cannot be read", 1),
    "schema": (("-j", "{type: object}"), "is not JSON", 1),
    "no file": (("--grammar-file", "missing.gbnf"), "missing.gbnf cannot be read", 1),
    "both": (("--grammar", COLOURS, "-j", SCHEMA), "Give one", 2),
}


@pytest.mark.parametrize(("flags", "said", "code"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_a_sentence(
    run: Command, chat: Command, flags: tuple[str, ...], said: str, code: int
) -> None:
    done = run(HELLO, *flags)
    assert (done.code, done.out) == (code, "")
    assert said in done.err and done.err.count("\n") <= 2
    if "--grammar" not in flags:
        assert said in chat(*flags).err
