"""A child proves that llama.cpp runs a file; what ends it is an error that says so."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.core import paths, worker
from localspec.core.errors import EngineError, IncompatiblePair, LocalspecError
from localspec.core.options.load_options import LoadOptions, Lora
from localspec.core.worker import Ended
from localspec.engine.engine import Engine
from localspec.engine.loading import proof
from localspec.engine.loading.proof import Model, require_proven
from localspec.hub.provenance import Provenance, write_record
from localspec.metadata.header import read_header
from tests.support.files.architectures.specs import MODELS, SIDECARS
from tests.support.files.architectures.writer import Array, tensors_of, write_tensors
from tests.support.files.lora_files import write_lora
from tests.support.real_pair import TinyFiles, load_model, options

pytestmark = pytest.mark.llama

Ask = Callable[[str, object, float], Ended]


def model(path: Path, **changes: object) -> Model:
    return Model(read_header(path), options(path, **changes))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of proofs of the test's own."""
    path = tmp_path / "proven.json"
    monkeypatch.setattr(proof, "_store", lambda: path)
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The files that a child was asked about, which finds nothing wrong."""
    files: list[list[str]] = []

    def ask(module: str, question: dict[str, list[dict[str, str]]], patience: float) -> Ended:
        files.append([Path(each["path"]).name for each in question["models"]])
        return Ended(0, "", "")

    monkeypatch.setattr(worker, "ask", ask)
    return files


def test_a_file_is_proven_once(store: Path, tiny: TinyFiles, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy2(tiny.target, copy)
    require_proven(model(copy), model(tiny.draft))
    proofs = store.read_text()
    os.rename(copy, tmp_path / "other.gguf")  # it is the same file
    require_proven(model(tmp_path / "other.gguf"), model(tiny.draft))
    assert store.read_text() == proofs


def test_what_asks_for_another_proof(
    store: Path, asked: list[list[str]], tiny: TinyFiles, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy2(tiny.target, copy)
    lora = Lora(write_lora(tmp_path / "a.gguf"))
    new: list[dict[str, object]] = [
        {}, {"loras": (lora,)}, {"ctx_size": 64}, {"flash_attention": "off"},
    ]  # fmt: skip
    for changes in new:
        for _ in range(2):
            require_proven(model(copy, **changes))
    assert len(asked) == len(new)
    same: list[dict[str, object]] = [
        {"threads": 3}, {"gpu_layers": 2}, {"parallel": 4}, {"ctx_size": 4096},
    ]  # fmt: skip
    for changes in same:
        require_proven(model(copy, **changes))
    assert len(asked) == len(new)
    os.utime(copy, (1, 1))
    require_proven(model(copy))
    assert len(asked) == len(new) + 1


def test_bundled_models_need_no_proof(store: Path, asked: list[list[str]], tmp_path: Path) -> None:
    target, draft = paths.demo_pair()
    require_proven(model(target), model(draft))
    assert not asked and not store.exists()
    copy = tmp_path / "copy.gguf"
    shutil.copy2(draft, copy)
    origin = Provenance("a/b", "main", "0", "copy.gguf", copy.stat().st_size, "0" * 64)
    write_record(copy, origin)  # a true copy of what is on the Hub may end llama.cpp too
    require_proven(model(copy))
    require_proven(model(target, loras=(Lora(write_lora(tmp_path / "a.gguf")),)))
    assert asked == [["copy.gguf"], ["target.gguf"]]


def test_a_child_that_ends_early(
    store: Path, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = json.dumps(["decodes with t.gguf"]) + "\nprinted by llama.cpp\n"
    for ended, words in (
        (
            Ended(-11, step, "one\n two \n\n"),
            "ends by SIGSEGV when it decodes with t.gguf.*log: two$",
        ),
        (Ended(None, step, ""), "gives no answer within 1[0-9]+ s when"),
        (Ended(1, "", "MemoryError"), "exit code 1 when it loads .*target.gguf.*MemoryError"),
    ):
        monkeypatch.setattr(worker, "ask", lambda *_, ended=ended: ended)
        with pytest.raises(EngineError, match=words):
            require_proven(model(tiny.target))
    assert not store.exists()


def test_a_refusal_of_the_child_is_one_here(
    store: Path, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [["loads it"], ["IncompatiblePair", "No.", "Leave it."]]
    output = "\n".join(map(json.dumps, said))
    monkeypatch.setattr(worker, "ask", lambda *_: Ended(0, output, ""))
    with pytest.raises(IncompatiblePair, match=r"When llama.cpp loads it: No\."):
        require_proven(model(tiny.target))
    assert not store.exists()


def test_no_process_can_be_started(
    store: Path, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/no/python")
    with pytest.raises(EngineError, match="No process"):
        require_proven(model(tiny.target))


def test_what_is_stored_is_bounded_and_may_be_nonsense(
    store: Path, asked: list[list[str]], tiny: TinyFiles
) -> None:
    for nonsense in ("", "{}", "[1]", "[" * 4000, "9" * 2**18):
        store.write_text(nonsense)
        require_proven(model(tiny.target))
    store.write_text(json.dumps(["x" * 64] * 1000))
    require_proven(model(tiny.target))
    require_proven(model(tiny.target))
    assert len(asked) == 6 and len(json.loads(store.read_text())) == 500


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    ended = worker.ask(proof.__name__, {"models": [], "bytes": 1}, 120)
    assert ended.code == 1 and "Traceback" in ended.log
    with pytest.raises(LocalspecError, match=r"x\.gguf"):
        require_proven(Model(read_header(path), LoadOptions(path)))


Change = Callable[[dict[str, Array]], object]


def nothing(tensors: dict[str, Array]) -> None:
    """Leave the tensors as they are."""


def all_of(kind: str, change: Callable[[Array], Array]) -> Change:
    """Change each tensor whose name holds ``kind``."""
    return lambda tensors: tensors.update(
        {name: change(values) for name, values in tensors.items() if kind in name}
    )


@pytest.fixture(scope="module")
def crafted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a model of an architecture with other values in its header, or other tensors."""
    folder = tmp_path_factory.mktemp("crafted")

    def write(name: str, change: Change = nothing, **keys: object) -> Path:
        known = (MODELS | SIDECARS)[name]
        path = folder / f"{name}.gguf"
        tensors = dict(tensors_of(path, known))
        change(tensors)
        values = {key.replace("__", "."): value for key, value in keys.items()}
        return write_tensors(path, replace(known, keys={**known.keys, **values}), tensors)

    return write


