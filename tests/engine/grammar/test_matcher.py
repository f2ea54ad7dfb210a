"""Matcher: places that go back, answers that obey, the same text with any draft."""

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from localspec.chat.answer import Answer, collect
from localspec.core.errors import GrammarError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.engine.grammar import matcher
from localspec.engine.grammar.constraint import GrammarConstraint, GrammarVocabulary
from localspec.engine.grammar.matcher import CompiledGrammar, Matching
from localspec.engine.grammar.source import read_schema
from localspec.speculative.sampling.constrained import RECALL
from tests.support.real_pair import GREEDY, LENGTHS, TinyFiles, options, random_ids
from tests.support.toy.grammars import byte_tokenizer

pytestmark = pytest.mark.llama

WARM = SamplingParams(temperature=0.8, seed=1)
LIST = r'root ::= ("- " [a-zé€]{1,9} "\n"){2,3}'
LISTED = re.compile(r"(- [a-zé€]{1,9}\n){2,3}")
WORDS = 'root ::= word ("," word)*\nword ::= [a-z]+ | "(" root ")"'
SPELT = 'root ::= "{\\"name\\": \\"" [a-z]+ "\\", \\"and a longer name\\": true}"'
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", 'd"e']}, "maxItems": 3},
    },
    "required": ["name", "age"],
}


def obeying(
    engine: Engine,
    grammar: str,
    params: SamplingParams = GREEDY,
    length: DraftTokens = 0,
    max_tokens: int = 80,
    prompt: list[int] | None = None,
) -> Answer:
    """One answer within a grammar, from empty caches."""
    engine.target.truncate(0)
    if engine.draft is not None:
        engine.draft.truncate(0)
    stream = stream_generate(
        engine,
        prompt or random_ids(8),
        GenerateOptions(params, length, max_tokens=max_tokens, grammar=grammar),
    )
    return collect(stream)


# -- states --------------------------------------------------------------------------------


@pytest.mark.parametrize("grammar", [WORDS, LIST, SPELT, read_schema(json.dumps(SCHEMA)).grammar])
def test_places_go_back_and_on(engine: Engine, grammar: str) -> None:
    """Whatever was shown before, a constraint allows what one allows that saw this text alone."""
    rng, n_vocab = random.Random(0), engine.target.n_vocab
    constraint = engine.constraint(grammar, 5)
    prompt, answer = random_ids(5), list[int]()
    for _ in range(150):
        del answer[max(0, len(answer) - rng.choice([0, 0, 0, 0, 1, 3, 30])) :]
        for _ in range(rng.randint(0, 14)):
            history = [*prompt, *answer]
            picked = rng.choice(np.flatnonzero(constraint.mask(len(history), history)).tolist())
            if not engine.is_stop(picked):
                answer.append(picked)
        history = [*prompt, *answer]
        fresh = engine.constraint(grammar, 5)
        mask, forced = fresh.mask(len(history), history), fresh.forced(len(history), history)
        recent = history[-max(1, rng.randint(RECALL, 200)) :]
        for token in rng.sample(range(n_vocab), 20) + np.flatnonzero(mask)[:20].tolist():
            assert constraint.allows(token, len(history), recent) == mask[token]
        assert (constraint.mask(len(history), recent) == mask).all()
        assert constraint.forced(len(history), recent) == forced
        for i, token in enumerate(forced):
            assert np.flatnonzero(fresh.mask(len(history) + i, history + forced[:i])) == [token]


def test_a_window_of_a_draft_is_understood(engine: Engine) -> None:
    """A draft's history may be the first token of all and the last few."""
    constraint = engine.constraint(WORDS, 5)
    answer = engine.target.tokenize("ab,(cd,ef", add_special=False, parse_special=False)
    history = [*random_ids(5), *answer]
    for end in range(5, len(history) + 1):
        whole = constraint.mask(end, history[:end])
        if end > 8:
            window = [history[0], *history[end - 3 : end]]
            assert (constraint.mask(end, window) == whole).all()


def test_in_the_prompt_any_token_may_stand(engine: Engine) -> None:
    constraint = engine.constraint("root ::= [a]", 5)
    assert constraint.mask(4, random_ids(4)).all() and constraint.allows(7, 4, random_ids(4))
    assert constraint.forced(4, random_ids(4)) == []


