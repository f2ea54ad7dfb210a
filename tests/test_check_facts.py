"""scripts/check_facts.py on sources written from our own lists, and on those at hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.metadata.checks.names import ARCHITECTURES, PRE_GROUPS
from localspec.metadata.gguf_file import GGML_TYPES
from localspec.metadata.header import DIFFUSION, FILE_TYPES
from localspec.metadata.vocab import PRE_ADDS_BOS

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_facts.py"


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)


def symbol(name: str) -> str:
    return "LLM_ARCH_" + name.upper().replace("-", "_").replace(".", "_")


def sources() -> dict[str, str]:
    """The parts of llama.cpp that the script reads, as they would be for our lists."""
    table = "".join(f'{{ {symbol(name)}, "{name}" }},\n' for name in sorted(ARCHITECTURES))
    cases = "".join(f"case {symbol(name)}:\n" for name in sorted(DIFFUSION))
    branches = [
        f'(tokenizer_pre == "{name}") {{ add_bos = {str(name in PRE_ADDS_BOS).lower()}; }}'
        for name in sorted(PRE_GROUPS, key=lambda name: name != "default")
    ]
    types = "".join(f"GGML_TYPE_{each.name} = {i}, // 4\n" for i, each in GGML_TYPES.items())
    files = "".join(f"LLAMA_FTYPE_MOSTLY_{name} = {i},\n" for i, name in FILE_TYPES.items())
    names = "llama_set_embeddings_nextn llama_get_embeddings_nextn llama_set_nextn_layer_offset "
    names += "llama_get_ctx_other llama_set_embeddings_layer_inp llama_get_embeddings_layer_inp"
    return {
        "src/llama-arch.cpp": f"LLM_ARCH_NAMES = {{{table}}};\n"
        f"bool llm_arch_is_diffusion() {{ {cases} return true; default: return false; }}",
        "src/llama-vocab.cpp": f"if {' else if '.join(branches)} unknown pre-tokenizer type",
        "src/llama-ext.h": "".join(f"void {name}(void);\n" for name in names.split()),
        "include/llama.h": f"enum llama_ftype {{ {files} }};",
        "ggml/include/ggml.h": f"enum ggml_type {{ {types} GGML_TYPE_COUNT = 43, }};",
        "ggml/include/ggml-rpc.h": "#define RPC_PROTO_MAJOR_VERSION 7\n"
        "#define RPC_PROTO_MINOR_VERSION 0\n",
    }


@pytest.mark.parametrize(
    ("path", "before", "after", "said"),
    [
        ("src/llama-arch.cpp", '"qwen35" }', '"qwen36" }', "ARCHITECTURES: llama.cpp has ['qwen36'] too, and lacks ['qwen35']."),  # noqa: E501
        ("src/llama-arch.cpp", "case LLM_ARCH_DREAM:", "", "DIFFUSION: llama.cpp has [] too, and lacks ['dream']."),  # noqa: E501
        ("src/llama-vocab.cpp", '"tekken"', '"tekken2"', "PRE_GROUPS: llama.cpp has ['tekken2']"),
        ("src/llama-vocab.cpp", "add_bos = true", "add_bos = false", "PRE_ADDS_BOS: llama.cpp has [] too"),  # noqa: E501
        ("src/llama-ext.h", "llama_get_ctx_other(", "llama_ctx_other(", "FUNCTIONS: "),
        ("include/llama.h", "MOSTLY_MXFP4 = 38", "MOSTLY_MXFP4 = 48", "FILE_TYPES: "),
        ("ggml/include/ggml.h", "GGML_TYPE_Q4_K = 12", "GGML_TYPE_Q4_K = 13", "GGML_TYPES: "),
        ("ggml/include/ggml-rpc.h", "MAJOR_VERSION 7", "MAJOR_VERSION 8", "PROTOCOL: llama.cpp has ['8.0']"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_list_that_differs_is_named(
    tmp_path: Path, path: str, before: str, after: str, said: str
) -> None:
    for name, text in sources().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    same = check(tmp_path)
    assert (same.returncode, same.stdout) == (0, "All lists are those of these sources.\n")
    text = (tmp_path / path).read_text()
    assert before in text
    (tmp_path / path).write_text(text.replace(before, after))
    found = check(tmp_path)
    assert found.returncode == 1 and said in found.stdout


def test_a_folder_without_sources(tmp_path: Path) -> None:
    found = check(tmp_path)
    assert found.returncode == 1 and "holds no sources of llama.cpp" in found.stderr


@pytest.mark.skipif("LLAMA_CPP_SOURCES" not in os.environ, reason="LLAMA_CPP_SOURCES is not set")
def test_the_pinned_version() -> None:
    found = check(Path(os.environ["LLAMA_CPP_SOURCES"]))
    assert (found.returncode, found.stdout) == (0, "All lists are those of these sources.\n")
