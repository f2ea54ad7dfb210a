"""Suggest: which drafts are offered first, with which reasons, and why others are not."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core import machine
from localspec.core.errors import FileProblem
from localspec.library.pairs.catalog import load_catalog
from localspec.library.resolve import Resolver
from localspec.library.suggest import (
    Suggestion,
    Suggestions,
    drafts_for,
    is_target_of,
    rule_of_thumb,
    suggest,
)
from localspec.metadata.header import ModelHeader, read_header
from localspec.metadata.trimmed import vocabulary_digest
from tests.support.files.gguf_files import Tensor, model_keys, model_tensors, words, write_gguf
from tests.support.files.head_files import WIDTH, dflash_bytes, header_of, mtp_bytes, target_bytes
from tests.support.files.trimmed_files import trimmed_keys, write_trimmed
from tests.support.first_use import save_profile
from tests.support.library import zoo
from tests.support.library.model_folders import models_here, zoo_header
from tests.support.toy.models import toy_profile

WORDS = words(300)
GB = 10**9
LLAMA_1B = "bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q8_0.gguf"
QWEN3_SMALL = "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"
QWEN25_SMALL = "lmstudio-community/Qwen2.5-0.5B-Instruct-GGUF/Qwen2.5-0.5B-Instruct-Q8_0.gguf"
TINY = "zoo/tiny-GGUF/tiny-draft-F16.gguf"


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GB of it, half of them free."""
    monkeypatch.setattr(machine, "memory", lambda: (4 * GB, 8 * GB))


def never(target: ModelHeader, draft: ModelHeader) -> float | None:
    return None


def model(
    folder: Path, name: str, parameters: int, tokens: Sequence[str] = WORDS, **keys: object
) -> ModelHeader:
    vocab = {key: keys.pop(key) for key in ("model", "pre", "merges", "types") if key in keys}
    every = model_keys(tokens, **vocab) | {"general.name": name, **keys}
    return read_header(write_gguf(folder / f"{name}.gguf", every, model_tensors(parameters)))


@pytest.fixture
def target(tmp_path: Path) -> ModelHeader:
    return model(tmp_path, "Big", 1 << 20)


def drafts(found: Suggestions) -> dict[str, tuple[str, ...]]:
    return {draft.name: draft.reasons for draft in found.drafts}


def names(found: Sequence[object]) -> list[str]:
    return [each.name for each in found]  # type: ignore[attr-defined]


def test_drafts_of_the_same_vocabulary_are_apart_from_others(
    tmp_path: Path, target: ModelHeader
) -> None:
    other = [*WORDS[:100], "different", *WORDS[101:]]
    candidates = [
        ("good", model(tmp_path, "good", 1 << 15)),
        ("large", model(tmp_path, "large", 5 << 17)),
        ("other", model(tmp_path, "other", 1 << 15, other)),
        ("control", model(tmp_path, "control", 1 << 15, other, types=[3] * 300)),
        ("sentencepiece", model(tmp_path, "sentencepiece", 1 << 15, model="llama", merges=None)),
        ("bigger", model(tmp_path, "bigger", 1 << 21)),
        ("itself", target),
    ]
    target = replace(target, vocab=replace(target.vocab, token_types=None))  # type: ignore[type-var]
    found = suggest(target, candidates, (), None, never)
    assert names(found.drafts) == ["good", "large"]
    assert found.drafts[0].reasons[0] == "32 times smaller"
    assert found.drafts[1].reasons[:2] == ("1.6 times smaller", "too large to gain much")
    assert names(found.refused) == []
    assert names(found.by_text) == ["control", "other", "sentencepiece"]
    assert found.by_text[0].reasons[0] == "of another vocabulary: drafts by text"


def test_a_kindred_draft_is_preferred(tmp_path: Path) -> None:
    big = model(tmp_path, "Big", 1 << 20, **{"general.basename": "Owl-3"})
    plain = model(tmp_path, "plain", 1 << 15)
    kin = model(tmp_path, "kin", 1 << 15, **{"general.base_model.0.name": "Owl 3 0.6B Base"})
    found = suggest(big, [("plain", plain), ("kin", kin)], (), None, never)
    assert names(found.drafts) == ["kin", "plain"]
    assert any(reason.startswith("of the same family, Owl") for reason in found.drafts[0].reasons)


