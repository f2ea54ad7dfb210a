"""Access control by headers: Host, Origin, API key, content type and length of a request."""

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.core.errors import UsageError
from localspec.server.errors import TOO_LARGE, ErrorResponse, refusal

OWNER_HEADER = "x-localspec-owner"  # from a front: the owner of the caches that a request leaves
LOCAL_PAGES = "localhost"  # as an origin: pages of any server on this machine
LOCAL_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Without a key, because a browser loads the page before it can send one.
_OPEN_PATHS = ("/", "/health", "/v1/health")
_OPEN_FOLDER = "/page/"


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Access:
    """API keys, and other origins whose pages may send requests; ``hosts`` are listened on.

    ``key_names`` name the keys in the metrics; those without a name have their number. With
    ``behind_front`` the one key is that of a front, which names the owner of each request. ``off``
    names the pages that are off: "slots", "metrics", "ui".
    """

    hosts: tuple[str, ...] = ("127.0.0.1",)
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    key_names: Mapping[str, str] = field(default_factory=dict)
    behind_front: bool = False
    off: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UsageError for a server that is open to others without a key."""
        public = [host for host in self.hosts if not is_loopback(host)]
        if public and not self.keys:
            raise UsageError(
                f"On {public[0]} other machines could use this server.",
                "Give it a key: --api-key KEY, or listen on 127.0.0.1.",
            )
        if "*" in self.origins and not self.keys:
            raise UsageError(
                "With --cors '*' every web page could use this server.",
                "Give it a key as well: --api-key KEY, or name the origins.",
            )
        for origin in self.origins:
            if origin not in ("*", LOCAL_PAGES) and origin != _as_sent(origin):
                raise UsageError(
                    f"--cors {origin} is not an origin.",
                    "Expected each as browsers send it, such as http://localhost:3000; * stands "
                    "for all of them, never for a part of one.",
                )

    def is_host(self, header: str) -> bool:
        """Whether a Host header names this server.

        Without a key, another name may be a web page's that resolves to this machine (DNS
        rebinding). With one, any name is accepted, such as a proxy's: such a page has no key.
        """
        if self.keys:
            return True
        name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
        own = [each for host in self.hosts for each in (host, f"[{host}]")]
        return name.lower() in (*_LOOPBACK_NAMES, *own)

    def is_origin(self, origin: str, host: str) -> bool:
        """Whether pages of this origin may send requests: the server's own, or allowed ones."""
        own = (f"http://{host}", f"https://{host}")
        if origin.lower() in own or origin in self.origins or "*" in self.origins:
            return True
        return LOCAL_PAGES in self.origins and bool(re.fullmatch(LOCAL_ORIGIN, origin))

    def find_key(self, given: str) -> str | None:
        """The key in a header, None for a wrong one; each takes equally long."""
        data = given.encode("latin-1")  # the encoding in which headers were decoded
        equal = [secrets.compare_digest(data, key.encode()) for key in self.keys]
        return next((key for key, is_it in zip(self.keys, equal, strict=True) if is_it), None)

    def name_of(self, key: str) -> str:
        return self.key_names.get(key) or str(self.keys.index(key) + 1)


def _as_sent(origin: str) -> str:
    """An origin as browsers write it: in lower case, without the port that its scheme implies."""
    try:
        parts = urlsplit(origin.replace("*", "").lower())
    except ValueError:  # such as an address in one bracket
        return ""
    port = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return f"{parts.scheme}://{parts.netloc.removesuffix(port)}"


def owner_of(request: Request) -> str:
    """The owner of a request's caches: a digest of its key; "" for all without keys."""
    return str(request.scope.get("state", {}).get("owner", ""))


def _digest(key: str) -> str:
    """A digest of a key or a name, different for each; it can only confirm a guess."""
    return hashlib.sha256(b"owner\0" + key.encode()).hexdigest()[:32]


LOOPBACK = Access()


class Guard:
    """Middleware that refuses a request by its headers."""

    def __init__(self, app: ASGIApp, access: Access, max_body: int) -> None:
        self._app = app
        self._access = access
        self._max_body = max_body  # bytes; a chunked body is counted while it is read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await refused(scope, receive, send)

    def _refused(self, scope: Scope) -> ErrorResponse | None:
        headers, access = Headers(scope=scope), self._access
        if not scope.get("raw_path", b"/").startswith(b"/"):  # also a whole URL, as for a proxy
            return refusal(400, "The request target does not begin with /.")
        host = headers.get("host", "")
        # Browsers send it always, HTTP/1.0 checks of load balancers do not.
        if "host" in headers and not access.is_host(host):
            names = f"127.0.0.1 or localhost, not {host[:200]}"
            return refusal(403, f"Without a key this server is called {names}.")
        origin = headers.get("origin")
        if origin is not None and not access.is_origin(origin, host.lower()):
            return refusal(
                403, f"Pages of {origin[:200]} may not use this server (see --cors-origins)."
            )
        key = access.find_key(_key(headers))
        if key is not None:
            owner = headers.get(OWNER_HEADER, "") if access.behind_front else _digest(key)
            scope.setdefault("state", {}).update(key=access.name_of(key), owner=owner)
        elif access.keys and not _is_open(scope):
            message = (
                "A key is needed (--api-key): send Authorization: Bearer KEY or x-api-key: KEY."
            )
            return refusal(401, message, {"WWW-Authenticate": "Bearer"}, "invalid_api_key")
        if (name := _shows(scope)) in access.off:
            sentence = f"{scope['path']} is off (--no-{name})."
            return refusal(404 if name == "ui" else 501, sentence)  # as llama-server
        if scope["method"] == "POST" and not (_is_json(headers) or _is_empty(headers)):
            if origin is not None or "sec-fetch-site" in headers:
                return refusal(415, "The Content-Type must be application/json.")
            MutableHeaders(scope=scope)["content-type"] = (
                "application/json"  # curl's own is a form's
            )
        encoding = ", ".join(headers.getlist("content-encoding")).strip()
        if scope["method"] == "POST" and encoding.lower() not in ("", "identity"):
            message = f"A body in {encoding[:60]} is not read: send it without Content-Encoding."
            return refusal(415, message, {"Accept-Encoding": "identity"})
        if int(headers.get("content-length", 0)) > self._max_body:  # h11 checked the number
            return refusal(413, TOO_LARGE)
        return None


def _shows(scope: Scope) -> str:
    """The part of the server that a request asks to see, by the flag that turns it off."""
    path = scope["path"]
    if path == "/" or path.startswith(_OPEN_FOLDER):
        return "ui"
    return "" if scope["method"] == "POST" else str(path[1:])


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    reads = scope["method"] in ("GET", "HEAD")
    return reads and (path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER))


def _key(headers: Headers) -> str:
    """The key of a request, in the header of OpenAI's clients or of Anthropic's."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _is_empty(headers: Headers) -> bool:
    """Whether a request has no body, as that to erase a slot; a page's is known by its Origin."""
    chunked = "transfer-encoding" in headers
    return (
        "content-type" not in headers and headers.get("content-length", "0") == "0" and not chunked
    )


def _is_json(headers: Headers) -> bool:
    """Browsers send other types across origins without a preflight request, but with Origin."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )
