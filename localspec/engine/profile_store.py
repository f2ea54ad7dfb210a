"""Pair profiles on disk: JSON files in the cache folder, one per pair, device and options."""

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
from localspec.core.compute import COMPUTE
from localspec.core.files import read_at_most, save_json
from localspec.llama import llama_library
from localspec.llama.heads.head import Head
from localspec.llama.model import LlamaModel
from localspec.metadata.header import ModelHeader
from localspec.speculative.control.acceptance import Acceptance
from localspec.speculative.control.calibration import calibrate, still_holds
from localspec.speculative.control.costs import PassCosts
from localspec.speculative.control.pair_profile import PairProfile
from localspec.speculative.control.valuation import LONGEST_AUTO
from localspec.speculative.limits import ceiling
from localspec.speculative.loop import Clock

FORMAT = 8
_HEADER_BYTES = 2**20
_MAX_BYTES = 2**20
_SHOWN = 4  # tokens of the pass whose cost is named where drafting does not pay
_CHECK_EVERY = 24 * 3600  # seconds
LEAST_CEILING = 1.05  # times plain speed: below it not even a perfect draft pays


def profile_path(headers: list[ModelHeader], circumstances: Mapping[str, object]) -> Path:
    """The path of the profile of these models.

    Files are identified by size and beginning, as hashing gigabytes would take longer than a
    calibration; ``circumstances`` is what else costs depend on: device, threads, cache types.
    """
    digest = hashlib.sha256(json.dumps(circumstances, sort_keys=True, default=str).encode())
    return _folder() / f"{_models_digest(headers)}-{digest.hexdigest()[:16]}.json"


def files_of(header: ModelHeader) -> list[Path]:
    """All that was measured of a model, alone or in a pair."""
    return sorted(_folder().glob(f"*{_models_digest([header])}*"))


def _folder() -> Path:
    return paths.cache_folder() / "profiles"


def latest(headers: list[ModelHeader]) -> PairProfile | None:
    """The newest profile of these models under any circumstances; None without a valid one."""
    try:
        found = sorted(
            _folder().glob(f"{_models_digest(headers)}-*.json"),
            key=lambda path: path.stat().st_mtime,
        )
        return load(found[-1]) if found else None
    except (OSError, ValueError):
        return None


def _models_digest(headers: list[ModelHeader]) -> str:
    return "+".join(_digest(header.path) for header in headers)


def _digest(path: Path) -> str:
    digest = hashlib.sha256(f"{FORMAT} {__version__}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_HEADER_BYTES))
    digest.update(str(path.stat().st_size).encode())
    return digest.hexdigest()[:16]


def load(path: Path) -> PairProfile | None:
    """The saved profile, None without a file; raises ValueError for a damaged one."""
    try:
        data = read_at_most(path, _MAX_BYTES)
    except OSError:
        return None
    try:
        return _from_json(json.loads(data.decode()))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the profile lacks something: {error!r}") from error


def save(path: Path, profile: PairProfile) -> None:
    """Save a profile, where the folder can be written."""
    document = {
        "verify": profile.verify.as_json(),
        "draft": profile.draft.as_json(),
        "reading": profile.reading,
        "longer_reading": profile.longer_reading,
        "replay": profile.replay,
        "checked": profile.checked,
        "answers": profile.answers,
        "acceptance": {group: each.as_json() for group, each in profile.acceptance.items()},
    }
    save_json(path, document)


def _from_json(document: dict[str, Any]) -> PairProfile:
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
        answers=_answers(document["answers"]),
        acceptance={
            str(group): Acceptance.from_json(each) for group, each in document["acceptance"].items()
        },
    )
    known.prune()
    if not known.verify.knows(1):
        raise ValueError("no plain pass was measured")
    if document["draft"]["widths"] and not known.draft.knows(1):
        raise ValueError("no draft step was measured")
    return known


def _answers(document: dict[str, float]) -> dict[int, float]:
    found = {int(bits): float(tokens) for bits, tokens in document.items()}
    if not all(0 <= bits < 64 and 0 <= tokens < 1e9 for bits, tokens in found.items()):
        raise ValueError("these are no lengths of answers")
    return found


def best_gain(known: PairProfile, *, drafts_block: bool = False) -> tuple[float, int]:
    """Times plain speed with a draft that is always right, and its length; see `ceiling`."""
    verify = [known.verify.seconds(1 + k, 0) for k in range(LONGEST_AUTO + 1)]
    return ceiling(verify, known.draft.seconds(1, 0), drafts_block=drafts_block)


