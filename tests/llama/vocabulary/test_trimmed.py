"""Drafts with a trimmed vocabulary: what they say of the tokens they have is what they said."""

import functools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.pad import PaddingSource, pad_model
from localspec.core.errors import EngineError, FileProblem, IncompatiblePair
from localspec.core.options.load_options import MAX_ROWS
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.session.slot import Slot
from localspec.llama import pass_class
from localspec.llama.memory.estimate import estimate_memory
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.trimmed import _F32, TrimmedModel, _to_float
from localspec.metadata.gguf_file import GGML_TYPES, NO_WEIGHTS
from localspec.metadata.header import read_header
from localspec.self_draft.trim import trim_vocabulary
from localspec.self_draft.vocabulary import rank
from localspec.speculative.loop import Logits
from tests.support.files.architectures.specs import MODELS, N_VOCAB, WIDTH
from tests.support.files.architectures.writer import weights, write_model
from tests.support.real_pair import TinyFiles, fresh, load_model, options, slots_of
from tests.support.toy.slots import together

pytestmark = pytest.mark.llama

QUANTIZATIONS: tuple[Quantization, ...] = ("F32", "F16", "Q8_0", "Q4_0")
SIZES = (4000, 1000, 300, 60)  # of the bundled draft's 4096 tokens
QUESTIONS = (
    "Explain the function shutil.copytree.",
    "Show me the source of os.path.join.",
)
Trim = Callable[[int], Path]


def load_trimmed(path: Path, **changes: object) -> TrimmedModel:
    return TrimmedModel(read_header(path), options(path, **changes))


@pytest.fixture(scope="module")
def counts(demo_files: tuple[Path, Path]) -> Counter[int]:
    """What the bundled target says."""
    with Engine.load(options(demo_files[0], ctx_size=512)) as engine:
        answers = [
            fresh(engine, engine.encode_chat([{"role": "user", "content": question}])).tokens
            for question in QUESTIONS
        ]
    return Counter(token for answer in answers for token in answer)


