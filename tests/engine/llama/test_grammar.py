"""Grammars on llama.cpp: states that go back, answers that obey, the same text with any draft."""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.core.errors import GrammarError, UsageError
from localspec.core.sampling_params import AcceptanceRule, SamplingParams
from localspec.engine.answer import Answer, collect
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.engine.grammar.json_schema import schema_grammar
from localspec.engine.llama.grammar import GrammarConstraint, GrammarState
from localspec.speculative.sampling.constrained import RECALL
from tests.support.real_pair import GREEDY, LENGTHS, TinyFiles, options, random_ids

pytestmark = pytest.mark.llama

WARM = SamplingParams(temperature=0.8, seed=1)
LIST = r'root ::= ("- " [a-zé€]{1,9} "\n"){2,3}'
LISTED = re.compile(r"(- [a-zé€]{1,9}\n){2,3}")
WORDS = 'root ::= word ("," word)*\nword ::= [a-z]+ | "(" root ")"'
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", 'd"e']}, "maxItems": 3},
    },
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def demo(demo_files: tuple[Path, Path]) -> Iterator[Engine]:
    target, draft = demo_files
    with Engine.load(options(target), options(draft)) as engine:
        yield engine


def obeying(
    engine: Engine,
    grammar: str,
    params: SamplingParams = GREEDY,
    length: object = 0,
    max_tokens: int = 80,
    prompt: list[int] | None = None,
) -> Answer:
    """One answer within a grammar, from empty caches."""
    engine.target.keep(0)
    if engine.draft is not None:
        engine.draft.keep(0)
    stream = stream_generate(
        engine,
        prompt or random_ids(8),
        params,
        length,  # type: ignore[arg-type]
        max_tokens=max_tokens,
        grammar=grammar,
    )
    return collect(stream)


# -- states --------------------------------------------------------------------------------


def test_states_go_back_and_on(engine: Engine) -> None:
    """Whatever was shown before, a constraint allows what one allows that saw this text alone."""
    rng, ids = random.Random(0), np.arange(engine.target.n_vocab)
    constraint = engine.constraint(WORDS, 5)
    prompt, answer, longest = random_ids(5), list[int](), 0
    for _ in range(150):
        del answer[max(0, len(answer) - rng.choice([0, 0, 0, 0, 1, 3, 30])) :]
        for _ in range(rng.randint(0, 14)):
            history = [*prompt, *answer]
            allowed = constraint.allowed(ids, len(history), history)
            picked = rng.choice(np.flatnonzero(allowed).tolist())
            if not engine.is_stop(picked):
                answer.append(picked)
        history, longest = [*prompt, *answer], max(longest, len(answer))
        fresh = engine.constraint(WORDS, 5).allowed(ids, len(history), history)
        recent = history[-max(1, rng.randint(RECALL, 200)) :]
        assert (constraint.allowed(ids, len(history), recent) == fresh).all()
        one = rng.randrange(len(ids))
        assert constraint.allowed(ids[[one]], len(history), recent)[0] == fresh[one]
    assert longest > 2 * RECALL


def test_a_window_of_a_draft_is_understood(engine: Engine) -> None:
    """A draft's history may be the first token of all and the last few."""
    ids, constraint = np.arange(engine.target.n_vocab), engine.constraint(WORDS, 5)
    answer = engine.target.tokenize("ab,(cd,ef", add_special=False, parse_special=False)
    history = [*random_ids(5), *answer]
    for end in range(5, len(history) + 1):
        whole = constraint.allowed(ids, end, history[:end])
        if end > 8:
            window = [history[0], *history[end - 3 : end]]
            assert (constraint.allowed(ids, end, window) == whole).all()


def test_in_the_prompt_any_token_may_stand(engine: Engine) -> None:
    ids = np.arange(engine.target.n_vocab)
    assert engine.constraint("root ::= [a]", 5).allowed(ids, 4, random_ids(4)).all()


def test_nothing_follows_what_is_refused(engine: Engine) -> None:
    ids = np.arange(engine.target.n_vocab)
    constraint = engine.constraint("root ::= [a]*", 1)
    refused = next(i for i in ids.tolist() if not constraint.allowed(ids[[i]], 1, [0])[0])
    assert not constraint.allowed(ids, 3, [0, refused, refused]).any()
    assert constraint.allowed(ids, 1, [0]).any()


def test_a_grammar_is_compiled_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = list[str]()
    beginning = GrammarState.beginning

    def counted(text: str, vocab: object) -> GrammarState:
        compiled.append(text)
        return beginning(text, vocab)

    monkeypatch.setattr(GrammarState, "beginning", counted)
    grammar = 'root ::= "once"'
    for _ in range(3):
        assert isinstance(engine.constraint(grammar, 0), GrammarConstraint)
    assert compiled == [grammar]