def test_what_does_not_fit_comes_last_and_recurrent_drafts_do_not(
    tmp_path: Path, target: ModelHeader
) -> None:
    draft = model(tmp_path, "draft", 1 << 15)

    def best(header: ModelHeader, free: int) -> Suggestion:
        return suggest(target, [("draft", header)], (), free, never).drafts[0]

    fits, short = best(draft, 1 << 40), best(draft, 1 << 20)
    assert short.worth < fits.worth
    assert any("1 MB are free" in reason for reason in short.reasons)
    assert best(replace(draft, architecture="mamba"), 1 << 40).worth == fits.worth


def test_heads_come_first(tmp_path: Path) -> None:
    big = header_of(tmp_path, target_bytes(heads=0), "Big-Q4_K_M.gguf")
    small = header_of(
        tmp_path,
        target_bytes("llama", heads=0, tensors=[Tensor("output.weight", (WIDTH, 200))]),
        "small.gguf",
    )
    heads = header_of(tmp_path, mtp_bytes(), "mtp-Big.gguf")
    blocks = header_of(tmp_path, dflash_bytes(), "Big-DFlash.gguf")
    candidates = [("small", small), ("mtp", heads), ("dflash", blocks)]
    big = replace(big, parameters=100 * big.parameters)
    found = suggest(big, candidates, (), None, never)
    assert names(found.drafts)[-1] == "small" and found.own_heads == 0
    reasons = drafts(found)
    assert reasons["mtp"][0] == "1 multi-token prediction head"
    assert reasons["dflash"][0] == "a DFlash head"
    # What was learnt decides all the same.
    speeds = {small.path: 9.0, heads.path: 1.2, blocks.path: 1.1}
    found = suggest(big, candidates, (), None, lambda _, draft: speeds[draft.path])
    assert names(found.drafts) == ["small", "mtp", "dflash"]


def test_heads_of_another_name_come_after_its_own(tmp_path: Path) -> None:
    """Sizes and tokens are those of many models."""
    big = header_of(tmp_path, target_bytes(heads=0), "Big-Q4_K_M.gguf")
    other, own = (header_of(tmp_path, mtp_bytes(), f"mtp-{name}.gguf") for name in ("A", "Big"))
    found = suggest(big, [("other", other), ("own", own)], (), None, never)
    assert names(found.drafts) == ["own", "other"]
    told = ["not named for this model" in draft.reasons for draft in found.drafts]
    assert told == [False, True]


def test_own_heads_are_told(tmp_path: Path) -> None:
    for data, count in (
        (target_bytes(heads=0), 0),
        (target_bytes(heads=1), 1),
        (target_bytes(held=0), 0),
    ):
        big = header_of(tmp_path, data, "Big.gguf")
        assert suggest(big, [], (), None, never).own_heads == count


def test_heads_of_other_models_are_not_told_of(tmp_path: Path) -> None:
    big = header_of(tmp_path, target_bytes("llama", heads=0), "Big-Q4_K_M.gguf")
    big = replace(big, parameters=100 * big.parameters)
    candidates = [
        (name, header_of(tmp_path, mtp_bytes(), name))
        for name in ("mtp-Other.gguf", "mtp-Big.gguf")
    ]
    found = suggest(big, candidates, (), None, never)
    assert names(found.drafts) == [] and names(found.refused) == ["mtp-Big.gguf"]
    assert "architecture qwen35, not llama" in found.refused[0].reason


def test_sidecars_beside_the_target_are_found(tmp_path: Path) -> None:
    target = header_of(tmp_path, target_bytes(heads=0), "Big-Q4_K_M.gguf")
    zoo.put(tmp_path / "MTP" / "Big-Q8_0.gguf", mtp_bytes())
    found = drafts_for(target, ())
    assert [draft.path for draft in found.drafts] == [tmp_path / "MTP" / "Big-Q8_0.gguf"]


