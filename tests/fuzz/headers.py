"""Headers of every architecture, mutated, through all that reads, checks and shows a header.

`python -m tests.fuzz.headers --seed 0 --count 10000` runs for minutes; the tests take a few. Each
header is changed in values, types, shapes, counts, lengths or single bytes. Allowed are our own
errors only, and an answer in time.
"""

import argparse
import contextlib
import io
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.core.errors import LocalspecError
from localspec.display import reports
from localspec.library.model_info import model_info
from localspec.metadata.gguf_file import ARRAY, GGML_TYPES, SCALARS, STRING, TensorInfo
from localspec.metadata.header import ModelHeader, read_header
from localspec.metadata.splits import read_part
from localspec.pairing import check_own_heads, check_pair, report_json
from tests.support.files.architectures.specs import MODELS, NUMBERED, SIDECARS, write_architecture
from tests.support.files.gguf_files import packed_string

NAMES = tuple(MODELS | SIDECARS | NUMBERED)
SLOW = 5.0  # seconds, of which a header of any kind takes a hundredth
_NUMBERS = (0, 1, 2, 3, 16, 31, 65, 127, 255, 513, 4096, 1 << 20, (1 << 31) - 1)
_SIZES = (0, 1, 2, 63, 65, 1 << 20, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)
_FLOATS = (0.0, -1.0, 1e38, float("nan"), float("inf"), float("-inf"), 1e-45)
_TEXTS = (b"", b"\0", b"a\x1b[31m", b"\xff\xfe", b"<0x", b"x" * 5000, "€\u202e".encode(), b"\\x")
_SPARSE = 1 << 36  # bytes: the weights are a hole in the file


@dataclass
class Parts:
    """A header in parts: each key with the bytes of its type and value, each tensor."""

    keys: list[tuple[str, bytes]]
    tensors: list[TensorInfo]

    def packed(self) -> tuple[bytes, int]:
        """The header's bytes, and the size of the weights behind it."""
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        head += b"".join(packed_string(key) + value for key, value in self.keys)
        end = 0
        for tensor in self.tensors:
            head += packed_string(tensor.name)
            head += struct.pack("<I", len(tensor.shape))
            head += b"".join(struct.pack("<Q", size % (1 << 64)) for size in tensor.shape)
            head += struct.pack("<IQ", tensor.type_id, end % (1 << 64))
            stored = GGML_TYPES.get(tensor.type_id, GGML_TYPES[0])
            n_bytes = tensor.n_elements // stored.block_elements * stored.block_bytes
            end += n_bytes + -n_bytes % 32
        return head + bytes(-len(head) % 32), end


def split(path: Path) -> Parts:
    """The parts of a file's header."""
    part, data = read_part(path), path.read_bytes()
    keys = [(key, data[start:end]) for key, (start, end) in part.spans.items()]
    return Parts(keys, part.tensors)


def _value(rng: random.Random) -> bytes:
    """The type and bytes of some value."""
    kind = rng.choice([*SCALARS, STRING, ARRAY])
    if kind == STRING:
        return struct.pack("<I", kind) + packed_string(rng.choice(_TEXTS))
    if kind != ARRAY:
        return struct.pack("<I", kind) + _scalar(rng, kind)
    each, length = rng.choice([*SCALARS, STRING]), rng.choice((0, 1, 3, 4, 8, 300, 1025))
    items = (
        packed_string(rng.choice(_TEXTS)) if each == STRING else _scalar(rng, each)
        for _ in range(length)
    )
    return struct.pack("<IIQ", kind, each, length) + b"".join(items)


