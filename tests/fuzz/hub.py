"""Random hostile answers of a Hub, and interference with the files of a running download.

Whatever happens, a download ends with the right file or with one clear sentence, nothing wrong is
recorded as right, and the next download from a sound Hub succeeds. By hand:

    python -m tests.fuzz.hub --seed 1 --count 1000
"""

import argparse
import copy
import faulthandler
import hashlib
import json
import random
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from localspec import download
from localspec.core.errors import LocalspecError
from localspec.hub import body, client
from localspec.hub.provenance import read_record, record_path
from localspec.hub.reference import Reference
from tests.support import interference
from tests.support.fake_hub import FakeHub, Fault, answer, bomb, point_at, trickle

REPO = "org/repo"
REFERENCE = Reference(REPO)
NAME = "m-Q4_K_M.gguf"
CASE_SECONDS = 120  # a case that takes longer hangs, and ends the run with a traceback

KINDS = (
    "drop", "stall", "short", "long", "flip", "whole", "status", "loop", "html", "garbage", "gzip",
    "other range",
)  # fmt: skip
STATUSES = (204, 206, 304, 400, 401, 403, 404, 408, 416, 429, 500, 503, 599)
TEXTS = (
    "", "../../x.gguf", "/etc/x.gguf", "a\0.gguf", "\x1b[2J.gguf", "\ud800.gguf", "\u202e.gguf",
    ".x.gguf", f".{NAME}.origin.json", "x" * 70_000, "pairs", "00001-of-99999.gguf", "{}", "sha256",
    "m-00001-of-00002.gguf", "a/" * 600 + "x.gguf", "\n", "9" * 50,
)  # fmt: skip
ADDRESSES = (
    "file:///etc/passwd", "http://127.0.0.1:9/x", "//", "ftp://x/", "http://[", "/", "javascript:1",
)  # fmt: skip
VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    1 << 70,
    1e308,
    [],
    {},
    [[[]]],
    [None],
    {"sha256": 5},
    "main",
)