class StoredProfile:
    """The profile of a loaded pair, read or measured when it is first asked for.

    ``notes`` tell the user of a damaged file, or of costs that no longer hold.
    """

    def __init__(self, target: LlamaModel, draft: LlamaModel | Head | None) -> None:
        self.notes: list[str] = []
        self._target = target
        self._draft = draft
        self._profile: PairProfile | None = None
        self._forgotten = False

    def learnt(self, clock: Clock) -> PairProfile:
        """The profile; measured, with a note, where none is saved or its costs no longer hold.

        Measuring needs empty caches.
        """
        if self._profile is None:
            self._profile = COMPUTE.call(lambda: self._read_or_measure(clock))
        return self._profile

    def _read_or_measure(self, clock: Clock) -> PairProfile:
        return self._read(clock) or calibrate(self._target, self._draft, clock)

    def introduce(self, say: Callable[[str], None]) -> None:
        """Load or measure the profile, and tell ``say`` about it."""
        if self._profile is not None:
            return
        if not self._is_saved():
            say("New on this machine: measuring for about two seconds what drafting costs.")
            if reason := _unwritable(self.path.parent):
                say(f"It cannot be saved for the next time: {reason}.")
        told = len(self.notes)
        known = self.learnt(time.perf_counter)
        for sentence in [*self.notes[told:], *self._verdict(known)]:
            say(sentence)

    def forget(self) -> None:
        """Measure the pair anew, even where its file cannot be removed."""
        self._profile = None
        self._forgotten = True
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def save(self) -> None:
        """Save the profile if there is one."""
        if self._profile is not None:
            save(self.path, self._profile)

    @contextmanager
    def learning_nothing(self) -> Iterator[None]:
        """Discard what is learnt inside the block."""
        before = self._profile
        self._profile = copy.deepcopy(before)
        try:
            yield
        finally:
            self._profile = before

    @functools.cached_property
    def path(self) -> Path:
        """Its file; found when it is read, as a model's file may be gone when it is saved."""
        models = [self._target, *([] if self._draft is None else [self._draft])]
        return profile_path(
            [model.header for model in models],
            {
                "cpu": machine.cpu_name(),
                "devices": [device.name for device in llama_library.devices()],
                "models": [_circumstances(model) for model in models],
            },
        )

    def _is_saved(self) -> bool:
        """Whether there is a file to read; not in a folder that may not be entered."""
        try:
            return not self._forgotten and self.path.exists()
        except OSError:
            return False

    def _read(self, clock: Clock) -> PairProfile | None:
        """The saved profile, its costs measured again where they no longer hold; None without.

        They are checked once a day, which may take two seconds.
        """
        if self._forgotten:
            return None
        try:
            known = load(self.path)
        except ValueError as error:
            self.notes.append(f"The saved profile of this pair is discarded: {error}.")
            return None
        # A new profile is checked at the next start: the machine may have been busy.
        now = time.time()
        if known is None or 0 <= now - known.checked < _CHECK_EVERY:
            return known
        if still_holds(known, self._target, self._draft, clock):
            known.checked = now
            return known
        self.notes.append("Costs of passes have changed since the last start: measured again.")
        again = calibrate(self._target, self._draft, clock)
        again.acceptance = known.acceptance
        return again

    def _verdict(self, profile: PairProfile) -> list[str]:
        """One line when no draft could pay on this machine."""
        if self._draft is None:
            return []
        most, _ = best_gain(profile, drafts_block=self._draft.block_size is not None)
        if most >= LEAST_CEILING:
            return []
        plain = profile.verify.seconds(1, 0)
        cost, step = profile.verify.seconds(_SHOWN, 0) / plain, profile.draft.seconds(1, 0) / plain
        return [
            f"The draft model will not pay on this machine: a pass of {_SHOWN} tokens costs "
            f"{cost:.1f} plain ones, a step of the draft {step:.2f}. Edits and quotations still "
            "come faster, by prompt lookup."
        ]


def _unwritable(folder: Path) -> str | None:
    """Why nothing can be saved in a folder; None where it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder} cannot be created ({error.strerror})"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable"


def _circumstances(model: LlamaModel | Head) -> dict[str, object]:
    """The settings that costs depend on; a pass of a tree costs what a chain's does."""
    left_out = ("file", "name", "ctx_size", "branches")
    return {name: value for name, value in model.settings().items() if name not in left_out}
