"""Export of the hybrid as a GGUF file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from scripts.train_demo_models.hybrid.model import Hybrid
from scripts.train_demo_models.hybrid.shape import CONVOLUTION, RMS_EPSILON, HybridShape
from scripts.train_demo_models.model import CONTEXT_LENGTH, HEAD_SIZE, ROPE_BASE
from scripts.train_demo_models.text.tokenizer import VOCABULARY_SIZE

SECTIONS = [11, 11, 10, 0]  # of M-RoPE: text has no fourth position, so it gets no pairs


def export_hybrid(model: Hybrid, tokenizer_of: Path, path: Path) -> None:
    """Write the model with the tokenizer and chat template of another file: matrices as F16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "qwen35")
    _add_description(writer, model)
    _add_architecture(writer, model.shape)
    _copy_tokenizer(writer, tokenizer_of)
    for name, weight in model.state_dict().items():
        if name.endswith("ssm_a"):
            weight = -weight.exp()
        large = weight.ndim == 2 and not name.endswith("ssm_conv1d.weight")
        kind = np.float16 if large else np.float32
        writer.add_tensor(name.replace("mixer.", ""), weight.float().numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_description(writer: gguf.GGUFWriter, model: Hybrid) -> None:
    writer.add_type("model")
    writer.add_name("localspec demo hybrid")
    writer.add_size_label(f"{model.parameter_count() / 1e6:.1f}M")
    writer.add_license("other")
    writer.add_license_name("weights of this toy trained on PSF-licensed CPython sources")
    writer.add_description(
        "A toy hybrid model with an MTP head, trained on the source of the Python standard "
        "library, made to show speculative decoding. Its answers are not to be relied on."
    )


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
