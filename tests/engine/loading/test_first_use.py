"""First use: what crashes in a child is left out or refused, told, remembered; answers come."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.core import host, paths, worker
from localspec.core.errors import EngineError, IncompatiblePair, LocalspecError, WorkerLost
from localspec.core.options.load_options import (
    KeyValue,
    LoadOptions,
    Lora,
    RpcServers,
    load_options,
)
from localspec.core.worker import Ended
from localspec.engine.engine import Engine
from localspec.engine.loading import child as child_process
from localspec.engine.loading import exact_passes, first_use
from localspec.engine.loading.first_use import CHILD, prove
from localspec.engine.loading.pair import usable_pair
from localspec.engine.loading.pair_file import ModelFile
from localspec.hub.provenance import Provenance, write_record
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.speculative.loop import Logits
from tests.support.files.architectures.specs import MODELS, SIDECARS
from tests.support.files.architectures.writer import Array, tensors_of, write_tensors
from tests.support.files.lora_files import write_lora
from tests.support.first_use import Remembered
from tests.support.real_pair import TinyFiles, load_model, options

pytestmark = pytest.mark.llama
SEGFAULT = -11
Models = list[LoadOptions]


class Child:
    """What children were asked to use, and how they end: as ``ends`` says, or as they do."""

    def __init__(self, real: Callable[..., Ended]) -> None:
        self.asked: list[Models] = []
        self.questions: list[dict[str, Any]] = []
        self.patience: list[float | None] = []
        self.ends: Callable[[Models], Ended | int | None] | None = None
        self._real = real

    def ask(self, module: str, question: Any, patience: float | None) -> Ended:
        if module != CHILD:
            return self._real(module, question, patience)
        self.questions.append(question)
        self.asked.append([load_options(each) for each in question["models"]])
        self.patience.append(patience)
        if self.ends is None:
            return self._real(module, question, patience)
        ended = self.ends(self.asked[-1])
        return ended if isinstance(ended, Ended) else Ended(ended, "{}", "")

    @property
    def files(self) -> list[list[str]]:
        return [[each.path.name for each in models] for models in self.asked]


@pytest.fixture
def child(first_uses: Remembered, monkeypatch: pytest.MonkeyPatch) -> Child:
    found = Child(first_uses.real)
    monkeypatch.setattr(worker, "ask", found.ask)
    return found


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that seems to have a device."""
    monkeypatch.setattr(first_use, "uses_devices", lambda options: options.device != "none")


def kept() -> list[Path]:
    """Files of first uses, of pairs if there are some.

    With row kernels there is one more, of passes that round alike.
    """
    files = (paths.cache_folder() / "pairs").glob("*.json")
    found = [file for file in files if '"rounding"' not in file.read_text()]
    return [file for file in found if "+" in file.name] or found


def tried() -> list[int]:
    (file,) = kept()
    found: list[int] = json.loads(file.read_text())["tried"]
    return found


def refused(models: Models) -> Ended:
    output = "\n".join(map(json.dumps, ["loads it", ["IncompatiblePair", "No.", "Leave it."]]))
    return Ended(0, output, "")


# -- once ----------------------------------------------------------------------------------


def test_a_first_start_loads_in_a_child_that_also_measures(
    child: Child, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Path] = []
    real = LlamaModel.__init__

    def counted(model: LlamaModel, *given: Any, **more: Any) -> None:
        loads.append(given[0].path)
        real(model, *given, **more)

    monkeypatch.setattr(LlamaModel, "__init__", counted)
    monkeypatch.setattr(
        "localspec.engine.profile_store.calibrate", lambda *given: pytest.fail("measured here")
    )
    pair = options(tiny.target), options(tiny.draft)
    for times in range(2):
        said: list[str] = []
        with Engine.load(*pair, say=said.append) as engine:
            engine.profile.introduce(said.append)
            assert engine.profile.learnt(float).draft.knows(1)
        assert loads == [tiny.target, tiny.draft]  # once, in this process
        assert sum("New on this machine" in each for each in said) == (times == 0)
        loads.clear()
        monkeypatch.setattr("localspec.engine.profile_store.still_holds", lambda *given: True)
    assert len(child.asked) == 1
    (file,) = kept()
    assert {"tried", "profile", "layers", "times"} == set(json.loads(file.read_text()))


@pytest.mark.parametrize("drafted", [True, False])
def test_all_that_a_first_start_does_has_one_note(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, drafted: bool
) -> None:
    for module in first_use, exact_passes:
        monkeypatch.setattr(module, "_WORTH_TELLING", 0)  # these models would be too small
    said: list[str] = []
    draft = options(tiny.draft) if drafted else None
    with Engine.load(options(tiny.target), draft, say=said.append) as engine:
        engine.profile.introduce(said.append)
    (note,) = (each for each in said if each.startswith("New"))
    assert "tested and measured once" in note and len(note) < 80


