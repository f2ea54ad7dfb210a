"""Choice of sampling parameters: flags over a model's recommendation over defaults; from text."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from localspec.core.errors import UsageError
from localspec.core.formatting import one_line
from localspec.core.options.option import options
from localspec.core.options.sampling_params import (
    MAX_SEED,
    RANDOM_SEED,
    SamplingParams,
    sampling_fields,
    unescaped,
)

_MIROSTAT = ("mirostat", "mirostat_tau", "mirostat_eta")
_SEQUENCE = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"


class ChosenSampling(NamedTuple):
    """Parameters, the fields that the model recommended, and the recommendations that were ignored.

    ``ignored`` names each recommendation with its value.
    """

    params: SamplingParams
    recommended: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def choose_sampling(
    given: Mapping[str, object], recommended: Mapping[str, float | int | str]
) -> ChosenSampling:
    """Merge flags over the model's own recommendation over llama.cpp's defaults.

    ``given`` maps our field names to a value or None; ``recommended`` maps keys below
    `general.sampling.` as read from the file. A recommendation for a sampler that is not here, or
    outside its range, is ignored, since the file is untrusted. Without a seed, or with -1, a
    random one is chosen. Raises UsageError for a flag outside its range.
    """
    params = _with(SamplingParams(), "seed", RANDOM_SEED)
    names = {row.gguf_key: name for name, row in options(SamplingParams).items()}
    from_model, ignored = [], []
    for key, value in recommended.items():
        name = names.get(key)
        if name is None:
            if not _has_no_effect(key, recommended):
                ignored.append(recommendation(key, value))
        elif given.get(name) is None:
            try:
                params = _with(params, name, float(value))
            except (UsageError, ValueError, OverflowError):
                ignored.append(recommendation(key, value))
            else:
                from_model.append(name)
    for name, chosen in given.items():
        if chosen is not None:
            options(SamplingParams)[name].require_type(chosen)
            params = _with(params, name, chosen)
    return ChosenSampling(params, tuple(from_model), tuple(ignored))


def _has_no_effect(key: str, recommended: Mapping[str, float | int | str]) -> bool:
    """Whether llama.cpp would sample as we do with this key too."""
    if key in _MIROSTAT:
        return recommended.get("mirostat", 0) == 0
    return key == "sequence" and recommended[key] == _SEQUENCE


def recommendation(key: str, value: float | int | str) -> str:
    return one_line(f"{key} {value}" if isinstance(value, str) else f"{key} {value:g}")


def change_sampling(params: SamplingParams, name: str, text: str) -> SamplingParams:
    """The parameters with one read from text, several texts by blanks; raises UsageError."""
    field = sampling_field(name)
    kind = type(getattr(SamplingParams(), field))  # 0 may stand for 0.0 in the ones given
    try:
        value = _read(text, kind)
    except (ValueError, KeyError):
        expected = {int: "a whole number", bool: "on or off"}.get(kind, "a number")
        raise UsageError(f"{text!r} is no value for {name}.", f"Expected {expected}.") from None
    return _with(params, field, value)


def described(params: SamplingParams, name: str) -> str:
    """The value of a parameter, its meaning and its allowed values; raises UsageError."""
    row = options(SamplingParams)[sampling_field(name)]
    values = ", ".join(row.choices) or ("on, off" if isinstance(row.default, bool) else "")
    if row.bounds is not None:
        values = f"{row.bounds.low} to {row.bounds.high}"
    allowed = f" Values: {values}." if values else ""
    return f"{row.name} {written(params, row.name)} · {row.help_text}{allowed}"


def sampling_field(name: str) -> str:
    """The parameter of a name or flag, such as ``top-k``, ``temp``; raises UsageError."""
    rows = options(SamplingParams)
    flags = {flag.lstrip("-"): row for row in rows for flag in rows[row].flags}
    field = flags.get(name, name.replace("-", "_"))
    if field in sampling_fields():
        return field
    near = get_close_matches(field, [*sampling_fields(), *flags], 1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(
        f"There is no setting {name!r}.", f"{meant}Settings are: {', '.join(sampling_fields())}."
    )


def _read(text: str, kind: type) -> object:
    if kind is bool:
        return {"on": True, "true": True, "off": False, "false": False}[text.strip().lower()]
    if kind is tuple:
        return tuple(map(unescaped, text.split()))
    return kind(text)


def written(params: SamplingParams, name: str) -> str:
    """The value of a parameter as `change_sampling` reads it."""
    value = getattr(params, name)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_escaped, value))
    return str(value)


def _escaped(text: str) -> str:
    for shown, meant in (("\\\\", "\\"), ("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t")):
        text = text.replace(meant, shown)
    return text


def _with(params: SamplingParams, name: str, value: Any) -> SamplingParams:
    if name == "seed" and value == RANDOM_SEED:
        value = secrets.randbelow(MAX_SEED + 1)
    typed = type(getattr(SamplingParams(), name))(value)
    changes: dict[str, Any] = {name: typed}
    return replace(params, **changes)
