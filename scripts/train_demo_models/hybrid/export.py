"""Export of the hybrid as a GGUF file, proved to compute what was trained."""

from pathlib import Path

import gguf
import numpy as np

from scripts.train_demo_models.export import add_description, write_sums
from scripts.train_demo_models.hybrid.equality import require_equal
from scripts.train_demo_models.hybrid.model import Hybrid
from scripts.train_demo_models.hybrid.shape import CONVOLUTION, RMS_EPSILON, HybridShape
from scripts.train_demo_models.hybrid.training import FOLDER, load_hybrid
from scripts.train_demo_models.model import CONTEXT_LENGTH, HEAD_SIZE, ROPE_BASE
from scripts.train_demo_models.text.tokenizer import VOCABULARY_SIZE

PROOF_LENGTH = 300  # tokens
SECTIONS = [11, 11, 10, 0]  # of M-RoPE: text has no fourth position, so it gets no pairs


def publish_hybrid(work_dir: Path, out_dir: Path) -> None:
    """Write the trained hybrid beside the pair; exits if llama.cpp computes something else."""
    model, path = load_hybrid(work_dir), out_dir / "hybrid.gguf"
    export_hybrid(model, out_dir / "target.gguf", path)
    ids: list[int] = np.load(work_dir / FOLDER / "held_chat.npy")[:PROOF_LENGTH].tolist()
    require_equal(model, path, ids)
    write_sums(out_dir)
    print(f"export: {path.name}, {path.stat().st_size:,} bytes", flush=True)


def export_hybrid(model: Hybrid, tokenizer_of: Path, path: Path) -> None:
    """Write the model with the tokenizer and chat template of another file: matrices as F16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "qwen35")
    weights = model.parameter_count()
    add_description(writer, "hybrid", "hybrid model with an MTP head,", weights)
    _add_architecture(writer, model.shape)
    _copy_tokenizer(writer, tokenizer_of)
    for name, weight in model.state_dict().items():
        if name.endswith("ssm_a"):
            weight = -weight.exp()
        small = weight.ndim == 1 or name.endswith("ssm_conv1d.weight")
        kind = np.float32 if small else np.float16
        writer.add_tensor(name.replace("mixer.", ""), weight.float().numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_architecture(writer: gguf.GGUFWriter, shape: HybridShape) -> None:
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_full_attention_interval(shape.period)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_dimension_sections(SECTIONS)
    writer.add_ssm_conv_kernel(CONVOLUTION)
    writer.add_ssm_inner_size(shape.heads * HEAD_SIZE)
    writer.add_ssm_state_size(HEAD_SIZE)
    writer.add_ssm_time_step_rank(shape.heads)
    writer.add_ssm_group_count(shape.heads)
    writer.add_vocab_size(VOCABULARY_SIZE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _copy_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """The tokenizer's fields as they are."""
    for name, field in gguf.GGUFReader(path).fields.items():
        if name.startswith("tokenizer."):
            sub_type = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
