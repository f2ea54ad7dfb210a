"""Commands of llama.cpp's programs, ik_llama.cpp, vLLM and SGLang, and what really takes them."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pytest

from localspec.core import paths
from localspec.core.errors import IncompatiblePair
from localspec.core.options.load_options import ALL_LAYERS
from localspec.export.engines import export_pair
from localspec.export.facts import DraftLength, PairFacts
from localspec.export.names import DIALECTS
from localspec.library.pairs.schema import PairSettings
from localspec.metadata.header import read_header
from tests.support.files.head_files import header_of, target_bytes
from tests.support.library.exports import Facts, arguments, facts_of, model, option, program

ARG_CPP = Path(__file__).parents[1] / "data" / "llama_cpp_flags.txt"
PROGRAMS = ("llama-server", "llama-cli", "vllm", "python")


def command(engine: str, known: PairFacts, folder: Path) -> list[str]:
    """The words of the one command that is exported, as a shell understands them."""
    (words,) = arguments(export_pair(engine, known).text, folder, programs=PROGRAMS)
    return words


@pytest.mark.parametrize(
    ("kind", "spec_type"),
    [
        ("model", "draft-simple"),
        ("own heads", "draft-mtp"),
        ("mtp", "draft-mtp"),
        ("assistant", "draft-mtp"),
        ("eagle3", "draft-eagle3"),
        ("dflash", "draft-dflash"),
        ("dspark", "draft-dspark"),
        ("dflash2", "draft-dflash"),
    ],
)
def test_each_kind_has_its_type(facts: Facts, tmp_path: Path, kind: str, spec_type: str) -> None:
    known = facts(kind)
    words = command("llama-server", known, tmp_path)
    expected = ["llama-server", "-m", str(known.target.path)]
    expected += [] if known.own_heads else ["-md", str(known.draft.path)]
    expected += ["--spec-type", spec_type, "--spec-draft-n-max", "4", "-c", "4096"]
    assert words == expected


def test_more_arguments_are_handed_on(facts: Facts, tmp_path: Path) -> None:
    text = export_pair("llama-cli", facts()).text
    (words,) = arguments(text, tmp_path, "-p", "a 'b' $c", programs=["llama-cli"])
    assert words[0] == "llama-cli" and words[-2:] == ["-p", "a 'b' $c"]


def test_settings_and_sampling_of_a_pair(facts: Facts, tmp_path: Path) -> None:
    known = facts(
        settings={
            "gpu_layers": ALL_LAYERS,
            "draft_gpu_layers": 7,
            "threads": 3,
            "flash_attention": "on",
            "cache_type_k": "q8_0",
            "draft_cache_type_k": "q4_0",
            "exact": True,
            "draft_ctx_size": 512,
        },
        sampling={
            "temperature": 0.1234567,
            "top_k": 12,
            "seed": ALL_LAYERS,  # a number like any other
            "ignore_eos": True,
            "logit_bias": ("5+1", "6-inf"),
            "acceptance": "match",
        },
    )
    made = export_pair("llama-server", known)
    (words,) = arguments(made.text, tmp_path, programs=["llama-server"])
    flags = {"-ngl": "999", "-ngld": "7", "-t": "3", "-fa": "on", "-ctk": "q8_0", "-ctkd": "q4_0"}
    flags |= {"--temp": "0.1234567", "--top-k": "12", "--seed": str(ALL_LAYERS)}
    assert {flag: option(words, flag) for flag in flags} == flags
    assert "--ignore-eos" in words
    assert [words[i + 1] for i, word in enumerate(words) if word == "--logit-bias"] == [
        *("5+1", "6-inf")
    ]
    (note,) = made.notes
    assert note.endswith("no such setting: exact, draft_ctx_size, acceptance.")


@pytest.mark.parametrize("kind", ["model", "own heads"])
def test_caches_of_a_draft_keep_their_default(facts: Facts, kind: str) -> None:
    text = export_pair("llama-server", facts(kind, settings={"cache_type_k": "q8_0"})).text
    assert "-ctk q8_0" in text and "-ctkd" not in text


def test_every_flag_is_one_of_llama_cpp(facts: Facts) -> None:
    known = set(re.findall(r"--?[\w-]+", ARG_CPP.read_text()))
    everything: dict[str, object] = dict.fromkeys(get_type_hints(PairSettings), 1)
    text = export_pair("llama-server", facts(settings=everything, sampling=everything)).text
    used = set(re.findall(r"^  (--?[a-z-]+)", text, re.MULTILINE))
    assert len(used) > 30 and used <= known
    assert "acceptance" not in DIALECTS["llama-server"].sampling
    assert set(DIALECTS["llama-server"].sampling.values()) <= used


def test_names_cannot_leave_their_comment(facts: Facts, tmp_path: Path) -> None:
    known = facts()
    wild = known.target.path.with_name("big\ntouch gotcha\n.gguf")
    known.target.path.rename(wild)
    known = replace(known, target=read_header(wild))
    words = command("llama-server", known, tmp_path)
    assert option(words, "-m") == str(wild)


def test_without_a_length_the_engine_has_its_own(facts: Facts) -> None:
    text = export_pair("llama-server", facts(length=DraftLength(None, "the engine's default"))).text
    assert "n-max" not in text and "# Draft length: the engine's default." in text


def answer_of(server: subprocess.Popen[str]) -> dict[str, object]:
    """One completion of a server, as soon as it says where it listens."""
    assert server.stderr is not None
    address = ""
    for line in server.stderr:
        if found := re.search(r"listening on (http://127\.0\.0\.1:\d+)", line):
            address = found[1]
            break
    assert address, "llama-server ended"
    # Nobody reads on, and a full pipe would stop it; it says little for one answer.
    body = {"prompt": "def add(a, b):", "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, object] = json.load(response)
    return answer


@pytest.mark.llama
@pytest.mark.parametrize(("name", "length"), [("target", 4), ("hybrid", 2)])
def test_a_real_llama_server_drafts(tmp_path: Path, name: str, length: int) -> None:
    program("llama-server")
    pair = paths.demo_pair() if name == "target" else [paths.bundled_folder() / "hybrid.gguf"]
    given = DraftLength(length, "as given", given=True)
    known = facts_of(*map(read_header, pair), length=given, ctx_size=512)
    script = tmp_path / "serve.sh"
    script.write_text(export_pair("llama-server", known).text)
    more = ["--host", "127.0.0.1", "--port", "0", "-t", "1", "-np", "1"]
    with subprocess.Popen(
        ["sh", script, *more], text=True, stderr=subprocess.PIPE, start_new_session=True
    ) as server:
        try:
            timings = answer_of(server)["timings"]
        finally:
            os.killpg(server.pid, signal.SIGKILL)
    assert isinstance(timings, dict)
    assert timings["draft_n"] > 0 and 0 < timings["draft_n_accepted"] <= timings["draft_n"]


# -- ik_llama.cpp -----------


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("model", "draft:n_max=4,p_min=0.0"),
        ("own heads", "mtp:n_max=4,p_min=0.0"),
        ("mtp", "mtp:n_max=4,p_min=0.0"),
        ("dflash", "dflash:n_max=4,p_min=0.0"),
    ],
)
def test_the_stage_holds_the_length(facts: Facts, tmp_path: Path, kind: str, stage: str) -> None:
    known = facts(kind)
    words = command("ik_llama", known, tmp_path)
    assert option(words, "--spec-type") == stage
    assert option(words, "-m") == str(known.target.path)
    assert known.own_heads or option(words, "-md") == str(known.draft.path)
    known = replace(known, length=DraftLength(None, "its own"))
    words = command("ik_llama", known, tmp_path)
    assert option(words, "--spec-type") == stage.partition(":")[0]


def test_flags_that_are_other_than_llama_cpps(facts: Facts, tmp_path: Path) -> None:
    made = export_pair(
        "ik_llama",
        facts(
            settings={"draft_ctx_size": 512, "draft_threads": 2},
            sampling={"typical_p": 0.5, "dry_sequence_breakers": ("x",)},
        ),
    )
    (words,) = arguments(made.text, tmp_path, programs=["llama-server"])
    flags = {"-cd": "512", "-td": "2", "--typical": "0.5"}
    assert {flag: option(words, flag) for flag in flags} == flags
    assert "-ngl 999 -ngld 999 puts all there" in made.notes[0]
    assert "no such setting: dry_sequence_breakers." in made.notes[1]
    assert export_pair("ik_llama", facts(settings={"gpu_layers": 3})).notes == ()


def test_differing_vocabularies_are_translated(facts: Facts) -> None:
    known = facts()
    report = replace(known.report, llama_cpp_accepts=False)
    assert "translates tokens" in export_pair("ik_llama", replace(known, report=report)).notes[-1]


# -- vLLM -----------

REPOS = {"target_repo": "org/Big", "draft_repo": "org/Small"}

# Without a GPU vLLM finds no platform: it is told one, and its parser has all the same options.
PARSE_VLLM = """
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
shown = {name: getattr(read, name) for name in ("tensor_parallel_size", "max_model_len")}
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
    words = command("vllm", facts(kind, **REPOS), tmp_path)
    assert words[:5] == ["vllm", "serve", "org/Big", "--max-model-len", "4096"]
    assert speculation(words) == {**expected, "num_speculative_tokens": 4}


