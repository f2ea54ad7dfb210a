"""The catalogue: its list is whole and well formed, and every pair of it can be named and found."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from localspec.core.errors import FileProblem, UnknownPair
from localspec.hub.reference import Reference, parse_reference
from localspec.library.pairs import catalog
from localspec.library.pairs.catalog import find_pair, load_catalog, of_family
from localspec.library.pairs.user_pairs import is_name

PAIRS = load_catalog()


def test_every_pair_is_there_once() -> None:
    kinds = Counter(pair.spec_type for pair in PAIRS)
    assert kinds == {"draft-simple": 38, "draft-dflash": 2, "draft-mtp": 3, "draft-eagle3": 1}
    models = [(pair.spec_type, pair.target.repo, pair.draft and pair.draft.repo) for pair in PAIRS]
    assert len(set(models)) == len(PAIRS) == len({pair.name.lower() for pair in PAIRS})


def test_a_pair_without_a_draft_drafts_with_its_own_heads() -> None:
    for pair in PAIRS:
        assert pair.draft is not None or pair.spec_type == "draft-mtp"
    pair = find_pair("qwen3.6-27b-mtp")
    assert (pair.draft_name, pair.size_gb) == ("mtp", 15.0)
    assert pair.as_json()["draft"] is None


def test_sidecars_that_nobody_opened_are_marked() -> None:
    assert {pair.unseen for pair in PAIRS if pair.spec_type != "draft-simple"} == {True}


def test_a_name_can_be_typed(subtests: pytest.Subtests) -> None:
    for pair in PAIRS:
        with subtests.test(pair.name):
            assert is_name(pair.name)
            assert pair.name == pair.name.lower()
            assert len(pair.name) <= 24
            assert find_pair(pair.name) is find_pair(pair.name.upper()) is pair


def test_a_pair_is_plausible(subtests: pytest.Subtests) -> None:
    for pair in PAIRS:
        with subtests.test(pair.name):
            models = [pair.target, *([pair.draft] if pair.draft else [])]
            assert pair.size_gb == pytest.approx(sum(model.size_gb for model in models))
            if pair.draft is not None:
                assert pair.target.size_gb > 2 * pair.draft.size_gb > 0
            vocabularies = [model.n_vocab for model in models if model.n_vocab is not None]
            assert len(vocabularies) == (2 if pair.spec_type == "draft-simple" else 1)
            assert min(vocabularies) > 30_000
            assert max(vocabularies) - min(vocabularies) <= 128  # llama.cpp's limit
            for model in models:
                assert model.license
                if model.file is not None and model.quantization != "unknown":
                    assert model.quantization.lower() in model.file.lower()
                    split = re.search(r"-00001-of-(\d{5})\.gguf$", model.file)
                    assert model.parts == (int(split[1]) if split else 1)
                assert parse_reference(str(model.reference)) == model.reference


def test_what_is_said_is_said_in_sentences(subtests: pytest.Subtests) -> None:
    for pair in PAIRS:
        with subtests.test(pair.name):
            for sentence in (pair.advice, *pair.gotchas):
                assert re.fullmatch(r"\S[^\n]{10,125}\.", sentence), sentence
                assert sentence[0].isupper() or sentence.startswith(("llama.cpp", "unsloth"))
            if pair.gain is not None:
                assert not pair.gain.what.endswith(".")
                assert len(pair.gain.what.partition(";")[0]) <= 24  # for a narrow list
                assert bool(pair.gain.source) == (pair.gain.standing in ("measured", "reported"))
            source = r"[\w.-]+/[\w.-]+#\d+|[\w.-]+/[\w.-]+/[\w./-]+\.\w+|https://\S+"
            assert all(re.fullmatch(source, each) for each in pair.sources)


def test_a_renamed_file_is_found_by_its_quantization() -> None:
    pair = find_pair("gpt-oss-120b")
    assert pair.target.reference == Reference("ggml-org/gpt-oss-120b-GGUF", tag="MXFP4")
    assert find_pair("qwen3-14b").draft_name == "hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"


def test_non_commercial_and_hybrid_pairs_say_so() -> None:
    assert any("commercial" in each for each in find_pair("exaone3.5-32b").gotchas)
    hybrid = [pair.name for pair in PAIRS if any("hybrid:" in each for each in pair.gotchas)]
    assert hybrid == ["qwen3.5-27b", "qwen3.6-27b"]


NEAR: list[tuple[str, str]] = [
    ("llama-3.1-8b", "llama3.1-8b"),
    ("llama3.3", "llama3.3-70b, llama3.3-70b-3b"),
    ("Qwen25-14B", "qwen2.5-14b"),
    ("mistral", "mistral-small-3.1, mistral-small-3.2."),
    (
        "coder",
        "qwen2.5-coder-7b-base, qwen2.5-coder-14b-base, qwen2.5-coder-1.5b, qwen2.5-coder-7b, "
        "qwen2.5-coder-32b and 2 more.",
    ),
    ("qwen", "qwen2.5-7b, qwen2.5-14b, qwen2.5-32b, qwen2.5-72b, qwen2.5-coder-7b-base and 1"),
]


def test_an_unknown_name_shows_what_is_near(subtests: pytest.Subtests) -> None:
    for name, near in NEAR:
        with subtests.test(name):
            with pytest.raises(UnknownPair) as caught:
                find_pair(name)
            assert f"no pair named '{name}'; near it: {near}" in caught.value.message
            assert caught.value.message.endswith(".")
            assert "localspec pairs" in caught.value.hint


@pytest.mark.parametrize("name", ["", "?", "\x1b[2J" * 99, "z" * 10**6])
def test_a_name_that_is_near_nothing(name: str) -> None:
    with pytest.raises(UnknownPair) as caught:
        find_pair(name)
    assert "near" not in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400


def test_families() -> None:
    assert {pair.family for pair in of_family("QWEN3")} == {
        "Qwen3", "Qwen3 MoE", "Qwen3-Coder MoE", "Qwen3.5", "Qwen3.6",
    }  # fmt: skip
    assert {pair.name for pair in of_family("llama 3.3")} == {"llama3.3-70b", "llama3.3-70b-3b"}
    assert "r1-qwen-32b" in {pair.name for pair in of_family("qwen")}
    assert of_family("") == PAIRS
    with pytest.raises(UnknownPair, match="family 'bloom'") as caught:
        of_family("bloom")
    assert "Gemma 3" in caught.value.hint


def test_a_pair_as_json(subtests: pytest.Subtests) -> None:
    for pair in PAIRS:
        with subtests.test(pair.name):
            document = json.loads(json.dumps(pair.as_json()))
            assert document["name"] == pair.name
            assert document["target"]["reference"] == str(pair.target.reference)
            assert (document["draft"] or {}).get("license") == (pair.draft and pair.draft.license)
            assert document["size_gb"] == pytest.approx(pair.size_gb, abs=1e-3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name =", "nick ="),  # both missing and unknown
        ('vocab = "reported"', 'vocab = "sure"'),
        ("size_gb = 4.92", 'size_gb = "big"'),
        ("size_gb = 4.92", "size_gb = 4.92\ncolour = 3"),
        ("[[pair]]", "[[pairs]]"),
        ("[[pair]]", "[[pair"),
        ("gotchas = [", "gotchas = [3,"),
        ("", None),  # no file
    ],
)
def test_a_damaged_list_is_told(
    old: str, new: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = catalog.SHIPPED.read_text("utf-8")
    assert old in text
    if new is not None:
        (tmp_path / "pairs.toml").write_text(text.replace(old, new), "utf-8")
    monkeypatch.setattr(catalog, "SHIPPED", tmp_path / "pairs.toml")
    with pytest.raises(FileProblem, match="missing or damaged"):
        load_catalog.__wrapped__()


def test_pydantic_is_imported_only_to_read() -> None:
    code = (
        "import sys\n"
        "from localspec.library.pairs import catalog, user_pairs as book\n"
        "assert book.names() == []\n"
        "assert 'pydantic' not in sys.modules and 'huggingface_hub' not in sys.modules\n"
        "catalog.load_catalog(); assert 'pydantic' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
