"""Listing: tables that fit a terminal and that a pipe can cut."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from localspec.core.formatting import one_line
from localspec.display import models as lists
from localspec.display.terminal import console
from localspec.hub.provenance import Verification
from localspec.library.local_models import Inventory, LocalModel, find_models
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import load_catalog
from localspec.library.pairs.listing import pair_row, pair_rows
from tests.support.library import zoo
from tests.support.programs.streams import Streams
from tests.support.programs.terminal import Window

NAMES = ("NAME", "SIZE", "LONGER", "LAST")


def drawn(columns: int, draw: Callable[[], object]) -> Window:
    """What a terminal shows that wide; it fails at characters that no list may write."""
    out = io.StringIO()
    terminal = Console(
        file=out, width=columns, force_terminal=True, highlight=False, emoji=False, height=50
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "make_console", lambda stderr: terminal)
        patch.setattr(console, "make_console", lambda stderr: terminal)
        draw()
    window = Window(columns, 200)
    window.write(out.getvalue().replace("\n", "\r\n"))
    return window


def piped(draw: Callable[[], object]) -> str:
    """What goes into a pipe."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        draw()
    return out.getvalue()


def shown(window: Window) -> list[str]:
    return window.text.split("\n")


# --- tables ---

TEXTS = st.text(st.sampled_from("ab c-._/…éß日本\t\n\x1b\x9b\u202e\u0301|"), max_size=90)
ROWS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), max_size=6)
LEAVING = st.lists(st.sampled_from(NAMES), max_size=3, unique=True)


@given(ROWS, LEAVING, st.integers(20, 200))
@example([("日" * 40, "本" * 40, "é" * 80, "x")], [], 20)
@example([("a" * 90, "b" * 90, "c" * 90, "d" * 90)], ["LAST"], 60)
def test_a_table_is_never_wider_than_the_terminal(
    rows: list[tuple[str, ...]], leaving: list[str], columns: int
) -> None:
    window = drawn(columns, lambda: lists.table(NAMES, rows, leaving))
    assert not window.wrapped
    assert window.row == len(rows) + 1
    assert shown(window)[0].strip()  # some of the columns are always left


@given(ROWS, LEAVING)
def test_a_pipe_gets_every_field_whole(rows: list[tuple[str, ...]], leaving: list[str]) -> None:
    text = piped(lambda: lists.table(NAMES, rows, leaving))
    assert text.removeprefix("\t".join(NAMES) + "\n") == piped(
        lambda: lists.table(NAMES, rows, leaving, header=False)
    )
    assert all(c.isprintable() or c in "\n\t" for c in text)
    fields = [tuple(line.split("\t")) for line in text.split("\n")[:-1]]
    assert fields == [NAMES, *(tuple(map(one_line, row)) for row in rows)]


def test_columns_leave_in_their_order_and_the_widest_gives_way() -> None:
    row = ("name" * 5, "12 GiB", "longer" * 5, "last" * 10)

    def line(columns: int) -> str:
        window = drawn(columns, lambda: lists.table(NAMES, [row], ("LAST", "LONGER")))
        return shown(window)[1]

    whole = 20 + 6 + 30 + 40 + 3 * 2
    assert line(whole).split() == ["name" * 5, "12", "GiB", "longer" * 5, "last" * 10]
    assert line(whole - 1).split() == ["name" * 5, "12", "GiB", "longer" * 5]
    assert line(60).split() == ["name" * 5, "12", "GiB", "longer" * 5]
    assert line(59).split() == ["name" * 5, "12", "GiB"]
    assert line(24) == "namenamena…ename  12 GiB"


def test_a_table_without_rows() -> None:
    assert shown(drawn(60, lambda: lists.table(NAMES, []))) == ["NAME  SIZE  LONGER  LAST"]
    assert piped(lambda: lists.table(NAMES, [], header=False)) == ""


# --- models ---


def test_the_zoo_in_a_pipe(in_zoo: zoo.Zoo) -> None:
    models = find_models().models
    text = piped(lambda: lists.models(Inventory(models, (), ())))
    head, *rows = [line.split("\t") for line in text.splitlines()]
    assert head == ["MODEL", "SIZE", "SOURCE", "PATH"]
    assert [row[0] for row in rows] == [model.name for model in models]
    assert [row[3] for row in rows] == [str(model.path) for model in models]
    assert rows[1][2] == "localspec+lm studio"


def test_an_empty_disk_is_told(streams: Streams) -> None:
    lists.models(Inventory((), ("Left out of jan, for a reason: x.",), (Path("/a"), Path("/b"))))
    assert streams.read() == (
        "",
        "There are no GGUF models in the folders searched: /a, /b.\n"
        "Left out of jan, for a reason: x.\n",
    )


def test_unverified_downloads_are_named(streams: Streams) -> None:
    model = LocalModel(Path("/m/x.gguf"), "localspec", "x.gguf", 5, (Path("/m/x.gguf"),))
    lists.models(Inventory((model, replace(model, unverified=True)), (), ()))
    assert streams.read()[1] == "Unverified, as the Hub listed no sha256: x.gguf.\n"
    told = [
        lists.model_json(each)["unverified"] for each in (model, replace(model, unverified=True))
    ]
    assert told == [False, True]


