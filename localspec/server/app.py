"""The application: the server's paths."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec import __version__
from localspec.core.origins import legend_items, style_sheet
from localspec.engine.grammar.source import MOST_WAITING
from localspec.server.api import documents, native
from localspec.server.api.answers import Answers
from localspec.server.api.anthropic.reply import MessagesReply
from localspec.server.api.anthropic.request import MessagesRequest
from localspec.server.api.chat import ChatReply, ChatRequest
from localspec.server.api.completions import CompletionReply, CompletionRequest
from localspec.server.api.replies import STREAM_HEADERS, WARNINGS_HEADER, Reply, with_signs
from localspec.server.api.requests import AnswerRequest
from localspec.server.api.responses.reply import ResponsesReply
from localspec.server.api.responses.request import ResponsesRequest
from localspec.server.api.responses.stored import StoredResponses
from localspec.server.body import BodyLimits
from localspec.server.errors import BadRequest, add_error_handlers, request_id
from localspec.server.guard import LOCAL_ORIGIN, LOCAL_PAGES, LOOPBACK, Access, Guard, owner_of
from localspec.server.log import AccessLog
from localspec.server.metrics import CONTENT_TYPE, RequestMetrics
from localspec.server.service import Service

MAX_BODY = 32 * 2**20  # bytes, as Anthropic's: clients send images again with each turn
# More threads than requests that wait for their grammars, so that others go on.
_READERS = ThreadPoolExecutor(MOST_WAITING + 16, "reading")
_PAGE = Path(__file__).parent / "page"
Result = TypeVar("Result")
_SHORT = (
    "/chat/completions", "/chat/completions/input_tokens", "/responses", "/responses/input_tokens",
    "/models", "/embeddings",
)  # fmt: skip
_READ = ("/responses/", "/models/")  # beginnings; with POST, the front has others there


class _Stream(StreamingResponse):
    """A stream of events that closes its answers, also if the client disconnects."""

    media_type = "text/event-stream"

    def __init__(
        self, answers: Answers, events: AsyncIterator[bytes], headers: dict[str, str]
    ) -> None:
        super().__init__(self._all(events), headers=STREAM_HEADERS | headers)
        self._answers = answers
        self._was_sent = False

    async def _all(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for each in events:
            yield each
        self._was_sent = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _end(scope, self._answers, left=not self._was_sent)


def make_app(
    service: Service,
    access: Access = LOOPBACK,
    *,
    max_body: int = MAX_BODY,
    say: Callable[[str], None] = lambda line: None,
) -> ASGIApp:
    """The application; ``max_body`` bounds a request in bytes, ``say`` gets a log line of each."""
    app = new_app(max_body)
    _add_answers(app, service)
    _add_responses(app, service)
    _add_native(app, service)
    _add_facts(app, service)
    return guarded(app, access, max_body, say, service.metrics)


def new_app(max_body: int) -> FastAPI:
    """An application with the page at /, and errors in OpenAI's form."""
    app = FastAPI(
        title="localspec",
        version=__version__,
        docs_url=None,  # its pages load scripts from the network
        redoc_url=None,
        redirect_slashes=False,  # its redirects lose a proxy's prefix and https: see ShortPaths
        max_body_size=max_body,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    add_error_handlers(app)
    _add_page(app)
    _add_refusal(app)
    return app


def guarded(
    app: FastAPI, access: Access, max_body: int, say: Callable[[str], None], metrics: RequestMetrics
) -> ASGIApp:
    """The application with the checks of each request; ``say`` gets a log line of each."""
    served: ASGIApp = Guard(BodyLimits(app, max_body), access, max_body)
    if access.origins:
        served = _Cors(
            served,
            allow_origins=access.origins,
            allow_origin_regex=LOCAL_ORIGIN if LOCAL_PAGES in access.origins else None,
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
            allow_credentials=True,  # of pages that send them always; cookies are not read here
            allow_headers=["*"],
            expose_headers=["x-request-id", WARNINGS_HEADER],
        )
    return AccessLog(ShortPaths(served), app.routes, say, metrics)


class ShortPaths:
    """Puts /v1 in front of a path of OpenAI's API that lacks it; a slash at the end is dropped.

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


class _Cors(CORSMiddleware):
    """Refuses a page by the missing header alone, as llama-server does."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        response.status_code = 200
        return response


def _add_refusal(app: FastAPI) -> None:
    @app.post("/v1/embeddings", responses=documents.ERRORS)
    async def embed(body: dict[str, Any]) -> Response:
        """Refused: this server generates text only."""
        raise BadRequest(
            "This server generates text; it makes no embeddings.",
            "Run an embedding model with llama-server --embeddings.",
            status=404,  # clients retry on 5xx
            code="unsupported",
        )


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", responses=documents.answered())
    async def chat(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation."""
        return await _answer(service, request, body, ChatReply)

    @app.post("/v1/chat/completions/input_tokens", responses=documents.ERRORS)
    def count_chat(request: Request, body: ChatRequest) -> dict[str, int]:
        """Count the tokens of a conversation."""
        return {"input_tokens": body.count(service, _cache_owner(service, request))}

    @app.post("/v1/completions", responses=documents.answered())
    async def complete(request: Request, body: CompletionRequest) -> Response:
        """Continue a text."""
        return await _answer(service, request, body, CompletionReply)

    @app.post("/v1/messages", responses=documents.answered())
    async def message(request: Request, body: MessagesRequest) -> Response:
        """Answer a conversation, in Anthropic's form."""
        return await _answer(service, request, body, MessagesReply)

    @app.post("/v1/messages/count_tokens", responses=documents.ERRORS)
    def count_tokens(request: Request, body: MessagesRequest) -> dict[str, int]:
        """Count the tokens of a conversation."""
        return {"input_tokens": body.count(service, _cache_owner(service, request))}


def _add_responses(app: FastAPI, service: Service) -> None:
    stored = StoredResponses()

    @app.post("/v1/responses", responses=documents.answered())
    async def respond(request: Request, body: ResponsesRequest) -> Response:
        """Answer a conversation, and store it."""
        body.begin(stored, owner_of(request))
        return await _answer(service, request, body, ResponsesReply)

    @app.post("/v1/responses/input_tokens", responses=documents.ERRORS)
    def count(request: Request, body: ResponsesRequest) -> dict[str, Any]:
        """Count the tokens of a conversation."""
        body.begin(stored, owner_of(request))
        n_tokens = body.count(service, _cache_owner(service, request))
        return {"object": "response.input_tokens", "input_tokens": n_tokens}

    @app.get("/v1/responses/{name}", responses=documents.ERRORS)
    async def response(request: Request, name: str) -> dict[str, Any]:
        """A stored response."""
        return stored.response(owner_of(request), name)

    @app.delete("/v1/responses/{name}", responses=documents.ERRORS)
    async def forget(request: Request, name: str) -> dict[str, Any]:
        """Forget a stored response."""
        stored.remove(owner_of(request), name)
        return {"id": name, "object": "response", "deleted": True}


def _cache_owner(service: Service, request: Request) -> str:
    return "" if service.share_cache else owner_of(request)


def _add_native(app: FastAPI, service: Service) -> None:
    engine = service.engine

    @app.post("/completions", responses=documents.answered(several=True))
    @app.post("/completion", responses=documents.answered(several=True))
    async def complete(request: Request, body: native.NativeCompletionRequest) -> Response:
        """Continue a text."""
        return await _answer(service, request, body, native.NativeReply)

    @app.post("/infill", responses=documents.answered(several=True))
    async def infill(request: Request, body: native.InfillRequest) -> Response:
        """Write the text between two texts."""
        return await _answer(service, request, body, native.NativeReply)

    @app.post("/tokenize", responses=documents.ERRORS)
    def tokenize(body: native.TokenizeRequest) -> dict[str, Any]:
        """Token ids of a text."""
        return native.tokenized(engine, body)

    @app.post("/detokenize", responses=documents.ERRORS)
    def detokenize(body: native.DetokenizeRequest) -> dict[str, Any]:
        """The text of token ids."""
        return native.detokenized(engine, body)

    @app.post("/apply-template", responses=documents.ERRORS)
    def apply_template(body: ChatRequest) -> dict[str, Any]:
        """The prompt that a conversation becomes."""
        return native.templated(engine, body)

    @app.get("/slots", responses=documents.ERRORS)
    def slots() -> list[dict[str, Any]]:
        """The current state of each slot."""
        n_ctx = engine.target.n_ctx
        return [slot._asdict() | {"n_ctx": n_ctx} for slot in service.session.slots()]

    @app.post("/slots/{slot}", responses=documents.ERRORS)
    async def change_slot(
        request: Request,
        slot: int,
        action: native.SlotAction,
        body: native.SlotRequest | None = None,
    ) -> dict[str, Any]:
        """Save the cache of a slot in a file, restore it, or erase it."""
        owner = _cache_owner(service, request)
        return await native.slot_changed(service, slot, action, body or native.SlotRequest(), owner)


async def _answer(
    service: Service, request: Request, body: AnswerRequest | MessagesRequest, form: type[Reply]
) -> Response:
    """Answer a request, whole or streamed, until its client disconnects."""
    loop = asyncio.get_running_loop()
    owner = _cache_owner(service, request)
    requests, warnings = await loop.run_in_executor(_READERS, body.read, service, owner)
    reply = form(body, service, warnings)
    answers = Answers(service.session, requests, service.metrics)
    try:
        if body.stream:
            events = with_signs(reply.events(answers, request_id(request)), reply)
            return _Stream(answers, events, reply.headers)
        await while_connected(request, answers.rest())
        await reply.read_prompts(answers)
    except BaseException as error:
        left = isinstance(error, ClientDisconnect)
        _end(request.scope, answers, left=left)
        if left:
            return Response(status_code=499)  # for the log
        raise
    _end(request.scope, answers)
    return JSONResponse(reply.whole(answers), headers=reply.headers)


def _end(scope: Scope, answers: Answers, *, left: bool = False) -> None:
    """Free the slots, and pass the figures to the log; the client may have ``left`` before."""
    reading = [] if answers.complete else answers.unread()
    answers.close()
    reasons = {choice.finish_reason or "stop" for choice in answers.choices}
    scope["state"] |= {
        "figures": (answers.stats, answers.choices[-1].status),
        "cut_off": "" if answers.complete else "the client left" if left else "cut off",
        "reading": reading,
        "ends": sorted(reasons - {"stop", "tool_calls"}),
    }


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``; cancels it, and raises ClientDisconnect, when the client leaves."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/health", responses=documents.ERRORS)
    @app.get("/v1/health", responses=documents.ERRORS)
    async def health() -> dict[str, str]:
        """Whether the server is up and its slots make progress, or 503 with the reason.

        It listens once the model is loaded.
        """
        service.session.require_progress()
        return {"status": "ok"}

    @app.get("/v1/models", responses=documents.ERRORS)
    async def models() -> dict[str, Any]:
        """The one model, under each of its names."""
        return {"object": "list", "data": [_model(service, name) for name in service.names]}

    @app.get("/v1/models/{name:path}", responses=documents.ERRORS)
    async def model(name: str) -> dict[str, Any]:
        """The model, if it has this name."""
        service.require_model(name)
        return _model(service, name)

    @app.get("/props", responses=documents.ERRORS)
    async def props() -> dict[str, Any]:
        """The model's files, and the defaults for requests."""
        return service.props()

    @app.get("/metrics", responses=documents.ERRORS, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        began = {"Process-Start-Time-Unix": str(service.created)}  # as llama-server
        return Response(service.metrics.text(), headers=began, media_type=CONTENT_TYPE)


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "localspec",
        "meta": model_meta(service),
    }


def model_meta(service: Service) -> dict[str, int]:
    """The model's sizes, under llama-server's names."""
    target = service.engine.target
    return {"n_ctx": target.n_ctx, "n_vocab": target.n_vocab}


def _add_page(app: FastAPI) -> None:
    """The page at / and its files, which need no network."""

    html = (_PAGE / "index.html").read_text("utf-8").replace("<!-- origins -->", legend_items())

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(html, headers=_PAGE_HEADERS, media_type="text/html")

    @app.get("/page/origins.css", include_in_schema=False)
    async def origins() -> Response:
        return Response(style_sheet(), headers=_PAGE_HEADERS, media_type="text/css")

    app.mount("/page", _Page(directory=_PAGE))


class _Page(StaticFiles):
    """The page's files, with headers that let them load nothing else."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_PAGE_HEADERS)
        return response


_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