def test_what_asks_for_another_child(child: Child, tiny: TinyFiles, tmp_path: Path) -> None:
    child.ends = lambda models: 0
    copy = tmp_path / "copy.gguf"
    shutil.copy2(tiny.target, copy)
    lora = Lora(write_lora(tmp_path / "a.gguf"))
    new: list[dict[str, object]] = [
        {}, {"loras": (lora,)}, {"flash_attention": "off"}, {"parallel": 2},
    ]  # fmt: skip
    for changes in new:
        for _ in range(2):
            usable_pair(options(copy, **changes), None)
    assert len(child.asked) == len(new)
    os.rename(copy, tmp_path / "other.gguf")  # it is the same file
    copy = tmp_path / "other.gguf"
    for mlock in (False, True):
        usable_pair(options(copy, mlock=mlock), None)
    assert len(child.asked) == len(new)
    os.utime(copy, (1, 1))
    usable_pair(options(copy), None)
    assert len(child.asked) == len(new) + 1


def test_what_a_pair_was_tested_for_is_not_tested_again(
    child: Child, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_use, "_WORTH_TELLING", 0)
    child.ends = lambda models: 0
    pair, said = (options(tiny.target), options(tiny.draft)), list[str]()
    usable_pair(*pair, say=said.append)
    usable_pair(pair[0], None, say=said.append)  # the target alone
    usable_pair(*(replace(each, ctx_size=64) for each in pair), say=said.append)
    assert len(child.asked) == 1
    usable_pair(options(tiny.target, flash_attention="off"), None, say=said.append)
    news = [each.partition(":")[0] for each in said if each.startswith("New")]
    assert news == ["New on this machine", "New with these settings"]
    usable_pair(options(tiny.draft), None)  # which its target did not test alone
    assert len(child.asked) == 3


def test_bundled_models_need_no_child(child: Child, tmp_path: Path) -> None:
    child.ends = lambda models: 0
    target, draft = paths.demo_pair()
    usable_pair(options(target), options(draft))
    assert not child.asked and not kept()
    copy = tmp_path / "copy.gguf"
    shutil.copy2(draft, copy)
    origin = Provenance("a/b", "main", "0", "copy.gguf", copy.stat().st_size, "0" * 64)
    write_record(copy, origin)  # a true copy of what is on the Hub may end llama.cpp too
    usable_pair(options(copy), None)
    usable_pair(options(target, override_kv=(KeyValue("general.name", "x"),)), None)
    assert child.files == [["copy.gguf"], ["target.gguf"]]


def test_what_is_kept_may_be_nonsense(child: Child, tiny: TinyFiles) -> None:
    child.ends = lambda models: 0
    usable_pair(options(tiny.target), None)
    (file,) = kept()
    for nonsense in ("", "[1]", '{"tried": ["1"]}', '{"tried": {"plain": 0}}', "[" * 4000):
        file.write_text(nonsense)
        usable_pair(options(tiny.target), None)
    assert len(child.asked) == 6 and tried() == [1]


# -- on a device ---------------------------------------------------------------------------


@pytest.mark.usefixtures("device")
def test_a_pair_on_a_device_answers_in_the_child(child: Child, tiny: TinyFiles) -> None:
    child.ends = lambda models: 0
    pair = options(tiny.target, branches=3), options(tiny.draft)
    for times in range(2):
        said: list[str] = []
        with Engine.load(*pair, say=said.append) as engine:
            assert engine.target.options.branches == 3 and engine.draft is not None
        assert any("New on this device" in each for each in said) == (times == 0)
    (question,) = child.questions  # the second time nothing is tried
    assert question["measures"] and question["answers"]


@pytest.mark.parametrize("code", [SEGFAULT, None, -9])  # None: it is too slow
@pytest.mark.usefixtures("device")
def test_a_crash_on_a_device_is_an_error_and_tried_again(
    child: Child, tiny: TinyFiles, code: int | None
) -> None:
    endings = iter([code, code, 0])
    child.ends = lambda models: next(endings)
    pair = options(tiny.target), options(tiny.draft)
    for _ in range(2):
        with pytest.raises(EngineError, match="when it loads|llama.cpp loads") as raised:
            Engine.load(*pair)
        if code != -9:
            assert "--device none" in raised.value.hint and "--draft off" in raised.value.hint
    with Engine.load(*pair) as engine:  # the driver was mended
        assert engine.draft is not None
    assert [len(models) for models in child.asked] == [2, 2, 2]


@pytest.mark.usefixtures("device")
def test_another_number_of_branches_is_tried_and_the_rest_is_kept(
    child: Child, tiny: TinyFiles
) -> None:
    child.ends = lambda models: 0
    for branches in (2, 1, 2, 3):
        usable_pair(options(tiny.target, branches=branches), options(tiny.draft))
    assert [models[0].branches for models in child.asked] == [2, 1, 3]
    assert tried() == [2, 1, 3]