@pytest.fixture(scope="module")
def trim(
    demo_files: tuple[Path, Path],
    counts: Counter[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Trim:
    """The bundled draft with so many tokens, those first that the target says most."""
    target, draft = (read_header(path) for path in demo_files)
    folder = tmp_path_factory.mktemp("trimmed")

    @functools.cache
    def trim(size: int) -> Path:
        path = folder / f"{size}.gguf"
        trim_vocabulary(draft, target, rank(counts, (), 4096)[:size], path)
        return path

    return trim


def assert_same(own: LlamaModel, trimmed: TrimmedModel, tokens: Sequence[int]) -> None:
    """Bit for bit on the tokens that are kept, and nothing else."""
    assert trimmed.header.trimmed is not None
    ids = trimmed.header.trimmed.ids
    expected, found = own.decode(tokens, len(tokens)), trimmed.decode(tokens, len(tokens))
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found[:, ids], expected[:, ids])
    others = np.delete(found, ids, axis=1)
    assert others.size and (others == -np.inf).all()


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_a_tied_model_says_the_same(
    demo_files: tuple[Path, Path], tmp_path: Path, quantization: Quantization
) -> None:
    whole, path = tmp_path / "whole.gguf", tmp_path / "trimmed.gguf"
    pad_model(demo_files[1], whole, PaddingSource.read(demo_files[1]).shape, quantization)
    header = read_header(whole)
    assert not header.has_output
    trim_vocabulary(header, read_header(demo_files[0]), range(1, 4096, 4), path)
    with closing(load_model(whole)) as own, closing(load_trimmed(path)) as trimmed:
        tokens = [*range(40), 4095, 2048, 17]  # of these a quarter can be proposed
        assert_same(own, trimmed, tokens)
        assert own.tokens == trimmed.tokens == tokens


def test_a_model_with_its_own_output_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "trimmed.gguf"
    output = weights("output.weight", (N_VOCAB, WIDTH))
    untied = replace(MODELS["llama"], given={"output.weight": output})
    header = read_header(write_model(tmp_path / "untied.gguf", untied))
    assert header.has_output
    # Kernels that take several rows at a time round the same where all rows come in such groups.
    trim_vocabulary(header, header, range(0, 256, 2), path)
    with closing(load_model(header.path)) as own, closing(load_trimmed(path)) as trimmed:
        assert_same(own, trimmed, range(0, N_VOCAB, 5))


@pytest.mark.parametrize("name", ["llama", "qwen35", "gemma4", "mamba2", "lfm2"])
def test_tokens_are_taken_back(
    architecture: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "trimmed.gguf"
    header = read_header(architecture(name))
    trim_vocabulary(header, header, range(0, N_VOCAB, 2), path)
    with closing(load_model(header.path)) as own, closing(load_trimmed(path)) as trimmed:
        assert trimmed.rollback.name == own.rollback.name and trimmed.can_roll_back
        for model in (own, trimmed):
            model.decode(range(30), 0)
            model.checkpoint()
            model.decode(range(30, 34), 1)
            model.truncate(31)
        assert own.tokens == trimmed.tokens == [*range(31)]
        assert_same(own, trimmed, [7, 9])


def test_long_texts_are_read_in_batches(demo_files: tuple[Path, Path], trim: Trim) -> None:
    own = load_model(demo_files[1], batch_size=64, ubatch_size=64)
    trimmed = load_trimmed(trim(1000), batch_size=64, ubatch_size=64)
    try:
        text = [(7 * i) % 4096 for i in range(150)]
        own.decode(text, 0)
        trimmed.decode(text, 0)
        assert_same(own, trimmed, [5, 6])
    finally:
        own.close()
        trimmed.close()


def test_a_wider_pass_leaves_nothing_behind(trim: Trim) -> None:
    with closing(load_trimmed(trim(60))) as model:
        wide = model.decode([1, 2, 3, 4], 4).copy()
        model.truncate(0)
        again = np.concatenate([model.decode([token], 1).copy() for token in (1, 2, 3, 4)])
        assert again.shape == wide.shape == (4, 4096)
        assert ((again == -np.inf) == (wide == -np.inf)).all()


def test_ggml_reads_every_type_that_is_let_in() -> None:
    """Where it has no function for one, calling that would end the process."""
    there = {each.name for each in GGML_TYPES.values() if _to_float(each.type_id)}
    assert there == {each.name for each in GGML_TYPES.values()} - NO_WEIGHTS - {
        GGML_TYPES[_F32].name
    }


def test_a_file_that_became_shorter_is_refused(trim: Trim, tmp_path: Path) -> None:
    header = read_header(Path(shutil.copy(trim(60), tmp_path / "short.gguf")))
    os.truncate(header.path, header.n_bytes - 1)
    with pytest.raises(EngineError, match="cannot be read"):
        TrimmedModel(header, options(header.path))


def test_rows_that_are_too_wide_are_refused(trim: Trim) -> None:
    """They would be written beyond the end of an array."""
    header = read_header(trim(60))
    assert header.trimmed is not None and header.trimmed.table is not None
    table = replace(header.trimmed.table, width=header.trimmed.table.width + 32)
    wide = replace(header.trimmed, table=table)
    with pytest.raises(EngineError, match="wide"):
        TrimmedModel(replace(header, trimmed=wide), options(header.path))


@pytest.fixture(scope="module")
def engines(demo_files: tuple[Path, Path], trim: Trim) -> Iterator[Callable[[int], Engine]]:
    """The bundled target with its draft, trimmed to so many tokens; 0 is no draft.

    Exact passes draft, whatever they cost on a busy machine.
    """
    opened: list[Engine] = []

    @functools.cache
    def load(size: int) -> Engine:
        draft = options(trim(size), ctx_size=512) if size else None
        target = options(demo_files[0], ctx_size=512, exact=True)
        opened.append(Engine.load(target, draft))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pass_class, "_pays", lambda *_: True)
        yield load
    for engine in opened:
        engine.close()


@settings(
    max_examples=settings().max_examples // 6,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    size=st.sampled_from(SIZES),
    temperature=st.sampled_from((0.0, 0.7, 1.3)),
    length=st.sampled_from((1, 4, 9)),
    seed=st.integers(0, 3),
    question=st.sampled_from(QUESTIONS),
    penalty=st.sampled_from((1.0, 1.1)),
)
def test_the_text_is_that_without_a_draft(
    engines: Callable[[int], Engine],
    size: int,
    temperature: float,
    length: int,
    seed: int,
    question: str,
    penalty: float,
) -> None:
    params = SamplingParams(temperature=temperature, seed=seed, repeat_penalty=penalty)
    plain, drafted = engines(0), engines(size)
    assert isinstance(drafted.draft, TrimmedModel)
    prompt = plain.encode_chat([{"role": "user", "content": question}])
    answer = fresh(drafted, prompt, params, length)
    assert answer.tokens == fresh(plain, prompt, params).tokens
    assert answer.stats.drafted


def test_other_samplers_bear_tokens_without_a_logit(engines: Callable[[int], Engine]) -> None:
    engine = engines(300)
    prompt = engine.encode_chat([{"role": "user", "content": QUESTIONS[0]}])
    for params in (
        SamplingParams(temperature=0.8, top_n_sigma=1.0, seed=1),
        SamplingParams(temperature=0.8, typical_p=0.5, seed=1),
        SamplingParams(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=1),
        SamplingParams(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.1, seed=1),
        SamplingParams(temperature=0.8, acceptance="rejection", seed=1),
    ):
        plain, drafted = (fresh(engine, prompt, params, length) for length in (0, 3))
        assert drafted.stats.drafted
        if params.acceptance != "rejection":
            assert drafted.tokens == plain.tokens


def test_it_drafts_for_no_other_target(tiny: TinyFiles, trim: Trim) -> None:
    with pytest.raises(IncompatiblePair, match="trimmed for a target with other tokens"):
        Engine.load(options(tiny.target), options(trim(300)))


def test_it_is_no_target(demo_files: tuple[Path, Path], trim: Trim) -> None:
    with pytest.raises(FileProblem, match="a draft with a trimmed vocabulary"):
        Engine.load(options(trim(300)))
    with pytest.raises(IncompatiblePair, match="a draft with a trimmed vocabulary"):
        Engine.load(options(trim(300)), options(demo_files[1]))


def test_several_texts_share_passes(demo_files: tuple[Path, Path], trim: Trim) -> None:
    target = options(demo_files[0], ctx_size=256, parallel=2)
    texts = [[3, 4000, 17, 5], [9, 2, 4095]]
    alone, found = load_trimmed(trim(300)), dict[int, Logits]()
    with Engine.load(target, options(trim(300))) as engine:
        slots = slots_of(engine)
        assert len(slots) == 2

        def work(slot: Slot, number: int) -> None:
            draft = slot.draft
            assert draft is not None
            draft.decode(texts[number], 0)
            for token in (7, 8):
                found[number] = draft.decode([token], 1).copy()
                draft.truncate(len(draft.tokens) - (token == 7))

        together(slots, slots.batcher, work)
    for number, text in enumerate(texts):
        alone.truncate(0)
        expected = alone.decode([*text, 8], 1)
        given = expected > -np.inf
        assert ((found[number] > -np.inf) == given).all()
        assert np.abs(found[number][given] - expected[given]).max() < 0.05
    alone.close()


def test_the_embeddings_behind_the_tensors_take_no_memory(
    demo_files: tuple[Path, Path], trim: Trim
) -> None:
    whole, header = read_header(demo_files[1]), read_header(trim(300))
    load = options(trim(300), ctx_size=512)
    model = TrimmedModel(header, load)
    model.close()
    estimate = estimate_memory(header, 512, load).use
    assert model.memory.weights == pytest.approx(estimate.weights, rel=0.1)
    assert model.memory.total == pytest.approx(estimate.total, rel=0.2)
    assert header.trimmed is not None
    many = replace(header.trimmed, ids=np.arange(10**6, dtype=np.int32))
    rows = estimate_memory(replace(header, trimmed=many), 512, load).use
    assert rows.compute > 4 * 10**6 * MAX_ROWS  # of logits
    before = estimate_memory(whole, 512, replace(load, path=whole.path)).use
    assert before.weights - estimate.weights == 2 * 128 * (4096 - 300)  # F16, 128 wide
