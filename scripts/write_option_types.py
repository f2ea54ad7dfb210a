"""Writes the types of the library's keyword arguments from the tables of options.

    python scripts/write_option_types.py

A type checker reads them from a file, `localspec/core/options/keywords.py`; a test compares it.
"""

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from localspec.core.options.generate_options import GenerateOptions  # noqa: E402
from localspec.core.options.load_options import LoadOptions, RopeOptions  # noqa: E402
from localspec.core.options.model_options import ModelOptions  # noqa: E402
from localspec.core.options.option import Option, options  # noqa: E402
from localspec.core.options.sampling_params import SamplingParams  # noqa: E402

FILE = ROOT / "localspec" / "core" / "options" / "keywords.py"
OF_MODELS = ("branches", "verbose")  # what `localspec.load` takes of ModelOptions
# What else is read: a single text, words, and the texts of flags.
ALSO = {
    "stop": "str",
    "draft_tokens": 'Literal["off"]',
    "flash_attention": "bool",
    "logit_bias": "Mapping[int, float]",
    "loras": "list[str] | tuple[str, ...]",
    "override_kv": "list[str] | tuple[str, ...]",
    "rpc": "str",
}
TEXT = '''"""Types of keyword arguments; `scripts/write_option_types.py` writes this file."""

from collections.abc import Mapping
from typing import Literal, TypedDict

from localspec.core.options.load_options import (
    CacheType,
    DraftTokens,
    FlashAttention,
    KeyValue,
    Lora,
    RopeScaling,
    RpcServers,
    SplitMode,
)
from localspec.core.options.sampling_params import AcceptanceRule


class AnswerKeywords(TypedDict, total=False):
    """Options of an answer: fields of `SamplingParams` and `GenerateOptions`."""

{answer}


class LoadKeywords(AnswerKeywords, total=False):
    """Options of loading, and of all answers: also fields of `LoadOptions` and `RopeOptions`."""

{load}
'''


def text() -> str:
    """The text of the file."""
    answer = [*_fields(SamplingParams), *_fields(GenerateOptions)]
    load = [*_fields(LoadOptions, without=("parallel", "kv_unified")), *_fields(RopeOptions)]
    models = [line for line in _fields(ModelOptions) if line.split(":")[0] in OF_MODELS]
    of = {"answer": answer, "load": [*load, *models]}
    return TEXT.format(**{name: textwrap.indent("\n".join(of[name]), "    ") for name in of})


def _fields(group: type[Any], without: tuple[str, ...] = ()) -> Iterator[str]:
    """A line for each row of a dataclass, with the type that its field is declared with."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
    assert isinstance(body, ast.ClassDef)
    declared = {
        node.target.id: ast.unparse(node.annotation)
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for name, row in options(group).items():
        field = name if name in declared else name.removeprefix("draft_")
        if field in declared and name not in without:
            yield f"{name}: {_accepted(row, declared[field])}"


def _accepted(row: Option, declared: str) -> str:
    """The types that may be given for a value: words too, and None for the default."""
    kinds = re.sub(r"^tuple\[(\w+), \.\.\.\]$", r"list[\1] | tuple[\1, ...]", declared).split(" | ")
    words = [json.dumps(word) for word in row.words if word.isalpha()]
    if "int" in kinds and words:
        kinds.append(f"Literal[{', '.join(words)}]")
    kinds += ALSO.get(row.name, "None").split(" | ")
    return " | ".join([*dict.fromkeys(kind for kind in kinds if kind != "None"), "None"])


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
