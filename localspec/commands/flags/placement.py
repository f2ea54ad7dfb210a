"""Flags for contexts, threads, GPUs and caches of both models."""

from dataclasses import dataclass, field
from typing import Annotated, get_args

import typer

from localspec.commands.flags.groups import choice, parsed_by, whole
from localspec.core.config import (
    ALL_LAYERS,
    BATCH,
    CACHE_TYPES,
    CTX_SIZE,
    LAYERS,
    THREADS,
    TRAINED_CTX_SIZE,
    FlashAttention,
    RpcServers,
    Shares,
    SplitMode,
    parse_rpc_servers,
    parse_shares,
)

_DRAFTING, _LOADING, _DEVICES = "Drafting", "Loading", "Devices"
AUTO_LAYERS = -1  # as many as fit
_layers = whole(
    LAYERS, {"auto": AUTO_LAYERS, "-1": AUTO_LAYERS, "all": ALL_LAYERS, "-2": ALL_LAYERS}
)


@dataclass(frozen=True)
class PlacementFlags:
    """Contexts, threads, GPUs and caches of the target and the draft."""

    draft_ctx_size: Annotated[
        int | None,
        typer.Option(
            "--draft-ctx-size",
            "-cd",
            metavar="N",
            min=CTX_SIZE.low,
            max=CTX_SIZE.high,
            help="Context of the draft in tokens: of a longer text it sees the most recent part. "
            "Default: as the target's, at most 4096 and what the draft was trained for.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    draft_threads: Annotated[
        int | None,
        typer.Option(
            "--draft-threads",
            "-td",
            metavar="N",
            min=THREADS.low,
            max=THREADS.high,
            help="Threads of the draft. Default: as --threads.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    draft_n_gpu_layers: Annotated[
        int | None,
        typer.Option(
            "--draft-n-gpu-layers",
            "-ngld",
            metavar="N|auto|all",
            parser=_layers,
            help="Layers of the draft on the GPU. Default: auto, as many as fit, before the "
            "target's.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    draft_device: Annotated[
        str | None,
        typer.Option(
            "--draft-device",
            "-devd",
            help="Devices of the draft, comma-separated, or none.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    override_tensor_draft: Annotated[
        list[str],
        typer.Option(
            "--override-tensor-draft",
            "-otd",
            metavar="PATTERN=BUFFER",
            help="As --override-tensor, for the draft.",
            rich_help_panel=_DRAFTING,
        ),
    ] = field(default_factory=list)
    cache_type_k_draft: Annotated[
        str | None,
        typer.Option(
            "--cache-type-k-draft",
            "-ctkd",
            metavar="TYPE",
            parser=choice(*CACHE_TYPES),
            help="Type of the draft's cached keys. Default: as --cache-type-k.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    cache_type_v_draft: Annotated[
        str | None,
        typer.Option(
            "--cache-type-v-draft",
            "-ctvd",
            metavar="TYPE",
            parser=choice(*CACHE_TYPES),
            help="Type of the draft's cached values. Default: as --cache-type-v.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    ctx_size: Annotated[
        int | None,
        typer.Option(
            "--ctx-size",
            "-c",
            metavar="N",
            parser=whole(CTX_SIZE, {"0": TRAINED_CTX_SIZE}),
            help="Context in tokens; 0: what the model was trained for. Default: the smaller of "
            "8192 and that, or less where memory is short.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            "-t",
            metavar="N",
            min=THREADS.low,
            max=THREADS.high,
            help="CPU threads for one token at a time. Default: physical cores.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    threads_batch: Annotated[
        int | None,
        typer.Option(
            "--threads-batch",
            "-tb",
            metavar="N",
            min=THREADS.low,
            max=THREADS.high,
            help="CPU threads for prompts and verification. Default: as --threads.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    n_gpu_layers: Annotated[
        int | None,
        typer.Option(
            "--n-gpu-layers",
            "-ngl",
            metavar="N|auto|all",
            parser=_layers,
            help="Layers on the GPU. Default: auto, as many as fit.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-dev",
            help="Devices of the target, comma-separated, or none; see localspec doctor.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    n_cpu_moe: Annotated[
        int | None,
        typer.Option(
            "--n-cpu-moe",
            "-ncmoe",
            metavar="N",
            min=LAYERS.low,
            max=LAYERS.high,
            help="Keep the experts of the first N layers in RAM. Default: 0.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    override_tensor: Annotated[
        list[str],
        typer.Option(
            "--override-tensor",
            "-ot",
            metavar="PATTERN=BUFFER",
            help="Buffer type for the target's tensors that match a regular expression.",
            rich_help_panel=_DEVICES,
        ),
    ] = field(default_factory=list)
    tensor_split: Annotated[
        Shares | None,
        typer.Option(
            "--tensor-split",
            "-ts",
            metavar="SHARE,SHARE...",
            parser=parsed_by(parse_shares),
            help="Share of the layers for each GPU, such as 3,1.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    split_mode: Annotated[
        str | None,
        typer.Option(
            "--split-mode",
            "-sm",
            metavar="|".join(get_args(SplitMode)),
            parser=choice(*get_args(SplitMode)),
            help="How a model is spread over several GPUs. Default: layer.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    main_gpu: Annotated[
        int,
        typer.Option(
            "--main-gpu",
            "-mg",
            metavar="N",
            min=0,
            max=1023,
            help="The one GPU of --split-mode none, or that of row for what cannot be split.",
            rich_help_panel=_DEVICES,
        ),
    ] = 0
    rpc: Annotated[
        RpcServers | None,
        typer.Option(
            "--rpc",
            metavar="HOST:PORT,...",
            parser=parsed_by(parse_rpc_servers),
            help="Spread the target over llama.cpp's RPC servers, for one that is too large for "
            "this machine; the draft stays here. Weights and text travel unencrypted.",
            rich_help_panel=_DEVICES,
        ),
    ] = None
    trust_rpc_network: Annotated[
        bool,
        typer.Option(
            "--trust-rpc-network",
            help="Let --rpc use addresses outside the private networks.",
            rich_help_panel=_DEVICES,
        ),
    ] = False
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            "-b",
            metavar="N",
            min=BATCH.low,
            max=BATCH.high,
            help="Tokens of a prompt that llama.cpp takes in a call. Default: 512.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    ubatch_size: Annotated[
        int | None,
        typer.Option(
            "--ubatch-size",
            "-ub",
            metavar="N",
            min=BATCH.low,
            max=BATCH.high,
            help="Tokens that llama.cpp computes at once; more take more memory. Default: 512.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    mlock: Annotated[
        bool, typer.Option("--mlock", help="Lock the models in RAM.", rich_help_panel=_LOADING)
    ] = False
    no_mmap: Annotated[
        bool,
        typer.Option(
            "--no-mmap",
            help="Read the models into memory instead of mapping their files.",
            rich_help_panel=_LOADING,
        ),
    ] = False
    flash_attn: Annotated[
        str | None,
        typer.Option(
            "--flash-attn",
            "-fa",
            metavar="auto|on|off",
            parser=choice(*get_args(FlashAttention)),
            help="Flash attention; alone it means on. Default: auto, off on a CPU but for short "
            "contexts.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    cache_type_k: Annotated[
        str | None,
        typer.Option(
            "--cache-type-k",
            "-ctk",
            metavar="TYPE",
            parser=choice(*CACHE_TYPES),
            help=f"Type of the cached keys: {', '.join(CACHE_TYPES)}. Default: f16.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    cache_type_v: Annotated[
        str | None,
        typer.Option(
            "--cache-type-v",
            "-ctv",
            metavar="TYPE",
            parser=choice(*CACHE_TYPES),
            help="Type of the cached values. Default: f16.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Identical text for every draft length, also in long contexts: no token is "
            "decoded alone, since that rounds differently. A little slower.",
            rich_help_panel=_LOADING,
        ),
    ] = False
