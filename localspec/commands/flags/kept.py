"""Which flags are kept with a pair, and flags over a pair's settings."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from localspec.commands.flags.loading import LoadingFlags
from localspec.commands.flags.models import AUTO_BRANCHES, ModelFlags
from localspec.commands.flags.placement import AUTO_LAYERS
from localspec.commands.flags.sampling import SamplingFlags
from localspec.core.config import TRAINED_CTX_SIZE

# Settings kept with a pair whose flags are called otherwise; sampling has the same names.
_FLAG_OF = {
    "gpu_layers": "n_gpu_layers",
    "draft_gpu_layers": "draft_n_gpu_layers",
    "cpu_moe_layers": "n_cpu_moe",
    "flash_attention": "flash_attn",
}
# Numbers that stand for auto: it is what a pair has without a setting.
_AUTO = {"gpu_layers": AUTO_LAYERS, "draft_gpu_layers": AUTO_LAYERS, "branches": AUTO_BRANCHES}


class FlagGroups(NamedTuple):
    """The groups of flags of which a pair keeps some."""

    models: ModelFlags
    loading: LoadingFlags
    sampling: SamplingFlags


def settle(groups: FlagGroups, settings: Mapping[str, object]) -> FlagGroups:
    """Flags over a pair's settings, the draft length left out: what was given stays."""
    settled: list[Any] = list(groups)
    for name, value in settings.items():
        flag = _FLAG_OF.get(name, name)
        for i, group in enumerate(settled):
            given = getattr(group, flag, "no flag of this group")
            if given is None or given is False:
                settled[i] = replace(group, **{flag: value})
    return FlagGroups(*settled)


def kept_settings(groups: FlagGroups) -> dict[str, object]:
    """What `settle` would restore: settings that were given, by the names a pair keeps them."""
    from localspec.library.pair_schema import SETTINGS

    settings: dict[str, object] = {}
    options = groups.models.draft_options()
    if options.lengths:
        length = options.one_length("auto")
        settings["draft_tokens"] = "off" if length == 0 else length
    for name in SETTINGS:
        flag = _FLAG_OF.get(name, name)
        for group in groups:
            value = getattr(group, flag, None)
            if value is None or value is False or name == "draft_tokens":
                continue
            if value != _AUTO.get(name):
                settings[name] = value
    return settings


def unkept_flags(models: ModelFlags, loading: LoadingFlags) -> list[str]:
    """Flags that were given and cannot be kept with a pair: they belong to a machine or a run."""
    from localspec.library.pair_schema import SETTINGS

    kept, blank = {_FLAG_OF.get(name, name) for name in SETTINGS}, LoadingFlags()
    unkept = [
        f"--{name.replace('_', '-')}"
        for name in (field.name for field in fields(loading))
        if name not in kept and getattr(loading, name) != getattr(blank, name)
    ]
    others = {
        "--ctx-size 0": loading.ctx_size == TRAINED_CTX_SIZE,
        "--suffix": models.prompt_lookup == "off",
        "--lookup-cache": models.lookup_cache is not None,
        "--lookup-files": bool(models.lookup_files),
        "--recalibrate": models.recalibrate,
    }
    return unkept + [flag for flag, given in others.items() if given]
