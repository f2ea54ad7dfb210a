"""A file with a model's tokens and llama.cpp's state of them, checked before use.

    magic, 16 bytes | length of the header, u32 | header, JSON | tokens, i32 each | state | copies

All numbers are little-endian. The header names the model and the settings that the state depends
on, the number of tokens, the bytes of the state, the lengths and bytes of the copies of earlier
recurrent states, and the sha256 of all that follows it.
"""

import hashlib
import itertools
import json
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import FileProblem
from localspec.core.files import appearing_when_complete, fingerprint, open_regular, require_kind
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.option import options
from localspec.llama.cache.cached_text import CachedText
from localspec.llama.cache.copies import Copy
from localspec.llama.cache.state_layout import learn_layout, require_cells, require_copy
from localspec.llama.model import LlamaModel
from localspec.metadata.header import ModelHeader
from localspec.metadata.splits import read_part

FORMAT = 3
_MAGIC = b"localspec state\n"
_START = struct.Struct("<16sI")
_MAX_HEADER = 2**16  # bytes
_TRIED = 4  # tokens decoded after a restored state
_MOST_COPIES = 8
_SAMPLE = 2**14  # bytes of a tensor that identify it, all of a norm: reading all takes too long
_CELL = 64  # bytes llama.cpp writes of a cell in addition to keys and values, or more
# Settings of a model that its state does not depend on; the file has a fingerprint.
_FREE = {"file", "name", "parameters", "quantization", "rollback", "branches"}.union(
    name for name, row in options(LoadOptions).items() if not row.state
)


def require_state_file(path: Path) -> None:
    """Raise FileProblem for a path that must not be replaced by a state, or cannot be."""
    if not os.path.isdir(path.parent):
        raise FileProblem(f"There is no folder {path.parent}.", "Make it, or name another.")
    refusal = f"{path} is no prompt cache, and would be overwritten."
    require_kind(path, _MAGIC, FileProblem(refusal, "Name another file."))


def write_state(path: Path, model: LlamaModel, holder: CachedText | None = None) -> int:
    """Write the tokens and state of the model, or of ``holder``, one of its sequences.

    Returns the bytes. Only the user may read a new file. Raises OSError when it cannot be written;
    the old file is then unchanged.
    """
    with appearing_when_complete(path, private=True) as partial:
        return write_partial(partial, model, holder or model)


def write_partial(path: Path, model: LlamaModel, holder: CachedText) -> int:
    """`write_state` into an empty file."""
    state = holder.state()
    tokens = np.array(holder.tokens, "<i4")
    copies = holder.reusable_lengths().copies[-_MOST_COPIES:]
    parts = [tokens.view(np.uint8), state, *(copy for _, copy in copies)]
    sizes = [[length, len(copy)] for length, copy in copies]
    counts = {"tokens": len(tokens), "state": len(state), "copies": sizes}
    header = json.dumps(_identity(model) | counts | {"sha256": _digest(parts)}).encode()
    with path.open("wb") as file:
        file.write(_START.pack(_MAGIC, len(header)) + header)
        for part in parts:
            file.write(part.data)
        return file.tell()


def read_state(
    path: Path,
    model: LlamaModel,
    holder: CachedText | None = None,
    report: Callable[[], None] = lambda: None,
) -> int:
    """Restore the model, or ``holder``, from the file; returns the bytes.

    A state can be bad without a sign of it in the next tokens: if later logits are not numbers,
    all tokens are read again, and ``report`` is called.

    Raises OSError when it cannot be read, and ValueError with the reason, a clause, for a file that
    must not be used, because another model made it or it is damaged; the holder is then as before,
    or empty.
    """
    holder = holder or model
    with open_regular(path) as file:
        header = _read_header(file)
        _require_same(header, _identity(model))
        n_tokens, n_state, earlier = _sizes(header, model, holder)
        sizes = [4 * n_tokens, n_state, *(size for _, size in earlier)]
        n_bytes = file.tell() + sum(sizes)
        if os.fstat(file.fileno()).st_size != n_bytes:
            raise ValueError("it is cut short or damaged")
        parts = [np.empty(size, np.uint8) for size in sizes]
        for part in parts:
            if file.readinto(part.data) != part.nbytes:
                raise ValueError("it is cut short")
    if header.get("sha256") != _digest(parts):
        raise ValueError("it is damaged")
    tokens, state = parts[0].view("<i4"), parts[1]
    if tokens.min() < 0 or tokens.max() >= model.n_vocab:
        raise ValueError("it holds tokens that the model does not have")
    copies = [(length, part) for (length, _), part in zip(earlier, parts[2:], strict=True)]
    _require_layout(holder, model, tokens.tolist(), state, copies)
    for length, copy in copies:  # a copy may be bad too
        if holder.restore(tokens.tolist(), state, [(length, copy)]):
            holder.truncate(length)
            _require_numbers(holder)
    if not holder.restore(tokens.tolist(), state, copies):
        holder.doubt(lambda: None)  # a part of it may be left in cells
        raise ValueError("llama.cpp does not take its state")
    _require_numbers(holder)
    holder.doubt(report)
    return n_bytes


