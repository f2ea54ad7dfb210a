"""The front's application: requests go to the model that they name."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.server.api.responses.stored import is_stored_by
from localspec.server.app import MAX_BODY, guarded, new_app, while_connected
from localspec.server.errors import BadRequest, describe, error_for, request_id
from localspec.server.front.kept import Kept
from localspec.server.front.metrics import merged
from localspec.server.front.models import Model, Models
from localspec.server.front.process import ModelProcess
from localspec.server.guard import LOOPBACK, OWNER_HEADER, Access, owner_of
from localspec.server.listen import Server
from localspec.server.metrics import CONTENT_TYPE, RequestMetrics

_READ_ONLY = ("/props", "/slots")  # with GET and without ?model=, those of the first model
# Any other path is refused before a model is loaded.
ANSWERED = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/chat/completions/input_tokens", "/v1/responses", "/v1/responses/input_tokens",
    "/completion", "/completions", "/infill", "/tokenize", "/detokenize", "/apply-template",
)  # fmt: skip
_SLOT = re.compile(r"/slots/[0-9A-Za-z_-]{1,20}")
_RESPONSE = re.compile(r"/v1/responses/[0-9A-Za-z_-]{1,100}")
# Headers of one connection, and those that are for the front.
_OF_CONNECTION = (
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
)  # fmt: skip
_NOT_SENT = (
    "host", "content-length", "authorization", "x-api-key", "proxy-authorization", "cookie",
    "origin", "expect", OWNER_HEADER,
)  # fmt: skip
_NOT_RETURNED = ("date", "server", "set-cookie")
_MOST_HELD = 2 * 2**20  # bytes of a reply that its client has not taken yet
_TAKING_SECONDS = 30.0  # that a client may read nothing while so many bytes wait for it


class FrontServer(Server):
    """A server that ends its models' processes when it ends."""

    ending_seconds = 5.0

    def __init__(self, app: ASGIApp, models: Models, *more: Any, **keywords: Any) -> None:
        super().__init__(app, models, *more, **keywords)
        self._models = models

    async def shutdown(self, sockets: Any = None) -> None:
        """End as a server does, while the models end."""
        await asyncio.gather(super().shutdown(sockets), self._models.end())


def make_front(
    models: Models,
    access: Access = LOOPBACK,
    *,
    max_body: int = MAX_BODY,
    say: Callable[[str], None] = lambda line: None,
) -> ASGIApp:
    """The application; ``max_body`` bounds a request in bytes, ``say`` gets a log line of each."""
    app = new_app(max_body)
    metrics = RequestMetrics()
    # No connection is used twice: the model's process might close it at that moment.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    client = httpx2.AsyncClient(
        timeout=None,
        trust_env=False,
        verify=False,
        limits=limits,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # it keeps none
    )
    _add_models(app, models)
    kept = Kept(client)
    models.on_unload = kept.keep
    _add_facts(app, models, kept, metrics)

    @app.api_route(
        "/{path:path}", methods=["GET", "POST", "DELETE"], include_in_schema=False, name="forward"
    )
    async def forward(request: Request) -> Response:
        """Let the model answer that the request names."""
        headers = _sent(request)  # which may be refused, before a model is loaded
        model, body = await _routed(request, models)
        if request.scope["path"] == "/props" and model.loaded is None:
            if (props := kept.props(model.name)) is not None:  # else the model is loaded to tell
                return JSONResponse(props)
        return _Relay(client, models, model, body, headers)

    for path in ANSWERED:  # for their own counts in the metrics
        app.add_api_route(path, forward, methods=["POST"], include_in_schema=False)
    return guarded(app, access, max_body, say, metrics)


def _add_models(app: FastAPI, models: Models) -> None:
    """Paths of models, as llama-server has them."""

    @app.get("/v1/models")
    async def listed() -> dict[str, Any]:
        """All models with their states."""
        return {"object": "list", "data": [_entry(models, model) for model in models.all]}

    @app.get("/v1/models/{name:path}")
    async def one(name: str) -> dict[str, Any]:
        """One model with its state."""
        return _entry(models, models.find(name))

    @app.post("/models/load")
    async def load(body: dict[str, Any]) -> dict[str, bool]:
        """Begin to load a model."""
        models.load(models.find(body.get("model")))
        return {"success": True}

    @app.post("/models/unload")
    async def unload(body: dict[str, Any]) -> dict[str, Any]:
        """Unload a model; its requests, which ``requests`` counts, have three seconds to end."""
        requests = await models.unload(models.find(body.get("model")))
        return {"success": True, "requests": requests}


def _entry(models: Models, model: Model) -> dict[str, Any]:
    known: dict[str, Any] = {"id": model.name, "aliases": model.names[1:], "object": "model"}
    known |= {"created": models.created, "owned_by": "localspec", "status": model.status()}
    return known | ({"meta": model.process.meta} if model.process else {})


