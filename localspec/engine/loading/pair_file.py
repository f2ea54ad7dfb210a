"""File of results for a pair or a model on this machine: trials, profile, passes."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from localspec import __version__
from localspec.core import machine, paths
from localspec.core.files import read_at_most, save_json
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.option import options
from localspec.llama import llama_library, row_kernels
from localspec.llama.memory.plan import asked_ctx_size, default_ctx_size
from localspec.metadata.header import ModelHeader

FORMAT = 9
_HEADER_BYTES = 2**20  # of a file that identify it, with its size
_MAX_BYTES = 2**20
_LONG = 1024  # tokens: longer contexts use the same kernels
# Fields of LoadOptions that no result depends on. A tree's passes cost the same as a chain's, and
# the first use is stored by the number of branches.
_FREE = {"path", "ctx_size", "shared_ctx", "branches"}.union(
    name for name, row in options(LoadOptions).items() if not row.affects_speed
)


class ModelFile(NamedTuple):
    """A file of this disk, and how it is loaded."""

    header: ModelHeader
    options: LoadOptions


class PairFile:
    """Parts of a file as JSON, by name; in memory only without a path, or if it is not writable.

    ``tried`` are the numbers of branches that were used (see `first_use`), ``profile`` costs and
    acceptance (see `profile_store`), ``passes`` the classes of `--exact` (of a model alone; see
    `exact_passes`). ``is_new``: parts were measured in this start, which a note
    has said if ``is_announced``. ``has_moved``: they were measured with other layers on devices.
    ``problem`` is the reason why a file could not be read.
    """

    def __init__(self, path: Path = Path(os.devnull)) -> None:
        self.path = path
        self.parts: dict[str, Any] = {}
        self.problem: str | None = None
        self.is_new = self.is_announced = self.has_moved = False
        try:
            self.parts = _read(path)
        except OSError:
            pass  # there is none, or it may not be read
        except (ValueError, TypeError, RecursionError) as error:
            self.problem = str(error)

    def update(self, **parts: object) -> None:
        """Replace parts, and write the file if possible."""
        self.parts |= parts
        save_json(self.path, self.parts)

    def place(self, layers: Sequence[int | None]) -> None:
        """Layers on devices, by model, that the parts are measured with from now on."""
        before, self.parts["layers"] = self.parts.get("layers"), list(layers)
        self.has_moved = before not in (None, list(layers)) and not self.is_new


def open_pair_file(*models: ModelFile) -> PairFile:
    """The file of a target with its draft, or of one model, under the options as they were given.

    Files that have changed are tried again. Results of the usual context serve a shorter one too,
    but for the passes of `LoadOptions.exact`.
    """
    headers = [model.header for model in models]
    usual = [each._replace(options=replace(each.options, ctx_size=None)) for each in models]
    file = PairFile(path_of(headers, _key(usual)))
    if not file.parts or models[0].options.exact:
        file = PairFile(path_of(headers, _key(models)))
    times = [path.stat().st_mtime_ns for model in models for path in files_used(model)]
    if file.parts.setdefault("times", times) != times:
        file.parts |= {"times": times, "tried": []}
    return file


def path_of(headers: Iterable[ModelHeader], key: str) -> Path:
    """The file of these models with a key of machine and options."""
    return _folder() / f"{_files_digest(headers)}-{key}.json"


def found_of(headers: Sequence[ModelHeader]) -> Iterator[dict[str, Any]]:
    """The parts in each valid file of these models, whatever their options; the newest first."""
    any_key = path_of(headers, "*")
    with contextlib.suppress(OSError):
        for path in sorted(
            _folder().glob(any_key.name), key=lambda path: path.stat().st_mtime, reverse=True
        ):
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                yield _read(path)


def news(headers: Sequence[ModelHeader], part: str) -> str:
    """The beginning of a note that this part is measured now, though perhaps not the first time."""
    known = any(part in parts for parts in found_of(headers))
    return "New with these settings" if known else "New on this machine"


def files_of(header: ModelHeader) -> list[Path]:
    """All files of results for a model, alone or in a pair."""
    return sorted(_folder().glob(f"*{_files_digest([header])}*"))


def _read(path: Path) -> dict[str, Any]:
    """Raises OSError without a file, ValueError, TypeError or RecursionError for a damaged one."""
    return dict(json.loads(read_at_most(path, _MAX_BYTES).decode()))


def _folder() -> Path:
    return paths.cache_folder() / "pairs"


def _files_digest(headers: Iterable[ModelHeader]) -> str:
    return "+".join(_digest(header.path) for header in headers)


def _digest(path: Path) -> str:
    """Size and beginning of a file: hashing gigabytes would take longer than a calibration."""
    digest = hashlib.sha256(f"{FORMAT} {__version__} {path.stat().st_size}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_HEADER_BYTES))
    return digest.hexdigest()[:16]


def _key(models: Sequence[ModelFile]) -> str:
    """Identity of this machine, this llama.cpp, and the options that matter."""
    devices = [each for each in llama_library.devices() if each.kind != llama_library.RPC_SERVER]
    circumstances = [
        machine.cpu_name(),
        llama_library.identity(),
        [[each.name, each.description] for each in devices],
        [_settings(model) for model in models],
    ]
    text = json.dumps(circumstances, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _settings(model: ModelFile) -> dict[str, object]:
    header, given = model
    known = {name: value for name, value in asdict(given).items() if name not in _FREE}
    return known | {
        "ctx_size": min(asked_ctx_size(header, given.ctx_size) or default_ctx_size(header), _LONG),
        "threads": given.threads or machine.physical_cores(),
        "row_kernels": row_kernels.in_use(given),
        "loras": [[_digest(lora.path), lora.scale] for lora in given.loras],
    }


def files_used(model: ModelFile) -> list[Path]:
    return [*model.header.paths, *(lora.path for lora in model.options.loras)]
