"""Pairs whose vocabularies differ in size, on llama.cpp: safe, and the same text.

One model of the pair has tokens added at its end, as a fine-tune adds them, and likes to say them.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import gguf
import numpy as np
import pytest

from localspec.core.errors import IncompatiblePair
from localspec.core.options.sampling_params import AcceptanceRule, SamplingParams
from localspec.engine.engine import Engine
from localspec.llama.heads.head import Head
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.pairing import MAX_SIZE_DIFFERENCE, check_pair
from tests.support.files.gguf_files import write_with_gguf
from tests.support.files.tiny_models import read_all
from tests.support.real_pair import (
    GREEDY,
    LENGTHS,
    TinyFiles,
    fresh,
    load_model,
    options,
    random_ids,
)

pytestmark = pytest.mark.llama

MORE = MAX_SIZE_DIFFERENCE
EAGER, WILLING = 3.0, 1.06  # logits of an added token, beside those of the ordinary one it copies
WARM = SamplingParams(temperature=0.8, seed=1)
HOT = SamplingParams(temperature=2, top_k=0, top_p=1, min_p=0, seed=3)
PARAMS = (GREEDY, WARM, HOT)


def lengthen(path: Path, source: Path, more: int, scale: float) -> Path:
    """Write `source` with `more` tokens added, and return `path`.

    The output matrix of the tiny models is their embedding, so an added token whose row is `scale`
    times that of an ordinary one has `scale` times its logit: above 1 it wins wherever that would.
    """
    keys, tensors = read_all(source)
    size = len(keys["tokenizer.ggml.tokens"])
    keys["tokenizer.ggml.tokens"] += [f"<added {index}>" for index in range(more)]
    keys["tokenizer.ggml.token_type"] += [int(gguf.TokenType.CONTROL)] * more
    for name in [name for name in keys if name.endswith(".vocab_size")]:
        keys[name] = size + more
    rows = tensors["token_embd.weight"]
    added = (scale * rows[np.arange(more) * 2].astype(np.float32)).astype(rows.dtype)
    tensors["token_embd.weight"] = np.concatenate([rows, added])
    return write_with_gguf(path, keys, tensors)


@dataclass(frozen=True)
class LongerFiles:
    """The tiny pair with tokens added to one side."""

    eager_draft: Path
    willing_target: Path


@pytest.fixture(scope="module")
def longer(tiny: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> LongerFiles:
    folder = tmp_path_factory.mktemp("longer models")
    return LongerFiles(
        lengthen(folder / "draft.gguf", tiny.draft, MORE, EAGER),
        lengthen(folder / "target.gguf", tiny.target, MORE, WILLING),
    )


@dataclass
class Read:
    """What a model was given to read: the highest id, and how many tokens."""

    highest: int = -1
    tokens: list[int] = field(default_factory=list)


def watch(model: LlamaModel | Head, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Note every token that reaches llama.cpp through this model from now on."""
    read, decode = Read(), model.decode

    def noted(tokens, rows):  # type: ignore[no-untyped-def]
        read.tokens += tokens
        read.highest = max(read.highest, *tokens)
        return decode(tokens, rows)

    monkeypatch.setattr(model, "decode", noted)
    return read


def load(target: Path, draft: Path, exact: bool = False) -> Engine:
    return Engine.load(options(target, exact=exact), options(draft))


@pytest.fixture(params=[False, True], ids=["", "exact"])
def larger_draft(
    request: pytest.FixtureRequest, tiny: TinyFiles, longer: LongerFiles
) -> Iterator[Engine]:
    with load(tiny.target, longer.eager_draft, request.param) as engine:
        yield engine


@pytest.fixture(params=[False, True], ids=["", "exact"])
def larger_target(
    request: pytest.FixtureRequest, tiny: TinyFiles, longer: LongerFiles
) -> Iterator[Engine]:
    with load(longer.willing_target, tiny.draft, request.param) as engine:
        yield engine


