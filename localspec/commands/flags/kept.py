"""Which options are stored with a pair."""

from localspec.commands.flags.groups import Given, flag_for
from localspec.commands.flags.loading import PAIR_ROWS, picked
from localspec.core.model_options import PairOptions
from localspec.core.option import AUTO

# Options of a pair that are stored in another form, or only show more.
_ELSEWHERE = ("target", "draft", "draft_model", "draft_tokens", "verbose")


def kept_settings(given: Given) -> dict[str, object]:
    """What was given of the options that a pair's file may hold, auto left out."""
    lengths = PairOptions(**picked(given, PairOptions)).draft_options()
    settings: dict[str, object] = {}
    if lengths.lengths:
        settings["draft_tokens"] = lengths.one_length("auto") or "off"
    for name, value in given.items():
        if PAIR_ROWS[name].kept and value != AUTO:
            settings[name] = list(value) if isinstance(value, tuple) else value
    return settings


def unkept_flags(given: Given) -> list[str]:
    """Flags that were given and cannot be stored with a pair: they belong to a machine or a run."""
    unkept = []
    for name, value in given.items():
        row = PAIR_ROWS[name]
        if name in _ELSEWHERE or value in (row.default, AUTO):
            continue
        if not row.kept:
            unkept.append(flag_for(row, value))
        elif (bounds := row.asked or row.bounds) and not bounds.low <= value <= bounds.high:
            unkept.append(f"{flag_for(row, value)} {value}")
    return unkept