def _add_facts(app: FastAPI, models: Models, kept: Kept, metrics: RequestMetrics) -> None:
    """Paths of what the server reports about itself."""

    @app.get("/health")
    @app.get("/v1/health")
    async def health() -> dict[str, Any]:
        """The state of each model."""
        return {"status": "ok", "models": {model.name: model.state for model in models.all}}

    @app.get("/metrics")
    async def text() -> Response:
        """For Prometheus: the front's, those of loaded models, and what others counted."""
        loaded = [model.process for model in models.all if model.process is not None]
        texts = await asyncio.gather(*map(kept.metrics, loaded))
        found = {process.name: text for process, text in zip(loaded, texts, strict=True)}
        text = merged({"": metrics.text().decode(), **found}, kept.counters)
        began = {"Process-Start-Time-Unix": str(models.created)}  # as llama-server
        return Response(text, headers=began, media_type=CONTENT_TYPE)


async def _routed(request: Request, models: Models) -> tuple[Model, bytes]:
    """The model for a request, and the request's body."""
    named: Any = request.query_params.get("model")
    path: str = request.scope["path"]
    if request.method != "POST":
        if _RESPONSE.fullmatch(path):
            loaded = [model.name for model in models.all if model.process]
            named = next((name for name in loaded if is_stored_by(name, path)), named)
            if named is None:
                raise HTTPException(404)
        elif path not in _READ_ONLY or request.method != "GET":
            raise HTTPException(404)
        return models.find(named), b""
    if path not in ANSWERED and not _SLOT.fullmatch(path):
        raise HTTPException(404)
    try:
        body = await request.body()
        document = json.loads(body or b"{}")
    except ClientDisconnect:
        return models.all[0], b""  # which the relay notices too
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise BadRequest("The body is not a JSON object.")
    name = document.get("model", named)
    return models.find(None if len(models.all) == 1 else name), body  # which warns of another name


class _Relay(Response):
    """A request sent to a model, and its reply sent on as it comes, until the client leaves.

    The reply is read whether the client takes it or not, up to a bound, so that the model is free
    when it has answered.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        models: Models,
        model: Model,
        body: bytes,
        headers: list[tuple[str, str]],
    ) -> None:
        super().__init__()
        self._client = client
        self._models = models
        self._model = model
        self._body = body
        self._sent = headers
        self._held = 0  # bytes that the client has not taken
        self._taken = asyncio.Event()
        self._messages = asyncio.Queue[Message | Exception]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await while_connected(request, self._answer(request, send))
        except ClientDisconnect:
            pass

    async def _answer(self, request: Request, send: Send) -> None:
        reading = asyncio.create_task(self._read(request))
        try:
            more = True
            while more:
                message = await self._messages.get()
                if isinstance(message, Exception):
                    raise message
                await send(message)
                self._held -= len(message.get("body", b""))
                self._taken.set()
                more = message.get("more_body", True)
        finally:
            reading.cancel()

    async def _read(self, request: Request) -> None:
        """Pass on the messages of a reply, or the error that came instead."""
        try:
            async with self._models.lease(self._model) as process:
                request.scope["state"]["relayed"] = True  # the model's process writes the log line
                await self._exchange(request, process)
            await self._put(_part(b"", more=False))
        except Exception as error:
            await self._put(error)

    async def _exchange(self, request: Request, process: ModelProcess) -> None:
        events = False
        try:
            async with self._client.stream(
                request.method,
                process.url(request.scope["path"], request.query_params.multi_items()),
                headers=[*self._sent, *process.headers.items()],
                content=self._body,
            ) as reply:
                await self._put(_start(reply))
                events = reply.headers.get("content-type", "").startswith("text/event-stream")
                async for data in reply.aiter_raw():
                    await self._put(_part(data, more=True))
        except httpx2.HTTPError:
            failure = await process.lost()
            request.scope["state"]["relayed"] = False
            if not events:
                raise failure from None
            await self._put(_part(_event(failure, request), more=True))

    async def _put(self, message: Message | Exception) -> None:
        """Queue a message; raises ClientDisconnect for a client that takes too little."""
        self._messages.put_nowait(message)
        if isinstance(message, Exception):
            return
        self._held += len(message.get("body", b""))
        try:
            async with asyncio.timeout(_TAKING_SECONDS):
                while self._held > _MOST_HELD:
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            raise ClientDisconnect from None


def _sent(request: Request) -> list[tuple[str, str]]:
    """Headers for the model's process; raises BadRequest for one that is not ASCII."""
    named = request.headers.get("connection", "").lower().replace(" ", "").split(",")
    found = _kept(request.headers.items(), (*_NOT_SENT, *named))
    for name, value in found:
        if not value.isascii():
            raise BadRequest(
                f"The header {name} is not ASCII.", "Encode its value, or leave it out."
            )
    return [*found, (OWNER_HEADER, owner_of(request))]


def _kept(headers: Iterable[tuple[str, str]], left_out: tuple[str, ...]) -> list[tuple[str, str]]:
    return [each for each in headers if each[0].lower() not in (*left_out, *_OF_CONNECTION)]


def _start(reply: httpx2.Response) -> dict[str, Any]:
    left_out = {name.encode() for name in (*_NOT_RETURNED, *_OF_CONNECTION)}
    headers = [each for each in reply.headers.raw if each[0].lower() not in left_out]
    return {"type": "http.response.start", "status": reply.status_code, "headers": headers}


def _part(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _event(failure: Exception, request: Request) -> bytes:
    """An event that the clients of each API take for an error."""
    name = request_id(request)
    status, body, _ = describe(failure, name)
    body = error_for(request.scope["path"], status, {"type": "error", **body}, name)
    return b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"
