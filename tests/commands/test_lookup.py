"""Earlier answers on the command line: kept in a file, read from files, never in bench."""

import json
from pathlib import Path

import pytest

from localspec.engine.caches.lookup_cache import LookupCache
from tests.support.command import HELLO, Command
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama

OFF = ("--draft", "off", "--prompt-lookup", "off")

ASKED = (HELLO, "--seed", "5", "-n", "60", "--json")


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[LookupCache]:
    """Those that commands entered, the costs of this machine aside."""
    entered: list[LookupCache] = []
    enter = LookupCache.__enter__

    def noted(self: LookupCache) -> LookupCache:
        entered.append(self)
        return enter(self)

    monkeypatch.setattr(LookupCache, "__enter__", noted)
    return entered


def test_answers_are_kept_from_run_to_run(run: Command, tmp_path: Path) -> None:
    cache = tmp_path / "answers.lookup"
    plain = json.loads(run(*ASKED, "--draft", "off").out)
    first = json.loads(run(*ASKED, "--lookup-cache", cache).out)
    held = cache.stat().st_size
    again = json.loads(run(*ASKED, "--lookup-cache", cache).out)
    assert plain["token_ids"] == first["token_ids"] == again["token_ids"]
    assert cache.stat().st_size - held > 4 * len(first["token_ids"])


def test_files_are_looked_up(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(run(HELLO, "--seed", "5", "-n", "60").out * 2)
    done = run(*ASKED, "--lookup-files", file)
    assert done.code == 0 and "Files to look up: " in done.err


def test_a_chat_looks_up_its_answers_and_a_run_has_none(
    run: Command, chat: Command, caches: list[LookupCache]
) -> None:
    run(HELLO, "-n", "5")
    chat("-n", "5", "--prompt-lookup", "off", stdin="tell me\n")
    assert caches == []
    said = [chat("-n", "30", "--temp", "0", *f, stdin="tell me\n/regen\n").out for f in ((), OFF)]
    assert said[0] == said[1] and len(caches) == 1


def test_another_file_is_refused_before_anything_is_loaded(run: Command, tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir or Madam")
    done = run(HELLO, "--lookup-cache", letter)
    assert done.code == 1 and "another file than a lookup cache" in done.err
    assert letter.read_text() == "Dear Sir or Madam"
    done = run(HELLO, "--lookup-files", tmp_path / "missing")
    assert done.code == 1 and "cannot be read" in done.err


def test_bench_refuses_earlier_answers(localspec: Command, tiny: TinyFiles) -> None:
    done = localspec("bench", "-m", tiny.target, "--lookup-files", ".")
    assert done.code == 2 and "would only be copied" in done.err
