# ruff: noqa: F401, F811  (fixtures are imported)
"""Commands of llama.cpp's programs: their flags, quoting, and a real llama-server that drafts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core import paths
from localspec.core.config import ALL_LAYERS
from localspec.core.errors import IncompatiblePair
from localspec.core.sampling_params import sampling_fields
from localspec.export.facts import DraftLength
from localspec.export.llama_cpp import SAMPLING_FLAGS, llama_cli, llama_server
from localspec.library.pair_schema import SETTINGS
from localspec.metadata.header import read_header
from tests.support.exports import Facts, arguments, facts, facts_of, option, program

ARG_CPP = Path(__file__).parents[1] / "data" / "llama_cpp_flags.txt"


@pytest.mark.parametrize(
    ("kind", "spec_type"),
    [
        ("model", "draft-simple"),
        ("own heads", "draft-mtp"),
        ("mtp", "draft-mtp"),
        ("assistant", "draft-mtp"),
        ("eagle3", "draft-eagle3"),
        ("dflash", "draft-dflash"),
    ],
)
def test_each_kind_has_its_type(facts: Facts, tmp_path: Path, kind: str, spec_type: str) -> None:
    known = facts(kind)
    (words,) = arguments(llama_server(known).text, tmp_path, programs=["llama-server"])
    expected = ["llama-server", "-m", str(known.target.path)]
    expected += [] if known.own_heads else ["-md", str(known.draft.path)]
    expected += ["--spec-type", spec_type, "--spec-draft-n-max", "4", "-c", "4096"]
    assert words == expected


def test_more_arguments_are_handed_on(facts: Facts, tmp_path: Path) -> None:
    text = llama_cli(facts()).text
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
    made = llama_server(known)
    (words,) = arguments(made.text, tmp_path, programs=["llama-server"])
    flags = {"-ngl": "999", "-ngld": "7", "-t": "3", "-fa": "on", "-ctk": "q8_0", "-ctkd": "q8_0"}
    flags |= {"--temp": "0.1234567", "--top-k": "12", "--seed": str(ALL_LAYERS)}
    assert {flag: option(words, flag) for flag in flags} == flags
    assert "--ignore-eos" in words
    assert [words[i + 1] for i, word in enumerate(words) if word == "--logit-bias"] == [
        *("5+1", "6-inf")
    ]
    (note,) = made.notes
    assert note.endswith("no such setting: exact, draft_ctx_size, acceptance.")


def test_heads_have_no_cache_types_of_their_own(facts: Facts) -> None:
    text = llama_server(facts("own heads", settings={"cache_type_k": "q8_0"})).text
    assert "-ctk q8_0" in text and "-ctkd" not in text


def test_every_flag_is_one_of_llama_cpp(facts: Facts) -> None:
    known = set(re.findall(r"--?[\w-]+", ARG_CPP.read_text()))
    everything: dict[str, object] = dict.fromkeys(SETTINGS, 1)
    text = llama_server(facts(settings=everything, sampling=everything)).text
    used = set(re.findall(r"^  (--?[a-z-]+)", text, re.MULTILINE))
    assert len(used) > 30 and used <= known
    assert set(SAMPLING_FLAGS) <= set(sampling_fields()) - {"acceptance"}
    assert set(SAMPLING_FLAGS.values()) <= used


def test_names_cannot_leave_their_comment(facts: Facts, tmp_path: Path) -> None:
    known = facts()
    wild = known.target.path.with_name("big\ntouch gotcha\n.gguf")
    known.target.path.rename(wild)
    known = replace(known, target=read_header(wild))
    (words,) = arguments(llama_server(known).text, tmp_path, programs=["llama-server"])
    assert option(words, "-m") == str(wild)


def test_without_a_length_the_engine_has_its_own(facts: Facts) -> None:
    text = llama_server(facts(length=DraftLength(None, "the engine's default"))).text
    assert "n-max" not in text and "# Draft length: the engine's default." in text


def test_what_llama_cpp_refuses_is_refused(facts: Facts) -> None:
    known = facts()
    report = replace(known.report, llama_cpp_accepts=False, llama_cpp_rule="bos-id")
    with pytest.raises(IncompatiblePair, match="refuses it by its rule bos-id"):
        llama_server(replace(known, report=report))


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
    pair = paths.demo_pair() if name == "target" else [paths.demo_hybrid()]
    given = DraftLength(length, "as given", given=True)
    known = facts_of(*map(read_header, pair), length=given, ctx_size=512)
    script = tmp_path / "serve.sh"
    script.write_text(llama_server(known).text)
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
