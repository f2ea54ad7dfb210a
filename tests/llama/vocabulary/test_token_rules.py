"""Token rules: sequence breakers in ids against llama.cpp's own, masked ids, biases of no token."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.core.errors import UsageError
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.token_rules import token_rules
from localspec.speculative.sampling.dry import Dry
from tests.support.files.tiny_models import copy_with, write_tiny_model
from tests.support.llama.samplers import llama_chain
from tests.support.real_pair import fresh, load_model

pytestmark = pytest.mark.llama

DRY = SamplingParams(
    temperature=1, top_k=0, top_p=1, min_p=0, dry_multiplier=0.8, dry_penalty_last_n=200
)
TEXT = 'def add(a, b):\n    """Add."""\n    return a + b\n\n\ndef sub(a, b):\n    """Add."""\n    '


@pytest.fixture(scope="module")
def demo(demo_files: tuple[Path, Path]) -> Iterator[LlamaModel]:
    model = load_model(demo_files[1], ctx_size=64)
    yield model
    model.close()


@pytest.mark.parametrize(
    "breakers", [("\n", ":", '"', "*"), ("):\n ",), ("none",), (":", "none", "return"), ("é", "  ")]
)
def test_breakers_are_llama_cpps(demo: LlamaModel, breakers: tuple[str, ...]) -> None:
    params = replace(DRY, dry_sequence_breakers=breakers)
    known = breakers[breakers.index("none") + 1 :] if "none" in breakers else breakers
    dry = Dry(params, token_rules(demo, params).breakers)
    ids = demo.tokenize(TEXT * 3, add_special=False, parse_special=False)
    rng, row = np.random.default_rng(1), np.zeros(demo.n_vocab, np.float32)
    penalised = 0
    with llama_chain(replace(params, dry_sequence_breakers=known), demo.n_vocab, demo.vocab) as c:
        for end in [*range(1, len(ids)), *[0] * 40]:
            history = ids[:end] if end else rng.choice(ids[:6], 60).tolist()
            found, logits = c.logits(row, history)
            lost = dict(zip(found, (-logits).tolist(), strict=True))
            ours = dry.penalties(history)
            penalised += len(ours)
            assert ours == {
                token: pytest.approx(each, rel=1e-4) for token, each in lost.items() if each
            }
    assert penalised > 20


def test_a_breaker_may_be_divided_between_tokens(demo: LlamaModel) -> None:
    breakers = token_rules(demo, replace(DRY, dry_sequence_breakers=("return",))).breakers
    (whole,) = {len(tails) for token, tails in breakers.items() if () in tails}
    assert whole >= 1
    assert any(len(tail) > 0 for tails in breakers.values() for tail in tails)
    for token, tails in breakers.items():
        for tail in tails:
            text = demo.text_alone(token) + b"".join(demo.text_alone(each) for each in tail)
            assert b"return" in text.replace(b" ", b"")


def test_ends_of_an_answer_are_masked_where_they_are_ignored(engine: Engine) -> None:
    stops = [token for token in range(engine.target.n_vocab) if engine.is_stop(token)]
    assert stops
    assert engine.token_rules(SamplingParams()).masked == ()
    assert engine.token_rules(SamplingParams(ignore_eos=True)).masked == tuple(stops)


def test_an_answer_goes_on_where_its_end_is_ignored(engine: Engine) -> None:
    prompt = engine.encode_text("the ")
    (stop, *_) = [token for token in range(engine.target.n_vocab) if engine.is_stop(token)]
    ends = SamplingParams(temperature=0, logit_bias=(f"{stop}+1000",))
    assert fresh(engine, prompt, ends).finish_reason == "stop"
    for length in (0, 4):
        goes_on = fresh(engine, prompt, replace(ends, ignore_eos=True), length, 20)
        assert goes_on.finish_reason == "length" and len(goes_on.tokens) == 20


def test_a_bias_of_no_token_is_refused(engine: Engine) -> None:
    last = engine.target.n_vocab - 1
    engine.token_rules(SamplingParams(logit_bias=(f"{last}+1",)))
    with pytest.raises(UsageError, match=f"--logit-bias {last + 1}-inf names a token") as raised:
        engine.token_rules(SamplingParams(logit_bias=(f"{last + 1}-inf",)))
    assert f"0 to {last}" in raised.value.hint


def test_what_the_file_suppresses_is_masked(tmp_path: Path) -> None:
    plain = write_tiny_model(tmp_path / "plain.gguf", seed=1)
    keys = {"tokenizer.ggml.suppress_tokens": [5, 7]}
    model = load_model(copy_with(plain, tmp_path / "suppressing.gguf", keys))
    assert model.suppressed() == [5, 7]
    assert token_rules(model, SamplingParams()).masked == (5, 7)
    model.close()
