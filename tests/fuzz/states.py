"""Saved slots that somebody changed: no answer of another slot, and no later one, is another.

`python -m tests.fuzz.states --seed 0 --count 2000`. Each kind of model has two slots in a forked
child. The checksum of a changed file is right, so that what is in it reaches llama.cpp.
"""

import argparse
import functools
import hashlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.errors import UsageError
from localspec.engine.caches.slot_files import SlotFiles, erase
from localspec.engine.engine import Engine
from localspec.engine.loading import pair
from localspec.engine.session.slot import Slot
from localspec.llama import llama_library
from tests.fuzz.models import in_child
from tests.support.files.architectures.specs import write_architecture
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import options, random_ids, slots_of, write_recurrent_model

_SAVED, _NEIGHBOUR, _NEXT = (random_ids(70, seed) for seed in range(3))
_NUMBERS = (-(2**31), -2, -1, 0, 1, 2, 69, 70, 71, 255, 256, 5000, 2**31 - 2, 2**31 - 1)
_IN_ONE_CHILD = 100  # whose processor time is bounded
_KINDS = ("plain", "window", "recurrent", "hybrid", "heads", "own cells")


def _file(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.gguf"
    if kind == "window":
        return write_tiny_model(path, seed=2, layers=4, window=16, context_length=1024)
    if kind == "recurrent":
        return write_recurrent_model(path)
    if kind in ("hybrid", "heads"):
        return write_architecture(path, "qwen35" if kind == "hybrid" else "qwen35-mtp")
    return write_tiny_model(path, seed=1, context_length=1024)


def changed(good: bytes, rng: random.Random) -> bytes:
    """A saved slot with a few other numbers, mostly where cells are described."""
    begin = 20 + int.from_bytes(good[16:20], "little")
    header, body = json.loads(good[20:begin]), bytearray(good[begin:])
    state = 4 * header["tokens"]
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        begin_at = rng.choice((0, state, state, state, rng.randrange(0, len(body) - 4, 4)))
        place = min(begin_at + 4 * rng.randrange(220), len(body) - 4)
        number = rng.choice((*_NUMBERS, rng.getrandbits(32) - 2**31))
        body[place : place + 4] = number.to_bytes(4, "little", signed=True)
    if rng.random() < 0.1:
        header["tokens"] += rng.choice((-1, 1))
        header["state"] += rng.choice((-4, 0, 4))
    header["sha256"] = hashlib.sha256(body).hexdigest()
    text = json.dumps(header).encode()
    return good[:16] + len(text).to_bytes(4, "little") + text + body


def attack(folder: Path, kind: str, seed: str, count: int) -> None:
    """Restore changed files in one slot; raises AssertionError for other logits than before."""
    rng = random.Random(seed)
    given = options(
        folder / f"{kind}.gguf",
        parallel=2,
        ctx_size=256,
        cache_type_k="f32",
        cache_type_v="f32",
        load_heads=kind == "heads",
        flash_attention="on" if kind == "own cells" else "off",
    )
    pair._has_own_cells = lambda *given: kind == "own cells"  # as with row kernels and --exact
    places = folder / "slots"
    places.mkdir(exist_ok=True)
    outcomes = Counter[str]()
    with Engine.load(given, given if kind == "heads" else None, trial=False) as engine:
        slots = slots_of(engine)
        files = SlotFiles(places, engine)
        expected = [_logits(slot, text) for slot, text in _texts(slots)]
        _logits(slots[0], _SAVED)
        files.save(slots[0], "good")
        good = (places / "good").read_bytes()
        for _ in range(count):
            (places / "bad").write_bytes(changed(good, rng))
            try:
                files.restore(slots[0], "bad")
                outcomes["taken"] += 1
            except UsageError:
                outcomes["refused"] += 1
            if rng.random() < 0.5:
                erase(slots[0])
            for (slot, text), before in zip(_texts(slots), expected, strict=True):
                found = _logits(slot, text)
                assert np.abs(found - before).max() <= 1e-3 * np.abs(before).max(), kind
    print(f"{kind}: {dict(outcomes)}", flush=True)


def _texts(slots: list[Slot]) -> Iterator[tuple[Slot, list[int]]]:
    """The neighbour goes on with its text; the slot itself reads another one."""
    return iter([(slots[1], _NEIGHBOUR), (slots[0], _NEXT)])


def _logits(slot: Slot, text: list[int]) -> Any:
    """Behind the text, of which a slot that holds it reads the last token alone."""
    held = slot.target.tokens == text
    slot.target.truncate(len(text) - 1 if held else 0)
    return slot.target.decode(text[len(slot.target.tokens) :], 1)[0].copy()


def fuzz(seed: int, count: int, folder: Path) -> list[str]:
    """The runs that ended by a signal, a traceback or never."""
    bad = []
    for kind in _KINDS:
        _file(folder, kind)
        for first in range(0, count, _IN_ONE_CHILD):
            some = min(count - first, _IN_ONE_CHILD)
            work = functools.partial(attack, folder, kind, f"{seed}/{kind}/{first}", some)
            if (outcome := in_child(work)) != "done":
                bad.append(f"{kind} from {first}: {outcome}")
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    began = time.perf_counter()
    llama_library.library()  # once, for all children
    with tempfile.TemporaryDirectory() as folder:
        bad = fuzz(given.seed, -(-given.count // len(_KINDS)), Path(folder))
    print(*bad, sep="\n")
    print(f"{given.count:,} states in {time.perf_counter() - began:.0f} s: {len(bad)} runs failed")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
