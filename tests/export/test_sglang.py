# ruff: noqa: F401, F811  (fixtures are imported)
"""The command of SGLang: algorithms, several machines, and SGLang's own parser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from localspec.core.errors import IncompatiblePair, UsageError
from localspec.export.facts import Cluster, DraftLength
from localspec.export.sglang import sglang
from tests.support.exports import Facts, arguments, facts, facts_of, model, option, program

REPOS = {"target_repo": "org/Big", "draft_repo": "org/Small"}
PARSE = """
import json, sys
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
read = prepare_server_args(sys.argv[1:])
SpeculativeAlgorithm.from_string(read.speculative_algorithm)
print(json.dumps({name: getattr(read, name) for name in NAMES.split()}))
"""
NAMES = (
    "model_path context_length tp_size pp_size nnodes node_rank dist_init_addr "
    "speculative_algorithm speculative_draft_model_path speculative_num_steps "
    "speculative_eagle_topk speculative_num_draft_tokens preferred_sampling_params"
)


@pytest.mark.parametrize(
    ("kind", "algorithm", "draft"),
    [
        ("model", "STANDALONE", True),
        ("own heads", "NEXTN", False),
        ("mtp", "NEXTN", False),
        ("assistant", "NEXTN", True),
        ("eagle3", "EAGLE3", True),
        ("dflash", "DFLASH", True),
    ],
)
def test_each_kind_has_its_algorithm(
    facts: Facts, tmp_path: Path, kind: str, algorithm: str, draft: bool
) -> None:
    (words,) = arguments(sglang(facts(kind, **REPOS)).text, tmp_path, programs=["python"])
    assert words[1:5] == ["-m", "sglang.launch_server", "--model-path", "org/Big"]
    assert option(words, "--context-length") == "4096"
    assert option(words, "--speculative-algorithm") == algorithm
    assert ("--speculative-draft-model-path" in words) is draft
    assert option(words, "--speculative-num-draft-tokens") == "5"  # and the one before them
    chained = [word for word in words if "num-steps" in word or "eagle-topk" in word]
    assert len(chained) == (0 if kind == "dflash" else 2)


def test_without_a_length_it_chooses(facts: Facts) -> None:
    text = sglang(facts(length=DraftLength(None, "its own"), **REPOS)).text
    assert "num-steps" not in text and "num-draft-tokens" not in text


def test_vocabularies_must_have_one_size(tmp_path: Path) -> None:
    pair = model(tmp_path, "big", 9), model(tmp_path, "small", 5, n_tokens=290)
    with pytest.raises(IncompatiblePair, match="these have 300 and 290 tokens"):
        sglang(facts_of(pair[0], pair[1], **REPOS))


def test_machines_share_every_layer(facts: Facts, tmp_path: Path) -> None:
    made = sglang(facts(cluster=Cluster(gpus=2, machines=2), **REPOS))
    place = {"HEAD": "10.0.0.1", "RANK": "1"}
    (words,) = arguments(made.text, tmp_path, programs=["python"], **place)
    assert option(words, "--tp-size") == "4" and "--pp-size" not in words
    assert option(words, "--nnodes") == "2" and option(words, "--node-rank") == "1"
    assert option(words, "--dist-init-addr") == "10.0.0.1:20000"


def test_gpus_that_cannot_share_the_heads(facts: Facts) -> None:
    with pytest.raises(UsageError, match="6 GPUs cannot share the 4 and 4 attention heads") as told:
        sglang(facts(cluster=Cluster(gpus=3, machines=2), **REPOS))

    assert "make 1 or 2 or 4 in all" in told.value.hint


@pytest.mark.parametrize("kind", ["model", "own heads", "assistant", "eagle3", "dflash"])
def test_its_own_parser_takes_the_arguments(facts: Facts, tmp_path: Path, kind: str) -> None:
    python = Path(program("sglang")).with_name("python")
    known = facts(kind, cluster=Cluster(gpus=2, machines=2), sampling={"temperature": 0.5}, **REPOS)
    place = {"HEAD": "10.0.0.1", "RANK": "1"}
    (words,) = arguments(sglang(known).text, tmp_path, programs=["python"], **place)
    parse = PARSE.replace("NAMES", repr(NAMES))
    done = subprocess.run([python, "-c", parse, *words[3:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    assert read["model_path"] == "org/Big" and read["context_length"] == 4096
    assert (read["tp_size"], read["pp_size"]) == (4, 1)
    assert (read["nnodes"], read["node_rank"]) == (2, 1)
    assert read["dist_init_addr"] == "10.0.0.1:20000"
    assert read["speculative_algorithm"] == option(words, "--speculative-algorithm")
    assert read["speculative_num_draft_tokens"] == 5
    assert read["preferred_sampling_params"] == {"temperature": 0.5}
