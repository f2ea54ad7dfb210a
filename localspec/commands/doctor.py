"""The command ``doctor``: what is installed here, and whether it works."""

from dataclasses import asdict

import typer

from localspec.commands.flags import tuned
from localspec.commands.flags.answer import JsonFlag
from localspec.commands.flags.settings import read_settings
from localspec.display import reports
from localspec.display.terminal import console


def doctor(as_json: JsonFlag = False) -> None:
    """Check build, devices, cores, memory and folders, and run the demo pair once."""
    from localspec.engine.doctor import examine

    result = examine(console.note)
    if found := tuned.shown_for(read_settings()):
        result.facts["tuned"] = found
    if as_json:
        console.json_line(asdict(result))
    else:
        reports.doctor_report(result)
    raise typer.Exit(0 if result.healthy else 1)
