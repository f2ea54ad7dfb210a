"""What was learnt about a pair on this machine, kept between runs.

This room owns the files in the cache folder and what makes them valid. What is in them is
`speculative.control.Knowledge`; measuring it is `speculative.calibrate`.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec import __version__
from localspec.core import paths
from localspec.core.files import appearing_when_complete, read_at_most
from localspec.metadata.header import ModelHeader
from localspec.speculative.acceptance import Acceptance
from localspec.speculative.costs import PassCosts
from localspec.speculative.knowledge import Knowledge

FORMAT = 3
_HEADER_BYTES = 2**20
_MAX_BYTES = 2**20


def profile_path(headers: list[ModelHeader], circumstances: Mapping[str, object]) -> Path:
    """Where the profile of these models lies, under these circumstances.

    A file counts as the same while its size and its beginning are: hashing gigabytes at each start
    would cost more than a calibration. ``circumstances`` holds what else costs depend on: device,
    threads, cache types, versions.
    """
    digest = hashlib.sha256(json.dumps(circumstances, sort_keys=True, default=str).encode())
    name = f"{_models_digest(headers)}-{digest.hexdigest()[:16]}.json"
    return paths.cache_folder() / "profiles" / name


def latest(headers: list[ModelHeader]) -> Knowledge | None:
    """What was learnt last of these models under whichever circumstances; None if nothing was."""
    folder = paths.cache_folder() / "profiles"
    try:
        found = sorted(
            folder.glob(f"{_models_digest(headers)}-*.json"),
            key=lambda path: path.stat().st_mtime,
        )
        return load(found[-1]) if found else None
    except (OSError, ValueError):
        return None


def _models_digest(headers: list[ModelHeader]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {__version__}".encode())
    for header in headers:
        with header.path.open("rb") as file:
            digest.update(file.read(_HEADER_BYTES))
        digest.update(str(header.path.stat().st_size).encode())
    return digest.hexdigest()[:16]


def load(path: Path) -> Knowledge | None:
    """What was kept, None when nothing was; raises ValueError for a damaged file."""
    try:
        data = read_at_most(path, _MAX_BYTES)
    except OSError:
        return None
    try:
        return _knowledge(json.loads(data.decode()))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the profile lacks something: {error!r}") from error


def save(path: Path, known: Knowledge) -> None:
    """Keep it; a folder that cannot be written is no reason to fail an answer."""
    document = {
        "verify": known.verify.as_json(),
        "draft": known.draft.as_json(),
        "reading": known.reading,
        "acceptance": {group: each.as_json() for group, each in known.acceptance.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing_when_complete(path) as partial:
            partial.write_text(json.dumps(document) + "\n")
    except OSError:
        return


def _knowledge(document: dict[str, Any]) -> Knowledge:
    reading = float(document["reading"])
    if not 0 <= reading < 1e3:
        raise ValueError(f"{reading} seconds to read a token")
    known = Knowledge(
        verify=PassCosts.from_json(document["verify"]),
        draft=PassCosts.from_json(document["draft"]),
        reading=reading,
        acceptance={
            str(group): Acceptance.from_json(each) for group, each in document["acceptance"].items()
        },
    )
    if not known.verify.knows(1):
        raise ValueError("no plain pass was measured")
    if document["draft"]["widths"] and not known.draft.knows(1):
        raise ValueError("no draft step was measured")
    return known
