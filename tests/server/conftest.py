"""Servers over toys, and over the bundled pair."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chat.tool_templates import HERMES
from tests.support.served import ServedToy, Site, serving


@pytest.fixture(scope="module")
def toy_server() -> Iterator[Site]:
    """A server over a toy pair: greedy, eight tokens an answer where nothing else is asked for."""
    with serving(ServedToy()) as site:
        yield site


@pytest.fixture(scope="module")
def server(demo_files: tuple[Path, Path]) -> Iterator[Site]:
    """A server over the bundled pair, with its own defaults; for tests marked llama."""
    from localspec.core.options.load_options import LoadOptions
    from localspec.engine.engine import Engine
    from localspec.server.service import Defaults

    target, draft = (LoadOptions(path, threads=1) for path in demo_files)
    with (
        Engine.load(target, draft) as engine,
        serving(engine, defaults=Defaults(), names=("target", "target.gguf")) as site,
    ):
        yield site


@pytest.fixture(scope="module")
def tool_user(demo_files: tuple[Path, Path]) -> Iterator[Site]:
    """The bundled pair with a template that tells of tools: it cannot choose them by itself."""
    from localspec.chat.templates.template import ChatTemplate
    from localspec.core.options.load_options import LoadOptions
    from localspec.engine.engine import Engine
    from localspec.server.service import Defaults

    target, draft = (LoadOptions(path, threads=1) for path in demo_files)
    with Engine.load(target, draft) as engine:
        engine.template = ChatTemplate(HERMES)
        with serving(engine, defaults=Defaults()) as site:
            yield site
