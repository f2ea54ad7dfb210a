"""Bounds of request bodies: how many, how large together, how deep and wide their JSON is."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.server.errors import BodyRefused, refusal

MOST_REQUESTS = 256  # with a body, under way at a time
_SMALL = 2**18  # bytes of each body that are always taken
_MOST_LARGE = 8  # bodies of the largest size at a time
# Parsing and validating hold up all other requests: for 14 MB of nested lists, three seconds.
_MOST_DEPTH = 200
_MOST_VALUES = 200_000
_IRRELEVANT = bytes(set(range(256)) - set(b'"[]{},\0'))
_BUSY = "The server is busy with other requests. Ask again in a few seconds."


class BodyLimits:
    """Middleware that counts bodies while they arrive; ``max_body`` is the largest in bytes."""

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app = app
        self._most_bytes = _MOST_LARGE * max_body
        self._requests = 0
        self._bytes = 0  # of all bodies under way, without the small ones

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
        elif self._requests >= MOST_REQUESTS:
            await refusal(503, _BUSY, {"Retry-After": "5"})(scope, receive, send)
        else:
            await self._bounded(scope, receive, send)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        shape, size, large = JsonShape(), 0, 0

        async def counted() -> Message:
            nonlocal size, large
            message = await receive()
            part = message.get("body", b"")
            size += len(part)
            more = max(0, size - _SMALL) - large
            large += more
            self._bytes += more
            if self._bytes > self._most_bytes:
                raise BodyRefused(503, _BUSY, {"Retry-After": "5"})
            shape.add(part)
            return message

        self._requests += 1
        try:
            await self._app(scope, counted, send)
        finally:
            self._requests -= 1
            self._bytes -= large


class JsonShape:
    """Depth, and count of values, of a JSON text that comes in parts and is not parsed."""

    def __init__(self) -> None:
        self._escape = b""  # a backslash at the end of a part
        self._in_string = False
        self._depth = 0
        self._values = 0

    def add(self, part: bytes) -> None:
        """Count another part; raises BodyRefused for too many values, or too deep ones."""
        text = self._escape + part
        escaped = (len(text) - len(text.rstrip(b"\\"))) % 2
        text, self._escape = text[: len(text) - escaped], text[len(text) - escaped :]
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _IRRELEVANT)
        if b"\0" in text:  # as in UTF-16, in which the bytes of other characters look like quotes
            raise BodyRefused(400, "The body is not JSON in UTF-8.")
        pieces = text.split(b'"')
        outside = b"".join(pieces[self._in_string :: 2])
        self._in_string ^= len(pieces) % 2 == 0
        self._values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if self._values > _MOST_VALUES:
            raise BodyRefused(400, f"The body holds more than {_MOST_VALUES:,} values.")
        self._nest(outside.translate(None, b","))

    def _nest(self, brackets: bytes) -> None:
        for bracket in brackets:
            self._depth += 1 if bracket in b"[{" else -1
            if self._depth > _MOST_DEPTH:
                raise BodyRefused(400, f"The body is nested more than {_MOST_DEPTH} levels deep.")
