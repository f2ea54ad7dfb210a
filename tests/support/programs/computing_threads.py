"""Several answers are asked for in four ways; prints the threads that llama.cpp ran in, by way.

python -m tests.support.programs.computing_threads TARGET DRAFT FOLDER
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import localspec
from localspec.llama import llama_library

_GIVEN: dict[str, Any] = {"threads": 1, "ctx_size": 256, "temperature": 0, "max_tokens": 12}
_COMPUTES = ("llama_decode", "llama_process", "llama_model_load_from_file", "llama_init_from_model")


def record_threads() -> set[int]:
    """Native ids of the threads that compute from now on."""
    found, llama = set[int](), llama_library.library()

    def recorded(function: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object) -> object:
            found.add(threading.get_native_id())
            return function(*given)

        return call

    for name in filter(lambda name: hasattr(llama, name), _COMPUTES):
        setattr(llama, name, recorded(getattr(llama, name)))
    return found


def in_threads(count: int, act: Callable[[int], object]) -> None:
    """Call ``act`` with each number, each in a thread of its own."""
    threads = [threading.Thread(target=act, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def serve(target: str, draft: str, folder: Path) -> None:
    """Four slots, and six clients at once."""
    from localspec.core.options.load_options import LoadOptions
    from localspec.engine.engine import Engine
    from tests.support.served import serving

    options = [LoadOptions(Path(path), ctx_size=256, threads=1) for path in (target, draft)]
    options[0] = LoadOptions(Path(target), ctx_size=256, threads=1, parallel=4)
    with Engine.load(*options) as engine, serving(engine) as site:
        in_threads(6, lambda number: site.ask(max_tokens=12 + number))


def read_asynchronously(target: str, draft: str, folder: Path) -> None:
    """Three streams of an event loop on two slots."""

    async def read(model: localspec.Model, number: int) -> str:
        return "".join([str(piece) async for piece in model.stream(f"word {number}", raw=True)])

    async def main() -> None:
        with localspec.load(target, draft, parallel=2, **_GIVEN) as model:
            await asyncio.gather(*[read(model, number) for number in range(3)])

    asyncio.run(main())


def call_from_threads(target: str, draft: str, folder: Path) -> None:
    """Four threads of a library's user, and the main thread."""
    with localspec.load(target, draft, **_GIVEN) as model:
        in_threads(4, lambda number: model.generate(f"word {number}", raw=True))
        model.generate("word", raw=True)


def run_batch(target: str, draft: str, folder: Path) -> None:
    """Four lines of a batch on two slots."""
    from localspec import cli

    lines = [{"prompt": f"word {number}", "max_tokens": 8} for number in range(4)]
    given, found = folder / "given.jsonl", folder / "found.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    sys.argv = ["localspec", "run", "-m", target, "--draft", draft, "-t", "1", "-c", "256"]
    sys.argv += ["--batch", str(given), "-o", str(found), "--parallel", "2"]
    with suppress(SystemExit):
        cli.main()
    answers = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    assert len(answers) == 4 and not any(answer.get("error") for answer in answers), answers


if __name__ == "__main__":
    target, draft, folder = sys.argv[1:]
    threads = record_threads()
    computing: dict[str, list[int]] = {}
    for program in (serve, read_asynchronously, call_from_threads, run_batch):
        threads.clear()
        program(target, draft, Path(folder))
        computing[program.__name__] = sorted(threads)
    print(json.dumps({"computing": computing, "main": threading.get_native_id()}))
