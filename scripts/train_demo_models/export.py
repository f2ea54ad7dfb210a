"""Export of the trained pair as GGUF files, and the checksums of all models."""

import hashlib
import json
from pathlib import Path

import gguf
import numpy as np

from scripts.train_demo_models.model import (
    CONTEXT_LENGTH,
    HEAD_SIZE,
    RMS_EPSILON,
    ROPE_BASE,
    Llama,
    load_model,
)
from scripts.train_demo_models.text.tokenizer import (
    BOS,
    CHAT_TEMPLATE,
    END,
    SPECIAL_TOKENS,
    VOCABULARY_SIZE,
)


def export_pair(work_dir: Path, out_dir: Path) -> None:
    """Write both GGUF files and SHA256SUMS."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for name in ("target", "draft"):
        path = export_model(work_dir, out_dir, name)
        print(f"export: {path.name}, {path.stat().st_size:,} bytes", flush=True)
    write_sums(out_dir)


def write_sums(out_dir: Path) -> None:
    """Write SHA256SUMS for the models that are there."""
    paths = [out_dir / f"{name}.gguf" for name in ("target", "draft", "hybrid")]
    sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in paths if p.exists()]
    (out_dir / "SHA256SUMS").write_text("\n".join(sums) + "\n")


def export_model(work_dir: Path, out_dir: Path, name: str) -> Path:
    """Write one model as a GGUF file: matrices as F16, norms as F32."""
    model = load_model(work_dir, name)
    path = out_dir / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_description(writer, name, f"{name} model", model.parameter_count())
    _add_architecture(writer, model)
    _add_tokenizer(writer, work_dir / "tokenizer.json")
    for key, weight in model.state_dict().items():
        kind = np.float32 if weight.ndim == 1 else np.float16
        writer.add_tensor(key, weight.float().numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_description(writer: gguf.GGUFWriter, name: str, kind: str, weights: int) -> None:
    """Name, size and licence of a model; ``kind`` says in a few words what it is."""
    writer.add_type("model")
    writer.add_name(f"localspec demo {name}")
    writer.add_size_label(f"{weights / 1e6:.1f}M")
    writer.add_license("other")
    writer.add_license_name("weights of this toy trained on PSF-licensed CPython sources")
    writer.add_description(
        f"A toy {kind} trained on the source of the Python standard library, made to show "
        "speculative decoding. Its answers are not to be relied on."
    )


def _add_architecture(writer: gguf.GGUFWriter, model: Llama) -> None:
    shape = model.shape
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_vocab_size(VOCABULARY_SIZE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Write the tokens in the order of their ids, the merges and the chat template."""
    bpe = json.loads(path.read_text(encoding="utf-8"))["model"]
    tokens = sorted(bpe["vocab"], key=lambda token: int(bpe["vocab"][token]))
    if sorted(bpe["vocab"].values()) != list(range(VOCABULARY_SIZE)):
        raise SystemExit("The tokenizer has not one token for each id.")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(BOS))
    writer.add_eot_token_id(tokens.index(END))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