@pytest.mark.parametrize(
    "file, name, known",
    [
        ("Meta-Llama-3.1-8B-Instruct-Q8_0.gguf", None, "llama3.1-8b"),
        ("x.gguf", "Meta Llama 3.1 8B Instruct", "llama3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct-IQ4_XS-00001-of-00002.gguf", None, "llama3.1-8b"),
        ("Llama-3.2-1B-Instruct-Q8_0.gguf", None, None),
        ("model.gguf", "", None),
    ],
)
def test_known_pairs_are_found_by_their_target(
    target: ModelHeader, file: str, name: str | None, known: str | None
) -> None:
    mine = replace(target, path=Path(file), name=name)
    found = [pair.name for pair in load_catalog() if is_target_of(pair, mine)]
    assert (known in found) if known else found == []
    assert [pair.name for pair in suggest(mine, [], load_catalog(), None, never).known] == found


@given(st.floats(0.001, 2), st.floats(1, 1000))
def test_the_rule_of_thumb_is_sane(cost: float, ratio: float) -> None:
    assert 1 <= rule_of_thumb(cost, ratio) < 8
    assert rule_of_thumb(cost / 2, ratio) >= rule_of_thumb(cost, ratio)
    assert rule_of_thumb(cost, ratio * 2) <= rule_of_thumb(cost, ratio)


# --- drafts on this disk ---


DRAFTS: list[tuple[str, list[str], list[str]]] = [
    ("Llama-3.1-8B", [LLAMA_1B], ["llama3.1-8b"]),
    ("Qwen2.5-14B", [QWEN25_SMALL], ["qwen2.5-14b"]),
    ("Qwen3-8B", [QWEN3_SMALL, QWEN25_SMALL, "janhq/Jan-v1-4B-Q4_K_M"], ["qwen3-8b-dflash"]),
    ("Jan-v1-4B", [QWEN3_SMALL, QWEN25_SMALL], []),
    ("gemma-3-27b", ["ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q8_0.gguf"], ["gemma3-27b"]),
    (
        "Llama-2-13B",
        ["TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF/tinyllama-1.1b-chat-v1.0.Q8_0.gguf"],
        ["llama2-13b"],
    ),
    ("tiny-target", [TINY], []),
    ("llama3:8b", [], []),
    ("Mistral-Small", [], []),
    ("mamba", [], []),
    (QWEN3_SMALL, [], []),
]


def test_the_right_drafts_in_the_right_order(in_zoo: zoo.Zoo, subtests: pytest.Subtests) -> None:
    for target, expected, known in DRAFTS:
        with subtests.test(target):
            found = drafts_for(zoo_header(target), models_here())
            assert [draft.name for draft in found.drafts] == expected
            assert [pair.name for pair in found.known] == known
            shown = {name for names in in_zoo.shown.values() for name in names}
            assert all(each[-1].startswith("both need ") for each in drafts(found).values())
            offered = [*expected, *(refusal.name for refusal in found.refused)]
            assert set(offered) <= shown and len(set(offered)) == len(offered)


REFUSALS: list[tuple[str, str, str, bool]] = [
    ("llama3:8b", LLAMA_1B, "1 unused or reserved token differs: 503: ", True),
    ("Qwen2.5-14B", QWEN3_SMALL, "2 padding tokens differ: 603: '[PAD603]' against ", True),
    ("gemma-3-27b", "gemma-2-2b", "the target has 703 tokens, the draft 403", True),
]
BY_TEXT = ("mamba", "Mistral-7B", "Llama-3.1-8B")


def test_a_model_of_another_vocabulary_drafts_by_text(in_zoo: zoo.Zoo) -> None:
    for target in BY_TEXT:
        found = drafts_for(zoo_header(target), models_here())
        assert any(QWEN3_SMALL in each.name for each in found.by_text), target
        others = [each.name for each in found.drafts] + [each.name for each in found.refused]
        assert not any(QWEN3_SMALL in name for name in others)


def test_each_refusal_has_the_right_reason(in_zoo: zoo.Zoo, subtests: pytest.Subtests) -> None:
    for target, draft, reason, harmless in REFUSALS:
        with subtests.test(f"{target}, {draft}"):
            (refusal,) = [
                each
                for each in drafts_for(zoo_header(target), models_here()).refused
                if draft in each.name
            ]
            assert reason in refusal.reason and refusal.hint
            assert refusal.harmless is harmless