def test_what_llama_cpp_refuses_is_a_sentence(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GrammarError, match="llama.cpp refuses the grammar: number of rules"):
        engine.constraint('root ::= ("a" ("b" | "c"){0,50}){0,60}', 0)
    assert capfd.readouterr().err == ""


def test_no_grammar_ends_the_process(tiny: TinyFiles) -> None:
    command = [sys.executable, "-m", "tests.support.random_grammars", str(tiny.target), "0", "250"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr[-999:]
    counts = ast.literal_eval(done.stdout)
    assert counts["walked"] > 50 and counts["ours"] > 20


# -- answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, WARM, replace(WARM, top_k=0, min_p=0, top_p=1)])
def test_an_answer_obeys_with_any_draft(engine: Engine, params: SamplingParams) -> None:
    accepted = 0
    for seed in range(4):
        params = replace(params, seed=seed)
        prompt = random_ids(8, seed)
        plain = obeying(engine, LIST, params, prompt=prompt)
        assert plain.finish_reason == "stop" and LISTED.fullmatch(plain.text)
        for length in LENGTHS[1:]:
            drafted = obeying(engine, LIST, params, length, prompt=prompt)
            assert (drafted.tokens, drafted.text) == (plain.tokens, plain.text)
            accepted += drafted.stats.accepted
    assert accepted > 0


@pytest.mark.parametrize("params", [GREEDY, WARM])
def test_a_schema_of_the_demo_pair(demo: Engine, params: SamplingParams) -> None:
    grammar = schema_grammar(json.dumps(SCHEMA)).grammar
    for seed, question in enumerate(("Who are you?", "Describe a lock.", "Count.")):
        prompt = demo.encode_chat([{"role": "user", "content": question}])
        params = replace(params, seed=seed)
        plain = obeying(demo, grammar, params, prompt=prompt)
        found = json.loads(plain.text)
        assert plain.finish_reason == "stop"
        assert list(found)[:2] == ["name", "age"] and 0 <= found["age"] <= 150
        for length in LENGTHS[1:]:
            assert obeying(demo, grammar, params, length, prompt=prompt).tokens == plain.tokens


def test_a_draft_with_a_short_window_obeys(tiny: TinyFiles) -> None:
    grammar = 'root ::= "one" (", two" | ", three"){40} "."'
    with Engine.load(options(tiny.target), options(tiny.draft, ctx_size=32)) as engine:
        plain = obeying(engine, grammar, WARM, max_tokens=400)
        assert re.fullmatch("one(, two|, three){40}[.]", plain.text)
        drafted = obeying(engine, grammar, WARM, 4, max_tokens=400)
        assert drafted.tokens == plain.tokens
        assert drafted.stats.accepted > 0.5 * drafted.stats.drafted


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_other_rules_of_acceptance_obey(engine: Engine, rule: AcceptanceRule) -> None:
    for seed in range(3):
        params = SamplingParams(temperature=0.8, seed=seed, acceptance=rule)
        answer = obeying(engine, LIST, params, 4)
        assert LISTED.fullmatch(answer.text) and answer.stats.drafted > 0
    if rule == "rejection":
        with pytest.raises(UsageError):
            obeying(engine, LIST, params, "auto")


def test_an_obeying_draft_is_accepted_more(engine: Engine) -> None:
    """Whatever the draft itself would rather say, where the grammar leaves one way it takes it."""
    answer = obeying(engine, 'root ::= "The one and only answer, letter by letter."', GREEDY, 4)
    assert answer.text == "The one and only answer, letter by letter."
    assert answer.stats.accepted == answer.stats.drafted > 20


def test_a_dead_end_is_an_error(engine: Engine) -> None:
    with pytest.raises(GrammarError, match="that can follow at position 8"):
        obeying(engine, r'root ::= "\x00"')


def before_the_dead_end(engine: Engine, params: SamplingParams, length: object) -> str:
    """What is shown of an answer that can go on nowhere."""
    engine.target.keep(0)
    grammar, parts = r'root ::= "one" [a-c]{20} "\x00"', list[str]()
    stream = stream_generate(engine, random_ids(8), params, length, grammar=grammar)  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="position"):
        collect(stream, lambda response: parts.append(response.text))
    return "".join(parts)


@pytest.mark.parametrize("params", [GREEDY, WARM])
def test_what_comes_before_a_dead_end_is_the_same(engine: Engine, params: SamplingParams) -> None:
    (text,) = {before_the_dead_end(engine, params, length) for length in LENGTHS}
    assert re.fullmatch("one[abc]{20}", text)


def test_an_answer_may_be_cut_before_the_grammar_ends(engine: Engine) -> None:
    answer = obeying(engine, "root ::= [a-z]+", GREEDY, 4, max_tokens=20)
    assert answer.finish_reason == "length" and re.fullmatch("[a-z]+", answer.text)