def _scalar(rng: random.Random, kind: int) -> bytes:
    code = SCALARS[kind]
    if code in "fd":
        return struct.pack("<" + code, rng.choice(_FLOATS))
    if code == "?":
        return bytes([rng.choice((0, 1, 7))])
    bits = 8 * struct.calcsize(code)
    number = rng.choice((*_NUMBERS, -1)) % (1 << bits)
    return number.to_bytes(bits // 8, "little")


def _change_value(parts: Parts, rng: random.Random) -> None:
    index = rng.randrange(len(parts.keys))
    key, old = parts.keys[index]
    kind = struct.unpack_from("<I", old)[0]
    same = kind in SCALARS and rng.random() < 0.7
    new = struct.pack("<I", kind) + _scalar(rng, kind) if same else _value(rng)
    parts.keys[index] = key, new


def _change_keys(parts: Parts, rng: random.Random) -> None:
    index = rng.randrange(len(parts.keys))
    key, value = parts.keys[index]
    other = rng.choice(parts.keys)
    changed = {"remove": [], "rename": [(other[0], value)], "swap": [(key, other[1])]}
    added = {"add": [(key, value), (key + rng.choice(("_swa", "x", "\n")), _value(rng))]}
    parts.keys[index : index + 1] = rng.choice(list((changed | added).values()))


def _change_tokens(parts: Parts, rng: random.Random) -> None:
    """Other tokens and another tokenizer."""
    models = (b"llama", b"gpt2", b"bert", b"t5", b"rwkv", b"plamo2", b"gemma4", b"none", b"what")
    texts = [rng.choice((*_TEXTS, b"w%d" % i, b"<0x%02X>" % (i % 256))) for i in range(272)]
    tokens = struct.pack("<IIQ", ARRAY, STRING, len(texts)) + b"".join(map(packed_string, texts))
    changed = {
        "tokenizer.ggml.model": struct.pack("<I", STRING) + packed_string(rng.choice(models))
    }
    if rng.random() < 0.7:
        changed["tokenizer.ggml.tokens"] = tokens
    parts.keys = [(key, changed.get(key, value)) for key, value in parts.keys]


def _change_tensors(parts: Parts, rng: random.Random) -> None:
    if not parts.tensors:
        return
    index = rng.randrange(len(parts.tensors))
    tensor = parts.tensors[index]
    shape = list(tensor.shape)
    if shape:
        shape[rng.randrange(len(shape))] = rng.choice(_SIZES)
    shapes = [tensor.shape, tuple(shape), tensor.shape[1:], (*tensor.shape, 2), ()]
    type_id = rng.choice((tensor.type_id, *GGML_TYPES, 4, 999))
    name = rng.choice((tensor.name, tensor.name, rng.choice(parts.tensors).name, "x\n", ""))
    changed = TensorInfo(name, rng.choice(shapes), type_id, "", 0, 0)
    parts.tensors[index : index + 1] = rng.choice(([changed], [changed], []))


MUTATIONS: Sequence[Callable[[Parts, random.Random], None]] = (
    *(_change_value, _change_value, _change_keys, _change_tokens),
    *(_change_tensors, _change_tensors),
)


def mutated(parts: Parts, rng: random.Random) -> tuple[bytes, int]:
    """The bytes of a changed header, and the size of the file that begins with them."""
    parts = Parts(list(parts.keys), list(parts.tensors))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(MUTATIONS)(parts, rng)
    head, weights = parts.packed()
    data = bytearray(head)
    if rng.random() < 0.2:  # lengths, counts, anything
        for _ in range(rng.choice((1, 1, 4))):
            data[rng.randrange(4, len(data))] = rng.choice((0, 1, 7, 127, 255, rng.randrange(256)))
    tail = rng.choice((0, 0, 0, 0, 0, 0, 0, -1, 32, 1 << 33))
    return bytes(data), len(data) + min(weights, _SPARSE) + tail


def judge(path: Path, other: ModelHeader) -> str:
    """Read, check, estimate and show a header; the name of our error, or what was found."""
    try:
        header = read_header(path)
        shown = model_info(header, free=1 << 30)
        with contextlib.redirect_stdout(io.StringIO()):
            reports.model_reports([shown], {})
        json.dumps(shown.as_json())
        check_own_heads(header)
        for target, draft in ((header, other), (other, header)):
            report = check_pair(target, draft)
            json.dumps(report_json(report, target, draft))
            with contextlib.redirect_stdout(io.StringIO()):
                reports.pair_report(report, target, draft)
    except LocalspecError as error:
        assert error.message.isprintable() and str(error).strip(), error
        return type(error).__name__
    return "accepted" if shown.usable else "refused"


def fuzz(folder: Path, seed: int, count: int) -> tuple[Counter[str], float]:
    """Judge so many headers; what became of them, and the longest time that one took.

    Anything but an error of ours is raised, with the header's number as a note.
    """
    rng, outcomes, longest = random.Random(seed), Counter[str](), 0.0
    files = [write_architecture(folder / f"{name}.gguf", name) for name in NAMES]
    parts, others = [split(path) for path in files], [read_header(path) for path in files]
    path = folder / "mutated.gguf"
    for number in range(count):
        data, size = mutated(rng.choice(parts), rng)
        path.write_bytes(data)
        with path.open("r+b") as file:
            file.truncate(max(size, len(data)))
        began = time.perf_counter()
        try:
            outcomes[judge(path, rng.choice(others))] += 1
        except BaseException as error:
            error.add_note(f"header {number} of seed {seed}: {path}")
            raise
        longest = max(longest, time.perf_counter() - began)
    return outcomes, longest


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    given = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcomes, longest = fuzz(Path(folder), given.seed, given.count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    spent = time.perf_counter() - began
    print(f"{given.count:,} headers in {spent:.0f} s, at most {longest:.2f} s each, {peak} MiB")
    print(", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common()))
    return int(longest > SLOW)


if __name__ == "__main__":
    sys.exit(main())
