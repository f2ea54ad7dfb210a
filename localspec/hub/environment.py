"""Environment variables that the HTTP library reads, and an error for one that it cannot use."""

import os
import re
import ssl
from collections.abc import Callable, Iterator
from urllib.request import getproxies

import httpx2

from localspec.core.errors import HubProblem
from localspec.core.host import install_command

_TIMEOUTS = ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")
_SOCKS = "'httpx2[socks]'"
_CERTIFICATES = "Change it to the path of a file of certificates (PEM), or unset it."


def unusable_variable() -> HubProblem | None:
    """An error that names the first variable the HTTP library cannot use; None if all are usable.

    A proxy may have a password: no value is shown.
    """
    return next(_problems(), None)


def _problems() -> Iterator[HubProblem]:
    for name in _TIMEOUTS:
        value = os.environ.get(name)
        if value is not None and not re.fullmatch(r"\s*\d{1,9}\s*", value):
            yield HubProblem(
                f"{name} is no whole number of seconds.", "Set it to one such as 10, or unset it."
            )
    for name, text, hint, use in (
        ("HF_ENDPOINT", "is no address of a Hub", _address("https://huggingface.co"), _reach),
        ("SSL_CERT_FILE", "leads to no certificates", _CERTIFICATES, _load_certificates),
        ("SSL_CERT_DIR", "leads to no folder", _CERTIFICATES, os.listdir),
        ("SSLKEYLOGFILE", "names a file that cannot be written", "Unset it.", _append),
        ("HF_HUB_USER_AGENT_ORIGIN", "holds invalid characters", "Unset it.", _write_header),
    ):
        if _fails(use, os.environ.get(name)):
            yield HubProblem(f"{name} {text}.", hint)
    yield from _proxy_problems()


def _proxy_problems() -> Iterator[HubProblem]:
    uses = dict.fromkeys(("http", "https", "all"), _use_proxy) | {"no": _except_hosts}
    for scheme, url in getproxies().items():
        if scheme not in uses or not (error := _fails(uses[scheme], url)):
            continue
        same = (name for name, value in os.environ.items() if value == url)
        name = next((name for name in same if name.lower() == f"{scheme}_proxy"), "")
        named = name or f"The system's setting of a proxy for {scheme}"
        if isinstance(error, ImportError):
            yield HubProblem(
                f"{named} names a SOCKS proxy, for which a Python package is missing.",
                f"Install it: {install_command(_SOCKS)}; or unset {name or 'it'}.",
            )
        elif scheme == "no":
            yield HubProblem(f"{named} is no list of hosts.", "Correct its names, or unset it.")
        else:
            hint = _address("http://host:8080 or socks5://host:1080")
            yield HubProblem(f"{named} is no address of a proxy.", hint)


def _address(example: str) -> str:
    return f"Change it to one such as {example}, or unset it."


def _fails(use: Callable[[str], object], value: str | None) -> Exception | None:
    """The error that a value raises; an empty one counts as not set."""
    try:
        if value:
            use(value)
    except (ValueError, ImportError, OSError, httpx2.InvalidURL) as error:
        return error
    return None


def _reach(url: str) -> None:
    address = httpx2.URL(url)
    if address.scheme not in ("http", "https") or not address.host:
        raise ValueError(url)
    address.host.encode("idna")


def _use_proxy(url: str) -> None:
    proxy = httpx2.Proxy(url if "://" in url else f"http://{url}")
    proxy.url.host.encode("idna")
    httpx2.HTTPTransport(verify=False, trust_env=False, proxy=proxy).close()


def _except_hosts(names: str) -> None:
    for name in names.split(","):
        _ = httpx2.URL(name.strip() if "://" in name else f"all://*{name.strip()}").host


def _load_certificates(path: str) -> None:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)


def _append(path: str) -> None:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).keylog_filename = path


def _write_header(text: str) -> None:
    text.encode("ascii")