@pytest.mark.parametrize(
    ("kind", "length"), [("model", 3), ("own heads", None), ("dflash", 7), ("eagle3", 3)]
)
def test_where_vllm_has_no_length(
    facts: Facts, tmp_path: Path, kind: str, length: int | None
) -> None:
    made = export_pair("vllm", facts(kind, length=DraftLength(None, "unknown"), **REPOS))
    (words,) = arguments(made.text, tmp_path, programs=["vllm"])
    assert speculation(words).get("num_speculative_tokens") == length
    told = [note for note in made.notes if "asks for a draft length" in note]
    assert len(told) == (length is not None)


def test_rows_of_several_heads_are_whole(tmp_path: Path) -> None:
    target = header_of(tmp_path, target_bytes(heads=2), "big.gguf")
    for length, drafted in ((1, 1), (2, 2), (4, 4), (5, 4)):
        given = DraftLength(length, "given", given=True)
        known = facts_of(target, None, length=given, **REPOS)
        made = export_pair("vllm", known)
        (words,) = arguments(made.text, tmp_path, programs=["vllm"])
        assert speculation(words)["num_speculative_tokens"] == drafted
        assert any("whole rows of 2 heads" in note for note in made.notes) is (length != drafted)


def test_vocabularies_of_two_sizes_are_translated(tmp_path: Path) -> None:
    pair = model(tmp_path, "big", 9), model(tmp_path, "small", 5, n_tokens=290)
    made = export_pair("vllm", facts_of(pair[0], pair[1], **REPOS))
    (words,) = arguments(made.text, tmp_path, programs=["vllm"])
    assert speculation(words)["use_heterogeneous_vocab"] is True
    assert made.notes[0].startswith("The vocabularies have 300 and 290 tokens: ")