def test_a_model_as_json(in_zoo: zoo.Zoo) -> None:
    documents = [lists.model_json(model) for model in find_models().models]
    assert json.loads(json.dumps(documents)) == documents
    (split,) = [each for each in documents if "Qwen2.5-14B" in str(each["name"])]
    parts = split["parts"]
    assert isinstance(parts, list) and len(parts) == 2 and parts[0] == split["path"]
    assert split["size"] == sum(Path(part).stat().st_size for part in parts)


# --- pairs ---


def test_what_is_here_of_a_pair(in_zoo: zoo.Zoo) -> None:
    text = piped(lambda: lists.pairs(pair_rows(find_models().models), None, "this machine"))
    here = {line.split("\t")[0]: line.split("\t")[2] for line in text.splitlines()}
    assert here["llama3.1-8b"] == "both" and here["qwen2.5-7b"] == "draft"
    assert here["gemma3-27b"] == "target" and here["gpt-oss-120b"] == "–"


def test_pairs_in_a_pipe(streams: Streams) -> None:
    user_pairs.add("mine", "hf:org/a", "hf:org/b", {})
    rows = pair_rows(find_models().models)
    lists.pairs([*rows, replace(rows[1], fits=None)], rows[2], "this machine")
    out, err = streams.read()
    fields = [line.split("\t") for line in out.splitlines()[1:]]
    assert {len(row) for row in fields} == {7}
    assert [row[0] for row in fields] == [*(row.name for row in rows), rows[1].name]
    assert fields[0] == ["mine", "", "–", "?", "", "your own", ""]
    assert fields[-1][3] == "?" and {row[3] for row in fields[1:-1]} <= {"best", "yes", "no", "?"}
    (coder,) = [row for row in fields if row[0] == "qwen2.5-coder-32b"]
    assert coder[4].endswith(" (?)")  # a gain that nobody could confirm
    assert coder[6] == "apache-2.0"  # of both, told once
    assert "localspec pair show NAME" in err and "localspec download NAME" in err


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_narrow_terminal_shows_the_gain_of_each_pair(columns: int) -> None:
    rows = pair_rows([])
    head, *lines = shown(drawn(columns, lambda: lists.pairs(rows, None, "this machine")))
    dropped = ("SIZE", "HERE") if columns == 60 else ()
    names = [each for each in ("PAIR", "SIZE", "HERE", "FITS", "GAIN") if each not in dropped]
    assert head.split()[: len(names)] == names
    for row, line in zip(rows, lines, strict=False):
        assert row.gain is None or line[head.index("GAIN") :].strip(), line
        assert "…" not in line


def test_everything_about_a_known_pair(streams: Streams) -> None:
    row = pair_row("qwen2.5-coder-32b", find_models().models)
    lists.pair(row, {})
    out, err = streams.read()
    facts = [line.split("  ", 1) for line in out.splitlines()]
    assert err == "" and all(len(fact) == 2 and fact[1].strip() for fact in facts)
    labels = [fact[0] for fact in facts]
    assert labels[:6] == ["pair", "family", "target", "draft", "kind", "size"]
    assert {"on this disk", "licences", "vocabularies", "gain", "advice", "source"} <= {*labels}
    assert len({line.index(line.split("  ", 1)[1].strip()) for line in out.splitlines()}) == 1
    assert row.spec is not None
    for sentence in (row.spec.advice, *row.spec.gotchas, *row.spec.sources):
        assert sentence in out


def test_everything_about_every_known_pair(streams: Streams) -> None:
    for pair in load_catalog():
        lists.pair(pair_row(pair.name, find_models().models), {})
        out, _ = streams.read()
        assert f"hf:{pair.target.repo}" in out and pair.spec_type in out
        assert (pair.draft_name if pair.draft else "prediction heads of the target") in out


def test_everything_about_an_own_pair(streams: Streams) -> None:
    user_pairs.add("mine", "/models/big.gguf", "hf:org/b", {"draft_tokens": 4, "exact": True})
    lists.pair(pair_row("mine", find_models().models), user_pairs.find("mine").settings)
    out, _ = streams.read()
    assert [line.split(None, 1)[0] for line in out.splitlines()] == [
        *("pair", "family", "target", "draft", "on", "setting", "setting")
    ]
    assert "draft_tokens = 4\n" in out and "exact = true\n" in out
    assert "on this disk  nothing yet\n" in out


# --- verdicts ---


def test_verdicts_are_told_as_they_come(streams: Streams) -> None:
    path = Path("/models/a.gguf")
    right = Verification(path, "right", "a.gguf is right.")
    wrong = Verification(path, "wrong", "b.gguf is wrong.", "Remove it.")
    assert lists.verdicts(iter([right, right])) == [right, right]
    assert streams.read()[0] == 2 * "right         a.gguf is right.\n"
    assert lists.verdicts(iter([right, wrong, right])) == [right, wrong, right]
    assert streams.read()[0].splitlines()[1] == "wrong         b.gguf is wrong. Remove it."

    def broken() -> object:
        yield right
        raise KeyboardInterrupt

    streams.read()
    with pytest.raises(KeyboardInterrupt):
        lists.verdicts(broken())  # type: ignore[arg-type]
    assert streams.read()[0] == "right         a.gguf is right.\n"