def test_the_nearest_refusal_comes_first(in_zoo: zoo.Zoo) -> None:
    refused = drafts_for(zoo_header("llama3:8b"), models_here()).refused
    assert refused[0].name == LLAMA_1B
    assert refused[-1].name == "nomic-embed-text:latest"  # which continues no text at all


def test_only_smaller_models_that_can_be_read_are_looked_at(
    in_zoo: zoo.Zoo, tmp_path: Path
) -> None:
    target = zoo_header("Llama-3.1-8B")
    folder = tmp_path / "more"
    small = (Resolver().on_disk(LLAMA_1B) or Path()).read_bytes()
    zoo.put(folder / "copy-Q8_0.gguf", small + b"\0")
    zoo.put(folder / "cut.gguf", small[:600])
    zoo.put(folder / "large-Q8_0.gguf", small + bytes(target.n_bytes))
    zoo.put(folder / "itself.gguf", target.path.read_bytes())
    found = drafts_for(target, models_here(folder))
    assert {draft.name for draft in found.drafts} == {
        *(LLAMA_1B, str(folder / "copy-Q8_0.gguf")),
        str(folder / "large-Q8_0.gguf"),  # fewer parameters in a larger file
    }
    assert folder / "copy-Q8_0.gguf" in [draft.path for draft in found.drafts]
    names = {Path(refusal.name).name for refusal in found.refused}
    assert not names & {"cut.gguf", "itself.gguf"}
    with pytest.raises(FileProblem, match="is not a folder"):
        drafts_for(target, models_here(folder / "nosuch"))


def test_what_was_learnt_here_counts(in_zoo: zoo.Zoo) -> None:
    target, draft = zoo_header("Qwen3-8B"), zoo_header("Jan-v1-4B")
    known = toy_profile()
    for _ in range(200):
        known.of("draft model, greedy").observe(1.5, True)
    save_profile([target, draft], known)
    found = drafts_for(target, models_here())
    assert found.drafts[0].path == draft.path  # else the last one
    # It is no measured speed, and the note says so.
    reason = r"up to [\d.]+x plain, an estimate from costs and acceptance here"
    assert re.fullmatch(reason, found.drafts[0].reasons[-1])
    assert "plain" not in " ".join(found.drafts[1].reasons)


def test_free_memory_is_told_where_it_is_known(
    in_zoo: zoo.Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = zoo_header("tiny-target")
    assert "free" not in drafts(drafts_for(target, models_here()))[TINY][-1]
    monkeypatch.setattr(machine, "memory", lambda: (1 << 20, 8 * GB))
    assert drafts(drafts_for(target, models_here()))[TINY][-1].endswith(", 1 MB are free")
    monkeypatch.setattr(machine, "memory", lambda: None)
    assert "free" not in drafts(drafts_for(target, models_here()))[TINY][-1]


def test_a_disk_without_models_has_no_drafts(animals: zoo.Zoo) -> None:
    path = Path(animals.environment["LOCALSPEC_MODELS"]) / TINY.replace("draft", "target")
    found = drafts_for(read_header(path), models_here())
    # Nothing is listed here; the target's own folder is looked through all the same.
    assert [draft.path for draft in found.drafts] == [path.with_name("tiny-draft-F16.gguf")]
    alone = path.rename(path.parent.parent / "alone.gguf")
    assert drafts_for(read_header(alone), models_here()) == Suggestions((), (), ())


def test_a_trimmed_draft_says_so_and_is_for_its_target_alone(
    tmp_path: Path, target: ModelHeader
) -> None:
    assert target.vocab is not None
    keys = trimmed_keys(vocabulary_digest(target.vocab))
    draft = read_header(write_trimmed(tmp_path / "trimmed.gguf", keys))
    found = suggest(target, [("trimmed", draft)], (), None, never)
    assert "proposes 4 of 40 tokens" in drafts(found)["trimmed"]
    other = model(tmp_path, "Other", 1 << 20, [*WORDS[:-1], "other"])
    assert names(suggest(other, [("trimmed", draft)], (), None, never).refused) == ["trimmed"]
