"""Names of GGUF files: parts of a split model, sidecars (mmproj, heads), tags; and of others.

Paths on the disk and inside a repository alike; no file is opened.
"""

import re
import shlex
from pathlib import Path
from typing import Literal

# Stem, number and count of a part: exactly as llama.cpp writes it, and in any case, as on the Hub.
PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
PART_NAME_IN_ANY_CASE = re.compile(PART_NAME.pattern, re.DOTALL | re.IGNORECASE)
QUANTISATION = re.compile(r"(?:I?Q|TQ)\d\w*|B?F\d\d|F32|(?:MX|NV)FP4\w*", re.IGNORECASE)

MAX_PARTS = 1000  # of a split model; real ones have some dozens

# Heads inside a target put "-MTP-" into its name, so only a leading "mtp-" tells a lone head; in
# flat caches the repository and "_" stand before it.
_NO_DRAFT = re.compile(r"mmproj|imatrix|(?:^|[-_.])dspark[-_.]", re.IGNORECASE)
_HEADS = re.compile(r"(?:^|_)(mtp)-|(?:^|[-_.])(eagle3|dflash)(?=[-_.])", re.IGNORECASE)


def is_sidecar(path: str) -> bool:
    """Whether a file lies beside models and is none: a projector, a lone head, an imatrix.

    Of the path, which has forward slashes, only the name counts and the folder that it is in.
    """
    return bool(_NO_DRAFT.search(path.rpartition("/")[2])) or heads_kind(path) is not None


def heads_kind(path: str) -> Literal["mtp", "eagle3", "dflash"] | None:
    """Which heads a sidecar holds, by its name or folder; None where it does not draft."""
    folder, _, name = path.rpartition("/")
    found = None if _NO_DRAFT.search(name) else _HEADS.search(name)
    if found is not None:
        kind = (found[1] or found[2]).lower()
        return "mtp" if kind == "mtp" else "eagle3" if kind == "eagle3" else "dflash"
    return "mtp" if folder.rpartition("/")[2].lower() == "mtp" else None


def model_name(path: str) -> str:
    """The model that a file's name tells, in small letters without separators and quantisation.

    Of heads, the model that they draft for.
    """
    name = path.rpartition("/")[2]
    name = _HEADS.sub("", name if name.lower().endswith(".gguf") else f"{name}.gguf")
    stem, tag = stem_of(name), tag_of(name)
    if tag is not None:
        stem = stem[: stem.rindex(tag)]
    return re.sub(r"[-_. ]", "", stem).lower()


def stem_of(path: str) -> str:
    """The path without what every GGUF file's ends in: .gguf, and a part's number."""
    found = PART_NAME_IN_ANY_CASE.fullmatch(path)
    return found[1] if found else path[: -len(".gguf")]


def tag_of(path: str) -> str | None:
    """The quantisation in a file's name, as written there, or None."""
    words = re.split(r"[-./]", stem_of(path))
    plain = [word for word in words if QUANTISATION.fullmatch(word)]
    if plain:
        return plain[-1]
    found = re.search(rf"_({QUANTISATION.pattern})$", words[-1], re.IGNORECASE)
    return found[1] if found else None


def how_to_convert(source: str, *, on_hub: bool) -> str:
    """The next step for a model that only has safetensors: a clause, for a folder or repository."""
    name = source.rstrip("/").rpartition("/")[2].strip(".") or "model"  # "." names a folder too
    words = ["python", "convert_hf_to_gguf.py", *(["--remote"] if on_hub else []), source]
    command = shlex.join([*words, "--outfile", f"{name}.gguf"])
    return f"convert it in llama.cpp's source folder with `{command}`"


def part_name(stem: str, number: int, count: int) -> str:
    """The name of one of `count` parts, numbered from 1 (`llama_split_path`)."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def parts_of(path: Path) -> list[Path]:
    """All files of the model that a file's name makes it part of, itself included, in order."""
    found = PART_NAME.fullmatch(path.name)
    if found is None or not 1 <= int(found[2]) <= int(found[3]):
        return [path]
    count = int(found[3])
    return [path.with_name(part_name(found[1], n, count)) for n in range(1, count + 1)]