def test_the_pairs_are_at_the_limit(tiny: TinyFiles, longer: LongerFiles, tmp_path: Path) -> None:
    target, draft = read_header(tiny.target), read_header(longer.eager_draft)
    for pair, rule in (
        ((target, draft), "draft-vocab-larger"),
        ((read_header(longer.willing_target), read_header(tiny.draft)), "target-vocab-larger"),
    ):
        report = check_pair(*pair)
        assert report.compatible and rule in {finding.rule for finding in report.findings}
    beyond = lengthen(tmp_path / "beyond.gguf", tiny.draft, MORE + 1, EAGER)
    with pytest.raises(IncompatiblePair, match="differ by 129 ids"):
        load(tiny.target, beyond)
    with Engine.load(options(tiny.target), options(beyond), lenient=True) as engine:
        drafted = fresh(engine, random_ids(8), length=4)
        assert drafted.stats.accepted > 0
        assert drafted.tokens == fresh(engine, random_ids(8)).tokens


# -- a draft with ids that the target lacks ------------------------------------------------


def test_the_draft_would_rather_say_what_the_target_lacks(longer: LongerFiles) -> None:
    with closing(load_model(longer.eager_draft)) as draft:
        prompt = random_ids(32)
        likeliest = draft.decode(prompt, len(prompt)).argmax(axis=1)
        assert (likeliest >= draft.n_vocab - MORE).mean() > 0.5


def test_a_larger_draft_changes_no_text(
    larger_draft: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = larger_draft
    assert engine.draft is not None and engine.draft.n_vocab == engine.target.n_vocab + MORE
    read = watch(engine.target, monkeypatch)
    for params in PARAMS:
        plain = fresh(engine, random_ids(8), params, max_tokens=48)
        for length in LENGTHS[1:]:
            answer = fresh(engine, random_ids(8), params, length, max_tokens=48)
            assert answer.tokens == plain.tokens
            assert answer.text == plain.text
            if length != "auto":  # which need not draft: that follows what passes cost here
                assert answer.stats.drafted > 0
            if length != "auto" and params is not HOT:
                assert answer.stats.accepted > 0
    assert read.highest < engine.target.n_vocab


@pytest.mark.parametrize("longer_side", ["target", "draft"])
def test_other_rules_of_acceptance_are_as_safe(
    tiny: TinyFiles, longer: LongerFiles, monkeypatch: pytest.MonkeyPatch, longer_side: str
) -> None:
    rules: tuple[AcceptanceRule, ...] = ("match", "rejection")
    pair = (tiny.target, longer.eager_draft)
    if longer_side == "target":
        pair = (longer.willing_target, tiny.draft)
    with load(*pair) as engine:
        assert engine.draft is not None
        read, read_by_draft = watch(engine.target, monkeypatch), watch(engine.draft, monkeypatch)
        for rule, seed in product(rules, range(4)):
            params = SamplingParams(temperature=0.8, seed=seed, acceptance=rule)
            answer = fresh(engine, random_ids(8), params, 4, max_tokens=32)
            assert answer.stats.drafted > 0, (rule, seed)
            if rule == "match":
                assert answer.tokens == fresh(engine, random_ids(8), params, max_tokens=32).tokens
        assert read.highest < engine.target.n_vocab
        assert read_by_draft.highest < engine.draft.n_vocab


# -- a target with ids that the draft lacks ------------------------------------------------


def test_a_larger_target_changes_no_text(
    larger_target: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = larger_target
    assert engine.draft is not None and engine.target.n_vocab == engine.draft.n_vocab + MORE
    read = watch(engine.draft, monkeypatch)
    said_both = 0
    for params in PARAMS:
        for seed in range(3):
            plain = fresh(engine, random_ids(8, seed), params, max_tokens=48)
            for length in LENGTHS[1:]:
                answer = fresh(engine, random_ids(8, seed), params, length, max_tokens=48)
                assert answer.tokens == plain.tokens
                assert answer.text == plain.text
                added = max(answer.tokens) >= engine.draft.n_vocab
                said_both += length != "auto" and added and answer.stats.drafted > 0
    assert read.highest < engine.draft.n_vocab
    assert said_both > 0  # else the draft never met what it lacks
