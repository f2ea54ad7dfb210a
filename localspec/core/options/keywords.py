"""Types of keyword arguments; `scripts/write_option_types.py` writes this file."""

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

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    top_n_sigma: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dynatemp_range: float | None
    dynatemp_exp: float | None
    repeat_penalty: float | None
    repeat_last_n: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: list[str] | tuple[str, ...] | None
    logit_bias: list[str] | tuple[str, ...] | Mapping[int, float] | None
    ignore_eos: bool | None
    seed: int | None
    acceptance: AcceptanceRule | None
    draft_tokens: DraftTokens | Literal["off"] | None
    prompt_lookup: bool | None
    max_tokens: int | None
    stop: list[str] | tuple[str, ...] | str | None
    grammar: str | None
    logprobs: int | None
    sampled_logprobs: bool | None
    cache_prompt: bool | None
    max_seconds: float | None
    reasoning_budget: int | None
    reasoning_budget_message: str | None


class LoadKeywords(AnswerKeywords, total=False):
    """Options of loading, and of all answers: also fields of `LoadOptions` and `RopeOptions`."""

    ctx_size: int | None
    draft_ctx_size: int | None
    threads: int | None
    draft_threads: int | None
    threads_batch: int | None
    batch_size: int | None
    ubatch_size: int | None
    mlock: bool | None
    mmap: bool | None
    flash_attention: FlashAttention | bool | None
    cache_type_k: CacheType | None
    draft_cache_type_k: CacheType | None
    cache_type_v: CacheType | None
    draft_cache_type_v: CacheType | None
    exact: bool | None
    row_kernels: bool | None
    gpu_layers: int | Literal["auto", "all"] | None
    draft_gpu_layers: int | Literal["auto", "all"] | None
    device: str | None
    draft_device: str | None
    cpu_moe_layers: int | None
    override_tensors: list[str] | tuple[str, ...] | None
    draft_override_tensors: list[str] | tuple[str, ...] | None
    tensor_split: list[float] | tuple[float, ...] | None
    split_mode: SplitMode | None
    main_gpu: int | None
    rpc: RpcServers | str | None
    trust_rpc_network: bool | None
    loras: list[Lora] | tuple[Lora, ...] | list[str] | tuple[str, ...] | None
    override_kv: list[KeyValue] | tuple[KeyValue, ...] | list[str] | tuple[str, ...] | None
    rope_scaling_type: RopeScaling | None
    rope_freq_base: float | None
    rope_freq_scale: float | None
    yarn_orig_ctx: int | None
    yarn_ext_factor: float | None
    yarn_attn_factor: float | None
    yarn_beta_slow: float | None
    yarn_beta_fast: float | None
    branches: int | None
    verbose: bool | None
