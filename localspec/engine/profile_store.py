"""Pair profiles: a part of the pair file, read or measured when a pair is first used."""

import contextlib
import copy
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localspec.core import machine
from localspec.core.compute import COMPUTE
from localspec.core.formatting import size
from localspec.engine.loading import pair_file
from localspec.engine.loading.pair_file import PairFile
from localspec.llama.heads.head import Head
from localspec.llama.model import LlamaModel
from localspec.metadata.header import ModelHeader
from localspec.speculative.control.acceptance import Acceptance
from localspec.speculative.control.calibration import calibrate, still_holds
from localspec.speculative.control.costs import PassCosts
from localspec.speculative.control.pair_profile import PairProfile
from localspec.speculative.control.valuation import LONGEST_AUTO
from localspec.speculative.limits import usual_best
from localspec.speculative.loop import Clock

MEASURING = "New on this machine: measuring the costs of drafting for about two seconds."
_BUSY = (
    "The costs of drafting could not be measured: the machine is busy. Answers and the next start "
    "correct them."
)
_SHOWN = 4  # tokens of the pass whose cost is shown if drafting does not pay
_CHECK_EVERY = 24 * 3600  # seconds
_MOST = 1.25 * _SHOWN  # plain passes: as many plain ones give the same tokens, so more is noise
_COPIED = 0.8  # of the tokens of a copy, where an edit changes every few words
LEAST_CEILING = 1.05  # times plain speed: below it not even a perfect draft pays


def latest(headers: list[ModelHeader]) -> PairProfile | None:
    """The newest profile of these models under any circumstances; None without a valid one."""
    for parts in pair_file.found_of(headers):
        with contextlib.suppress(ValueError):
            if (known := from_json(parts.get("profile"))) is not None:
                return known
    return None


def as_json(profile: PairProfile) -> dict[str, Any]:
    """The part of the pair file that `from_json` restores."""
    return {
        "verify": profile.verify.as_json(),
        "draft": profile.draft.as_json(),
        "reading": profile.reading,
        "longer_reading": profile.longer_reading,
        "replay": profile.replay,
        "checked": profile.checked,
        "company": profile.company,
        "answers": profile.answers,
        "acceptance": {group: each.as_json() for group, each in profile.acceptance.items()},
    }


def from_json(document: Any) -> PairProfile | None:
    """The profile of `as_json`; None for None. Raises ValueError for a damaged one."""
    try:
        return None if document is None else _from_json(document)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the profile lacks something: {error!r}") from error


