"""Paths without /v1, as llama-server accepts them, paths that end with a slash, and HEAD."""

from starlette.types import ASGIApp, Receive, Scope, Send

_SHORT = (
    "/chat/completions", "/chat/completions/input_tokens", "/responses", "/responses/input_tokens",
    "/models", "/embeddings",
)  # fmt: skip
_READ = ("/responses/", "/models/")  # beginnings; with POST, the front has others there


class ShortPaths:
    """Middleware that puts /v1 in front of a path of OpenAI's API that lacks it.

    ``/completions`` is llama-server's own path, and stays. HEAD is answered as GET, whose body the
    server leaves out.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"] = scope["path"].removesuffix("/") or "/"
            if path in _SHORT or (scope["method"] != "POST" and path.startswith(_READ)):
                scope["path"] = f"/v1{path}"
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
