"""``serve`` with several models: their list, and the front that starts their processes."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING

from localspec.commands.flags.rows import Given
from localspec.commands.flags.serving import ServingFlags
from localspec.core.errors import FileProblem, LocalspecError, MissingFile, UsageError
from localspec.core.paths import is_bundled
from localspec.display.terminal import console
from localspec.hub.reference import parse_reference
from localspec.library.local_models import LocalModel, current_folder, find_models
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import load_catalog
from localspec.library.pairs.user_pairs import is_name
from localspec.library.resolve import Resolver

if TYPE_CHECKING:
    from socket import socket

    from localspec.server.front.models import FrontModel
    from localspec.server.listen import Server, Tls


def is_several(names: Sequence[str] | None, given: Given, serving: ServingFlags) -> bool:
    """Whether models are loaded when they are asked for, instead of one at the start."""
    count = len(names or ()) + ("target" in given)
    return count != 1 or bool(serving.models_dir or serving.idle_timeout)


def serve_models(names: Sequence[str], given: Given, serving: ServingFlags) -> None:
    """Serve models, each in a process of its own, until Ctrl-C."""
    from localspec.server.front.app import FrontServer, make_front
    from localspec.server.front.models import Models
    from localspec.server.front.process import ModelProcess
    from localspec.server.listen import bound

    access, tls = serving.access(), serving.tls()
    serving.require_own_answers(given.get("lookup_cache"), keyed=bool(access.keys))
    found = _models(names, given, serving)
    if names_given := serving.names():
        if len(found) > 1:
            raise UsageError("--alias names one model.", "Name several each: NAME=MODEL")
        found[0].names = names_given
    arguments = sys.argv[2:]

    def launch(model: "FrontModel") -> ModelProcess:
        line = (model.source, *arguments)  # the child serves the first one
        return ModelProcess(model.names, line, console.note, keyed=bool(access.keys))

    with bound(serving.hosts(), serving.port) as sockets:
        models = Models(
            found,
            launch,
            console.note,
            most=serving.models_max,
            autoload=serving.models_autoload,
            idle_seconds=serving.idle_timeout,
            patience=serving.queue_timeout,
            load_seconds=serving.load_timeout,
        )
        app = make_front(models, access, max_body=serving.max_body * 2**20, say=console.note)
        server = FrontServer(app, models, console.note, tls=tls)
        known = [model.name for model in found]
        shown = ", ".join(known[:8]) + (", ..." if known[8:] else "")
        run_server(server, sockets, tls, f"models {shown}", known, serving.parallel)
    console.note("The server has ended.")


def _models(names: Sequence[str], given: Given, serving: ServingFlags) -> list["FrontModel"]:
    """The models to serve, the default one first; raises UsageError, FileProblem, UnknownPair."""
    if "target" in given and names:
        raise UsageError(
            f"Two targets were given: {names[0]} and {given['target']}.",
            "Name all models without --target.",
        )
    resolver = Resolver()
    names = names or ([given["target"]] if "target" in given else [])
    found = [_named(name, resolver) for name in names]
    if serving.models_dir is not None:
        found += map(_file, find_models((), (serving.models_dir,)).models)
    elif not names:
        found += _on_disk()
    known: dict[str, FrontModel] = {}
    for model in found:
        if known.setdefault(model.name, model).source != model.source:
            raise UsageError(
                f"Two models are called {model.name}: {known[model.name].source} and "
                f"{model.source}.",
                f"Give one a name of its own: NAME={model.source}",
            )
    if not known:
        raise FileProblem(f"There is no GGUF model in {serving.models_dir}.", "Name models.")
    for model in known.values():
        model.expected = cache(partial(_expected, model.source, given, serving))
    return list(known.values())


def _expected(name: str, given: Given, serving: ServingFlags) -> dict[str, int]:
    """The sizes of a model that is not loaded, by its file: clients plan with its context."""
    from localspec.commands.session import make_request
    from localspec.core.options.load_options import LoadOptions
    from localspec.llama.memory.plan import asked_ctx_size, default_ctx_size, in_slots
    from localspec.metadata.header import read_header

    given = {key: value for key, value in given.items() if key != "target"}
    with suppress(LocalspecError):  # loading it gives the reason
        request = make_request(name, given, notes=False)
        path = request.resolver.on_disk(request.target)
        if path is not None:
            header = read_header(path, request.given.get("override_kv", ()))
            asked = asked_ctx_size(header, request.given.get("ctx_size"))
            load = LoadOptions(path, kv_unified=serving.kv_unified and serving.parallel > 1)
            load = in_slots(header, load, asked or default_ctx_size(header))
            return {"n_ctx": load.ctx_size or 0, "n_vocab": header.n_tokens or 0}
    return {}


def own_name(text: str) -> tuple[str | None, str]:
    """The name that NAME=MODEL gives a model, if it does, and the model."""
    name, _, model = text.partition("=")
    if model and is_name(name) and not os.path.exists(text):
        return name, model
    return None, text


def _named(text: str, resolver: Resolver) -> "FrontModel":
    from localspec.server.front.models import FrontModel

    given, name = own_name(text)
    files = resolver.files_of(name, folder=True)
    for file in files:
        if not os.path.isfile(file):
            raise MissingFile(f"There is no file {file}.", "See the models: localspec list")
    own = (files[0].stem, files[0].name)
    names = (name,) if resolver.is_pair(name) else (*reference_names(name), *own)
    names = names if given is None else (given, *names)
    return FrontModel(names, name, sum(file.stat().st_size for file in files))


def reference_names(name: str) -> tuple[str, ...]:
    """A reference to the Hub as the name of its model; nothing for other names."""
    reference = parse_reference(name)
    return () if reference is None else (str(reference).removeprefix("hf:"),)


def _on_disk() -> Iterator["FrontModel"]:
    """The user's pairs, the known ones that are here, the bundled one; then single models."""
    resolver = Resolver(current_folder())
    known, taken = [pair.name for pair in load_catalog()], set[str]()
    for name in dict.fromkeys([*user_pairs.names(), *known, user_pairs.BUNDLED]):
        with suppress(FileProblem):
            model = _named(name, resolver)
            taken.update((name, *map(os.path.realpath, resolver.files_of(name, folder=True))))
            yield model
    for single in resolver.inventory.models:
        own = single.path.stem, os.path.realpath(single.path)
        if not is_bundled(single.path) and taken.isdisjoint(own):
            taken.add(single.path.stem)
            yield _file(single)


def _file(model: "LocalModel") -> "FrontModel":
    from localspec.server.front.models import FrontModel

    return FrontModel((model.path.stem, model.path.name), str(model.path), model.n_bytes)


def run_server(
    server: "Server",
    sockets: list["socket"],
    tls: "Tls | None",
    shown: str,
    models: Sequence[str],
    slots: int,
) -> None:
    """Answer until a signal; ``shown`` names the models in the first lines."""
    from localspec.server.listen import listen, url
    from localspec.server.running import announced

    for each in sockets:
        listen(each)
    address = url(sockets[0], tls)
    with server.capture_signals():
        console.note(f"Listening on {address} ({shown}).")
        console.note(f"Page: {address}/  ·  API: {address}/v1  ·  Ctrl-C ends the server.")
        with announced(address, models, slots):
            server.run(sockets)
