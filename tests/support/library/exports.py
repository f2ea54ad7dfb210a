"""Facts of pairs for the exporters, of headers on this disk, and what a script would run."""

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from localspec.export.facts import DraftLength, PairFacts
from localspec.export.names import Repositories
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import check_own_heads, check_pair
from tests.support.files.gguf_files import (
    Tensor,
    model_keys,
    model_tensors,
    tensor_bytes,
    words,
    write_gguf,
)
from tests.support.files.head_files import (
    assistant_bytes,
    dflash2_bytes,
    dflash_bytes,
    dspark_bytes,
    eagle3_bytes,
    header_of,
    mtp_bytes,
    target_bytes,
)

Facts = Callable[..., PairFacts]
LENGTH = DraftLength(4, "4, as given", given=True)
_TELLS = """#!/bin/sh
{{ for word in {program} "$@"; do printf '%s\\0' "$word"; done; printf '\\1'; }} >> {log}
"""
KINDS = ("model", "own heads", "mtp", "assistant", "eagle3", "dflash", "dspark", "dflash2")


def facts_of(target: ModelHeader, draft: ModelHeader | None = None, **more: Any) -> PairFacts:
    """A pair, or a target with heads of its own; what is not given is four drafted tokens.

    Fields of `Repositories` may be given too.
    """
    judged = check_own_heads(target) if draft is None else check_pair(target, draft, lenient=True)
    names = [each.name for each in fields(Repositories) if each.name in more]
    repositories = Repositories(**{name: more.pop(name) for name in names})
    known = {"length": LENGTH, "ctx_size": 4096, "repositories": repositories, **more}
    return PairFacts(target, draft or target, judged, **known)


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """Facts of a pair by its kind, in a folder whose name has to be quoted."""
    folder = tmp_path / "my models; rm -rf $HOME 'x'"
    folder.mkdir()

    def of_kind(kind: str = "model", **more: Any) -> PairFacts:
        if kind == "model":
            big, small = (model(folder, name, n) for name, n in (("big", 9), ("small", 5)))
            return facts_of(big, small, **more)
        if kind == "own heads":
            return facts_of(header_of(folder, target_bytes(), "big.gguf"), **more)
        files: dict[str, Callable[[], bytes]] = {
            "mtp": mtp_bytes,
            "assistant": assistant_bytes,
            "eagle3": eagle3_bytes,
            "dflash": dflash_bytes,
            "dspark": dspark_bytes,
            "dflash2": dflash2_bytes,
        }
        architecture = "gemma4" if kind == "assistant" else "qwen35"
        big = header_of(folder, target_bytes(architecture, heads=0), "big.gguf")
        return facts_of(big, header_of(folder, files[kind](), "heads.gguf"), **more)

    return of_kind


def model(
    folder: Path,
    name: str,
    millions: int = 5,
    *,
    n_tokens: int = 300,
    keys: Mapping[str, object] | None = None,
) -> ModelHeader:
    """The header of a model of so many Mi weights, for which its file has holes."""
    content = model_keys(words(n_tokens)) | {"llama.block_count": 4} | dict(keys or {})
    layer = {"attn_qkv": (1024, 4), "ffn_up": (1024, 1024 * millions)}
    tensors = [*model_tensors(), *(Tensor(f"blk.0.{n}.weight", s) for n, s in layer.items())]
    path = write_gguf(folder / f"{name}.gguf", content, tensors, data=b"")
    with path.open("ab") as file:
        file.truncate(file.tell() + sum(tensor_bytes(each) + 64 for each in tensors))
    return read_header(path)


def arguments(
    script: str, folder: Path, *more: str, programs: Sequence[str], **env: str
) -> list[list[str]]:
    """What a shell script runs, as the shell understands it: each command with its arguments."""
    bin_folder, log = folder / "bin", folder / "log"
    bin_folder.mkdir(exist_ok=True)
    log.write_text("")
    for program in programs:
        tool = bin_folder / program
        tool.write_text(_TELLS.format(program=program, log=shlex.quote(str(log))))
        tool.chmod(0o755)
    path = folder / "script.sh"
    path.write_text(script)
    variables = {"PATH": f"{bin_folder}:/usr/bin:/bin", **env}
    done = subprocess.run(["sh", path, *more], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    calls = log.read_bytes().decode().split("\1")[:-1]
    return [call.split("\0")[:-1] for call in calls]


def option(words: Sequence[str], name: str) -> str:
    """The value of an option in a command."""
    return words[words.index(name) + 1]


def program(name: str) -> str:
    """The path of a program, or the test is skipped with a note."""
    return shutil.which(name) or pytest.skip(f"no {name} on the PATH")