@dataclass
class Case:
    """One download: random answers of the Hub, and what happens to its files meanwhile."""

    rng: random.Random
    hub: FakeHub
    models: Path

    @property
    def place(self) -> Path:
        return self.models / REPO / NAME

    def run(self) -> str:
        """What came of it; raises AssertionError if something wrong is taken for right."""
        data = self.rng.randbytes(self.rng.choice((0, 1, 1000, 150_000)))
        self.hub.add(REPO, NAME, data).lfs = self.rng.random() < 0.8
        self.hub.faults = self.faults(data)
        self.hub.redirecting = self.rng.random() < 0.3
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.1")
            for limit in ("ANSWER_SECONDS", "HEADER_SECONDS"):
                patch.setattr(client, limit, 0.3)
            patch.setattr(body, "LEAST_SECONDS", 0.1)
            try:
                self.fetch(client.resolve(REFERENCE), self.interfere)
                outcome = "stored"
            except LocalspecError as error:
                outcome = self.sentence(error)
        self.require_truth()
        self.hub.faults, self.hub.redirecting = [], False
        huggingface_hub.close_session()  # whose connections a hostile Hub may hold
        self.clear()
        self.fetch(client.resolve(REFERENCE), lambda *_: None)
        listed = self.hub.repos[REPO].files[NAME].lfs  # else nothing tells that a part is damaged
        record = read_record(self.place)
        assert record is not None and (record.checked == "sha256") is listed
        assert self.place.stat().st_size == len(data)
        assert self.place.read_bytes() == data or not listed
        return outcome

    def fetch(self, model: client.RemoteModel, on_progress: Callable[..., None]) -> None:
        for path in download.fetch(model, self.models, on_progress, sleep=lambda seconds: None):
            assert path.is_file() and not path.is_symlink()
            record = read_record(path)
            assert record is not None and record.checked in ("sha256", "size")

    def sentence(self, error: LocalspecError) -> str:
        for text in (error.message, error.hint):
            assert text.isprintable() and text.endswith(".") and len(text) < 2000, text
        return type(error).__name__

    def require_truth(self) -> None:
        """Every file whose hash the Hub is said to have listed has that hash."""
        for path in self.models.rglob("*.gguf"):
            record = None
            with suppress(ValueError):  # another program's, which claims nothing
                record = read_record(path)
            if record is not None and record.checked == "sha256":
                assert not path.is_symlink()
                assert hashlib.sha256(path.read_bytes()).hexdigest() == record.sha256

    def clear(self) -> None:
        """Remove what the interference left in the way, as a user would; partial files stay."""
        for path in self.place.parent.glob("*") if self.place.parent.is_dir() else ():
            if path.is_symlink() or not path.is_file() or not path.name.endswith(".part"):
                interference.remove(path)

    # --- the Hub's answers ---

    def faults(self, data: bytes) -> list[Fault]:
        found = [self.fault(len(data)) for _ in range(self.rng.choice((0, 0, 1, 1, 2, 5, 12)))]
        return found if self.rng.random() < 0.6 else [self.listing(), *found]

    def fault(self, size: int) -> Fault:
        chance, on = self.rng.random(), self.rng.choice(("file", "file", "api", "resolve"))
        if chance < 0.03:
            return trickle(times=1, on=on)
        if chance < 0.06:
            return Fault("endless headers", on)  # type: ignore[arg-type]
        if chance < 0.08:
            return bomb(on)
        if chance < 0.3:
            return self.odd_answer(on, size)
        return Fault(
            self.rng.choice(KINDS),  # type: ignore[arg-type]
            on,  # type: ignore[arg-type]
            at=self.rng.randrange(size + 1),
            status=self.rng.choice(
                (204, 206, 304, 400, 401, 403, 404, 408, 416, 429, 500, 503, 599)
            ),
            retry_after=self.rng.choice((None, "0", "99999", "x")),
            code=self.rng.choice((None, "RepoNotFound", "EntryNotFound", "GatedRepo", "x")),
        )

    def odd_answer(self, on: str, size: int) -> Fault:
        numbers = (0, 1, size - 1, size, size + 1, 1 << 62, -5)
        headers = {
            "Location": self.rng.choice(ADDRESSES),
            "Content-Range": "bytes {}-{}/{}".format(*self.rng.choices(numbers, k=3)),
            "Content-Length": str(self.rng.choice(numbers)),
            "Content-Encoding": self.rng.choice(("gzip", "br", "identity", "")),
            "Content-Type": self.rng.choice(("text/html", "application/json")),
            "Transfer-Encoding": "chunked",
        }
        some = {name: value for name, value in headers.items() if self.rng.random() < 0.3}
        pieces = (self.rng.randbytes(self.rng.randrange(1000)) for _ in range(3))
        return answer(self.rng.choice((200, 206, 206, 302, 307)), some, *pieces, on=on)

    def listing(self) -> Fault:
        """Facts about the repository, of which something is not what it should be."""
        file = self.hub.repos[REPO].files[NAME]
        entry = {"rfilename": NAME, "size": file.size, "lfs": {"sha256": file.oid, "size": 1}}
        facts: Any = {
            "sha": "c" * 40, "siblings": [entry], "gated": False, "tags": ["license:mit"],
            "cardData": {"license": "other", "license_name": "x"},
        }  # fmt: skip
        for _ in range(self.rng.randrange(4)):
            at: Any = facts
            while isinstance(at, dict | list) and at:
                key: Any = self.rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
                if not isinstance(at[key], dict | list) or self.rng.random() < 0.3:
                    at[key] = copy.deepcopy(self.rng.choice((*VALUES, *TEXTS)))
                    break
                at = at[key]
        text = bytearray(json.dumps(facts).encode())
        if self.rng.random() < 0.2:
            text[self.rng.randrange(len(text))] = self.rng.randrange(256)
        return answer(200, {}, bytes(text), on="api")

    # --- other programs at the files ---

    def interfere(self, name: str, done: int, total: int) -> None:
        """Change a file of the download, until the partial file has become the model."""
        parts = list(self.place.parent.glob(".*.part"))
        if parts and self.rng.random() < 0.15:
            record = record_path(self.place)
            target = self.rng.choice((parts[0], parts[0], parts[0], self.place, record))
            self.rng.choice(interference.ALL)(target)


def run(seed: int, count: int) -> Counter[str]:
    """Outcomes of so many cases; a failure names the seed that repeats it alone."""
    outcomes: Counter[str] = Counter()
    with (
        FakeHub() as hub,
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
    ):
        point_at(hub, Path(folder) / "huggingface", patch)
        for limit in ("ANSWER_SECONDS", "CONNECT_SECONDS", "STALL_SECONDS"):
            patch.setattr(client, limit, 60.0)
        hub.add(REPO, NAME, b"")
        client.resolve(REFERENCE)  # imports the library, which counts for no time limit
        for case in range(seed, seed + count):
            models = Path(folder) / str(case)
            hub.repos.clear()
            faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
            try:
                outcomes[Case(random.Random(case), hub, models).run()] += 1
            except BaseException as error:
                error.add_note(f"Again: python -m tests.fuzz.hub --seed {case} --count 1")
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()
            shutil.rmtree(models, ignore_errors=True)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    given = parser.parse_args()
    begun = time.monotonic()
    outcomes = run(given.seed, given.count)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{dict(outcomes)} in {time.monotonic() - begun:.0f} s, at most {memory} MiB of memory")


if __name__ == "__main__":
    main()
