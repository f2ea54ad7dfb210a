"""Trimmed MTP heads: what they say of the tokens they have is what whole heads say."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.chat.answer import collect
from localspec.core import paths
from localspec.core.errors import IncompatiblePair
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.engine.session.slot import Slot
from localspec.llama.heads.head import Head
from localspec.llama.memory.estimate import estimate_memory
from localspec.metadata.draft_kind import draft_kind, has_heads
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import check_pair
from localspec.self_draft import trim
from localspec.self_draft import trim_heads as module
from localspec.self_draft.trim_heads import read_as, trim_heads
from localspec.self_draft.vocabulary import rank
from tests.support.files.architectures.specs import MODELS, N_VOCAB
from tests.support.llama.heads import head_pair
from tests.support.real_pair import TinyFiles, fresh, options, random_ids, retuned, slots_of
from tests.support.toy.slots import together

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]
KEPT = range(0, N_VOCAB, 2)
OWN = [name for name in MODELS if "-mtp" in name and not name.endswith("mtp2")]


@pytest.fixture
def heads(architecture: Files, tmp_path: Path) -> Callable[[str], Path]:
    """A file by its name, or behind "trimmed" the heads of that file with half of the rows."""

    def find(name: str) -> Path:
        if not name.startswith("trimmed "):
            return architecture(name)
        model, _, sidecar = name.removeprefix("trimmed ").partition(" ")
        target = read_header(architecture(model))
        source = read_header(architecture(sidecar)) if sidecar else target
        path = tmp_path / f"{name}.gguf"
        if not path.exists():
            trim_heads(source, target, KEPT, path)
        return path

    return find


@pytest.mark.parametrize("name", OWN)
def test_what_is_written_drafts_for_its_target(heads: Files, name: str) -> None:
    target, found = read_header(heads(name)), read_header(heads(f"trimmed {name}"))
    assert has_heads(target) and found.trimmed is not None
    assert found.trimmed.ids.tolist() == list(KEPT) and found.trimmed.size == N_VOCAB
    kind = draft_kind(found)
    assert (kind.kind, kind.reduced_vocabulary) == ("mtp", len(KEPT))
    assert kind.heads == target.get("nextn_predict_layers")
    report = check_pair(target, found)
    assert report.compatible and not report.llama_cpp_accepts
    assert found.n_bytes < target.n_bytes / 2


@pytest.mark.parametrize("sidecar", ["", "mtp-qwen35"])
def test_they_say_what_whole_heads_say(heads: Files, sidecar: str) -> None:
    model = "qwen35" if sidecar else "qwen35-mtp"
    context, drafted = [i // 2 * 2 for i in random_ids(30, seed=1)], [4, 8]
    with head_pair(heads, model, sidecar or None) as whole:
        expected = whole.draft(context, drafted)
    with head_pair(heads, model, f"trimmed {model} {sidecar}".rstrip()) as trimmed:
        found = trimmed.draft(context, drafted)
        assert trimmed.head.n_vocab == N_VOCAB
    for own, row in zip(expected, found, strict=True):
        assert row.shape == own.shape
        np.testing.assert_allclose(row[KEPT], own[KEPT], atol=2e-3)
        assert (np.delete(row, KEPT) == -np.inf).all()


def test_a_token_without_a_row_is_read_as_the_one_most_like_it(heads: Files) -> None:
    trimmed = read_header(heads("trimmed qwen35-mtp")).trimmed
    assert trimmed is not None and trimmed.read_as is not None
    lost, row = 7, int(trimmed.read_as[7])
    context = [i // 2 * 2 for i in random_ids(30, seed=1)]
    with head_pair(heads, "qwen35-mtp", "trimmed qwen35-mtp") as pair:
        rows = [pair.draft(context, [token])[1] for token in (lost, int(KEPT[row]), KEPT[row - 1])]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert not np.allclose(rows[0][KEPT], rows[2][KEPT])


@given(st.integers(2, 60), st.integers(1, 40), st.integers(0, 9))
def test_rows_are_those_with_the_least_angle(n_tokens: int, width: int, seed: int) -> None:
    dice = np.random.default_rng(seed)
    directions = dice.standard_normal((n_tokens, width), np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    ids = np.sort(dice.choice(n_tokens, size=n_tokens // 2, replace=False))
    rows = read_as(directions, ids)
    assert rows[ids].tolist() == list(range(len(ids)))
    nearest = (directions @ directions[ids].T).max(axis=1)
    chosen = np.einsum("ij,ij->i", directions, directions[ids[rows]])
    np.testing.assert_allclose(chosen, nearest, atol=1e-5)


def test_what_is_not_proved_is_not_kept(
    heads: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = read_header(heads("qwen35-mtp"))
    shifted = lambda directions, ids: np.roll(read_as(directions, ids), 1)  # noqa: E731
    monkeypatch.setattr(trim, "ROUNDING", -1.0)
    with pytest.raises(IncompatiblePair, match="they compute other logits"):
        trim_heads(target, target, KEPT, tmp_path / "a.gguf")
    monkeypatch.undo()
    monkeypatch.setattr(module, "read_as", shifted)
    with pytest.raises(Exception, match="a row for each token"):
        trim_heads(target, target, KEPT, tmp_path / "a.gguf")
    assert not list(tmp_path.glob("*.gguf")) and not list(tmp_path.glob(".a*"))


def test_what_cannot_be_trimmed(heads: Files, tiny: TinyFiles, tmp_path: Path) -> None:
    def refused(source: ModelHeader, target: ModelHeader, words: str, ids: object = KEPT) -> None:
        with pytest.raises(IncompatiblePair, match=words):
            trim_heads(source, target, ids, tmp_path / "a.gguf")  # type: ignore[arg-type]

    target, trimmed = read_header(heads("qwen35-mtp")), read_header(heads("trimmed qwen35-mtp"))
    refused(trimmed, target, "trimmed already")
    headless = read_header(tiny.target)
    refused(headless, headless, "has no prediction heads of its own")
    refused(target, target, "cannot be kept", range(N_VOCAB))
    refused(target, target, "not in both vocabularies", [1, N_VOCAB])
    gemma, assistant = (read_header(heads(name)) for name in ("gemma4", "gemma4-assistant"))
    refused(assistant, gemma, "embeddings of its own kind")
    refused(read_header(heads("mtp-step35")), target, "cannot draft: The heads are for")


def test_they_are_refused_for_another_vocabulary(heads: Files, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(heads("qwen35").read_bytes())
    report = check_pair(read_header(retuned(other)), read_header(heads("trimmed qwen35-mtp")))
    assert [each.rule for each in report.errors] == ["trimmed-for-another"]
    trimmed = read_header(heads("trimmed qwen35-mtp"))
    assert trimmed.trimmed is not None
    unread = replace(trimmed, trimmed=replace(trimmed.trimmed, read_as=None))
    report = check_pair(read_header(heads("qwen35")), unread)
    assert "not trimmed as that of 1 multi-token prediction head" in report.errors[0].message


def test_memory_is_that_of_what_is_kept(heads: Files) -> None:
    header = read_header(heads("trimmed qwen35-mtp"))
    load = options(header.path, ctx_size=256)
    with head_pair(heads, "qwen35-mtp", "trimmed qwen35-mtp", ctx_size=256) as pair:
        found = pair.head.memory
    assert found.weights == pytest.approx(estimate_memory(header, 256, load).use.weights, rel=0.2)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Engine]]:
    """The bundled hybrid with its head trimmed to so many tokens; 0 is no draft."""
    path, opened = paths.bundled_folder() / "hybrid.gguf", dict[int, Engine]()
    target, folder = read_header(path), tmp_path_factory.mktemp("trimmed")
    alone = options(path, ctx_size=512)

    def load(size: int) -> Engine:
        if size not in opened and size:
            file = folder / f"{size}.gguf"
            trim_heads(target, target, rank(Counter(said()), (), 4096)[:size], file)
            opened[size] = Engine.load(alone, options(file, ctx_size=512))
        elif size not in opened:
            opened[0] = Engine.load(alone)
        return opened[size]

    def said() -> list[int]:
        plain = load(0)
        prompt = plain.encode_chat([{"role": "user", "content": QUESTIONS[0]}])
        return fresh(plain, prompt, SamplingParams(temperature=0), 0, 64).tokens

    yield load
    for engine in opened.values():
        engine.close()


QUESTIONS = ("Show me the source of os.path.join.", "How is random.choice implemented?")


@settings(
    max_examples=settings().max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    size=st.sampled_from((2000, 300, 60)),
    temperature=st.sampled_from((0.0, 0.7, 1.3)),
    length=st.sampled_from((1, 3, "auto")),
    seed=st.integers(0, 3),
    question=st.sampled_from(QUESTIONS),
)
def test_the_text_is_that_without_a_draft(
    engines: Callable[[int], Engine],
    size: int,
    temperature: float,
    length: DraftTokens,
    seed: int,
    question: str,
) -> None:
    params = SamplingParams(temperature=temperature, seed=seed)
    plain, drafted = engines(0), engines(size)
    assert isinstance(drafted.draft, Head)
    prompt = plain.encode_chat([{"role": "user", "content": question}])
    answer = fresh(drafted, prompt, params, length)
    assert answer.tokens == fresh(plain, prompt, params).tokens
    assert answer.stats.drafted or length == "auto"


def test_they_draft_in_several_slots(engines: Callable[[int], Engine]) -> None:
    params, path = SamplingParams(temperature=0), paths.bundled_folder() / "hybrid.gguf"
    plain, sidecar = engines(0), engines(300).draft
    assert sidecar is not None
    prompts = [plain.encode_chat([{"role": "user", "content": each}]) for each in QUESTIONS]
    expected = [fresh(plain, prompt, params, 0, 24).tokens for prompt in prompts]
    loaded = options(path, ctx_size=512, parallel=2)
    with Engine.load(loaded, options(sidecar.header.path, ctx_size=512)) as engine:
        slots, accepted = slots_of(engine), list[int]()

        def work(slot: Slot, number: int) -> None:
            asked = GenerateOptions(params, 3, max_tokens=24)
            found = collect(stream_generate(slot, prompts[number], asked))
            assert found.tokens == expected[number]
            accepted.append(found.stats.accepted)

        together(slots, slots.batcher, work)
    assert len(accepted) == 2 and all(accepted)
