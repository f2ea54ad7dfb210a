"""From which word on two texts differ, and how near a tie the model was there."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from localspec.chat.answer import Answer, Piece, agreement, collect
from localspec.chat.stats import GenerationStats
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.speculative.sampling.logprobs import TokenLogprob
from tests.support.real_pair import TinyFiles
from tests.support.real_pair import options as load_options

GREEDY = GenerateOptions(SamplingParams(temperature=0))


def made(text: str, tokens: list[int]) -> Answer:
    return Answer(text, tokens, GenerationStats(), "stop")


@pytest.mark.parametrize(
    ("text", "tokens", "apart", "words"),
    [
        ("a lock is held", [1, 2, 3, 4], 0.1, "the same text"),
        ("a lock was held", [1, 2, 5, 4], 0.125,
         'another text from word 3 on, "was" for "is": a near tie (0.12 logits apart), which '
         "--exact prevents"),
        ("a lock", [1, 2], 3.5,
         'another text from word 3 on, its end for "is": no near tie (3.5 logits apart); '
         "localspec bench finds out why"),
    ],
)  # fmt: skip
def test_where_texts_part_and_why(text: str, tokens: list[int], apart: float, words: str) -> None:
    asked: list[tuple[list[int], GenerateOptions]] = []

    def stream(prompt: Sequence[int], options: GenerateOptions) -> Iterator[Piece]:
        asked.append((list(prompt), options))
        top = TokenLogprob(3, -0.5, ((3, -0.5), (5, -0.5 - apart)))
        yield Piece((), (3,), GenerationStats(), "length", 0, logprobs=(top,))

    drafted, plain = made(text, tokens), made("a lock is held", [1, 2, 3, 4])
    assert agreement(stream, [7, 8], GREEDY, drafted, plain) == words
    for context, options in asked:
        assert context == [7, 8, 1, 2] and options.max_tokens == 1 and not options.draft_tokens


@pytest.mark.llama
def test_a_real_model_says_how_near_the_tie_was(tiny: TinyFiles) -> None:
    options = replace(GREEDY, draft_tokens=0, max_tokens=8)
    with Engine.load(load_options(tiny.target)) as engine:
        prompt = engine.encode_text("one two three")
        plain = collect(engine.stream(prompt, options))
        tokens = [*plain.tokens[:5], plain.tokens[5] + 1]
        found = agreement(engine.stream, prompt, options, made("another", tokens), plain)
        assert re.search(r"tie \([\d.e-]+ logits apart\)", found)
        assert collect(engine.stream(prompt, options)).tokens == plain.tokens


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (SamplingParams(temperature=1), "probably a near tie"),
        (SamplingParams(temperature=1, acceptance="rejection"), "another text, as rejection draws"),
    ],
)
def test_texts_that_were_drawn(params: SamplingParams, words: str) -> None:
    options = replace(GREEDY, sampling=params)
    found = agreement(lambda *_: iter(()), [7], options, made("b", [2]), made("a", [1]))
    assert words in found
