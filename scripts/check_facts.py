"""Compares the lists that were copied out of llama.cpp with the sources of a llama-cpp-python.

    python scripts/check_facts.py FOLDER    # of an unpacked source distribution, or of llama.cpp

For a new version: every list that differs is printed with the names that one side lacks, and the
exit code is 1. Lists that follow from how a graph is built (`LAYER_TAPS`, `MTP_GRAPHS`, sliding
layers) are not read from C++; the tests of architectures hold them.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from localspec.llama.heads.hidden_states import FUNCTIONS
from localspec.llama.rpc.handshake import PROTOCOL
from localspec.metadata import vocab
from localspec.metadata.checks.names import ARCHITECTURES, PRE_GROUPS
from localspec.metadata.gguf_file import GGML_TYPES
from localspec.metadata.header import DIFFUSION, FILE_TYPES

Names = set[str]
_PRE = re.compile(r'tokenizer_pre == "([^"]+)"')


class Sources:
    """The C++ files of a llama.cpp, by their paths in it. Raises SystemExit if it is none."""

    def __init__(self, folder: Path) -> None:
        vendored = folder / "vendor" / "llama.cpp"
        self._root = vendored if vendored.is_dir() else folder
        if not (self._root / "src/llama-arch.cpp").is_file():
            sys.exit(f"{folder} holds no sources of llama.cpp: unpack its source distribution.")

    def read(self, path: str) -> str:
        """The text of a file without comments."""
        text = (self._root / path).read_text(encoding="utf-8")
        return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)

    def between(self, path: str, begin: str, end: str) -> str:
        """The part of a file from one text to the next occurrence of another."""
        text = self.read(path)
        start = text.find(begin)
        if start < 0:
            sys.exit(
                f"{path} has no `{begin}` any more: look where it went, and change this script."
            )
        return text[start : text.index(end, start)]


def _architectures(sources: Sources) -> dict[str, str]:
    """Names of architectures in files, by their names in C++."""
    table = sources.between("src/llama-arch.cpp", "LLM_ARCH_NAMES = {", "};")
    return dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"', table))


def _numbered(sources: Sources, path: str, begin: str, prefix: str) -> Names:
    """Names and numbers of an enumeration."""
    found = re.findall(rf"{prefix}(\w+)\s*=\s*(\d+)", sources.between(path, begin, "};"))
    return {f"{name} = {number}" for name, number in found}


def _branches(sources: Sources) -> Iterator[tuple[list[str], str]]:
    """The pre-tokenizers of each branch of `llama_vocab::impl::load`, and its text."""
    table = sources.between(
        "src/llama-vocab.cpp", 'tokenizer_pre == "default"', "unknown pre-tokenizer type"
    )
    for branch in re.split(r"\belse\b", table):
        if names := _PRE.findall(branch):
            yield names, branch


def _facts(sources: Sources) -> Iterator[tuple[str, Names, Names]]:
    """The name of each list, ours, and llama.cpp's."""
    known = _architectures(sources)
    yield "ARCHITECTURES", {*ARCHITECTURES}, {*known.values()} - {"clip", "(unknown)"}
    diffusion = sources.between("src/llama-arch.cpp", "bool llm_arch_is_diffusion", "default:")
    cases = re.findall(r"case (\w+):", diffusion)
    yield "DIFFUSION", {*DIFFUSION}, {known[case] for case in cases}
    yield (
        "FILE_TYPES",
        {f"{name} = {number}" for number, name in FILE_TYPES.items()},
        {
            each.removeprefix("MOSTLY_").removeprefix("ALL_").replace("_MOE ", " ")
            for each in _numbered(sources, "include/llama.h", "enum llama_ftype {", "LLAMA_FTYPE_")
        }
        - {"GUESSED = 1024"},
    )
    yield (
        "GGML_TYPES",
        {f"{each.name} = {each.type_id}" for each in GGML_TYPES.values()},
        {
            each
            for each in _numbered(sources, "ggml/include/ggml.h", "enum ggml_type {", "GGML_TYPE_")
            if not each.startswith("COUNT")
        },
    )
    branches = [*_branches(sources)]
    yield "PRE_GROUPS", {*PRE_GROUPS}, {name for names, _ in branches for name in names}
    adds = {name for names, does in branches if "add_bos = true" in does for name in names}
    yield "PRE_ADDS_BOS", {*vocab.PRE_ADDS_BOS}, adds
    rpc = sources.read("ggml/include/ggml-rpc.h")
    defined = re.findall(r"RPC_PROTO_(?:MAJOR|MINOR)_VERSION\s+(\d+)", rpc)
    yield "PROTOCOL", {".".join(map(str, PROTOCOL))}, {".".join(defined)}
    declared = sources.read("src/llama-ext.h")
    yield "FUNCTIONS", {*FUNCTIONS}, {name for name in FUNCTIONS if f"{name}(" in declared}


def differences(folder: Path) -> list[str]:
    """A sentence for each list that differs from these sources."""
    found = []
    for name, ours, theirs in _facts(Sources(folder)):
        if ours != theirs:
            more, less = sorted(theirs - ours), sorted(ours - theirs)
            found.append(f"{name}: llama.cpp has {more} too, and lacks {less}.")
    return found


def main() -> None:
    """Print what differs; exit with 1 if anything does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    found = differences(parser.parse_args().folder)
    print("\n".join(found) or "All lists are those of these sources.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
