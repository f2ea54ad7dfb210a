"""What is known of a pair: the draft length that was learnt, and where its files are."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core.errors import IncompatiblePair
from localspec.engine.loading.pair_file import path_of
from localspec.export.engines import export_pair
from localspec.export.facts import learnt_length, local_path, on_hub
from localspec.metadata.header import ModelHeader
from localspec.speculative.control.pair_profile import PairProfile
from localspec.speculative.drafters import MODEL
from tests.support.files.head_files import dflash_bytes, header_of, target_bytes
from tests.support.first_use import save_profile
from tests.support.library.exports import facts_of, model
from tests.support.toy.models import toy_profile


def learn(headers: list[ModelHeader], right: int) -> None:
    """Keep a profile of these models in which so many of four drafted tokens were right."""
    known = toy_profile()
    for i in range(400):
        known.of(f"{MODEL}, greedy").observe(2.0, i % 4 < right)
    save_profile(headers, known)


def test_nothing_was_learnt_yet(tmp_path: Path) -> None:
    length = learnt_length(model(tmp_path, "big"), model(tmp_path, "small", 3))
    assert length.tokens is None and not length.given
    assert "too little was learnt of this pair" in length.source
    assert "localspec bench" in length.source


def test_the_best_fixed_length_follows_the_acceptance(tmp_path: Path) -> None:
    pair = [model(tmp_path, "big"), model(tmp_path, "small", 3)]
    found = []
    for right in (1, 3, 4):
        learn(pair, right)
        length = learnt_length(*pair)
        assert length.tokens is not None and length.source.startswith(f"{length.tokens}, the best")
        found.append(length.tokens)
    assert 0 < found[0] < found[1] < found[2] <= 16
    assert learnt_length(*reversed(pair)).tokens is None  # another pair


def test_where_drafting_does_not_pay_the_reason_says_so(tmp_path: Path) -> None:
    pair = [model(tmp_path, "big"), model(tmp_path, "small", 3)]
    known = PairProfile()
    for width in range(1, 18):  # each row costs as much as a pass, and a step of the draft too
        known.verify.observe(width, 0, float(width))
    known.draft.observe(1, 0, 1.0)
    for i in range(400):
        known.of(f"{MODEL}, greedy").observe(2.0, i % 4 != 0)
    save_profile(pair, known)
    length = learnt_length(*pair)
    assert length.tokens is None and "no fixed length is faster" in length.source


def test_a_block_costs_one_step(tmp_path: Path) -> None:
    target = model(tmp_path, "big")
    chained, block = model(tmp_path, "small", 3), header_of(tmp_path, dflash_bytes(), "block.gguf")
    lengths = []
    for draft in (chained, block):
        learn([target, draft], 3)
        lengths.append(learnt_length(target, draft).tokens or 0)
    assert lengths[1] > lengths[0]


def test_a_damaged_profile_counts_as_none(tmp_path: Path) -> None:
    pair = [model(tmp_path, "big"), model(tmp_path, "small", 3)]
    learn(pair, 3)
    path_of(pair, "0").write_text("{}")
    assert learnt_length(*pair).tokens is None


def test_a_model_on_the_hub_is_no_file(tmp_path: Path) -> None:
    here = model(tmp_path, "big")
    assert on_hub(here) is None and local_path(here, "It") == here.path
    there = replace(here, path=Path("hf:org/Big-GGUF/big.gguf"))
    reference = on_hub(there)
    assert reference is not None and reference.repo == "org/Big-GGUF"
    with pytest.raises(IncompatiblePair, match="It takes files on this disk") as caught:
        local_path(there, "It")
    assert caught.value.hint == "Fetch it first: localspec download hf:org/Big-GGUF/big.gguf"


def test_a_path_that_is_no_text_is_not_written(tmp_path: Path) -> None:
    header = model(tmp_path, "big")
    wild = replace(header, path=Path(os.fsdecode(os.fsencode(header.path) + b"\xff")))
    header.path.rename(wild.path)
    with pytest.raises(IncompatiblePair, match="its path is not UTF-8"):
        local_path(wild, "It")


def test_what_is_kept_wins_over_what_the_target_recommends(tmp_path: Path) -> None:
    keys = {"general.sampling.temp": 0.7, "general.sampling.top_k": 20}
    target = header_of(tmp_path, target_bytes(keys=keys), "big.gguf")
    known = facts_of(target, sampling={"top_k": 9, "seed": 3, "min_p": 0.25})
    expected = {"temperature": 0.7, "top_k": 9, "seed": 3, "min_p": 0.25}
    assert known.whole_sampling == expected
    for engine in ("ollama", "lmstudio", "python"):
        text = export_pair(engine, known).text
        assert re.search(r"\b0\.7\b", text) and "0.25" in text
    at_random = replace(known, sampling={"seed": -1})
    assert "seed" not in at_random.whole_sampling


def test_a_title_is_one_line(tmp_path: Path) -> None:
    header = model(tmp_path, "big")
    wild = replace(header, path=header.path.with_name("a\nb.gguf"))
    assert facts_of(wild).title == "a\\nb.gguf with its own heads"
