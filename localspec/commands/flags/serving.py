"""Flags of a server: addresses, clients, limits."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import read_text
from localspec.core.options.load_options import PARALLEL
from localspec.core.options.option import Bounds, option

if TYPE_CHECKING:
    from localspec.engine.session.limits import Limits
    from localspec.server.guard import Access
    from localspec.server.listen import Tls

_MOST_KEY_BYTES = 2**16

_server = partial(option, panel="Server")
_seconds = partial(_server, metavar="SECONDS", bounds=Bounds(1, 7 * 86_400))
_everyday = partial(_server, everyday=True)


@dataclass(frozen=True, slots=True)
class ServingFlags:
    """A server's addresses, its clients, and how much it does at once."""

    host: str = _everyday(
        "127.0.0.1",
        "--host",
        "Address to listen on, or several, separated by commas; all but those of this machine need "
        "--api-key.",
    )
    port: int = _everyday(8080, "--port", "Port; 0: a free one.", bounds=Bounds(0, 65_535))
    alias: str | None = _server(
        None,
        "--alias -a",
        "Name of the model in requests and answers; several, separated by commas. Default: the "
        "pair's name, and the name of its file.",
        metavar="NAME",
    )
    api_key: str | None = _everyday(
        None,
        "--api-key",
        "Keys of clients, separated by commas.",
        metavar="KEY",
        envvar="LOCALSPEC_API_KEY",
    )
    api_key_file: Path | None = _server(
        None,
        "--api-key-file",
        "Read keys from this file, one per line; text after a key is its name in the metrics.",
    )
    cors_origins: tuple[str, ...] = _server(
        (),
        "--cors-origins --cors",
        "Accept requests of web pages from this origin, such as http://localhost:3000, or from any "
        "server of this machine: localhost; several, separated by commas. Default: the server's "
        "own page only.",
        metavar="ORIGIN",
    )
    max_tokens: int | None = _everyday(
        None,
        "--max-tokens -n",
        "Most tokens if a request has no limit. Default: -1, the context.",
        bounds=Bounds(-1, 2**63 - 1),
    )
    parallel: int = _everyday(
        1,
        "--parallel -np",
        "Slots: answers at the same time, each with a context of --ctx-size.",
        bounds=PARALLEL,
    )
    kv_unified: bool = _server(
        False,
        "--kv-unified/--no-kv-unified -kvu/-no-kvu",
        "Let the slots share one context of --ctx-size: each takes as much as its text needs. A "
        "request waits until there is room for its prompt.",
    )
    max_queue: int = _server(
        64,
        "--max-queue",
        "Most answers that may wait; more are refused (429).",
        bounds=Bounds(1, 100_000),
    )
    queue_timeout: float = _seconds(
        600.0, "--queue-timeout", "Longest time that an answer waits for a slot."
    )
    timeout: float = _seconds(3600.0, "--timeout", "Longest time for an answer.")
    prompt_share: float | None = _server(
        None,
        "--prompt-share",
        "Share of the time that reading prompts gets while others have answers under way. 0.5: as "
        "much as the answers; 1: prompts are read at full width, and answers stop for seconds on "
        "slow machines. Default: what keeps the pauses of an answer below half a second.",
        metavar="SHARE",
        bounds=Bounds(0.0, 1.0),
    )
    cache_ram: int | None = _server(
        None,
        "--cache-ram -cram",
        "Most memory for the KV cache of earlier prompts, so that a resumed conversation is not "
        "read again; 0: none. Default: a quarter of the memory that is free once the models are "
        "loaded, at most 8192.",
        metavar="MIB",
        bounds=Bounds(0, 2**24),
    )
    max_body: int = _server(
        32, "--max-body", "Largest request, in MiB.", metavar="MIB", bounds=Bounds(1, 1024)
    )
    ssl_cert_file: Path | None = _server(
        None, "--ssl-cert-file", "Certificate for HTTPS, in PEM format."
    )
    ssl_key_file: Path | None = _server(
        None, "--ssl-key-file", "Private key of the certificate, in PEM format."
    )
    models_dir: Path | None = _server(
        None,
        "--models-dir",
        "Serve the GGUF models of this folder, each loaded when a request names it.",
        metavar="FOLDER",
    )
    models_max: int = _server(
        4,
        "--models-max",
        "Most models loaded at the same time; 0: no limit.",
        bounds=Bounds(0, 1000),
    )
    models_autoload: bool = _server(
        True,
        "--models-autoload/--no-models-autoload",
        "Of several models, load one when a request names it; without, POST /models/load does.",
    )
    idle_timeout: float | None = _seconds(
        None,
        "--idle-timeout",
        "Unload a model that had no request for so long; the next one loads it again. Default: "
        "never.",
    )
    load_timeout: float = _seconds(
        1800.0,
        "--load-timeout",
        "Longest time for loading one of several models; its load is given up then.",
    )

    share_cache: bool = _server(
        False,
        "--share-cache",
        "Let all keys share the cache of prompts, earlier answers and saved slots. Cached "
        "prompts can reveal one client's text to another. Default: each key has its own.",
    )
    slot_save_path: Path | None = _server(
        None,
        "--slot-save-path",
        "Let clients save the caches of slots in files of this folder.",
        metavar="FOLDER",
    )
    slots: bool = _server(True, "--slots/--no-slots", "Report the state of each slot at /slots.")
    metrics: bool = _server(True, "--metrics/--no-metrics", "Report figures at /metrics.")
    ui: bool = _server(True, "--ui/--no-ui", "Serve a page for chats at /.")

    def access(self) -> "Access":
        """Who may ask; raises UsageError for a server that strangers could use, FileProblem."""
        from localspec.server.guard import Access

        names: dict[str, str] = {}
        keys = _split(self.api_key or "")
        if self.api_key is not None and not keys:
            raise UsageError("--api-key has no key.", "Give it one, or leave it out.")
        if self.api_key_file is not None:
            names = self._keys(self.api_key_file, len(keys))
            keys += tuple(names)
        origins = tuple(name for text in self.cors_origins for name in _split(text))
        off = tuple(name for name in ("slots", "metrics", "ui") if not getattr(self, name))
        access = Access(self.hosts(), keys, origins, names, off=off)
        access.check()
        return access

    def require_own_answers(self, lookup_cache: object, *, keyed: bool) -> None:
        """Raise UsageError if clients with keys would share the answers of --lookup-cache."""
        if keyed and lookup_cache is not None and not self.share_cache:
            raise UsageError(
                "--lookup-cache would share the answers to one key with all others.",
                "Leave it out, or allow that: --share-cache.",
            )

    def limits(self) -> "Limits":
        from localspec.engine.session.limits import STEP_SECONDS, Limits

        return Limits(
            self.max_queue, self.queue_timeout, self.timeout, STEP_SECONDS, self.prompt_share
        )

    def hosts(self) -> tuple[str, ...]:
        if not (hosts := _split(self.host)):
            raise UsageError("--host has no address.", "Try --host 127.0.0.1.")
        return hosts

    def names(self) -> tuple[str, ...]:
        return _split(self.alias or "")

    def check(self) -> None:
        folder = self.slot_save_path
        if folder is not None and not os.path.isdir(folder):
            raise FileProblem(f"There is no folder {folder}.", f"Make it: mkdir {folder}")

    def tls(self) -> "Tls | None":
        from localspec.server.listen import Tls

        if self.ssl_cert_file is None and self.ssl_key_file is None:
            return None
        if self.ssl_cert_file is None or self.ssl_key_file is None:
            raise UsageError(
                "HTTPS needs a certificate and its private key.",
                "Give both: --ssl-cert-file FILE --ssl-key-file FILE.",
            )
        tls = Tls(self.ssl_cert_file, self.ssl_key_file)
        tls.check()
        return tls

    @staticmethod
    def _keys(file: Path, before: int) -> dict[str, str]:
        """The keys in a file with their names, else numbers that count from ``before``."""
        text = read_text(file, _MOST_KEY_BYTES, what="The file of keys ")
        lines = [line.split(maxsplit=1) for line in text.splitlines()]
        lines = [parts for parts in lines if parts and parts[0][0] != "#"]
        if not lines:
            raise FileProblem(f"There is no key in {file}.", "Write one a line.")
        named = enumerate(lines, before + 1)
        return {key: (name or [str(i)])[0].strip() for i, (key, *name) in named}


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