def test_nothing_follows_what_is_refused(engine: Engine) -> None:
    constraint = engine.constraint("root ::= [a]*", 1)
    refused = int(np.flatnonzero(~constraint.mask(1, [0]))[0])
    assert not constraint.mask(3, [0, refused, refused]).any()
    assert not constraint.allows(refused, 3, [0, refused, refused])
    assert constraint.mask(1, [0]).any()


def test_control_tokens_count_as_their_text(engine: Engine) -> None:
    """As in llama.cpp; what is forced is written as the model writes it, with such a token."""
    n_vocab, piece = engine.target.n_vocab, engine.target.piece
    control = next(
        i for i in range(n_vocab) if not piece(i) and piece(i, True) and not engine.is_stop(i)
    )
    text = piece(control, True).decode()
    constraint = engine.constraint(f"root ::= {json.dumps(text)}", 1)
    assert constraint.forced(1, [0]) == [control]
    free = engine.constraint("root ::= [^x]*", 1)
    assert free.allows(control, 1, [0])
    stop = next(i for i in range(n_vocab) if engine.is_stop(i))
    assert not engine.constraint("root ::= [^x]+", 1).allows(stop, 1, [0])


def test_a_bound_that_is_exceeded_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from llguidance import LLParserLimits

    low = LLParserLimits(step_max_items=20, verbose_errors=False)
    monkeypatch.setattr(matcher, "limits", lambda: low)
    with pytest.raises(GrammarError, match="cannot be enforced"):
        compiled = CompiledGrammar('root ::= s\ns ::= s s s | s s | "a"', byte_tokenizer())
        answer = Matching(compiled)
        for length in range(9):
            answer.mask(length)
            answer.follow(length, [97])


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= "abaZc"', b"abaZc"),  # written by the longest tokens
        ('root ::= "abZc"', b"ab"),
        ('root ::= "Z"', b""),
    ],
)
def test_a_vocabulary_that_lacks_a_byte(grammar: str, text: bytes) -> None:
    """Its own tokenizer loses it; what no token can write is a dead end."""
    tokens = [*(bytes([i]) for i in range(256) if i != ord("Z")), b"aZ", b"<stop>"]
    ids = {each: i for i, each in enumerate(tokens)}
    stop = len(tokens) - 1

    def lossy(text: str) -> list[int]:
        return [ids[bytes([byte])] for byte in text.encode() if bytes([byte]) in ids]

    constraint, history = (
        GrammarConstraint(grammar, GrammarVocabulary(tokens, [stop], lossy), 1),
        [0],
    )
    while (mask := constraint.mask(len(history), history)).any() and not mask[stop]:
        history.append(int(np.flatnonzero(mask)[-1]))
    assert b"".join(tokens[i] for i in history[1:]) == text


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


def test_a_draft_with_a_short_window_obeys(tiny: TinyFiles) -> None:
    grammar = 'root ::= "one" (", two" | ", three"){40} "."'
    with Engine.load(options(tiny.target), options(tiny.draft, ctx_size=32)) as engine:
        plain = obeying(engine, grammar, WARM, max_tokens=400)
        assert re.fullmatch("one(, two|, three){40}[.]", plain.text)
        drafted = obeying(engine, grammar, WARM, 4, max_tokens=400)
        assert drafted.tokens == plain.tokens
        assert drafted.stats.accepted > 0.5 * drafted.stats.drafted


def test_an_obeying_draft_is_accepted_more(engine: Engine) -> None:
    """Whatever the draft itself would rather say, where the grammar leaves one way it takes it."""
    answer = obeying(engine, 'root ::= "The one and only answer, letter by letter."', GREEDY, 4)
    assert answer.text == "The one and only answer, letter by letter."
    assert answer.stats.accepted == answer.stats.drafted > 20


def test_an_endless_answer_ends_where_the_grammar_leaves_nothing_else(engine: Engine) -> None:
    endless = replace(GREEDY, ignore_eos=True)
    for length in LENGTHS:
        answer = obeying(engine, 'root ::= "a"{3,9}', endless, length)
        assert (answer.text, answer.finish_reason) == ("a" * 9, "stop")


def test_forced_tokens_are_drafted_without_a_draft_model(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target)) as engine:
        plain, forced = (obeying(engine, SPELT, WARM, length) for length in (0, "auto"))
    assert forced.tokens == plain.tokens and plain.stats.drafted == 0
    source = forced.stats.sources["forced"]
    assert source.accepted == source.drafted > 5
    assert forced.stats.rounds < plain.stats.rounds
