"""A line for each request, and its count in the metrics."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.chat.stats import GenerationStats, why_unused
from localspec.core.formatting import one_line
from localspec.server.metrics import RequestMetrics
from localspec.speculative.loop import DraftStatus

_SLOWED = 0.05  # of an answer's time: less explains no slow answer
_QUIET = ("/health", "/v1/health", "/metrics", "/slots")  # polled every few seconds: not logged
_PAGE = "/page/"  # the page's own files, many for each load: logged if refused


class AccessLog:
    """Middleware that gives each request an id, and ``say`` a line at its end.

    Requests are counted by the path of the first of ``routes`` that matches; one that takes any
    path counts as none.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[BaseRoute],
        say: Callable[[str], None],
        metrics: RequestMetrics,
    ) -> None:
        self._app = app
        known = [route for route in routes if isinstance(route, Route)]
        self._routes = [route for route in known if not route.path.startswith("/{")]
        self._say = say
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state["request_id"] = name
        status, began = 499, time.monotonic()  # nginx's status: the client disconnected

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                if not any(key == b"x-request-id" for key, _ in headers):  # of another process
                    # The second name is Anthropic's.
                    headers += [(each, name.encode()) for each in (b"x-request-id", b"request-id")]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, named)
        except Exception:
            if status == 499:  # else `errors` replied, and logged it
                raise
        finally:
            if "key" in state:
                self._metrics.count_key(state["key"])
            if not state.get("relayed"):
                self._record(scope, status, time.monotonic() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        """Count the request, and write its line."""
        path, state = scope["path"], scope["state"]
        self._metrics.count_request(self._route(scope), status, seconds)
        if not (path in _QUIET or (path.startswith(_PAGE) and status < 400)):
            request = f"{scope['method']} {one_line(path[:200])} {status}"
            code = f" {state['code']}" if state.get("code") else ""
            numbers = figures(*state["figures"]) if "figures" in state else ""
            self._say(f"{request}{code} {seconds:.2f} s{numbers}{_end(state)}")

    def _route(self, scope: Scope) -> str:
        """The path of the request's route, such as /slots/{slot}, or "other"."""
        found = (each for each in self._routes if each.matches(scope)[0] is not Match.NONE)
        return next((each.path_format for each in found), "other")


def figures(stats: GenerationStats, status: DraftStatus) -> str:
    """The figures of an answer, for the end of a log line."""
    read = f", prompt {stats.prompt_tokens}"
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    speed = "" if stats.generation_tps is None else f" at {stats.generation_tps:.1f} tok/s"
    spent = stats.spent_seconds
    others = stats.others_prompts_seconds / spent if spent else 0.0
    slowed = f", {others:.0%} of that time for other prompts" if others >= _SLOWED else ""
    rate = stats.acceptance_rate
    accepted = "" if rate is None else f", {rate:.0%} of {stats.drafted} drafted accepted"
    times = stats.estimated_speedup
    gain = "" if times is None else f", about {times:.1f}x plain"
    why = why_unused(stats, status)
    off = f", {stats.drafter} off ({why})" if why else ""
    return f"{read}{cached} + {stats.tokens} tokens{speed}{slowed}{accepted}{gain}{off}"


def _end(state: Mapping[str, Any]) -> str:
    """Why an answer ended, unless it was complete, and the name of the request's key."""
    parts = [f"ended by {reason}" for reason in state.get("ends", ())]
    if why := state.get("cut_off"):
        read = [f", {read} of {all_} prompt tokens read" for read, all_ in state["reading"]]
        parts.append(why + "".join(read))
    if "key" in state:
        parts.append(f"key {one_line(state['key'])}")
    return "".join(f", {part}" for part in parts)
