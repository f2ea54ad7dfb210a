"""Command-line flags that several commands share, in groups."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from localspec.core.config import (
    ACCEPTANCE_RULES,
    CACHE_TYPES,
    CTX_SIZE,
    LAYERS,
    THREADS,
    DraftOptions,
    FlashAttention,
    LoadOptions,
    choose_draft,
)

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A pair's name, or the target instead of --target."),
]
_DRAFTING, _LOADING, _SAMPLING = "Drafting", "Loading", "Sampling"


def _choice(*allowed: str) -> Callable[[str], str]:
    """A parser that accepts only the given words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(allowed)}.")
        return text

    return parse


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """Which models, how far to draft, and how to load them."""

    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-m",
            "--model",
            metavar="MODEL",
            help="The big model: a GGUF file, a file on the Hub (org/repo:Q4_K_M, "
            "hf:org/repo/file.gguf), which is fetched if it is not here, or a pair's name, which "
            "names the draft too.",
        ),
    ] = None
    draft: Annotated[
        list[str],
        typer.Option(
            "--draft",
            help="Draft model (a file, one on the Hub, or find: the best one on this disk), or "
            "draft length (a number, auto or off). May be given twice, once for each.",
            metavar="MODEL|N|auto|off",
            rich_help_panel=_DRAFTING,
        ),
    ] = field(default_factory=list)
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            "-md",
            metavar="MODEL",
            help="The small model, named as the big one.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    draft_tokens: Annotated[
        str | None,
        typer.Option(
            "--draft-tokens",
            help="Draft length, in tokens a round: a number, off, or auto, the default: as many "
            "as pay, by measured costs and acceptance. bench takes several: 0,2,4,auto.",
            metavar="N|auto|off",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    suffix: Annotated[
        str,
        typer.Option(
            "--suffix",
            parser=_choice("on", "off"),
            metavar="on|off",
            help="Let auto use prompt lookup: tokens that followed the same n-gram earlier in the "
            "text, with a draft model or without.",
            rich_help_panel=_DRAFTING,
        ),
    ] = "on"
    lenient: Annotated[
        bool,
        typer.Option(
            "--lenient",
            help="Accept pairs that llama.cpp refuses for harmless reasons: control or unused "
            "tokens, BOS and EOS ids, vocabulary size.",
            rich_help_panel=_DRAFTING,
        ),
    ] = False
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="Forget what auto learnt about this pair, and measure again.",
            rich_help_panel=_DRAFTING,
        ),
    ] = False
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
            parser=_choice(*get_args(FlashAttention)),
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
            parser=_choice(*CACHE_TYPES),
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
            parser=_choice(*CACHE_TYPES),
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
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show llama.cpp's log on stderr.")
    ] = False

    def draft_options(self) -> DraftOptions:
        """What ``--draft`` and its long forms mean together."""
        return choose_draft(self.draft, self.draft_model, self.draft_tokens)

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


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """How a token is chosen; None leaves it to the model's recommendation or the default."""

    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            "--temp",
            help="Temperature; 0 is greedy. Default 0.8.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            help="Keep the K likeliest tokens; 0: off. Default 40.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            help="Keep the likeliest tokens of this total probability; 1: off. Default 0.95.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p",
            help="Keep tokens of at least this share of the best one's probability; 0: off. "
            "Default 0.05.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        typer.Option(
            "--repeat-penalty",
            help="Penalty of recent tokens; 1: off. Default 1.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        typer.Option(
            "--repeat-last-n",
            help="Tokens the penalty looks back; -1: all. Default 64.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            "-s",
            help="Its text is the same with any draft length, except with --acceptance rejection. "
            "Default: random.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    acceptance: Annotated[
        str | None,
        typer.Option(
            "--acceptance",
            parser=_choice(*ACCEPTANCE_RULES),
            metavar="|".join(ACCEPTANCE_RULES),
            help="Which drafted tokens are accepted. coupled, the default: target and draft sample "
            "with the same noise. match: the draft's likeliest, if the target samples it. "
            "rejection: the p/q test; the text for a seed then depends on the draft, whose length "
            "must be a number. All rules keep the target's distribution.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None

    def given(self) -> dict[str, float | int | str | None]:
        """Flag values by the names of SamplingParams, None where a flag was left out."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class AnswerFlags:
    """What comes before an answer, and where it ends."""

    system: Annotated[str | None, typer.Option("--system", "-sys", help="A system message.")] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", "-n", min=1, help="Most tokens of an answer. Default: the context."
        ),
    ] = None
    stop: Annotated[
        list[str], typer.Option("--stop", help="End before this text; may be repeated.")
    ] = field(default_factory=list)


# Settings kept with a pair whose flags are called otherwise; sampling has the same names.
_FLAG_OF = {
    "gpu_layers": "n_gpu_layers",
    "draft_gpu_layers": "draft_n_gpu_layers",
    "cpu_moe_layers": "n_cpu_moe",
    "flash_attention": "flash_attn",
}


def settle(
    models: ModelFlags, sampling: SamplingFlags, settings: Mapping[str, object]
) -> tuple[ModelFlags, SamplingFlags]:
    """Flags over a pair's settings, the draft length left out: what was given stays."""
    for name, value in settings.items():
        flag = _FLAG_OF.get(name, name)
        if hasattr(models, flag):
            given = getattr(models, flag)
            if given is None or given is False:
                models = replace(models, **{flag: value})  # type: ignore[arg-type]
        elif getattr(sampling, flag) is None:
            sampling = replace(sampling, **{flag: value})  # type: ignore[arg-type]
    return models, sampling


def kept_settings(models: ModelFlags, sampling: SamplingFlags) -> dict[str, object]:
    """What `settle` would restore: settings that were given, by the names a pair keeps them."""
    from localspec.library.pair_schema import SETTINGS

    settings: dict[str, object] = {}
    if models.draft_options().lengths:
        length = models.draft_options().one_length("auto")
        settings["draft_tokens"] = "off" if length == 0 else length
    for name in SETTINGS:
        value = getattr(models, _FLAG_OF.get(name, name), None)
        if name != "draft_tokens" and value is not None and value is not False:
            settings[name] = value
    return settings | {name: value for name, value in sampling.given().items() if value is not None}


def unkept_flags(models: ModelFlags) -> list[str]:
    """Flags that were given and cannot be kept with a pair: they belong to a machine or a run."""
    values = {
        "--device": models.device,
        "--draft-device": models.draft_device,
        "--override-tensor": models.override_tensor,
        "--mlock": models.mlock,
        "--suffix": models.suffix == "off",
        "--recalibrate": models.recalibrate,
    }
    return [flag for flag, value in values.items() if value]


def spread_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command take flag groups: each field of a group becomes an option of the command.

    Typer reads the options from a signature, so the wrapper carries one with the groups spread
    out, and gathers the values again before it calls ``function``.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints[parameter.name]
        if is_dataclass(annotation):
            assert isinstance(annotation, type)
            groups[parameter.name] = annotation
            parameters += _options(annotation)
        else:
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=keyword, annotation=annotation))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        function(**values)

    del command.__wrapped__  # its signature would win over ours
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _options(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(group)
    ]
