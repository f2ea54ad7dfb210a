# ruff: noqa: F401, F811  (fixtures are imported)
"""The command of vLLM: methods, repositories, several GPUs and machines, and vLLM's own parser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from localspec.core.errors import IncompatiblePair
from localspec.export.facts import Cluster, DraftLength
from localspec.export.vllm import vllm
from tests.support.exports import Facts, arguments, facts, facts_of, model, option, program
from tests.support.head_files import header_of, target_bytes

REPOS = {"target_repo": "org/Big", "draft_repo": "org/Small"}

# Without a GPU vLLM finds no platform: it is told one, and its parser has all the same options.
PARSE = """
import json, sys
from vllm import platforms
from vllm.platforms.cpu import CpuPlatform
platforms._current_platform = CpuPlatform()
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
parser.add_argument("model_tag")  # what `vllm serve` takes first
read = parser.parse_args(sys.argv[1:])
unknown = set(read.speculative_config) - set(SpeculativeConfig.__dataclass_fields__)
assert not unknown, unknown
from typing import get_args
from vllm.config.speculative import SpeculativeMethod
def flat(kind):
    inner = get_args(kind)
    return {kind} if not inner else set().union(*map(flat, inner))
assert read.speculative_config["method"] in flat(SpeculativeMethod)
names = "tensor_parallel_size pipeline_parallel_size max_model_len distributed_executor_backend"
shown = {name: getattr(read, name) for name in names.split()}
print(json.dumps([read.model_tag, read.speculative_config, read.override_generation_config, shown]))
"""


def speculation(words: list[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(option(words, "--speculative-config"))
    return found


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("model", {"method": "draft_model", "model": "org/Small"}),
        ("own heads", {"method": "mtp"}),
        ("mtp", {"method": "mtp"}),
        ("assistant", {"method": "mtp", "model": "org/Small"}),
        ("eagle3", {"method": "eagle3", "model": "org/Small"}),
        ("dflash", {"method": "dflash", "model": "org/Small"}),
    ],
)
def test_each_kind_has_its_method(
    facts: Facts, tmp_path: Path, kind: str, expected: dict[str, object]
) -> None:
    (words,) = arguments(vllm(facts(kind, **REPOS)).text, tmp_path, programs=["vllm"])
    assert words[:5] == ["vllm", "serve", "org/Big", "--max-model-len", "4096"]
    assert speculation(words) == {**expected, "num_speculative_tokens": 4}


@pytest.mark.parametrize(
    ("kind", "length"), [("model", 3), ("own heads", None), ("dflash", 7), ("eagle3", 3)]
)
def test_where_no_length_is_known(
    facts: Facts, tmp_path: Path, kind: str, length: int | None
) -> None:
    made = vllm(facts(kind, length=DraftLength(None, "unknown"), **REPOS))
    (words,) = arguments(made.text, tmp_path, programs=["vllm"])
    assert speculation(words).get("num_speculative_tokens") == length
    told = [note for note in made.notes if "asks for a draft length" in note]
    assert len(told) == (length is not None)


def test_rows_of_several_heads_are_whole(tmp_path: Path) -> None:
    target = header_of(tmp_path, target_bytes(heads=2), "big.gguf")
    for length, drafted in ((1, 1), (2, 2), (4, 4), (5, 4)):
        given = DraftLength(length, "given", given=True)
        known = facts_of(target, None, length=given, **REPOS)
        made = vllm(known)
        (words,) = arguments(made.text, tmp_path, programs=["vllm"])
        assert speculation(words)["num_speculative_tokens"] == drafted
        assert any("whole rows of 2 heads" in note for note in made.notes) is (length != drafted)


def test_vocabularies_of_two_sizes_are_translated(tmp_path: Path) -> None:
    pair = model(tmp_path, "big", 9), model(tmp_path, "small", 5, n_tokens=290)
    made = vllm(facts_of(pair[0], pair[1], **REPOS))
    (words,) = arguments(made.text, tmp_path, programs=["vllm"])
    assert speculation(words)["use_heterogeneous_vocab"] is True
    assert made.notes[0].startswith("The vocabularies have 300 and 290 tokens: ")


def test_sampling_has_the_names_of_a_generation_config(facts: Facts, tmp_path: Path) -> None:
    sampling = {"temperature": 0.5, "top_k": 0, "repeat_penalty": 1.1, "xtc_threshold": 0.2}
    made = vllm(facts(sampling=sampling, **REPOS))
    (words,) = arguments(made.text, tmp_path, programs=["vllm"])
    config = json.loads(option(words, "--override-generation-config"))
    assert config == {"temperature": 0.5, "top_k": -1, "repetition_penalty": 1.1}
    assert made.notes == ("Left out, since vLLM has no such setting: xtc_threshold.",)


def test_several_machines_join_by_ray(facts: Facts, tmp_path: Path) -> None:
    made = vllm(facts("own heads", cluster=Cluster(gpus=2, machines=2), **REPOS))
    tools = ["ray", "vllm"]
    head = {"HEAD": "10.0.0.1"}
    joined, served = arguments(made.text, tmp_path, programs=tools, **head)
    assert joined == ["ray", "start", "--head", "--node-ip-address=10.0.0.1", "--port=6379"]
    assert option(served, "--tensor-parallel-size") == "2"
    assert option(served, "--pipeline-parallel-size") == "2"
    assert option(served, "--distributed-executor-backend") == "ray"
    (worker,) = arguments(made.text, tmp_path, "worker", programs=tools, **head)
    assert worker == ["ray", "start", "--address=10.0.0.1:6379", "--block"]


def test_an_unknown_repository_is_asked_for(facts: Facts) -> None:
    with pytest.raises(IncompatiblePair, match="safetensors.* its header names none"):
        vllm(facts())


@pytest.mark.parametrize("kind", ["model", "own heads", "assistant", "eagle3", "dflash"])
def test_its_own_parser_takes_the_arguments(facts: Facts, tmp_path: Path, kind: str) -> None:
    python = Path(program("vllm")).with_name("python")
    known = facts(
        kind,
        cluster=Cluster(gpus=2, machines=2),
        sampling={"temperature": 0.5, "top_k": 5},
        **REPOS,
    )
    calls = arguments(vllm(known).text, tmp_path, programs=["ray", "vllm"], HEAD="10.0.0.1")
    words = calls[-1][2:]
    done = subprocess.run([python, "-c", PARSE, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    model_tag, config, generation, shown = json.loads(done.stdout.splitlines()[-1])
    assert model_tag == "org/Big"
    assert config == speculation(words)
    assert generation == {"temperature": 0.5, "top_k": 5}
    assert shown == {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "max_model_len": 4096,
        "distributed_executor_backend": "ray",
    }
