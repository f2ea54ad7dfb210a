"""The commands ps and stop: the running servers of this machine."""

import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.commands.flags.answer import HeaderFlag, JsonFlag
from localspec.core.errors import LocalspecError, UsageError
from localspec.display.answer import reading
from localspec.display.terminal import console

if TYPE_CHECKING:
    from localspec.server.running import RunningServer
    from localspec.server.watch import Reading

_START = "Start one: localspec serve NAME"
# As `serve` takes it; the argument is shorter.
_PortFlag = Annotated[int | None, typer.Option("--port", hidden=True, help="As the argument.")]
_END_SECONDS = 15.0  # more than answers under way have to complete


def ps(as_json: JsonFlag = False, header: HeaderFlag = True) -> None:
    """List the servers that run on this machine: model, address, slots, since when.

    If they need a key, set LOCALSPEC_API_KEY to see how many slots are busy.
    """
    from localspec.display import models as lists
    from localspec.server.running import running_servers

    found = [(server, *_state(server)) for server in running_servers()]
    if as_json:
        listed = [
            {**asdict(each), "state": state, "loading": loading, "prompts": prompts, "busy": busy}
            for each, state, loading, prompts, busy in found
        ]
        console.json_line({"servers": listed})
    elif found:
        rows = [
            (
                ", ".join(server.models),
                server.url,
                f"{'?' if busy is None else busy} of {server.slots} busy" if server.slots else "",
                "; ".join(
                    [state]
                    + [f"loading {name}" for name in loading]
                    + [reading(*prompt) for prompt in prompts]
                ),
                f"{datetime.fromtimestamp(server.since):%Y-%m-%d %H:%M}",
                str(server.pid),
            )
            for server, state, loading, prompts, busy in found
        ]
        columns = ("MODEL", "URL", "SLOTS", "STATE", "SINCE", "PID")
        lists.table(columns, rows, ("PID", "SINCE"), header=header)
    else:
        console.note(f"No server is running. {_START}")


def stop(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|PORT]", help="A server's model or port; default: the one."),
    ] = None,
    port: _PortFlag = None,
) -> None:
    """Stop a server that runs on this machine; answers under way have 3 seconds to complete."""
    server = _chosen(name if port is None else str(port))
    if server.stop():
        until = time.monotonic() + _END_SECONDS
        while server.is_alive:
            if time.monotonic() > until:
                raise LocalspecError(
                    f"{server.name} did not end within {_END_SECONDS:g} s.",
                    f"End it at once: kill -9 {server.pid}",
                )
            time.sleep(0.05)
    console.note(f"Stopped: {server.name}.")


def top(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|PORT]", help="A server's model or port; default: all."),
    ] = None,
    port: _PortFlag = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    as_json: JsonFlag = False,
) -> None:
    """Watch the servers that run on this machine: requests, speed, acceptance, memory.

    q or Ctrl-C ends it. Without a terminal they are listed once. If they need a key, set
    LOCALSPEC_API_KEY.
    """
    from localspec.display.top import watch
    from localspec.server.watch import ServerFigures, look

    name = name if port is None else str(port)

    def seen() -> list[ServerFigures]:
        return [look(server) for server in _fitting(name)]

    if as_json:
        console.json_line({"servers": [asdict(each) for each in seen()]})
    elif _fitting(name):
        watch(seen, interval)
    else:
        console.note(f"No server is running. {_START}")


def _fitting(name: str | None) -> "list[RunningServer]":
    """The servers of this name, or all; raises UsageError if some run, but none of the name."""
    from localspec.server.running import running_servers

    found = running_servers()
    fitting = [each for each in found if name is None or each.is_called(name)]
    if found and not fitting:
        listed = "; ".join(each.name for each in found)
        raise UsageError(f"No server is called {name!r}.", f"There are: {listed}.")
    return fitting


def _chosen(name: str | None) -> "RunningServer":
    """The server of this name, or the only one; raises UsageError."""
    fitting = _fitting(name)
    if not fitting:
        raise UsageError("No server is running.", _START)
    if len(fitting) > 1:
        listed = "; ".join(each.name for each in fitting)
        raise UsageError(f"{len(fitting)} servers run here: {listed}.", "Give the port of one.")
    return fitting[0]


def _state(server: "RunningServer") -> tuple[str, list[str], "list[Reading]", int | None]:
    """Its state, the models that it loads, the prompts that it reads, the answers under way."""
    from localspec.server.watch import LOADING, UNANSWERED, figures

    found = figures(server)
    state = found[0].state if server.is_loading or found[0].state in UNANSWERED else "ready"
    loading = [model.model for model in found if state == "ready" and model.state == LOADING]
    prompts = [prompt for model in found for prompt in model.prompts]
    busy = sum(model.running for model in found) if found[0].known else None
    return state, loading, prompts, busy
