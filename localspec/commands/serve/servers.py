"""The commands ps and stop: the running servers of this machine."""

import json
import os
import re
import ssl
import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import typer

from localspec.commands.flags.answer import HeaderFlag, JsonFlag
from localspec.core.errors import LocalspecError, UsageError
from localspec.display import console

if TYPE_CHECKING:
    from localspec.server.running import RunningServer

_START = "Start one: localspec serve NAME"
_REPLY_SECONDS, _MOST_BYTES = 3, 2**22
_END_SECONDS = 15.0  # more than answers under way have to complete


def ps(as_json: JsonFlag = False, header: HeaderFlag = True) -> None:
    """List the servers that run on this machine: model, address, slots, since when.

    Where they need a key, set LOCALSPEC_API_KEY to see how many slots are busy.
    """
    from localspec.display import models as lists
    from localspec.display.answer import reading
    from localspec.server.running import running_servers

    found = [(server, *_state(server), _busy(server)) for server in running_servers()]
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
                f"{'?' if busy is None else busy} of {server.slots} busy",
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
) -> None:
    """Stop a server that runs on this machine; answers under way have 3 seconds to complete."""
    server = _chosen(name)
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


def _chosen(name: str | None) -> "RunningServer":
    """The server of this name, or the only one; raises UsageError."""
    from localspec.server.running import running_servers

    found = running_servers()
    fitting = [each for each in found if name is None or each.is_called(name)]
    if len(fitting) == 1:
        return fitting[0]
    listed = "; ".join(each.name for each in fitting or found)
    if not found:
        raise UsageError("No server is running.", _START)
    if not fitting:
        raise UsageError(f"No server is called {name!r}.", f"There are: {listed}.")
    raise UsageError(f"{len(fitting)} servers run here: {listed}.", "Give the port of one.")


def _state(server: "RunningServer") -> tuple[str, list[str], list[tuple[int, int]]]:
    """Whether the server answers, the models that it loads, and the prompts that it reads.

    The state is "ready", "stuck" or "not answering"; a prompt is its tokens read and all of them.
    """
    health = _asked(server, "/health")
    state = {None: "not answering", "": "stuck"}.get(health, "ready")
    # A server with several models says the state of each, and has slots by a model's name.
    models = json.loads(health or "{}").get("models", {})
    asked = [f"/slots?model={quote(name)}" for name in models if models[name] == "loaded"]
    if state == "ready" and not models:
        asked = ["/slots"]
    slots = [slot for path in asked for slot in json.loads(_asked(server, path) or "[]")]
    counts = [(slot["n_prompt_tokens_processed"], slot["n_prompt_tokens"]) for slot in slots]
    loading = [name for name in models if models[name] == "loading"]
    return state, loading, [(read, total) for read, total in counts if read < total]


def _busy(server: "RunningServer") -> int | None:
    """How many answers are under way; None where it does not tell."""
    if not (text := _asked(server, "/metrics")):
        return None
    counts = re.findall(r"^localspec_requests_processing(?:\{.*\})? ([0-9.]+)$", text, re.MULTILINE)
    return int(sum(map(float, counts)))


def _asked(server: "RunningServer", path: str) -> str | None:
    """What a server replies: nothing to a request that it refuses, None where none comes."""
    local = server.url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    key = os.environ.get("LOCALSPEC_API_KEY", "").partition(",")[0].strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # Its certificate names the machine as others know it, and perhaps nobody signed it.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        with opener.open(Request(local + path, headers=headers), timeout=_REPLY_SECONDS) as reply:
            return str(reply.read(_MOST_BYTES).decode())
    except HTTPError:
        return ""
    except (OSError, ValueError):
        return None