def test_sampling_for_vllm_is_a_generation_config(facts: Facts, tmp_path: Path) -> None:
    sampling = {"temperature": 0.5, "top_k": 0, "repeat_penalty": 1.1, "xtc_threshold": 0.2}
    made = export_pair("vllm", facts(sampling=sampling, **REPOS))
    (words,) = arguments(made.text, tmp_path, programs=["vllm"])
    config = json.loads(option(words, "--override-generation-config"))
    assert config == {"temperature": 0.5, "top_k": -1, "repetition_penalty": 1.1}
    assert made.notes == ("Left out, since vLLM has no such setting: xtc_threshold.",)


def test_an_unknown_repository_is_asked_for(facts: Facts) -> None:
    with pytest.raises(IncompatiblePair, match="safetensors.* its header names none"):
        export_pair("vllm", facts())


@pytest.mark.parametrize("kind", ["model", "own heads", "assistant", "eagle3", "dflash"])
def test_vllms_own_parser_takes_the_arguments(facts: Facts, tmp_path: Path, kind: str) -> None:
    python = Path(program("vllm")).with_name("python")
    known = facts(kind, sampling={"temperature": 0.5, "top_k": 5}, **REPOS)
    more = ("--tensor-parallel-size", "2")
    (words,) = arguments(export_pair("vllm", known).text, tmp_path, *more, programs=["vllm"])
    words = words[2:]
    done = subprocess.run([python, "-c", PARSE_VLLM, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    model_tag, config, generation, shown = json.loads(done.stdout.splitlines()[-1])
    assert model_tag == "org/Big"
    assert config == speculation(words)
    assert generation == {"temperature": 0.5, "top_k": 5}
    assert shown == {"tensor_parallel_size": 2, "max_model_len": 4096}


# -- SGLang -------------

PARSE_SGLANG = """
import json, sys
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
read = prepare_server_args(sys.argv[1:])
SpeculativeAlgorithm.from_string(read.speculative_algorithm)
print(json.dumps({name: getattr(read, name) for name in NAMES.split()}))
"""
NAMES = (
    "model_path context_length tp_size "
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
    words = command("sglang", facts(kind, **REPOS), tmp_path)
    assert words[1:5] == ["-m", "sglang.launch_server", "--model-path", "org/Big"]
    assert option(words, "--context-length") == "4096"
    assert option(words, "--speculative-algorithm") == algorithm
    assert ("--speculative-draft-model-path" in words) is draft
    assert option(words, "--speculative-num-draft-tokens") == "5"  # and the one before them
    chained = [word for word in words if "num-steps" in word or "eagle-topk" in word]
    assert len(chained) == (0 if kind == "dflash" else 2)


def test_without_a_length_sglang_chooses(facts: Facts) -> None:
    text = export_pair("sglang", facts(length=DraftLength(None, "its own"), **REPOS)).text
    assert "num-steps" not in text and "num-draft-tokens" not in text


def test_vocabularies_of_sglang_must_have_one_size(tmp_path: Path) -> None:
    pair = model(tmp_path, "big", 9), model(tmp_path, "small", 5, n_tokens=290)
    with pytest.raises(IncompatiblePair, match="these have 300 and 290 tokens"):
        export_pair("sglang", facts_of(pair[0], pair[1], **REPOS))


@pytest.mark.parametrize("kind", ["model", "own heads", "assistant", "eagle3", "dflash"])
def test_sglangs_own_parser_takes_the_arguments(facts: Facts, tmp_path: Path, kind: str) -> None:
    python = Path(program("sglang")).with_name("python")
    known = facts(kind, sampling={"temperature": 0.5}, **REPOS)
    text = export_pair("sglang", known).text
    (words,) = arguments(text, tmp_path, "--tp-size", "2", programs=["python"])
    parse = PARSE_SGLANG.replace("NAMES", repr(NAMES))
    done = subprocess.run([python, "-c", parse, *words[3:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    assert read["model_path"] == "org/Big" and read["context_length"] == 4096
    assert read["tp_size"] == 2
    assert read["speculative_algorithm"] == option(words, "--speculative-algorithm")
    assert read["speculative_num_draft_tokens"] == 5
    assert read["preferred_sampling_params"] == {"temperature": 0.5}
