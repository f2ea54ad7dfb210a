"""Checks of names: architectures and tensors that llama.cpp knows; it loads no others."""

import re
from collections.abc import Iterator

from localspec.core.formatting import one_line
from localspec.metadata.header import ModelHeader

# `LLM_ARCH_NAMES`
ARCHITECTURES = frozenset(
    """
afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom
chameleon chatglm codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2
deepseek2-ocr deepseek32 deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5 ernie4_5-moe
eurobert exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma2 gemma3 gemma3n
gemma4 gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptj gptneox granite
granite_swa granitehybrid granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe
hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2 jina-bert-v3 kimi-k3 kimi-linear
laguna lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba mamba2 maple mellum
mimo2 minicpm minicpm3 minimax-01 minimax-m2 minimax-m3 mistral3 mistral4 modern-bert mpt
muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo
olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm
pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl
qwen3vlmoe qwen4exp refact rnd1 rwkv6 rwkv6qwen2 rwkv7 seed_oss smallthinker smollm3 spark2_5
stablelm starcoder starcoder2 step35 t5 t5encoder talkie wavtokenizer-dec xverse
""".split()
)
# The parts of a model that tensors belong to (`LLM_TENSOR_NAMES`).
_PARTS = re.compile(
    r"(altup|blk|cls|conf|conv1d|convnext|d2t|dec|dense|enc|fc|hrm|markov|masked|nextn|output|per"
    r"|position|posnet|rope|selector|token)[._]|(d2t|fc)$"
)
_VISION = re.compile(r"(v|mm|a|vision|audio)\w*\.")
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


def architecture_faults(header: ModelHeader) -> Iterator[str]:
    """An architecture that llama.cpp does not know."""
    if header.complete and header.architecture not in ARCHITECTURES:
        yield f"has the unknown architecture '{one_line(header.architecture)}'"


def tensor_faults(header: ModelHeader) -> Iterator[str]:
    """The first tensor that llama.cpp would leave out, whereupon it refuses the file."""
    layers = header.block_count
    for tensor in header.tensors:
        shown, block = f"the tensor '{one_line(tensor.name)}'", _BLOCK.match(tensor.name)
        if not _PARTS.match(tensor.name):
            of_eyes = " of vision or audio" * bool(_VISION.match(tensor.name))
            yield f"holds {shown}{of_eyes}, which is no part of a text model"
            return
        if block and layers and int(block[1]) >= layers:
            yield f"holds {shown}, but has only {layers:,} layers"
            return