def test_a_large_file_is_given_more_time(
    child: Child, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    child.ends = lambda models: 0
    for n_bytes in (0, 200 * 10**9):
        monkeypatch.setattr(first_use, "_n_bytes", lambda placed, n_bytes=n_bytes: n_bytes)
        usable_pair(options(tiny.target, threads=1 + len(child.asked)), None)
    short, long = child.patience
    assert short is not None and long is not None
    assert short >= 900 and long >= short + 200 * 10**9 / 1e8


# -- the child -----------------------------------------------------------------------------


def test_the_child_answers_with_the_pair(first_uses: Remembered, tiny: TinyFiles) -> None:
    for parallel in (1, 2):
        pair = [
            options(tiny.target, branches=3, parallel=parallel),
            options(tiny.draft, parallel=parallel),
        ]
        question = {
            "models": [asdict(each) for each in pair],
            "bytes": 2**34, "measures": True, "answers": True,
        }  # fmt: skip
        ended = first_uses.real(CHILD, question, 120)
        assert ended.code == 0, ended.log
        found = first_use._messages(ended.output)[-1]
        assert set(found["profile"]["draft"]["widths"]) >= {"1"}
    assert not kept()  # the parent saves it


def test_a_child_that_ends_early(child: Child, tiny: TinyFiles) -> None:
    step = json.dumps("decodes with t.gguf") + "\nprinted by llama.cpp\n"
    for ended, words in (
        (
            Ended(-11, step, "one\n two \n\n"),
            "ends by SIGSEGV when it decodes with t.gguf.*log: two",
        ),
        (Ended(None, step, ""), "gives no answer within 9[0-9]+ s when"),
        (Ended(1, "", "MemoryError"), "exit code 1 when it loads .*target.gguf.*MemoryError"),
        (Ended(-9, step, ""), "killed from outside"),
    ):
        child.ends = lambda models, ended=ended: ended
        with pytest.raises(EngineError, match=words):
            usable_pair(options(tiny.target), None)
    child.ends = lambda models: 0
    usable_pair(options(tiny.target), None)
    assert tried() == [1]


@pytest.mark.parametrize("on_device", [False, True])
def test_a_refusal_of_the_child_is_one_here(
    child: Child, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, on_device: bool
) -> None:
    if on_device:
        monkeypatch.setattr(first_use, "uses_devices", lambda options: True)
    child.ends = refused
    with pytest.raises(IncompatiblePair, match=r"When llama.cpp loads it: No\."):
        usable_pair(options(tiny.target), options(tiny.draft))
    assert len(child.asked) == 1 and not kept()


def test_no_process_can_be_started(
    child: Child, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "interpreter", lambda: "/no/python")
    with pytest.raises(WorkerLost, match="No process"):
        usable_pair(options(tiny.target), None)


def test_over_the_network_the_child_uses_this_machine_alone(
    child: Child, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    child.ends = lambda models: 0
    given = first_use.Placed(ModelFile(read_header(tiny.target), options(tiny.target)), None, 0)
    servers = RpcServers([("127.0.0.1", 1)])  # type: ignore[list-item]
    remote = given.target._replace(options=replace(given.target.options, rpc=servers))
    first_use._in_child(given._replace(target=remote), measures=False, answers=False)
    ((used,),) = child.asked
    assert (used.rpc, used.device, used.gpu_layers) == ((), "none", 0)


def test_a_child_without_results_has_failed(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, first_uses: Remembered
) -> None:
    """A real one: where SIGCHLD is ignored, its exit code is 0 however it ends."""
    monkeypatch.setattr(worker, "ask", first_uses.real)
    monkeypatch.setattr(worker, "command", lambda module: [sys.executable, "-c", DIES])
    header = read_header(tiny.target)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(EngineError, match="when it loads it"):
            prove(ModelFile(header, LoadOptions(tiny.target)))
    finally:
        signal.signal(signal.SIGCHLD, before)


DIES = """
import json, os
input()
print(json.dumps("loads it"), flush=True)
os.abort()
"""


def test_a_file_that_is_no_model(child: Child, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    ended = worker.ask(CHILD, {"models": []}, 120)
    assert ended.code == 1 and "Traceback" in ended.log
    with pytest.raises(LocalspecError, match=r"x\.gguf"):
        prove(ModelFile(read_header(path), LoadOptions(path)))


# -- files that end llama.cpp ----------------------------------------------------------------

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
        ("llama", nothing, {"attention__layer_norm_rms_epsilon": float("nan")}),
        ("llama", nothing, {"rope__dimension_count": 33}),
        ("llama", nothing, {"attention__head_count": 0}),
        ("llama", nothing, {"attention__key_length": 65}),
        ("llama", nothing, {"block_count": 10**9}),
        ("qwen35", nothing, {"rope__dimension_sections": [0, 0, 0, 0]}),
        ("jamba", nothing, {"ssm__inner_size": 513}),
        ("rwkv7", nothing, {"wkv__head_size": 3}),
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


def test_logits_of_a_wide_pass_that_are_no_numbers(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading makes passes of one token only; the first use makes a wide one too."""

    def decode(model: LlamaModel, tokens: Sequence[int], rows: int) -> Logits:
        return np.full((rows, model.n_vocab), np.nan if rows > 1 else 1.0, np.float32)

    model = load_model(tiny.target)
    monkeypatch.setattr(LlamaModel, "decode", decode)
    with closing(model), pytest.raises(EngineError, match="returned logits that"):
        child_process._use_model(model, model.options)
