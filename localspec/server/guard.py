"""Who may ask: Host, Origin, key and content type of a request, looked at before it is read."""

import ipaddress
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.core.errors import UsageError
from localspec.server.errors import TOO_LARGE, error_body

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# A key is asked of everything else: a browser loads the page before it can send one.
_OPEN_PATHS = ("/", "/health", "/v1/health")
_OPEN_FOLDER = "/page/"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask: keys, web pages of other origins; ``host`` is the address listened on."""

    host: str = "127.0.0.1"
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UsageError for a server that strangers could use."""
        if not is_loopback(self.host) and not self.keys:
            raise UsageError(
                f"On {self.host} other machines could use this server.",
                "Give it a key: --api-key KEY, or listen on 127.0.0.1.",
            )
        if "*" in self.origins and not self.keys:
            raise UsageError(
                "With --cors '*' every web page could use this server.",
                "Give it a key as well: --api-key KEY, or name the origins.",
            )
        for origin in self.origins:
            parts = urlsplit(origin)
            if origin != "*" and origin != f"{parts.scheme}://{parts.netloc}":
                raise UsageError(
                    f"--cors {origin} is no origin.",
                    "Expected something like http://localhost:3000.",
                )

    def is_host(self, header: str) -> bool:
        """Whether a Host header names this server.

        Without a key another name is a web page's whose DNS leads here (rebinding). With one names
        are many, another machine's or a proxy's, and such a page has no key.
        """
        if self.keys:
            return True
        name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
        return name.lower() in (*_LOOPBACK_NAMES, self.host, f"[{self.host}]")

    def is_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may ask: the server's own, or one that was allowed."""
        own = (f"http://{host}", f"https://{host}")
        return origin.lower() in own or origin in self.origins or "*" in self.origins

    def is_key(self, given: str) -> bool:
        """Whether a header's text is a key; takes equally long for any that is none."""
        data = given.encode("latin-1")  # as which the header's bytes were read
        return any([secrets.compare_digest(data, key.encode()) for key in self.keys])


LOOPBACK = Access()


class Guard:
    """Middleware that refuses a request by its headers."""

    def __init__(self, app: ASGIApp, access: Access, max_body: int) -> None:
        self._app = app
        self._access = access
        self._max_body = max_body  # in bytes; what comes in chunks is counted while it is read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await refused(scope, receive, send)

    def _refused(self, scope: Scope) -> JSONResponse | None:
        headers, access = Headers(scope=scope), self._access
        host = headers.get("host", "")
        if not access.is_host(host):
            told = f"Without a key this server is called 127.0.0.1 or localhost, not {host[:200]}."
            return _refusal(403, told)
        origin = headers.get("origin")
        if origin is not None and not access.is_origin(origin, host.lower()):
            return _refusal(
                403, f"Pages of {origin[:200]} may not ask here (allow them with --cors)."
            )
        if access.keys and not _is_open(scope) and not access.is_key(_key(headers)):
            message = "A key is needed: Authorization: Bearer KEY, with the server's --api-key."
            return _refusal(401, message, {"WWW-Authenticate": "Bearer"}, "invalid_api_key")
        if scope["method"] == "POST" and not _is_json(headers.get("content-type", "")):
            return _refusal(415, "The Content-Type must be application/json.")
        if int(headers.get("content-length", 0)) > self._max_body:  # a number, or h11 refused it
            return _refusal(413, TOO_LARGE)
        return None


def _refusal(
    status: int, message: str, headers: dict[str, str] | None = None, code: str | None = None
) -> JSONResponse:
    return JSONResponse(error_body(status, message, code=code), status, headers=headers)


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    reads = scope["method"] in ("GET", "HEAD")
    return reads and (path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER))


def _key(headers: Headers) -> str:
    """The key of a request, as OpenAI's clients send it, or as Anthropic's do."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _is_json(content_type: str) -> bool:
    """Pages of other origins may send other types without asking first."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )
