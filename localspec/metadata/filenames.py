"""Names of GGUF files, on the disk or in a repository: parts, sidecars, quantisation tags."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

# Stem, number and count of a part, as llama.cpp writes it, in upper or lower case.
PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL | re.IGNORECASE)
# The file that another tool cut into parts, which are no GGUF files: model.gguf.part1of2.
_CUT_NAME = re.compile(
    r"(.+\.gguf)(?:[._-](?:part|split)[._-]?(?:\d+of\d+|[a-z]{1,2}|\d{1,3})|\.\d{3})",
    re.DOTALL | re.IGNORECASE,
)
QUANTISATION = re.compile(r"(?:I?Q|TQ)\d\w*|B?F\d\d|F32|(?:MX|NV)FP4\w*", re.IGNORECASE)

# Kinds of prediction heads by name: in file names, as an architecture (DSpark's is dflash), and
# after "draft-" in llama.cpp (`common_speculative_type`); with a description for sentences.
HEADS = {
    "mtp": "multi-token prediction heads",
    "eagle3": "an EAGLE-3 head",
    "dflash": "a DFlash head",
    "dspark": "a DSpark head",
}

MAX_PARTS = 1000  # of a split model; real ones have some dozens

# Heads inside a target put "-MTP-" into its name, so only a leading "mtp-" marks a lone head; in
# flat caches the repository and "_" stand before it.
_NO_DRAFT = re.compile(r"mmproj|imatrix", re.IGNORECASE)
_HEADS = re.compile(rf"(?:^|_)(mtp)-|(?:^|[-_.])(?!mtp)({'|'.join(HEADS)})(?=[-_.])", re.IGNORECASE)


def is_sidecar(path: str) -> bool:
    """Whether a file accompanies models: a projector, prediction heads, an imatrix.

    By its name and last folder; `path` has forward slashes.
    """
    return bool(_NO_DRAFT.search(path.rpartition("/")[2])) or heads_kind(path) is not None


def heads_kind(path: str) -> str | None:
    """Kind of the prediction heads in a sidecar, of `HEADS`, by its name or folder; else None."""
    folder, _, name = path.rpartition("/")
    found = None if _NO_DRAFT.search(name) else _HEADS.search(name)
    if found is not None:
        return (found[1] or found[2]).lower()
    return "mtp" if folder.rpartition("/")[2].lower() == "mtp" else None


def model_name(path: str) -> str:
    """The model in a file's name, in lower case without separators and quantisation.

    Of prediction heads, their target.
    """
    name = path.rpartition("/")[2]
    name = _HEADS.sub("", name if name.lower().endswith(".gguf") else f"{name}.gguf")
    stem, tag = stem_of(name), tag_of(name)
    if tag is not None:
        stem = stem[: stem.rindex(tag)]
    return re.sub(r"[-_. ]", "", stem).lower()


def stem_of(path: str) -> str:
    """The path without .gguf and the number of a part."""
    found = PART_NAME.fullmatch(path)
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
    """The next step for a folder or repository with safetensors alone, as a clause."""
    name = source.rstrip("/").rpartition("/")[2].strip(".") or "model"  # "." names a folder too
    words = ["python", "convert_hf_to_gguf.py", *(["--remote"] if on_hub else []), source]
    command = shlex.join([*words, "--outfile", f"{name}.gguf"])
    return f"convert it in llama.cpp's source folder with `{command}`"


def part_name(stem: str, number: int, count: int) -> str:
    """The name of one of `count` parts, numbered from 1 (`llama_split_path`)."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def parts_of(path: Path) -> list[Path]:
    """All files of a model, by the name of one, in order."""
    found = PART_NAME.fullmatch(path.name)
    if found is None or not 1 <= int(found[2]) <= int(found[3]):
        return [path]
    names = (sibling_name(path.name, number) for number in range(1, int(found[3]) + 1))
    return [path.with_name(name) for name in names]


def sibling_name(name: str, number: int) -> str:
    """The name of another part, numbered from 1, in the case of this one."""
    found = PART_NAME.fullmatch(name)
    assert found is not None
    return f"{name[: found.start(2)]}{number:05d}{name[found.end(2) :]}"


def cut_from(name: str) -> str | None:
    """The GGUF file that another tool cut into parts, by the name of one; None for other names."""
    found = _CUT_NAME.fullmatch(name)
    return found[1] if found else None


def how_to_join(whole: str, names: Iterable[str]) -> str:
    """The command that makes the whole file of those of ``names`` that are its parts."""

    def in_order(name: str) -> list[tuple[int, str]]:
        return [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d*)", name)]

    parts = sorted((name for name in names if cut_from(name) == whole), key=in_order)
    return f"`cat {shlex.join(parts)} > {shlex.quote(whole)}`"
