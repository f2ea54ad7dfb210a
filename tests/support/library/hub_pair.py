"""A pair of tiny models, on this disk and on a fake Hub, for the tests of commands."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from localspec import download
from localspec.library import local_models
from localspec.metadata import header, splits
from localspec.metadata.gguf_file import PartHeader
from tests.support.command import Command, Done
from tests.support.fake_hub import FakeHub
from tests.support.files.tiny_models import write_tiny_model
from tests.support.library import zoo
from tests.support.real_pair import TinyFiles, retuned

PAIR = ("org/big-GGUF:Q4_K_M", "org/small-GGUF")
NOBODY = "http://127.0.0.1:9"  # where no Hub answers
FLAGS = ("-t", "1", "-n", "8", "Say the thing")  # one thread, eight tokens
DRAFTED = ("--draft-tokens", "3", "--exact", "--temp", "0")


@dataclass(frozen=True)
class Pair:
    """Paths of a target, a smaller draft, and two that may not draft for it."""

    target: Path
    draft: Path
    other: Path  # has 200 control tokens more
    tuned: Path  # has other control tokens


@pytest.fixture(scope="module")
def pair(tiny: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    draft = write_tiny_model(folder / "draft.gguf", seed=1, layers=1)
    more = [f"more{index}" for index in range(200)]
    other = write_tiny_model(folder / "other.gguf", seed=1, layers=1, control_tokens=more)
    return Pair(tiny.target, draft, other, retuned(draft))


@pytest.fixture
def stocked(hub: FakeHub, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A Hub that has the pair, and much that is none."""
    big, small = pair.target.read_bytes(), pair.draft.read_bytes()
    hub.add("org/big-GGUF", "big-Q4_K_M.gguf", big, licence="mit")
    hub.add("org/big-GGUF", "big-Q8_0.gguf", big + bytes(32))
    hub.add("org/small-GGUF", "small-Q8_0.gguf", small, licence="apache-2.0")
    hub.add("org/other-GGUF", "other-Q8_0.gguf", pair.other.read_bytes())
    hub.add("org/tuned-GGUF", "tuned-Q8_0.gguf", pair.tuned.read_bytes())
    hub.add("org/gated-GGUF", "gated-Q8_0.gguf", small, gated=True)
    hub.add("org/eyes-GGUF", "mmproj-eyes-F16.gguf", small)
    hub.add("org/two-GGUF", "one-Q8_0.gguf", small)
    hub.add("org/two-GGUF", "another-Q8_0.gguf", small)
    hub.add("org/junk-GGUF", "junk-Q8_0.gguf", b"words " * 1000)
    hub.add("org/none-GGUF", "README.md", b"nothing here")
    hub.add("org/Original", "model-00001-of-00002.safetensors", b"{}")
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.0)
    return hub


@pytest.fixture
def fetched(stocked: FakeHub, localspec: Command) -> list[Path]:
    """The pair, downloaded; the Hub is gone."""
    done = localspec("download", *PAIR)
    assert done.code == 0
    stocked.stop()
    return [Path(line) for line in done.out.splitlines()]


@pytest.fixture
def lonely(in_zoo: zoo.Zoo, monkeypatch: pytest.MonkeyPatch) -> zoo.Zoo:
    """The zoo, without a Hub."""
    monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    return in_zoo


@dataclass
class Reads:
    """What a command did to this disk: searches for models, and headers read, by path."""

    searches: int = 0
    headers: Counter[Path] = field(default_factory=Counter)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Counts them from here on."""
    counted = Reads()
    list_models, read = local_models._each_once, splits.read_parts

    def each_once(found: Any) -> list[local_models.LocalModel]:
        counted.searches += 1
        return list_models(found)

    def read_parts(path: Path) -> list[PartHeader]:
        counted.headers[path] += 1
        return read(path)

    monkeypatch.setattr(header, "read_parts", read_parts)
    monkeypatch.setattr(local_models, "_each_once", each_once)
    return counted


def told(done: Done) -> tuple[str, str]:
    """The sentence of an error and its hint: the last two lines of stderr, and nothing else."""
    *notes, message, hint = done.err.splitlines()
    assert message.startswith("Error: ") and message.endswith(".") and hint
    assert done.out == "" and "Traceback" not in done.err
    assert all(note.startswith(("Asking the Hub for ", "hf:", "Read ")) for note in notes)
    return message.removeprefix("Error: "), hint


def states(done: Done) -> list[str]:
    """What verify says of each file."""
    return [line[:14].rstrip() for line in done.out.splitlines()]
