"""The front's application: requests go to the model that they name."""

import asyncio
import json
import re
from collections.abc import Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from localspec.server.api.responses.stored import is_stored_by
from localspec.server.app import MAX_BODY, guarded, new_app
from localspec.server.errors import BadRequest
from localspec.server.front.metrics import Kept, merged
from localspec.server.front.models import FrontModel, Models
from localspec.server.front.relay import Relay, sent_headers
from localspec.server.guard import LOOPBACK, Access
from localspec.server.listen import Server
from localspec.server.metrics import CONTENT_TYPE, RequestMetrics

_FACTS = ("/props", "/slots")  # of a model, with GET
# Any other path is refused before a model is loaded.
ANSWERED = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/chat/completions/input_tokens", "/v1/responses", "/v1/responses/input_tokens",
    "/completion", "/completions", "/infill", "/tokenize", "/detokenize", "/apply-template",
)  # fmt: skip
_SLOT = re.compile(r"/slots/[0-9A-Za-z_-]{1,20}")
_RESPONSE = re.compile(r"/v1/responses/[0-9A-Za-z_-]{1,100}")


class FrontServer(Server):
    """A server that ends its models' processes when it ends."""

    files_by_connection = 2  # the other one leads to the model
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
        headers = sent_headers(request)  # which may be refused, before a model is loaded
        if request.method == "GET" and request.scope["path"] in _FACTS:
            return await _facts(request, models, kept)
        model, body, is_stream = await _routed(request, models)
        return Relay(client, models, model, body, headers, is_stream=is_stream)

    for path in ANSWERED:  # for their own counts in the metrics
        app.add_api_route(path, forward, methods=["POST"], include_in_schema=False)
    return guarded(app, access, max_body, say, metrics)


def _add_models(app: FastAPI, models: Models) -> None:
    @app.get("/v1/models")
    def listed() -> dict[str, Any]:
        """All models with their states."""
        return {"object": "list", "data": [_entry(models, model) for model in models.all]}

    @app.get("/v1/models/{name:path}")
    def one(name: str) -> dict[str, Any]:
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


def _entry(models: Models, model: FrontModel) -> dict[str, Any]:
    known: dict[str, Any] = {"id": model.name, "aliases": model.names[1:], "object": "model"}
    known |= {"created": models.created, "owned_by": "localspec", "status": model.status()}
    process = model.process
    meta = process.meta if process else model.expected()
    return known | ({"meta": meta} if meta else {})


def _add_facts(app: FastAPI, models: Models, kept: Kept, metrics: RequestMetrics) -> None:
    @app.get("/health")
    @app.get("/v1/health")
    async def health() -> dict[str, Any]:
        """The state of each model."""
        return {"status": "ok", "models": {model.name: model.state for model in models.all}}

    @app.get("/metrics")
    async def text() -> Response:
        """Metrics for Prometheus: the front's, and those of models, loaded or unloaded."""
        loaded = [model.process for model in models.all if model.process is not None]
        texts = await asyncio.gather(*map(kept.metrics, loaded))
        found = {process.name: text for process, text in zip(loaded, texts, strict=True)}
        found = {"": metrics.text().decode(), **found}
        text = merged(found, kept.totals, several=len(models.all) > 1)
        began = {"Process-Start-Time-Unix": str(models.created)}  # as llama-server
        return Response(text, headers=began, media_type=CONTENT_TYPE)


async def _facts(request: Request, models: Models, kept: Kept) -> Response:
    """A model's own report. A request for it is no use of the model: it loads and keeps none."""
    path, named = request.scope["path"], request.query_params.get("model")
    if path == "/props" and named is None and len(models.all) > 1:
        return JSONResponse(models.props())
    model = models.find(named)
    reply = None if model.process is None else await kept.ask(model.process, path)
    if reply is not None:
        request.scope["state"]["relayed"] = True  # the model's process writes the log line
        return Response(reply.content, reply.status_code, media_type="application/json")
    return JSONResponse(kept.props(model.name) if path == "/props" else [])


async def _routed(request: Request, models: Models) -> tuple[FrontModel, bytes, bool]:
    """The model for a request, the request's body, and whether a stream is asked for."""
    named: Any = request.query_params.get("model")
    path: str = request.scope["path"]
    if request.method != "POST":
        if _RESPONSE.fullmatch(path):
            loaded = [model.name for model in models.all if model.process]
            named = next((name for name in loaded if is_stored_by(name, path)), named)
        if named is None or not _RESPONSE.fullmatch(path):
            raise HTTPException(404)
        return models.find(named), b"", False
    if path not in ANSWERED and not _SLOT.fullmatch(path):
        raise HTTPException(404)
    try:
        body = await request.body()
        document = json.loads(body or b"{}")
    except ClientDisconnect:
        return models.all[0], b"", False  # which the relay notices too
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise BadRequest("The body is not a JSON object.")
    name = document.get("model", named)
    model = models.find(None if len(models.all) == 1 else name)  # which warns of another name
    return model, body, document.get("stream") is True
