"""GrammarProcess: what hangs or crashes ends its child, and the next grammar gets another."""

import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localspec.core.errors import GrammarError, WorkerLost
from localspec.core.interrupt import Cancelled, stopped_when
from localspec.core.worker import Worker
from localspec.engine.engine import Engine
from localspec.engine.grammar import process, source
from localspec.engine.grammar.constraint import GrammarConstraint, GrammarVocabulary
from localspec.engine.grammar.source import read_grammar, schema_grammar
from tests.support.real_pair import TinyFiles, options
from tests.support.toy.grammars import byte_vocabulary

BYTES = byte_vocabulary()
ENDLESS = {"allOf": [{"type": "string", "pattern": f"a.*{i}"} for i in range(200)]}
CHAIN = "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000))
AMBIGUOUS = "root ::= " + " | ".join("root " * i for i in range(2, 50)) + ' | "a" | ""'


def answer(grammar: str, tokens: int = 30, vocabulary: GrammarVocabulary = BYTES) -> bytes:
    """An answer that takes the last allowed byte each time, and ends where there is none."""
    constraint, history = GrammarConstraint(grammar, vocabulary, 1), [0]
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
        lambda: answer(AMBIGUOUS, 60, byte_vocabulary()),
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
    read_grammar('root ::= "a"')
    before = unused()
    read_grammar('root ::= "b"')
    assert unused() == before and len(before) == 1
    child = BYTES.process()
    assert answer('root ::= "b"') == b"b" and BYTES.process() is child
    for each in (*before, child):
        each.close()
    assert read_grammar('root ::= "b"') and answer('root ::= "b"') == b"b"
    assert unused() != before and BYTES.process() is not child


def test_answers_of_a_model_share_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    started, begin = list[process.GrammarProcess](), process.GrammarProcess.__init__

    def noting(child: process.GrammarProcess) -> None:
        started.append(child)
        begin(child)

    monkeypatch.setattr(process.GrammarProcess, "__init__", noting)
    process._close_idle()
    vocabulary = byte_vocabulary()
    one, other, third = (GrammarConstraint('root ::= "a" | "b"', vocabulary, 1) for _ in range(3))
    assert one.mask(2, [0, 97]).tolist() != other.mask(1, [0]).tolist()
    assert one.allows(97, 1, [0]) and third.allows(97, 1, [0])
    with pytest.raises(GrammarError, match="cannot be read"):
        GrammarConstraint("root ::= (", vocabulary, 1)
    assert len(started) == 1
    del one, other, third, vocabulary
    gc.collect()
    assert started[0].ended


def test_a_child_that_one_answer_ends_is_replaced_for_the_others() -> None:
    vocabulary = byte_vocabulary()
    one = GrammarConstraint('root ::= "a" [bc] "de"', vocabulary, 1)
    assert one.forced(1, [0]) == [97]
    assert not one.allows(100, 2, [0, 97])
    ask = Worker.ask

    def slow(worker: Worker, question: list[Any]) -> Any:
        """As if it compiled for hours."""
        if question[0] == "begin":
            worker._exceeded = "time"
            worker.process.kill()
        return ask(worker, question)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "ask", slow)
        with pytest.raises(GrammarError, match="cannot be enforced"):
            GrammarConstraint('root ::= "x"', vocabulary, 1)
    assert one.allows(99, 2, [0, 97]) and not one.allows(100, 2, [0, 97])
    assert one.forced(3, [0, 97, 99]) == [100, 101]


@pytest.mark.llama
def test_the_child_ends_with_its_model(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target)) as engine:
        engine.constraint('root ::= "a"', 0)
        child = engine._vocabulary.process()
        assert not child.ended
    assert child.ended
