"""Flags for how both models are loaded."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args

import typer

from localspec.commands.flags.groups import choice
from localspec.core.config import (
    CACHE_TYPES,
    CTX_SIZE,
    LAYERS,
    THREADS,
    FlashAttention,
    LoadOptions,
)

_DRAFTING, _LOADING = "Drafting", "Loading"


@dataclass(frozen=True, slots=True)
class LoadingFlags:
    """How the target and the draft are loaded."""

    draft_ctx_size: Annotated[
        int | None,
        typer.Option(
            "--draft-ctx-size",
            "-cd",
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
            min=LAYERS.low,
            max=LAYERS.high,
            help="Layers of the draft on the GPU. Default: as many as fit, before the target's.",
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
    ctx_size: Annotated[
        int | None,
        typer.Option(
            "--ctx-size",
            "-c",
            min=CTX_SIZE.low,
            max=CTX_SIZE.high,
            help="Context in tokens. Default: the smaller of 8192 and what the model was "
            "trained for, or less where memory is short.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            "-t",
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
            min=LAYERS.low,
            max=LAYERS.high,
            help="Layers on the GPU. Default: as many as fit.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-dev",
            help="Devices of the target, comma-separated, or none; see localspec doctor.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    n_cpu_moe: Annotated[
        int | None,
        typer.Option(
            "--n-cpu-moe",
            "-ncmoe",
            min=LAYERS.low,
            max=LAYERS.high,
            help="Keep the experts of the first N layers in RAM. Default: 0.",
            rich_help_panel=_LOADING,
        ),
    ] = None
    override_tensor: Annotated[
        list[str],
        typer.Option(
            "--override-tensor",
            "-ot",
            metavar="PATTERN=BUFFER",
            help="Buffer type for the target's tensors that match a regular expression.",
            rich_help_panel=_LOADING,
        ),
    ] = field(default_factory=list)
    mlock: Annotated[
        bool, typer.Option("--mlock", help="Lock the models in RAM.", rich_help_panel=_LOADING)
    ] = False
    flash_attn: Annotated[
        str | None,
        typer.Option(
            "--flash-attn",
            "-fa",
            metavar="auto|on|off",
            parser=choice(*get_args(FlashAttention)),
            help="Flash attention. Default: auto.",
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

    def load_options(
        self, target_path: Path, draft_path: Path | None
    ) -> tuple[LoadOptions, LoadOptions | None]:
        """How to load the target from its file, and the draft if there is one."""
        shared = {
            "mlock": self.mlock,
            "flash_attention": self.flash_attn or "auto",
            "cache_type_k": self.cache_type_k or "f16",
            "cache_type_v": self.cache_type_v or "f16",
        }
        target = LoadOptions(
            path=target_path,
            ctx_size=self.ctx_size,
            gpu_layers=self.n_gpu_layers,
            threads=self.threads,
            threads_batch=self.threads_batch,
            device=self.device,
            cpu_moe_layers=self.n_cpu_moe or 0,
            override_tensors=tuple(self.override_tensor),
            exact=self.exact,
            **shared,  # type: ignore[arg-type]
        )
        if draft_path is None:
            return target, None
        draft = LoadOptions(
            path=draft_path,
            ctx_size=self.draft_ctx_size,
            gpu_layers=self.draft_n_gpu_layers,
            threads=self.draft_threads or self.threads,
            threads_batch=self.draft_threads or self.threads_batch,
            device=self.draft_device or self.device,
            **shared,  # type: ignore[arg-type]
        )
        return target, draft
