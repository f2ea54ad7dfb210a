"""A request passed on to the process of its model, and the reply passed back."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from localspec.server.api.replies import STREAM_HEADERS, first_sign, signs_of_life
from localspec.server.app import while_connected
from localspec.server.errors import BadRequest, describe, error_for, request_id
from localspec.server.front.models import FrontModel, Models
from localspec.server.front.process import ModelProcess
from localspec.server.guard import OWNER_HEADER, owner_of

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


@dataclass(eq=False)
class Relay(Response):
    """A request sent to a model, and its reply sent on as it comes, until the client leaves.

    The reply is read whether the client takes it or not, up to a bound, so that the model is free
    when it has answered. A stream whose model takes long to load begins before it, with comments.
    """

    client: httpx2.AsyncClient
    models: Models
    model: FrontModel
    content: bytes
    sent: list[tuple[str, str]]  # headers
    is_stream: bool

    def __post_init__(self) -> None:
        super().__init__()
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
            message = await self._first(request, send)
            await send(message)
            while message.get("more_body", True):
                await send(message := await self._next())
        finally:
            reading.cancel()

    async def _first(self, request: Request, send: Send) -> Message:
        """The first message to pass on; after a comment, a refusal is an event."""
        start, begun = asyncio.ensure_future(self._next()), False
        try:
            begun = self.is_stream and await _comment(start, send, request.scope["path"])
            if not begun:
                return await start
            if start.result()["status"] == 200:
                return await self._next()
            return _part(_error_event(await self._rest()), more=False)
        except Exception as error:
            if not begun:
                raise
            return _part(_event(error, request), more=False)
        finally:
            start.cancel()

    async def _next(self) -> Message:
        """The next message of the reply; raises the error that came instead."""
        message = await self._messages.get()
        if isinstance(message, Exception):
            raise message
        self._held -= len(message.get("body", b""))
        self._taken.set()
        return message

    async def _rest(self) -> bytes:
        parts, more = [], True
        while more:
            part = await self._next()
            parts.append(part["body"])
            more = part["more_body"]
        return b"".join(parts)

    async def _read(self, request: Request) -> None:
        """Pass on the messages of a reply, or the error that came instead."""
        try:
            async with self.models.lease(self.model) as process:
                request.scope["state"]["relayed"] = True  # the model's process writes the log line
                await self._exchange(request, process)
            await self._put(_part(b"", more=False))
        except Exception as error:
            await self._put(error)

    async def _exchange(self, request: Request, process: ModelProcess) -> None:
        events = False
        try:
            async with self.client.stream(
                request.method,
                process.url(request.scope["path"], request.query_params.multi_items()),
                headers=[*self.sent, *process.headers.items()],
                content=self.content,
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


def sent_headers(request: Request) -> list[tuple[str, str]]:
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


async def _comment(start: "asyncio.Future[Message]", send: Send, path: str) -> bool:
    """Send comments until the reply starts; whether there were any."""
    begun = False
    async for comment in signs_of_life(start, partial(first_sign, path)):
        if not begun:
            headers = Headers(
                {"content-type": "text/event-stream; charset=utf-8", **STREAM_HEADERS}
            )
            await send({"type": "http.response.start", "status": 200, "headers": headers.raw})
        begun = True
        await send(_part(comment, more=True))
    return begun


def _part(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def _event(failure: Exception, request: Request) -> bytes:
    """An event that the clients of each API take for an error."""
    name = request_id(request)
    status, body, _ = describe(failure, name)
    body = error_for(request.scope["path"], status, {"type": "error", **body}, name)
    return _error_event(json.dumps(body).encode())


def _error_event(data: bytes) -> bytes:
    return b"event: error\ndata: " + data + b"\n\n"
