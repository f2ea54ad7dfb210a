"""GrammarProcess: what hangs or crashes ends its child, and the next grammar gets another."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.core.errors import GrammarError, WorkerLost
from localspec.core.interrupt import Cancelled, stopped_when
from localspec.engine.grammar import process, source
from localspec.engine.grammar.constraint import GrammarConstraint, MatchingInChild, Vocabulary
from localspec.engine.grammar.source import read_grammar, schema_grammar

BYTES = Vocabulary(
    [*(bytes([i]) for i in range(256)), b"<stop>"], [256], lambda text: list(text.encode())
)
ENDLESS = {"allOf": [{"type": "string", "pattern": f"a.*{i}"} for i in range(200)]}
CHAIN = "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000))
AMBIGUOUS = "root ::= " + " | ".join("root " * i for i in range(2, 50)) + ' | "a" | ""'


def answer(grammar: str, tokens: int = 30) -> bytes:
    """An answer that takes the last allowed byte each time, and ends where there is none."""
    constraint, history = GrammarConstraint(MatchingInChild(grammar, BYTES), 1), [0]
    for _ in range(tokens):
        constraint.forced(len(history), history)
        allowed = constraint.mask(len(history), history).nonzero()[0].tolist()
        if not (allowed := [token for token in allowed if token != 256]):
            break
        assert constraint.allows(allowed[-1], len(history), history)
        history.append(allowed[-1])
    return bytes(history[1:])


def unused() -> list[process.GrammarProcess]:
    return list(process._idle)


@pytest.mark.parametrize(
    "hostile",
    [
        lambda: schema_grammar(ENDLESS),
        lambda: read_grammar(f'root ::= r0\n{CHAIN}\nr5000 ::= "a"'),
        lambda: answer(AMBIGUOUS, 60),
    ],
    ids=["an intersection that compiles for hours", "a chain that overflows a stack", "ambiguous"],
)
def test_what_would_hang_or_crash_is_refused(
    hostile: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = answer("root ::= [a-c]{3,5}")
    process._close_idle()
    monkeypatch.setattr(process, "LIMITS", process.LIMITS._replace(seconds=3.0))
    try:
        hostile()
    except GrammarError as error:
        assert "cannot be enforced" in error.message
    monkeypatch.undo()
    process._close_idle()
    assert answer("root ::= [a-c]{3,5}") == before == b"ccccc"


def test_an_optional_letter_400_times() -> None:
    for grammar in (
        "root ::= " + '"a"? ' * 400,
        schema_grammar({"type": "string", "pattern": f"^{'a?' * 400}b$"}).grammar,
    ):
        try:
            assert answer(grammar, 500).strip(b'"').strip(b"a") in (b"", b"b")
        except GrammarError as error:
            assert "cannot be enforced" in error.message


def test_a_step_ends_when_the_answer_is_not_wanted() -> None:
    gone = threading.Event()
    threading.Timer(0.5, gone.set).start()
    with pytest.raises(Cancelled), stopped_when(gone.is_set):
        schema_grammar(ENDLESS)


def test_what_ended_the_child_is_named() -> None:
    with pytest.raises(WorkerLost, match="It failed .exit code 1.: ValueError: "):
        process.grammar_process().ask("vocabulary", ["a"], ["no number"])
    running = process.grammar_process()
    os.kill(running._worker.process.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="killed from outside .SIGKILL."):
        running.ask("read", "grammar", 'root ::= "a"')
    assert answer('root ::= "a"') == b"a"


def test_a_module_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llguidance.py").write_text("raise ImportError('no libstdc++')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    process._close_idle()
    with pytest.raises(WorkerLost, match="ImportError: no libstdc"):
        read_grammar('root ::= "a"')


def test_many_grammars_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_waiting", threading.BoundedSemaphore(1))
    with source._waiting, pytest.raises(WorkerLost, match="are being read already"):
        read_grammar('root ::= "a"')
    assert read_grammar('root ::= "a"')


def test_children_are_used_again_and_those_that_ended_are_not() -> None:
    answer('root ::= "a"')
    before = unused()
    answer('root ::= "b"')
    assert set(unused()) == set(before)
    for child in before:
        child.close()
    assert answer('root ::= "b"') == b"b" and not set(before) & set(unused())


def test_each_answer_has_a_child_of_its_own() -> None:
    one, other = (MatchingInChild('root ::= "a" | "b"', BYTES) for _ in range(2))
    one.follow(0, [97])
    assert (one.mask(1) == other.mask(0), one.allows(0, 97)[1], other.allows(0, 97)[1]) == (
        False,
        True,
        True,
    )
    with pytest.raises(GrammarError, match="cannot be read"):
        MatchingInChild("root ::= (", BYTES)