def _require_layout(
    holder: CachedText,
    model: LlamaModel,
    tokens: Sequence[int],
    state: NDArray[np.uint8],
    copies: Sequence[Copy],
) -> None:
    """Raise ValueError, and leave no tokens, unless all cells are those of the tokens.

    Only a model that is alone in its context, which is emptied as a whole, takes a state whose
    layout is not known.
    """
    holder.truncate(0)
    holder.decode(tokens[:1], 0)
    parts = learn_layout(holder.state())
    holder.truncate(0)
    if parts is not None:
        require_cells(state, parts, len(tokens), model.n_vocab)
        for length, copy in copies:
            require_copy(copy, parts, length, model.n_vocab)
    elif holder is not model:
        raise ValueError("states of this model cannot be checked; restart with --parallel 1")


def _require_numbers(holder: CachedText) -> None:
    """Raise ValueError, and leave no tokens, if the next tokens have no logits.

    NaN or infinity anywhere spoils all later tokens. Several tokens are tried: an infinite key
    hides from a query of the opposite sign.
    """
    length, room = len(holder.tokens), holder.n_ctx - len(holder.tokens)
    tried, found = holder.tokens[-min(_TRIED, room) :] if room else [], list[bool]()
    holder.doubt(lambda: found.append(True))
    if tried:
        holder.decode(tried, len(tried))
        holder.truncate(length)
    if found:
        holder.truncate(0)
        raise ValueError("its state gives logits that are not numbers")


def _read_header(file: BinaryIO) -> dict[str, Any]:
    start = file.read(_START.size)
    if len(start) < _START.size:
        raise ValueError("it is cut short")
    magic, length = _START.unpack(start)
    if magic != _MAGIC or length > _MAX_HEADER:
        raise ValueError("it is damaged")
    try:
        header = json.loads(file.read(length).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError("its header is damaged") from error
    if not isinstance(header, dict):
        raise ValueError("its header is damaged")
    return header


def _require_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise ValueError with the first difference between the settings of two states."""
    if found.get("format") != wanted["format"]:
        raise ValueError("another version of localspec wrote it")
    if found.get("model") != wanted["model"]:
        raise ValueError(f"it belongs to another model, {str(found.get('name'))[:99]}")
    if found.get("adapters") != wanted["adapters"]:
        raise ValueError("it was made with other adapters (--lora)")
    if found.get("place") == wanted["place"] and found.get("changed") != wanted["changed"]:
        raise ValueError("the model's file was changed since")
    settings = found.get("settings")
    for name, value in wanted["settings"].items():
        was = settings.get(name) if isinstance(settings, dict) else None
        if was != value:
            raise ValueError(f"it was made with {name} {str(was)[:99]}, not {value}")
    if settings != wanted["settings"]:
        raise ValueError("it was made with other settings")


def _sizes(
    header: dict[str, Any], model: LlamaModel, holder: CachedText
) -> tuple[int, int, list[tuple[int, int]]]:
    """Tokens, bytes of their state, lengths and bytes of copies: all that a context can hold."""
    n_tokens, n_state = header.get("tokens"), header.get("state")
    try:
        copies = [(int(length), int(size)) for length, size in header["copies"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError("its header is damaged") from error
    if type(n_tokens) is not int or type(n_state) is not int or n_tokens < 1:
        raise ValueError("its header is damaged")
    if n_tokens > (room := holder.room_for(n_tokens)):
        raise ValueError(
            f"it holds {n_tokens} tokens, and the context has room for no more than {room}"
        )
    most = model.memory.kv + _CELL * (model.n_ctx + 2**16)
    if not 0 < n_state <= most:
        raise ValueError("its state is larger than the context")
    lengths = [0, *(length for length, _ in copies), n_tokens + 1]
    rising = all(a < b for a, b in itertools.pairwise(lengths))
    if len(copies) > _MOST_COPIES or not rising or not all(0 < size <= most for _, size in copies):
        raise ValueError("its header is damaged")
    return n_tokens, n_state, copies


def _identity(model: LlamaModel) -> dict[str, Any]:
    """The settings that a state depends on, as they come back from JSON."""
    settings = {name: value for name, value in model.settings().items() if name not in _FREE}
    header, loras = model.header, [lora.path for lora in model.options.loras]
    settings["loras"] = [lora.scale for lora in model.options.loras]
    paths = [*header.paths, *loras]
    place = [os.path.realpath(path) for path in paths]  # hashed: not for the clients of a server
    changed = [path.stat().st_mtime_ns for path in paths]
    identity = {
        "format": FORMAT,
        "name": header.name or header.path.name,
        "model": _fingerprint(header.paths, header if len(header.paths) == 1 else None),
        "adapters": _fingerprint(loras),
        "place": hashlib.sha256(repr(place).encode()).hexdigest(),
        "changed": hashlib.sha256(repr(changed).encode()).hexdigest(),
        "settings": settings,
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity, default=str))
    return plain


def _fingerprint(paths: Sequence[Path], whole: ModelHeader | None = None) -> str:
    """`fingerprint`, and a sample of each tensor: a fine-tune may differ in few of them.

    ``whole`` is the header of the only file, if that is read already.
    """
    digest = hashlib.sha256(fingerprint(paths).encode())
    for part in [whole] if whole else map(read_part, paths):
        with part.path.open("rb") as file:
            for tensor in part.tensors:
                file.seek(part.data_start + tensor.offset + max(0, tensor.n_bytes - _SAMPLE) // 2)
                digest.update(file.read(min(tensor.n_bytes, _SAMPLE)))
    return digest.hexdigest()


def _digest(parts: Sequence[NDArray[np.uint8]]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.data)
    return digest.hexdigest()
