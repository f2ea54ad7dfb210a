"""Twenty small GGUF models of many families, lying about as on a real disk: ours and other tools'.

`Zoo.environment` has the variables under which localspec sees nothing else. Sizes are those of the
real models divided by a million; the tokenizers agree and differ where the real ones do. Only the
two of the repository `zoo/tiny-GGUF` can be run.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.support.files.gguf_files import (
    I32,
    U16,
    Typed,
    gguf_bytes,
    model_tensors,
    vocab_keys,
    words,
)
from tests.support.files.tiny_models import write_tiny_model

FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
COMMIT = "0123456789abcdef0123456789abcdef01234567"

# What `localspec list` shows: 20 models, each once.
SHOWN: Mapping[str, tuple[str, ...]] = {
    "localspec": (
        "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf",
        "bartowski/Qwen2.5-14B-Instruct-GGUF/Qwen2.5-14B-Instruct-Q4_K_M-00001-of-00002.gguf",
        "zoo/tiny-GGUF/tiny-draft-F16.gguf",
        "zoo/tiny-GGUF/tiny-target-F16.gguf",
    ),
    "hugging face": (
        "Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf",
        "bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q8_0.gguf",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
        "ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q8_0.gguf",
        "ggml-org/gemma-3-27b-it-GGUF/gemma-3-27b-it-Q4_K_M.gguf",
    ),
    "llama.cpp": (
        "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf",
        "bartowski_gemma-2-27b-it-GGUF_gemma-2-27b-it-Q4_K_M.gguf",
        "bartowski_gemma-2-2b-it-GGUF_gemma-2-2b-it-Q8_0.gguf",
    ),
    "lm studio": (
        "TheBloke/Llama-2-13B-chat-GGUF/llama-2-13b-chat.Q4_K_M.gguf",
        "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF/tinyllama-1.1b-chat-v1.0.Q8_0.gguf",
        "lmstudio-community/Qwen2.5-0.5B-Instruct-GGUF/Qwen2.5-0.5B-Instruct-Q8_0.gguf",
    ),
    "ollama": (
        "hf.co/bartowski/Mistral-Small-24B-Instruct-2501-GGUF:Q4_K_M",
        "llama3:8b",
        "nomic-embed-text:latest",
    ),
    "jan": ("janhq/Jan-v1-4B-Q4_K_M",),
    "gpt4all": ("mamba-2.8b.Q4_0.gguf",),
}
# What a second tool has as well.
SHARED: Mapping[str, tuple[str, ...]] = {
    "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf": ("lm studio",),
    "bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q8_0.gguf": ("ollama",),
}


@dataclass(frozen=True, slots=True)
class Zoo:
    """Where it is, and the environment in which it is all there is."""

    folder: Path
    environment: dict[str, str]
    shown: Mapping[str, tuple[str, ...]]
    shared: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Family:
    """A tokenizer: control tokens behind the words, or before them where it is SentencePiece.

    The first control token begins a text; `eos` is the place among them of the one that ends it.
    """

    n_words: int
    control: tuple[str, ...]
    model: str = "gpt2"
    pre: str | None = None
    eos: int = 1
    padding: int = 0

    def keys(self) -> dict[str, object]:
        size = self.n_words + len(self.control)
        tail = [f"[PAD{size + number}]" for number in range(self.padding)]
        kinds = dict.fromkeys(self.control, 3) | dict.fromkeys(tail, 5)
        ordinary = words(self.n_words, self.model)
        before = self.model != "gpt2"
        texts = [*self.control, *ordinary] if before else [*ordinary, *self.control, *tail]
        keys = vocab_keys(
            texts,
            model=self.model,
            pre=self.pre,
            types=[kinds.get(text, 1) for text in texts],
            merges=None if before else ("w o",),
            bos=texts.index(self.control[0]),
            eos=texts.index(self.control[self.eos]),
        )
        return keys | ({"tokenizer.ggml.scores": [0.0] * size} if before else {})


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
GEMMA = ("<bos>", "<eos>", "<start_of_turn>")
QWEN25_SMALL = Family(600, CHATML, pre="qwen2", eos=2)
QWEN25_LARGE = Family(600, CHATML, pre="qwen2", eos=2, padding=128)
QWEN3 = Family(600, (*CHATML, "<tool_response>", "</tool_response>"), pre="qwen2", eos=2)
LLAMA30 = Family(500, (*LLAMA3, "<|reserved_special_token_2|>"), pre="llama-bpe")
LLAMA31 = Family(500, (*LLAMA3, "<|finetune_right_pad_id|>"), pre="llama-bpe")
LLAMA2 = Family(320, ("<s>", "</s>"), model="llama")
MISTRAL3 = Family(480, ("<s>", "</s>", "[INST]"), model="llama")
TEKKEN = Family(520, ("<s>", "</s>", "[INST]"), pre="tekken")
GEMMA2 = Family(400, GEMMA, model="llama")
GEMMA3 = Family(700, GEMMA, model="llama")
NEOX = Family(300, ("<|endoftext|>", "<|padding|>"), pre="olmo", eos=0)
BERT = Family(250, ("[CLS]", "[SEP]"), model="bert")


def model_keys(
    architecture: str, name: str, family: Family, quantization: str, extra: Mapping[str, object]
) -> dict[str, object]:
    """Keys of a small model; `extra` are keys of the architecture."""
    sizes: dict[str, object] = {
        "context_length": 8192,
        "block_count": 1,
        "embedding_length": 256,
        "attention.head_count": 4,
    }
    return {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": name,
        "general.file_type": FILE_TYPES[quantization],
        **{f"{architecture}.{key}": value for key, value in {**sizes, **extra}.items()},
        **family.keys(),
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }


def model_bytes(
    architecture: str,
    name: str,
    family: Family,
    thousands: int,
    quantization: str = "Q4_K_M",
    extra: Mapping[str, object] = MappingProxyType({}),
) -> bytes:
    """A whole file with `thousands` of weights, all of them zero."""
    keys = model_keys(architecture, name, family, quantization, extra)
    return gguf_bytes(keys, model_tensors(1000 * thousands))


def split_bytes(architecture: str, name: str, family: Family, thousands: int) -> list[bytes]:
    """The same in two parts, all metadata in the first."""
    tensors = model_tensors(1000 * thousands)
    keys = model_keys(architecture, name, family, "Q4_K_M", {})
    parts = []
    for number, (some_keys, some) in enumerate([(keys, tensors[:1]), ({}, tensors[1:])]):
        counts = {
            "split.no": Typed(U16, number),
            "split.count": Typed(U16, 2),
            "split.tensors.count": Typed(I32, len(tensors)),
        }
        parts.append(gguf_bytes({**some_keys, **counts}, some))
    return parts


def put(path: Path, data: bytes | str) -> Path:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put_in_hub_cache(root: Path, repo: str, name: str, data: bytes) -> Path:
    """A blob and the link to it, as huggingface_hub leaves them."""
    folder = root / f"models--{repo.replace('/', '--')}"
    put(folder / "refs" / "main", COMMIT)
    blob = put(folder / "blobs" / sha256(data), data)
    link = folder / "snapshots" / COMMIT / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    return link


def put_in_shared_store(root: Path, repo: str, name: str, data: bytes) -> Path:
    """The same where the blob is a link into the store that all repositories share (2.x)."""
    link = put_in_hub_cache(root, repo, name, data)
    blob = root / f"models--{repo.replace('/', '--')}" / "blobs" / sha256(data)
    stored = sha256(b"xet" + data)  # another hash than SHA-256 of the content
    blob.rename(put(root / "blobs" / stored[:2] / stored, b""))
    blob.symlink_to(os.path.relpath(root / "blobs" / stored[:2] / stored, blob.parent))
    return link


def put_in_ollama(
    root: Path, name: str, data: bytes, media: str = "model", tree: str = "manifests"
) -> Path:
    """A blob and the manifest `host/namespace/model/tag` that names it beside others."""
    put(root / "blobs" / f"sha256-{sha256(data)}", data)
    return put(root / tree / name, json.dumps(ollama_manifest(data, media)))


def ollama_manifest(data: bytes, media: str = "model") -> dict[str, object]:
    kinds = {"license": b"MIT", media: data, "template": b"{{ .Prompt }}"}
    return {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"digest": f"sha256:{sha256(b'config')}", "size": 6},
        "layers": [
            {
                "mediaType": f"application/vnd.ollama.image.{kind}",
                "digest": f"sha256:{sha256(content)}",
                "size": len(content),
            }
            for kind, content in kinds.items()
        ],
    }


def put_in_new_ollama(root: Path, name: str, data: bytes) -> Path:
    """The same as newer versions do it: an entry links to a blob that lists manifests."""
    put(root / "blobs" / f"sha256-{sha256(data)}", data)
    listed = []
    for form, content in (("safetensors", b"other weights"), ("gguf", data)):
        manifest = json.dumps(ollama_manifest(content)).encode()
        put(root / "blobs" / f"sha256-{sha256(manifest)}", manifest)
        listed.append({"digest": f"sha256:{sha256(manifest)}", "format": form})
    document = json.dumps({"schemaVersion": 2, "manifests": listed}).encode()
    blob = put(root / "blobs" / f"sha256-{sha256(document)}", document)
    entry = root / "manifests-v2" / name
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.symlink_to(os.path.relpath(blob, entry.parent))
    return entry


def put_record(path: Path, repo: str) -> Path:
    """The record that a download leaves beside its file."""
    data = path.read_bytes()
    record = {
        "repo": repo, "revision": "main", "commit": COMMIT, "path": path.name, "size": len(data),
        "sha256": sha256(data),
    }  # fmt: skip
    return put(path.with_name(f".{path.name}.origin.json"), json.dumps(record))


def fill_our_folder(root: Path) -> None:
    tiny = root / "zoo" / "tiny-GGUF"
    tiny.mkdir(parents=True)
    target, draft = tiny / "tiny-target-F16.gguf", tiny / "tiny-draft-F16.gguf"
    write_tiny_model(
        target, seed=1, embedding=128, heads=2, feed_forward=256, layers=4, name="Tiny target"
    )
    write_tiny_model(draft, seed=2, layers=1, name="Tiny draft")
    for path in (target, draft):
        put_record(path, "zoo/tiny-GGUF")
    put(
        root / "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf",
        model_bytes("llama", "Mistral 7B Instruct v0.3", MISTRAL3, 7),
    )
    stem = root / "bartowski" / "Qwen2.5-14B-Instruct-GGUF" / "Qwen2.5-14B-Instruct-Q4_K_M"
    parts = split_bytes("qwen2", "Qwen2.5 14B Instruct", QWEN25_LARGE, 14)
    for number, part in enumerate(parts, 1):
        put(stem.with_name(f"{stem.name}-{number:05d}-of-00002.gguf"), part)
    # What is no model, or not yet one.
    for number in (1, 3):
        put(root / "unsloth" / "Big-GGUF" / f"Big-Q8_0-{number:05d}-of-00003.gguf", parts[0])
    put(root / "zoo" / "vision-GGUF" / "mmproj-model-f16.gguf", parts[0])
    put(root / "zoo" / f".half.gguf.{'a' * 16}.part", parts[0])
    put(root / "zoo" / "half.gguf.incomplete", parts[0])
    put(root / "zoo" / "nothing.gguf", b"")
    put(root / "zoo" / "pointer.gguf", "version https://git-lfs.github.com/spec/v1\n")


def fill_hub_cache(root: Path) -> bytes:
    small = model_bytes("llama", "Llama 3.2 1B Instruct", LLAMA31, 1, "Q8_0")
    models = {
        "bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q8_0.gguf": small,
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf": (
            model_bytes("llama", "Meta Llama 3.1 8B Instruct", LLAMA31, 8)
        ),
        "ggml-org/gemma-3-27b-it-GGUF/gemma-3-27b-it-Q4_K_M.gguf": model_bytes(
            "gemma3", "Gemma 3 27b It", GEMMA3, 27, extra={"attention.sliding_window": 1024}
        ),
        "ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q8_0.gguf": model_bytes(
            "gemma3", "Gemma 3 1b It", GEMMA3, 1, "Q8_0", {"attention.sliding_window": 512}
        ),
        "ggml-org/gemma-3-27b-it-GGUF/mmproj-model-f16.gguf": b"GGUF, the eyes of a model",
    }
    for name, data in models.items():
        repo, _, file = name.rpartition("/")
        put_in_hub_cache(root, repo, file, data)
    qwen = model_bytes("qwen3", "Qwen3 8B", QWEN3, 8)
    put_in_shared_store(root, "Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf", qwen)
    # What is no model, or gone.
    gone = put_in_hub_cache(root, "gone/gone-GGUF", "gone-Q8_0.gguf", b"GGUF, gone")
    gone.resolve().unlink()
    put(root / "models--half--half" / "blobs" / f"{'b' * 64}.incomplete", small)
    put(root / "datasets--zoo--data" / "snapshots" / COMMIT / "data.gguf", small)
    return small


def fill_llama_cpp(root: Path) -> None:
    qwen = model_bytes("qwen3", "Qwen3 0.6B", QWEN3, 1, "Q8_0")
    put_in_hub_cache(root, "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", qwen)
    window = {"attention.sliding_window": 4096}
    for size, thousands, quantization in (("27b", 27, "Q4_K_M"), ("2b", 2, "Q8_0")):
        name = f"gemma-2-{size}-it"
        data = model_bytes("gemma2", name, GEMMA2, thousands, quantization, window)
        put(root / f"bartowski_{name}-GGUF_{name}-{quantization}.gguf", data)
    put(root / "bartowski_half_half.gguf.downloadInProgress", qwen)


def fill_lm_studio(home: Path, shared: Path) -> None:
    root = home / "models"
    models = {
        "lmstudio-community/Qwen2.5-0.5B-Instruct-GGUF/Qwen2.5-0.5B-Instruct-Q8_0.gguf": (
            model_bytes("qwen2", "Qwen2.5 0.5B Instruct", QWEN25_SMALL, 1, "Q8_0")
        ),
        "TheBloke/Llama-2-13B-chat-GGUF/llama-2-13b-chat.Q4_K_M.gguf": model_bytes(
            "llama", "LLaMA v2", LLAMA2, 13
        ),
        "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF/tinyllama-1.1b-chat-v1.0.Q8_0.gguf": model_bytes(
            "llama", "TinyLlama 1.1B Chat v1.0", LLAMA2, 1, "Q8_0"
        ),
    }
    for name, data in models.items():
        put(root / name, data)
    same = root / "bartowski" / "Mistral-7B-Instruct-v0.3-GGUF" / shared.name
    same.parent.mkdir(parents=True)
    os.link(shared, same)
    put(home / "settings.json", "{ this is no JSON")
    elsewhere = put(home / "private" / "elsewhere.gguf", b"GGUF, not to be looked at")
    (root / "TheBloke" / "elsewhere.gguf").symlink_to(elsewhere)


def fill_ollama(root: Path, shared: bytes) -> None:
    library = "registry.ollama.ai/library"
    put_in_ollama(root, f"{library}/llama3.2/1b", shared)
    put_in_ollama(root, f"{library}/llama3/8b", model_bytes("llama", "Llama 3 8B", LLAMA30, 8))
    put_in_ollama(
        root,
        "hf.co/bartowski/Mistral-Small-24B-Instruct-2501-GGUF/Q4_K_M",
        model_bytes("llama", "Mistral Small 24B Instruct 2501", TEKKEN, 24),
    )
    bert = {"pooling_type": 1, "attention.causal": False}
    embed = model_bytes("nomic-bert", "nomic-embed-text", BERT, 1, "F16", bert)
    put_in_new_ollama(root, "ollama.com/library/nomic-embed-text/latest", embed)
    put_in_ollama(root, f"{library}/other/latest", b"weights in another format")
    put(root / "manifests" / library / "broken" / "latest", "{ this is no JSON")


def fill_jan(root: Path) -> None:
    name = "janhq/Jan-v1-4B-Q4_K_M"
    place = f"llamacpp/models/{name}"
    put(root / place / "model.gguf", model_bytes("qwen3", "Jan v1 4B", QWEN3, 4))
    put(root / place / "mmproj.gguf", b"GGUF, the eyes of a model")
    put(root / place / "model.yml", f"model_path: {place}/model.gguf\nname: {name}\n")


def fill_gpt4all(home: Path) -> None:
    folder = home / "gpt4all"
    mamba = model_bytes("mamba", "mamba-2.8b", NEOX, 3, "Q4_0", {"ssm.state_size": 16})
    put(folder / "mamba-2.8b.Q4_0.gguf", mamba)
    put(folder / "incomplete-mamba-7b.Q4_0.gguf", mamba[:5000])
    put(home / ".config" / "nomic.ai" / "GPT4All.ini", f"[General]\nmodelPath={folder}/\n")


def build_zoo(folder: Path) -> Zoo:
    """Make everything below `folder`, which should be empty."""
    home = folder / "home"
    environment = {
        "HOME": home,
        "XDG_CONFIG_HOME": home / ".config",
        "XDG_CACHE_HOME": home / ".cache",
        "XDG_DATA_HOME": home / ".local" / "share",
        "LOCALSPEC_MODELS": folder / "models",
        "HF_HUB_CACHE": folder / "huggingface",
        "LLAMA_CACHE": folder / "llama.cpp",
        "LMSTUDIO_HOME": folder / "lmstudio",
        "OLLAMA_MODELS": folder / "ollama",
        "JAN_DATA_FOLDER": folder / "jan",
    }
    fill_our_folder(environment["LOCALSPEC_MODELS"])
    shared = fill_hub_cache(environment["HF_HUB_CACHE"])
    fill_llama_cpp(environment["LLAMA_CACHE"])
    loose = environment["LOCALSPEC_MODELS"] / "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf"
    fill_lm_studio(environment["LMSTUDIO_HOME"], loose)
    fill_ollama(environment["OLLAMA_MODELS"], shared)
    fill_jan(environment["JAN_DATA_FOLDER"])
    fill_gpt4all(home)
    return Zoo(folder, {name: str(path) for name, path in environment.items()}, SHOWN, SHARED)
