"""What was learnt about a pair on this machine: read, measured where it is new, kept between runs.

A profile is a JSON file in the cache folder.
"""

import contextlib
import copy
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localspec import __version__
from localspec.core import machine, paths
from localspec.core.config import MAX_ROWS
from localspec.core.files import read_at_most, save_json
from localspec.llama import llama_library
from localspec.llama.heads.head import Head
from localspec.llama.model import LlamaModel
from localspec.metadata.header import ModelHeader
from localspec.speculative.control.acceptance import Acceptance
from localspec.speculative.control.calibration import calibrate, still_holds
from localspec.speculative.control.costs import PassCosts
from localspec.speculative.control.pair_profile import PairProfile, RecentRate
from localspec.speculative.control.valuation import LONGEST_AUTO
from localspec.speculative.limits import ceiling
from localspec.speculative.loop import Clock

FORMAT = 7
_HEADER_BYTES = 2**20
_MAX_BYTES = 2**20
_CHECK_EVERY = 24 * 3600  # seconds
LEAST_CEILING = 1.05  # times plain speed: below it not even a perfect draft pays


def profile_path(headers: list[ModelHeader], circumstances: Mapping[str, object]) -> Path:
    """Where the profile of these models lies, under these circumstances.

    A file counts as the same while its size and its beginning are: hashing gigabytes at each start
    would cost more than a calibration. ``circumstances`` holds what else costs depend on: device,
    threads, cache types, versions.
    """
    digest = hashlib.sha256(json.dumps(circumstances, sort_keys=True, default=str).encode())
    name = f"{_models_digest(headers)}-{digest.hexdigest()[:16]}.json"
    return paths.cache_folder() / "profiles" / name


def latest(headers: list[ModelHeader]) -> PairProfile | None:
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


def load(path: Path) -> PairProfile | None:
    """What was kept, None when nothing was; raises ValueError for a damaged file."""
    try:
        data = read_at_most(path, _MAX_BYTES)
    except OSError:
        return None
    try:
        return _knowledge(json.loads(data.decode()))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the profile lacks something: {error!r}") from error


def save(path: Path, known: PairProfile) -> None:
    """Keep it where the folder can be written."""
    document = {
        "verify": known.verify.as_json(),
        "draft": known.draft.as_json(),
        "reading": known.reading,
        "longer_reading": known.longer_reading,
        "replay": known.replay,
        "checked": known.checked,
        "recent": [known.recent.tokens, known.recent.seconds],
        "acceptance": {group: each.as_json() for group, each in known.acceptance.items()},
    }
    save_json(path, document)


def _knowledge(document: dict[str, Any]) -> PairProfile:
    reading, replay = float(document["reading"]), float(document["replay"])
    longer = float(document["longer_reading"])
    if not (0 <= reading < 1e3 and 0 <= longer < 1 and 0 <= replay < 1e5):
        raise ValueError(f"{reading} seconds to read a token, {replay} to read some again")
    known = PairProfile(
        verify=PassCosts.from_json(document["verify"]),
        draft=PassCosts.from_json(document["draft"]),
        reading=reading,
        longer_reading=longer,
        replay=replay,
        checked=float(document.get("checked", 0)),
        acceptance={
            str(group): Acceptance.from_json(each) for group, each in document["acceptance"].items()
        },
    )
    if not known.verify.knows(1):
        raise ValueError("no plain pass was measured")
    known.recent = _recent(document["recent"], known.verify.seconds(1, 0))
    if document["draft"]["widths"] and not known.draft.knows(1):
        raise ValueError("no draft step was measured")
    return known


def _recent(document: list[float], plain: float) -> RecentRate:
    """The speed of late, of all that shared passes; none gives more tokens than rows."""
    tokens, seconds = map(float, document)
    recent = RecentRate(tokens, seconds)
    if not (0 <= recent.tokens < 1e4 and 0 <= recent.per_second() * plain <= MAX_ROWS):
        raise ValueError(f"{recent.tokens} tokens in {recent.seconds} seconds")
    return recent


def best_gain(known: PairProfile, *, drafts_block: bool = False) -> tuple[float, int]:
    """Times plain speed with a draft that is always right, and its length; see `ceiling`."""
    verify = [known.verify.seconds(1 + k, 0) for k in range(LONGEST_AUTO + 1)]
    return ceiling(verify, known.draft.seconds(1, 0), drafts_block=drafts_block)


