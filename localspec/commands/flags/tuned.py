"""Settings that `localspec tune` found: kept for a model, used by every command, undone."""

import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from localspec import __version__
from localspec.commands.flags.settings import (
    TUNED,
    Settings,
    Tuned,
    read_settings,
    settings_document,
    write_settings,
)
from localspec.core import machine

_DRIVER = Path("/proc/driver/nvidia/version")


def this_machine() -> str:
    """Identity of the processor, this build of llama.cpp, its drivers, and localspec."""
    from localspec.llama import llama_library

    driver = _DRIVER.read_text() if _DRIVER.exists() else ""
    parts = [__version__, machine.cpu_name(), machine.logical_cores(), driver]
    text = json.dumps([*parts, llama_library.identity()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def tuned_values(
    settings: Settings, model: str | None, draft: str | None, taken: Collection[str]
) -> tuple[dict[str, Any], str]:
    """The settings kept for a model with the ``draft`` that a flag names, and a note on them.

    The names that are ``taken`` are set otherwise. Another draft is another pair. A draft that was
    found to be faster replaces none that is named.
    """
    found = settings.tuned_for(model)
    if found is None or found.draft != file_name(draft):
        return {}, ""
    if found.machine != this_machine():
        return {}, (
            f"The settings of localspec tune of {found.date} are not used: they are of another "
            f"processor, driver or build. Measure again: localspec tune {model}"
        )
    other = found.values.get("draft_model")
    if draft is not None and other is not None:
        return {}, f"localspec tune of {found.date} found a faster draft: --draft {other}"
    values = {name: value for name, value in found.values.items() if name not in taken}
    words = " ".join(f"{name}={value}" for name, value in values.items())
    return values, f"Settings of localspec tune of {found.date}: {words}." if values else ""


def file_name(draft: str | None) -> str:
    """The name by which a draft is recognised in any folder; empty for none."""
    return "" if draft is None else Path(draft).name


def shown_for(settings: Settings) -> str:
    """The models for which settings were found, and when."""
    return ", ".join(f"{model} ({origin(found)})" for model, found in settings.tuned.items())


def origin(found: Tuned) -> str:
    """When settings were found, and that they are not used if they are stale."""
    stale = "" if found.machine == this_machine() else ", not used: of another machine or build"
    return f"{found.date}{stale}"


def keep(model: str, draft: str | None, values: Mapping[str, Any]) -> None:
    """Keep settings for a model, and the draft that was named, in place of those found before."""
    document = settings_document()
    table = document.setdefault(TUNED, {})
    table[model] = {
        "date": date.today().isoformat(),
        "machine": this_machine(),
        "draft": file_name(draft),
        **values,
    }
    write_settings(document)


def undo(model: str) -> bool:
    """Remove the settings kept for a model; False if there were none."""
    if read_settings().tuned_for(model) is None:
        return False
    document = settings_document()
    for name in {model, Path(model).name, Path(model).stem}:
        document[TUNED].pop(name, None)
    if not document[TUNED]:
        del document[TUNED]
    write_settings(document)
    return True
