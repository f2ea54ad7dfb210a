"""The command ``serve``: an OpenAI-compatible HTTP server."""

from contextlib import closing, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from localspec.commands import session
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.pair import NamesArgument, PairFlags
from localspec.commands.flags.rows import Given
from localspec.commands.flags.serving import ServingFlags
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.serve.log_stream import unblocked_stderr
from localspec.commands.serve.models import (
    is_several,
    own_name,
    reference_names,
    run_server,
    serve_models,
)
from localspec.core import machine
from localspec.core.compute import COMPUTE
from localspec.core.errors import LocalspecError, UsageError
from localspec.core.host import install_command
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.display.terminal import console

if TYPE_CHECKING:
    from localspec.engine.engine import Engine
    from localspec.library.pairs.request import PairRequest
    from localspec.server.front.process import FrontHandshake
    from localspec.server.service import Service

_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")  # of the extra
# Flags of a front that concern its own clients, and not the processes of its models.
_OF_A_FRONT = (
    "host", "alias", "api_key_file", "cors_origins", "slots", "metrics", "ui",
)  # fmt: skip
_PRIVATE = {name: getattr(ServingFlags(), name) for name in (*_OF_A_FRONT, "ssl_cert_file")}
_PRIVATE |= {"port": 0, "ssl_key_file": None}


@spread_groups
@unblocked_stderr()
def serve(
    serving: ServingFlags, templating: TemplateFlags, given: PairFlags, names: NamesArgument = None
) -> None:
    """Serve the APIs of OpenAI, Anthropic and llama-server, and a page in the browser."""
    require_extra()
    from localspec.server.front.process import FrontHandshake

    templating.check()
    serving.check()
    given_name, name = own_name(names[0]) if names else (None, None)
    if given_name and serving.alias:
        raise UsageError(f"Two names were given: {given_name} and {serving.alias}.", "Give one.")
    if (handshake := FrontHandshake.from_environment()) is not None:
        serving = replace(serving, **_PRIVATE, api_key=handshake.key)
        given = {name: value for name, value in given.items() if name != "target"}
        with handshake.reporting():
            _serve_model(name, given, serving, templating, handshake)
    elif is_several(names, given, serving):
        serve_models(names or [], given, serving)
    else:
        serving = replace(serving, alias=given_name or serving.alias)
        _serve_model(name, given, serving, templating)


def _serve_model(
    name: str | None,
    given: Given,
    serving: ServingFlags,
    templating: TemplateFlags,
    handshake: "FrontHandshake | None" = None,
) -> None:
    """Serve one model in this process, to everybody or to a front."""
    from localspec.server.app import make_app, model_meta
    from localspec.server.listen import Server, bound, listen, url
    from localspec.server.running import announced

    COMPUTE.release()  # the main thread runs the event loop
    request = session.make_request(name, given)
    length = request.draft_tokens
    access, tls = replace(serving.access(), behind_front=handshake is not None), serving.tls()
    keyed = bool(access.keys) if handshake is None else handshake.keyed
    serving.require_own_answers(request.models.lookup_cache, keyed=keyed)
    shown = serving.names() or (request.pair or request.models.target or "",)
    with (
        bound(serving.hosts(), serving.port) as sockets,
        nullcontext() if handshake else announced(url(sockets[0], tls), shown[:1], slots=0),
        session.open_engine(request, serving.parallel, serving.kv_unified) as engine,
        session.lookup_cache(engine, request, default=True),
    ):
        session.use_template(engine, templating)
        service = make_service(engine, request, length, serving, templating)
        with closing(service.session):
            app = make_app(service, access, max_body=serving.max_body * 2**20, say=console.note)
            server = Server(app, service.session, console.note, tls=tls)
            if handshake is None:
                slots = len(service.session.slots())
                run_server(server, sockets, tls, _named(service), [service.model], slots)
            else:
                listen(sockets[0])
                service.names = handshake.names
                handshake.report(sockets[0].getsockname()[1], _mapped(engine), model_meta(service))
                server.run(sockets)
    if handshake is None:
        console.note("The server has ended.")


def make_service(
    engine: "Engine",
    request: "PairRequest",
    length: DraftTokens,
    serving: ServingFlags,
    templating: TemplateFlags,
) -> "Service":
    from localspec.engine.caches.prefix_cache import PrefixCache
    from localspec.server.service import Defaults, Service

    asked = GenerateOptions(draft_tokens=length, max_tokens=serving.max_tokens)
    asked = templating.limited(asked)
    options = session.generate_options(engine, request, asked)
    given = request.sampling.get("seed")
    defaults = Defaults(options, seed=None if given in (None, -1) else options.sampling.seed)
    file = engine.target.header.path
    own = (request.pair,) if request.pair else reference_names(request.target)
    names = serving.names() or (*own, file.stem, file.name)
    notes = engine.notes
    say = None if serving.cache_ram == 0 else console.note
    prefixes = PrefixCache(_cache_bytes(engine, serving.cache_ram), say)
    queue = engine.open_session(serving.limits(), prefixes)
    for sentence in engine.notes:
        if sentence not in notes:  # why there is only one slot
            console.note(sentence)
    return Service(
        engine,
        queue,
        defaults,
        names,
        _about(engine),
        slot_folder=serving.slot_save_path,
        share_cache=serving.share_cache,
        say=console.note,
    )


def _cache_bytes(engine: "Engine", asked: int | None) -> int:
    """The size of the prefix cache: the given MiB, or a share of the RAM that weights leave."""
    from localspec.engine.caches.prefix_cache import default_limit

    if asked is not None:
        return asked * 2**20
    memory = machine.memory()
    mapped = 0 if engine.target.options.mlock else _mapped(engine)
    return default_limit(None if memory is None else max(0, memory[0] - mapped))


def _mapped(engine: "Engine") -> int:
    models = [model for model in (engine.target, engine.draft) if model is not None]
    return sum(model.memory.mapped for model in models)


def _about(engine: "Engine") -> dict[str, Any]:
    draft = engine.draft
    return {
        "model": engine.target.header.path.name,
        "model_path": engine.target.header.path.name,  # llama-server's name of it
        "draft": None if draft is None else draft.header.path.name,
        "chat_template": engine.template.source,
    }


def _named(service: "Service") -> str:
    draft, options = service.about["draft"], service.engine.target.options
    shared = (
        options.shared_ctx and f", {options.parallel} slots share {options.shared_ctx:,} tokens"
    )
    named = "no draft" if draft is None else f"draft {draft}"
    return f"model {service.model}, {named}{shared or ''}"


def require_extra() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise LocalspecError(
            f"The server needs a package that is not installed: {missing[0]}.",
            "Install the server's packages, in localspec's own folder: "
            + install_command("'.[serve]'"),
        )