def _from_json(document: dict[str, Any]) -> PairProfile:
    reading, replay = float(document["reading"]), float(document["replay"])
    longer = float(document["longer_reading"])
    if not (0 <= reading < 1e3 and 0 <= longer < 1 and 0 <= replay < 1e5):
        raise ValueError(f"{reading} seconds to read a token, {replay} to read some again")
    company = float(document.get("company", PairProfile().company))  # earlier profiles have none
    if not 0 <= company <= 1:
        raise ValueError(f"{company} is not a share of the other sequences")
    known = PairProfile(
        verify=PassCosts.from_json(document["verify"]),
        draft=PassCosts.from_json(document["draft"]),
        reading=reading,
        longer_reading=longer,
        replay=replay,
        checked=float(document.get("checked", 0)),
        company=company,
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
        raise ValueError("these are not lengths of answers")
    return found


def best_gain(known: PairProfile, *, drafts_block: bool = False) -> tuple[float, int]:
    """Times plain speed with a draft that is always right, and its length; see `usual_best`."""
    verify = [known.verify.seconds(1 + k, 0) for k in range(LONGEST_AUTO + 1)]
    return usual_best(verify, known.draft.seconds(1, 0), 1.0, drafts_block=drafts_block)


def _copies_gain(known: PairProfile) -> str:
    """Gain of prompt lookup, which ends with the draft, and costs nothing; "" for none."""
    verify = [known.verify.seconds(1 + k, 0) for k in range(LONGEST_AUTO + 1)]
    gain, _ = usual_best(verify, 0.0, _COPIED)
    pays = gain >= LEAST_CEILING
    return ", and ends prompt lookup, by which edits and quotations come faster" if pays else ""


class StoredProfile:
    """The profile of a loaded pair, read or measured when it is first asked for.

    ``notes`` inform the user of a damaged file, or of costs that no longer hold.
    """

    def __init__(self, target: LlamaModel, draft: LlamaModel | Head | None, file: PairFile) -> None:
        self.notes: list[str] = []
        self._target = target
        self._draft = draft
        self._file = file
        self._profile: PairProfile | None = None

    @property
    def known(self) -> PairProfile | None:
        """The profile as it is or was saved, without measuring; None if there is none."""
        if self._profile is None:
            with contextlib.suppress(ValueError):
                return from_json(self._file.parts.get("profile"))
        return self._profile

    def learnt(self, clock: Clock) -> PairProfile:
        """The profile; measured, with a note, if none is saved or its costs no longer hold.

        Measuring needs empty caches.
        """
        if self._profile is None:
            self._profile = COMPUTE.call(
                lambda: self._read(clock) or calibrate(self._target, self._draft, clock)
            )
            self._profile.fills = self._target.fills_passes
        return self._profile

    def introduce(self, say: Callable[[str], None]) -> None:
        """Load or measure the profile, and pass its notes to ``say``."""
        if self._profile is not None:
            return
        if self._file.parts.get("profile") is None:
            if not self._file.is_announced:
                say(MEASURING)
            if reason := _unwritable(self.path.parent):
                say(f"It cannot be saved for the next time: {reason}.")
        before = len(self.notes)
        known = self.learnt(time.perf_counter)
        for sentence in [*self.notes[before:], *self._verdict(known)]:
            say(sentence)

    def forget(self) -> None:
        """Measure the pair again, even if its file cannot be written."""
        self._profile = self._file.problem = None
        self._file.update(profile=None)

    def save(self) -> None:
        if self._profile is not None:
            self._file.update(profile=as_json(self._profile))

    @contextmanager
    def learning_nothing(self) -> Iterator[None]:
        """Discard all that is learnt inside the block."""
        before = self._profile
        self._profile = copy.deepcopy(before)
        try:
            yield
        finally:
            self._profile = before

    @property
    def path(self) -> Path:
        return self._file.path

    def _read(self, clock: Clock) -> PairProfile | None:
        """The saved profile, its costs measured again if they no longer hold; None without.

        They are checked once a day, which may take two seconds.
        """
        file = self._file
        known, problem = None, file.problem
        try:
            known = from_json(file.parts.get("profile"))
        except ValueError as error:
            problem = str(error)
        if problem is not None:
            self.notes.append(f"The saved profile of this pair is discarded: {problem}.")
        # A new profile is checked at the next start: the machine may have been busy.
        now = time.time()
        if known is None or file.is_new:
            return known
        if not file.has_moved:
            if 0 <= now - known.checked < _CHECK_EVERY:
                return known
            if still_holds(known, self._target, self._draft, clock):
                known.checked = 0.0 if machine.is_busy() else now  # then again at the next start
                return known
        again = calibrate(self._target, self._draft, clock)
        again.acceptance, again.company = known.acceptance, known.company
        return again

    def _verdict(self, profile: PairProfile) -> list[str]:
        """One line when no draft could pay on this machine, or costs could not be measured."""
        if self._draft is None:
            return []
        most, _ = best_gain(profile, drafts_block=self._draft.block_size is not None)
        plain = profile.verify.seconds(1, 0)
        cost, step = profile.verify.seconds(_SHOWN, 0) / plain, profile.draft.seconds(1, 0) / plain
        if most >= LEAST_CEILING:
            return []
        if not 1 <= cost <= _MOST or machine.is_busy():
            return [_BUSY]
        if step > 1:  # also a draft that is as big, which the check of the pair reports
            return []
        return [
            f"The draft model will not pay on this machine (checking {_SHOWN} tokens takes as long "
            f"as writing {cost:.1f}, guessing one as long as {step:.2f}): --draft off frees "
            f"{size(self._draft.memory.total)}{_copies_gain(profile)}."
        ]


def _unwritable(folder: Path) -> str | None:
    """Why nothing can be saved in a folder; None if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder} cannot be created ({error.strerror})"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable"
