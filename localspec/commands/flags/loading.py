"""Flags for how both models are loaded, those that change what a model computes among them."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, get_args

import typer

from localspec.commands.flags.groups import choice, number, parsed_by
from localspec.commands.flags.placement import AUTO_LAYERS, PlacementFlags
from localspec.core.config import (
    CTX_SIZE,
    DEFAULT_BATCH,
    KeyValue,
    LoadOptions,
    Lora,
    RopeOptions,
    RopeScaling,
    RpcServers,
    parse_key_value,
    parse_lora,
)
from localspec.core.errors import UsageError

_ADAPTING = "Rope and adapters"
_SCALE, _FACTOR, _BASE = (1e-6, 1e6), (0.0, 1e6), (1e-3, 1e12)


@dataclass(frozen=True)
class LoadingFlags(PlacementFlags):
    """How the target and the draft are loaded."""

    rope_scaling: Annotated[
        str | None,
        typer.Option(
            "--rope-scaling",
            metavar="|".join(get_args(RopeScaling)),
            parser=choice(*get_args(RopeScaling)),
            help="RoPE scaling of the target. Default: the model's.",
            rich_help_panel=_ADAPTING,
        ),
    ] = None
    rope_scale: Annotated[
        float | None,
        typer.Option(
            "--rope-scale",
            metavar="N",
            parser=number(*_SCALE),
            help="Stretch the target's context N times; 1 over --rope-freq-scale.",
            rich_help_panel=_ADAPTING,
        ),
    ] = None
    rope_freq_base: Annotated[
        float | None,
        typer.Option(
            "--rope-freq-base",
            metavar="N",
            parser=number(*_BASE),
            help="RoPE base frequency of the target. Default: the model's.",
            rich_help_panel=_ADAPTING,
        ),
    ] = None
    rope_freq_scale: Annotated[
        float | None,
        typer.Option(
            "--rope-freq-scale",
            metavar="N",
            parser=number(*_SCALE),
            help="RoPE frequency scale of the target: 0.5 stretches the context twice.",
            rich_help_panel=_ADAPTING,
        ),
    ] = None
    yarn_orig_ctx: Annotated[
        int | None,
        typer.Option(
            "--yarn-orig-ctx",
            metavar="N",
            min=CTX_SIZE.low,
            max=CTX_SIZE.high,
            help="YaRN: context the target was trained for, in tokens. Default: the model's.",
            rich_help_panel=_ADAPTING,
        ),
    ] = None
    yarn_ext_factor: Annotated[
        float | None,
        typer.Option(
            "--yarn-ext-factor",
            metavar="N",
            parser=number(*_FACTOR),
            help="YaRN: share of extrapolation; 0: none.",
            rich_help_panel=_ADAPTING,
        ),
    ] = None
    yarn_attn_factor: Annotated[
        float | None,
        typer.Option(
            "--yarn-attn-factor",
            metavar="N",
            parser=number(*_FACTOR),
            help="YaRN: factor of the attention.",
            rich_help_panel=_ADAPTING,
        ),
    ] = None
    yarn_beta_slow: Annotated[
        float | None,
        typer.Option(
            "--yarn-beta-slow",
            metavar="N",
            parser=number(*_FACTOR),
            help="YaRN: turns below which frequencies are stretched.",
            rich_help_panel=_ADAPTING,
        ),
    ] = None
    yarn_beta_fast: Annotated[
        float | None,
        typer.Option(
            "--yarn-beta-fast",
            metavar="N",
            parser=number(*_FACTOR),
            help="YaRN: turns above which frequencies stay.",
            rich_help_panel=_ADAPTING,
        ),
    ] = None
    lora: Annotated[
        list[Path],
        typer.Option(
            "--lora",
            metavar="FILE",
            help="A LoRA adapter (GGUF) for the target; may be repeated.",
            rich_help_panel=_ADAPTING,
        ),
    ] = field(default_factory=list)
    lora_scaled: Annotated[
        list[Lora],
        typer.Option(
            "--lora-scaled",
            metavar="FILE:SCALE",
            parser=parsed_by(parse_lora),
            help="A LoRA adapter with its weight; may be repeated.",
            rich_help_panel=_ADAPTING,
        ),
    ] = field(default_factory=list)
    override_kv: Annotated[
        list[KeyValue],
        typer.Option(
            "--override-kv",
            metavar="KEY=TYPE:VALUE",
            parser=parsed_by(parse_key_value),
            help="Replace a metadata value of both models (int, float, bool, str).",
            rich_help_panel=_ADAPTING,
        ),
    ] = field(default_factory=list)

    def load_options(
        self, target_path: Path, draft_path: Path | None
    ) -> tuple[LoadOptions, LoadOptions | None]:
        """How to load the target from its file, and the draft if there is one.

        Raises UsageError for flags that contradict each other.
        """
        self._check_rpc()
        target = self._target(target_path)
        return target, None if draft_path is None else self._draft(draft_path, target)

    def _target(self, path: Path) -> LoadOptions:
        batch_size, ubatch_size = self._batches()
        return LoadOptions(
            path=path,
            ctx_size=self.ctx_size,
            gpu_layers=_layers(self.n_gpu_layers),
            threads=self.threads,
            threads_batch=self.threads_batch,
            device=self.device,
            cpu_moe_layers=self.n_cpu_moe or 0,
            override_tensors=tuple(self.override_tensor),
            cache_type_k=self.cache_type_k or "f16",
            cache_type_v=self.cache_type_v or "f16",
            rope=self._rope(),
            loras=(*(Lora(path) for path in self.lora), *self.lora_scaled),
            exact=self.exact,
            mlock=self.mlock,
            mmap=not self.no_mmap,
            batch_size=batch_size,
            ubatch_size=ubatch_size,
            flash_attention=self.flash_attn or "auto",  # type: ignore[arg-type]
            override_kv=tuple(self.override_kv),
            tensor_split=self.tensor_split or (),
            main_gpu=self.main_gpu,
            split_mode=self.split_mode or "layer",  # type: ignore[arg-type]
            rpc=self.rpc or RpcServers(),
            trust_rpc_network=self.trust_rpc_network,
        )

    def _draft(self, path: Path, target: LoadOptions) -> LoadOptions:
        """The draft is loaded as the target but for what has flags of its own, or is the target's.

        Shares and numbers of GPUs count the devices of a model: they follow the target's where the
        draft's devices do. Rope, adapters, --exact and RPC servers belong to the target.
        """
        other_devices = {"tensor_split": (), "main_gpu": 0, "split_mode": "layer"}
        own_devices = self.draft_device is not None or self.rpc is not None
        return replace(
            target,
            path=path,
            ctx_size=self.draft_ctx_size,
            gpu_layers=_layers(self.draft_n_gpu_layers),
            threads=self.draft_threads or self.threads,
            threads_batch=self.draft_threads or self.threads_batch,
            device=self.draft_device if own_devices else self.device,
            cpu_moe_layers=0,
            override_tensors=tuple(self.override_tensor_draft),
            cache_type_k=self.cache_type_k_draft or target.cache_type_k,
            cache_type_v=self.cache_type_v_draft or target.cache_type_v,
            rope=RopeOptions(),
            loras=(),
            exact=False,
            rpc=RpcServers(),
            trust_rpc_network=False,
            **(other_devices if own_devices else {}),  # type: ignore[arg-type]
        )

    def _batches(self) -> tuple[int, int]:
        """Tokens in a call of llama.cpp, and at once; where one is given, the other follows."""
        asked, at_once = self.batch_size, self.ubatch_size
        if asked is not None and at_once is not None and at_once > asked:
            raise UsageError(
                f"--ubatch-size {at_once} is more than --batch-size {asked} brings.",
                "Leave one of them out, or give a larger --batch-size.",
            )
        batch = asked or max(at_once or 0, DEFAULT_BATCH)
        return batch, at_once or min(batch, DEFAULT_BATCH)

    def _check_rpc(self) -> None:
        """Raise UsageError for flags that do not go with --rpc, or are nothing without it."""
        if self.rpc is None and self.trust_rpc_network:
            raise UsageError(
                "--trust-rpc-network has no effect without --rpc.", "Add --rpc HOST:PORT."
            )
        if self.rpc is not None and self.split_mode not in (None, "layer"):
            raise UsageError(
                f"--rpc spreads whole layers, which --split-mode {self.split_mode} does not.",
                "Leave --split-mode out.",
            )

    def _rope(self) -> RopeOptions:
        if self.rope_scale is not None and self.rope_freq_scale is not None:
            raise UsageError(
                "--rope-scale and --rope-freq-scale are two names of one value.", "Give one."
            )
        scale = self.rope_freq_scale if self.rope_scale is None else 1 / self.rope_scale
        return RopeOptions(
            rope_scaling_type=self.rope_scaling,  # type: ignore[arg-type]
            rope_freq_base=self.rope_freq_base,
            rope_freq_scale=scale,
            yarn_orig_ctx=self.yarn_orig_ctx,
            yarn_ext_factor=self.yarn_ext_factor,
            yarn_attn_factor=self.yarn_attn_factor,
            yarn_beta_slow=self.yarn_beta_slow,
            yarn_beta_fast=self.yarn_beta_fast,
        )


def _layers(given: int | None) -> int | None:
    return None if given == AUTO_LAYERS else given