class StoredProfile:
    """What is known of a loaded pair on this machine, measured when it is first asked for.

    ``notes`` tells what a user should know: a damaged profile, or costs that hold no longer.
    """

    def __init__(self, target: LlamaModel, draft: LlamaModel | Head | None) -> None:
        self.notes: list[str] = []
        self._target = target
        self._draft = draft
        self._knowledge: PairProfile | None = None
        self._forgotten = False

    def learnt(self, clock: Clock) -> PairProfile:
        """What was learnt, read or else measured first; both caches must be empty then.

        What is damaged is discarded, and costs that no longer hold are measured again, each with a
        note.
        """
        if self._knowledge is None:
            self._knowledge = self._read(clock) or calibrate(self._target, self._draft, clock)
        return self._knowledge

    def introduce(self, say: Callable[[str], None]) -> None:
        """Measure the pair if it is new here; ``say`` hears what a user should know of that."""
        if self._knowledge is not None:
            return
        if not self._is_kept():
            say("New on this machine: measuring for about two seconds what drafting costs.")
            if reason := _unwritable(self.path.parent):
                say(f"It cannot be kept for the next time: {reason}.")
        told = len(self.notes)
        known = self.learnt(time.perf_counter)
        for sentence in [*self.notes[told:], *self._verdict(known)]:
            say(sentence)

    def forget(self) -> None:
        """Let the pair be measured anew, also where its profile cannot be removed."""
        self._knowledge = None
        self._forgotten = True
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def save(self) -> None:
        """Write down what was learnt."""
        if self._knowledge is not None:
            save(self.path, self._knowledge)

    @contextmanager
    def learning_nothing(self) -> Iterator[None]:
        """Let what is learnt inside the block be lost."""
        before = self._knowledge
        self._knowledge = copy.deepcopy(before)
        try:
            yield
        finally:
            self._knowledge = before

    @functools.cached_property
    def path(self) -> Path:
        """Where it is kept; found before it is written, when a model's file may be gone."""
        models = [self._target, *([] if self._draft is None else [self._draft])]
        return profile_path(
            [model.header for model in models],
            {
                "cpu": machine.cpu_name(),
                "devices": [device.name for device in llama_library.devices()],
                "models": [_circumstances(model) for model in models],
            },
        )

    def _is_kept(self) -> bool:
        """Whether there is a profile to read; in a folder that may not be entered there is none."""
        try:
            return not self._forgotten and self.path.exists()
        except OSError:
            return False

    def _read(self, clock: Clock) -> PairProfile | None:
        """The kept profile, its costs measured again where they no longer hold; None without.

        Whether they hold is looked at once a day: it may take two seconds.
        """
        if self._forgotten:
            return None
        try:
            known = load(self.path)
        except ValueError as error:
            self.notes.append(f"The kept profile of this pair is discarded: {error}.")
            return None
        # What was measured but now is checked at the next start: the machine may have been busy.
        now = time.time()
        if known is None or 0 <= now - known.checked < _CHECK_EVERY:
            return known
        if still_holds(known, self._target, self._draft, clock):
            known.checked = now
            return known
        self.notes.append("Passes cost something else here than before: measured again.")
        again = calibrate(self._target, self._draft, clock)
        again.acceptance = known.acceptance
        return again

    def _verdict(self, known: PairProfile) -> list[str]:
        """One line when no draft could pay on this machine, with the figures."""
        if self._draft is None:
            return []
        most, length = best_gain(known, drafts_block=self._draft.block_size is not None)
        if most >= LEAST_CEILING:
            return []
        return [
            f"Even a draft that is always right would gain no more than {most:.2f}x here (with "
            f"{length} tokens a round): decoding plainly, but for prompt lookup."
        ]


def _unwritable(folder: Path) -> str | None:
    """Why nothing can be kept in a folder, None where it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder} cannot be made ({error.strerror})"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} may not be written"


def _circumstances(model: LlamaModel | Head) -> dict[str, object]:
    """What costs depend on: not where a file lies, what it is called, how much context there is.

    Nor how many branches there may be: a pass of a tree costs what a chain's does.
    """
    left_out = ("file", "name", "ctx_size", "branches")
    return {name: value for name, value in model.settings().items() if name not in left_out}
