"""Heads that cannot be used, as a user meets them: a sentence and the next step, and no abort."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Command, process
from tests.support.files.architectures.specs import MODELS, SIDECARS
from tests.support.files.architectures.writer import write_model
from tests.support.files.lora_files import write_lora

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]
ANSWER = ("-n", "4", "-t", "1", "-c", "256", "--temp", "0", "--raw", "ab")


def variant(
    path: Path, name: str, keys: Mapping[str, Any] | None = None, *, without: str = ""
) -> Path:
    """A model or a sidecar with other keys, or without some tensors."""
    model = (MODELS | SIDECARS)[name]
    missing = "|".join(filter(None, (model.without, without)))
    return write_model(path, replace(model, keys={**model.keys, **(keys or {})}, without=missing))


def test_a_sidecar_that_does_not_fit(
    localspec: Command, architecture: Files, tmp_path: Path
) -> None:
    """All reasons: checks/test_heads."""
    keys = {"embedding_length": 128, "ssm.inner_size": 128}
    target, file = architecture("qwen35"), variant(tmp_path / "heads.gguf", "mtp-qwen35", keys)
    message = "The target's hidden states are 64 wide, the heads read 128."
    hint = "Get the heads that were made for this target."
    done = localspec("run", "-m", target, "-md", file, *ANSWER)
    assert (done.code, done.out) == (1, "") and "Traceback" not in done.err
    error, step = done.err.splitlines()[-2:]
    assert error.startswith("Error: ") and error.endswith(message)
    assert step.startswith(f"{hint} All findings: localspec check ")
    checked = localspec("check", target, file)
    assert (checked.code, checked.err) == (1, "")
    assert f"error   {message} {hint}" in checked.out


HEADS = r"blk\.4\..*"


@pytest.mark.parametrize(
    ("name", "keys", "without", "says"),
    [
        ("glm4moe-mtp", {}, HEADS, "names 1 prediction head, but its conversion left them out."),
        ("llama", {}, "", "has no prediction heads of its own."),
    ],
)
def test_heads_that_are_not_there(
    localspec: Command, tmp_path: Path, name: str, keys: dict[str, Any], without: str, says: str
) -> None:
    file = variant(tmp_path / "model.gguf", name, keys, without=without)
    done = localspec("run", "-m", file, "--draft", "mtp", *ANSWER)
    assert (done.code, done.out) == (1, "")
    error, step = done.err.splitlines()
    assert says in error and error.endswith("(mtp-*.gguf) lies next to it.")
    assert step == "Get a conversion that has its heads, or use another draft."
    checked = localspec("check", "-m", file, "--draft", "mtp")
    assert checked.code == 1 and says in checked.out and says in checked.err
    plain = localspec("run", "-m", file, "--draft", "off", *ANSWER)
    assert plain.code == 0 and plain.out


@pytest.mark.parametrize("draft", [(), ("--draft", "mtp")])
def test_a_sidecar_that_is_used_is_named(
    localspec: Command, architecture: Files, tmp_path: Path, draft: tuple[str, ...]
) -> None:
    target = tmp_path / "Big-Q8_0.gguf"
    target.write_bytes(architecture("qwen35").read_bytes())
    (tmp_path / "mtp-Other.gguf").write_bytes(architecture("mtp-qwen35").read_bytes())
    done = localspec("run", "-m", target, *draft, *ANSWER)
    assert done.code == 0
    note = "Draft: the prediction heads of mtp-Other.gguf (MTP), next to the target."
    assert done.err.splitlines().count(note) == 1


def test_a_sidecar_of_its_name_that_does_not_fit_is_told(
    localspec: Command, architecture: Files, tmp_path: Path
) -> None:
    target = tmp_path / "Big-Q8_0.gguf"
    target.write_bytes(architecture("qwen35").read_bytes())
    heads = variant(tmp_path / "mtp-Big.gguf", "mtp-qwen35", {"embedding_length": 128})
    told = "mtp-Big.gguf: The target's hidden states are 64 wide, the heads read 128."
    done = localspec("run", "-m", target, *ANSWER)
    assert done.code == 0 and done.out
    notes = [line for line in done.err.splitlines() if line.startswith("No heads are used. ")]
    assert len(notes) == 1 and notes[0].endswith(told)
    assert "No heads" not in localspec("run", "-m", target, "--draft", "off", *ANSWER).err
    heads.rename(tmp_path / "mtp-Other.gguf")  # made for another model, as far as is known
    assert "No heads" not in localspec("run", "-m", target, *ANSWER).err


def test_a_head_without_some_of_its_layer(localspec: Command, tmp_path: Path) -> None:
    """Which tensors a layer needs, only llama.cpp knows."""
    file = variant(tmp_path / "model.gguf", "glm4moe-mtp", without=r"blk\.4\.attn_q\.weight")
    done = localspec("run", "-m", file, *ANSWER)
    assert (done.code, done.out) == (1, "")
    assert "llama.cpp cannot load" in done.err and "run without them, --draft off" in done.err
    assert localspec("run", "-m", file, "--draft", "off", *ANSWER).code == 0


def test_heads_are_no_target(localspec: Command, architecture: Files) -> None:
    said = "is not a model but an EAGLE-3 head."
    done = localspec("run", "-m", architecture("eagle3"), *ANSWER)
    assert (done.code, done.out) == (1, "")
    error, step = done.err.splitlines()
    assert error.endswith(f"The file {said}")
    assert step.startswith("It only drafts: give the model that it was made for")
    checked = localspec("check", architecture("eagle3"), architecture("llama"))
    assert checked.code == 1 and f"The target {said}" in checked.out


@pytest.mark.parametrize("damage", ["cut", "header", "bytes"])
def test_damaged_sidecars(
    localspec: Command, architecture: Files, tmp_path: Path, damage: str
) -> None:
    data, file = bytearray(architecture("eagle3").read_bytes()), tmp_path / "heads.gguf"
    if damage == "bytes":
        data[4000:4100] = b"\xff" * 100
    file.write_bytes(data[: {"cut": -3000, "header": 700}.get(damage, len(data))])
    target = architecture("llama")
    for command in (("run", "-m", target, "-md", file, *ANSWER), ("check", target, file)):
        done = localspec(*command)
        assert done.code in (1, 2) and done.out == "" and "Traceback" not in done.err
        error, step = done.err.splitlines()[-2:]
        assert str(file) in error and step == "Download the file again."


@pytest.mark.parametrize(
    ("target", "name", "keys", "says"),
    [
        ("qwen35", "mtp-qwen35", {"rope.dimension_count": 33}, "rope.dimension_count is 32"),
        ("qwen35", "mtp-qwen35", {"full_attention_interval": 0}, "full_attention_interval is 2"),
        ("step35", "mtp-step35", {"expert_count": 2**31 - 1}, "expert_count is 4 for the target"),
    ],
)
def test_values_that_end_the_process_are_refused(
    architecture: Files,
    tmp_path: Path,
    target: str,
    name: str,
    keys: dict[str, Any],
    says: str,
) -> None:
    whole = architecture(name).read_bytes()
    (key, value), file = next(iter(keys.items())), tmp_path / "heads.gguf"
    full = f"{(MODELS | SIDECARS)[name].name}.{key}".encode()
    at = whole.index(full) + len(full) + 4  # behind the key's type
    file.write_bytes(whole[:at] + value.to_bytes(4, "little") + whole[at + 4 :])
    done = process("run", "-m", str(architecture(target)), "-md", str(file), *ANSWER)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("key", "value"), [("nextn_predict_layers", 2), ("nextn_predict_layers", 0), ("block_count", 4)]
)
def test_heads_by_values_that_the_file_has_not(architecture: Files, key: str, value: int) -> None:
    """--override-kv speaks of the target and of its heads."""
    given = ("--override-kv", f"qwen35.{key}=int:{value}")
    done = process("run", "-m", str(architecture("qwen35-mtp")), "--draft", "mtp", *given, *ANSWER)
    assert (done.returncode, done.stdout) == (1, "")
    error, step = done.stderr.splitlines()[-2:]
    assert error.startswith("Error: ") and error.endswith(".") and step


def test_an_adapter_changes_the_target_alone(
    localspec: Command, architecture: Files, tmp_path: Path
) -> None:
    adapter = write_lora(tmp_path / "adapter.gguf")
    given = ("-m", architecture("llama"), "--lora", adapter, *ANSWER)
    plain = localspec("run", *given, "--draft", "off")
    drafted = localspec("run", *given, "-md", architecture("eagle3"), "--draft-tokens", "3")
    assert (plain.code, drafted.code) == (0, 0)
    assert drafted.out == plain.out and "drafted" in drafted.err


RUN = ("--raw", "hello", "-n", "4", "-t", "1", "--temp", "0", "--prompt-lookup", "off")


def test_heads_that_nobody_asked_for_end_no_command(
    localspec: Command, architecture: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.llama.heads import hidden_states

    target = architecture("qwen35-mtp")
    plain = localspec("run", "-m", target, "--draft", "off", *RUN)
    monkeypatch.setattr(hidden_states, "_BOUND", ("no_such_function",))
    hidden_states.unstable.cache_clear()
    try:
        done = localspec("run", "-m", target, *RUN)
        asked = localspec("run", "-m", target, "--draft", "mtp", *RUN)
    finally:
        hidden_states.unstable.cache_clear()
    assert (done.code, done.out) == (0, plain.out)
    assert "No heads are used. This build of llama-cpp-python cannot" in done.err
    assert asked.code == 1 and "This build of llama-cpp-python cannot" in asked.err


@pytest.mark.parametrize(
    ("heads", "kind"), [("eagle3", "EAGLE-3"), ("dflash", "DFlash"), ("dspark", "DSpark")]
)
def test_sidecars_of_all_kinds_are_found(
    localspec: Command, architecture: Files, tmp_path: Path, heads: str, kind: str
) -> None:
    target = tmp_path / "Big-Q8_0.gguf"
    target.write_bytes(architecture("llama").read_bytes())
    (tmp_path / f"{heads}-Big.gguf").write_bytes(architecture(heads).read_bytes())
    done = localspec("run", "-m", target, "--draft", "3", *ANSWER)
    assert done.code == 0
    note = f"Draft: the prediction heads of {heads}-Big.gguf ({kind}), next to the target."
    assert done.err.splitlines().count(note) == 1 and "drafted tokens accepted" in done.err
    localspec("config", "set", "draft_tokens", "off")
    assert "Draft" not in localspec("run", "-m", target, *ANSWER).err
