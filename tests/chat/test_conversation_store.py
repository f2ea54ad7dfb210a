"""Conversations in files: private, bounded, and never written over another chat's."""

import os
import stat
import time
from pathlib import Path

import pytest

from localspec.chat import conversation_store as store
from localspec.chat.conversation_store import Autosave
from localspec.chat.input_loop import handle
from localspec.commands.chat.conversations import end
from localspec.core import paths
from localspec.core.errors import FileProblem, UsageError
from tests.chat.test_conversation import made, talked


def names() -> list[str]:
    return [saved.name for saved in store.stored(lambda problem: None)]


def test_each_answer_is_saved_for_the_owner_alone() -> None:
    chat, _, _ = talked("one", "two", autosave=Autosave("work"))
    path = store.path_of("work")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
    saved = store.find("work")
    assert (saved.messages, saved.system, saved.first_words) == (chat.turns, None, "one")
    assert saved.pair["settings"]["seed"] == 7 and len(list(path.parent.iterdir())) == 1


@pytest.mark.parametrize("command", ["/clear", "/load FILE"])
def test_another_conversation_gets_a_file_of_its_own(command: str, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    talked("old", f"/save {file}")
    _, person, _ = talked(
        "one", command.replace("FILE", str(file)), "two", autosave=Autosave("work")
    )
    assert len(names()) == 2 and len(store.find("work").messages) == 2
    if command == "/clear":
        assert person.said == ["A new conversation begins; the one before is saved as work."]
    else:
        assert ">>> old" in person.said


def test_a_conversation_that_goes_on_shows_how_its_question_begins(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    talked("What is this?\ncode()", f"/save {file}")
    _, person, _ = talked(f"/load {file}")
    assert ">>> What is this? …" in person.said


def test_nothing_is_written_before_something_changes() -> None:
    talked("one", autosave=Autosave("work"))
    before = store.path_of("work").stat().st_mtime_ns
    saved = store.find("work")
    chat, _, _ = made("/stats")
    chat.resume(saved)
    chat.autosave = Autosave.of(saved, chat.document())
    chat.save()
    assert store.path_of("work").stat().st_mtime_ns == before
    handle(chat, "/set temperature 0.5")
    chat.save()
    assert store.find("work").pair["settings"]["temperature"] == 0.5


def test_two_chats_of_one_name_lose_nothing() -> None:
    one, person, _ = talked("one", autosave=Autosave("work"))
    saved = store.find("work")
    two, _, _ = made()
    two.resume(saved)
    two.autosave = Autosave.of(saved, two.document())
    handle(one, "more")
    one.save()
    handle(two, "other")
    two.save()
    assert [turn["content"] for turn in store.find("work").messages][2] == "more"
    assert len(names()) == 2


def test_what_cannot_be_saved_is_told_once(home: Path) -> None:
    (home / ".local").write_text("no folder")
    _, person, _ = talked("one", "two", autosave=Autosave())
    assert len(person.problems) == 1 and len(person.answers) == 2
    assert "cannot be saved" in person.problems[0].message


def test_the_list_is_newest_first_and_skips_what_is_damaged() -> None:
    for age, name in enumerate(("new", "old", "older")):
        talked(f"in {name}", autosave=Autosave(name))
        os.utime(store.path_of(name), (10**9 - age, 10**9 - age))
    store.path_of("old").write_text("{")
    skipped: list[FileProblem] = []
    assert [saved.first_words for saved in store.stored(skipped.append)] == ["in new", "in older"]
    assert len(skipped) == 1 and skipped[0].hint == "Remove it: localspec sessions rm old"
    store.remove("old")
    with pytest.raises(FileProblem, match="no conversation named old") as caught:
        store.remove("old")
    assert "older" in caught.value.hint


def test_only_unnamed_conversations_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_UNNAMED", 3)
    talked("one", autosave=Autosave("work"))
    for number in range(5):
        folder = paths.conversations_folder()
        other = folder / f"2020-01-01-00000{number}.json"
        other.write_text((folder / "work.json").read_text())
        os.utime(other, (number, number))
    talked("one", autosave=Autosave())
    assert "work" in names() and len(names()) == 4 and "2020-01-01-000004" in names()


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b", "x" * 51, "a b", "\0"])
def test_names_that_no_conversation_has(name: str) -> None:
    with pytest.raises(UsageError):
        store.path_of(name)


@pytest.mark.parametrize("pair", ["[]", '{"model": 3}', '{"files": [3]}', '{"settings": []}', "3"])
def test_a_damaged_pair(pair: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(f'{{"messages": [], "pair": {pair}}}')
    with pytest.raises(FileProblem, match="holds no saved conversation"):
        store.read_conversation(path)


def test_chats_saved_in_the_same_second_each_get_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where both looked for a free name before either wrote."""
    monkeypatch.setattr(time, "strftime", lambda form: "2026-01-02-030405")
    monkeypatch.setattr(Path, "exists", lambda path: False)
    for text in ("one", "two", "three"):
        talked(text, autosave=Autosave())
    assert len(names()) == 3


def test_the_end_names_what_was_saved_and_how_to_go_on() -> None:
    chat, person, _ = talked("one", autosave=Autosave("work"))
    end(chat)
    assert person.said[-1] == "Saved as work. Continue it: localspec chat --session work"
    for silent in (talked(autosave=Autosave("empty")), talked("one")):
        end(silent[0])
        assert not any("Saved" in said for said in silent[1].said)


def test_what_a_killed_chat_left_of_its_save_goes() -> None:
    """It holds the conversation: with the conversation, or with the next new one."""
    talked("one", autosave=Autosave("work"))
    folder = paths.conversations_folder()
    left = [folder / f".{name}.json.99999999-0123abcd" for name in ("work", "2026-01-01-000000")]
    for path in left:
        path.write_text("{}")
    store.remove("work")
    assert [path.exists() for path in left] == [False, True]
    talked("two", autosave=Autosave())
    assert not left[1].exists() and len(list(folder.iterdir())) == 1