@pytest.mark.parametrize(
    ("name", "change", "keys"),
    [
        ("llama", all_of("attn_q", lambda values: values.astype(np.int8)), {}),
        ("llama", all_of("attn_q", lambda values: values.astype(np.int64)), {}),
        ("llama", all_of("attn_q", lambda values: values.astype(np.float64)), {}),
        ("llama", all_of("norm", lambda values: values.astype(np.float16)), {}),
        ("gemma4", all_of("norm", lambda values: values.astype(np.int32)), {}),
        ("llama", all_of("token_embd", lambda values: values.astype(np.int8)), {}),
        ("qwen35moe", nothing, {"expert_used_count": 999}),
        ("gemma4", nothing, {"rope__dimension_count_swa": 3}),
    ],
)
def test_a_file_that_ends_llama_cpp_ends_nothing_else(
    crafted: Callable[..., Path], name: str, change: Change, keys: dict[str, object]
) -> None:
    path = crafted(name, change, **keys)
    with pytest.raises(LocalspecError, match=re.escape(str(path))):
        Engine.load(options(path))


def test_heads_that_end_llama_cpp(
    architecture: Callable[[str], Path], crafted: Callable[..., Path]
) -> None:
    heads = crafted("mtp-qwen35", all_of("nextn", lambda values: values * np.float32(np.nan)))
    with pytest.raises(LocalspecError) as caught:
        Engine.load(options(architecture("qwen35")), options(heads))
    assert f"prediction heads of {heads}: The model returned logits" in caught.value.message


def test_logits_that_are_no_numbers(
    crafted: Callable[..., Path], tiny: TinyFiles, tmp_path: Path
) -> None:
    path = crafted("llama", all_of("output_norm", lambda values: values * np.float32(np.nan)))
    lora = write_lora(tmp_path / "a.gguf", strength=float("inf"))
    for changes in ({}, {"branches": 2}):
        with pytest.raises(EngineError, match=rf"{re.escape(str(path))} returned logits that"):
            load_model(path, **changes)
    with pytest.raises(EngineError, match=rf"target.gguf with {re.escape(str(lora))} returned"):
        load_model(tiny.target, loras=(Lora(lora),))
