"""The files of a target and of its draft, found on this disk or fetched."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from localspec.core.errors import EngineError, IncompatiblePair, LocalspecError, UsageError
from localspec.core.options.load_options import DraftTokens
from localspec.library.acquire import DownloadUI, ensure_local, fitting_heads, tell_of_heads
from localspec.library.pairs.catalog import MTP, load_catalog
from localspec.library.pairs.options import Given, pair_load_options
from localspec.library.resolve import FIND, SELF, Resolver
from localspec.library.sidecars import is_named_for, sidecar_beside, sidecars_of
from localspec.library.suggest import Suggestion, drafts_for, is_target_of
from localspec.llama.heads.hidden_states import unstable
from localspec.metadata.draft_kind import has_heads
from localspec.metadata.filenames import heads_kind
from localspec.metadata.header import ModelHeader, read_header

_SIDECAR = "Draft: the prediction heads of {} ({}), next to the target."
_KINDS = {"mtp": "MTP", "eagle3": "EAGLE-3", "dflash": "DFlash", "dspark": "DSpark"}
_MOST_TRIED = 3  # drafts by text: each is loaded once, and any small model is one
_UNUSED = "No heads are used. {}"


class PairFiles(NamedTuple):
    """Files to load; with ``own_heads`` the draft is the heads in the target's own file."""

    target: Path
    draft: Path | None = None
    own_heads: bool = False


@dataclass(frozen=True, slots=True)
class PairFinder:
    """Finds the files of one pair; reports choices and downloads to the user.

    ``self_draft`` gives the draft that was made of a target. ``given`` are
    options of loading, by name. With ``parallel`` slots, heads draft only if they are named.
    """

    resolver: Resolver
    ui: DownloadUI
    self_draft: Callable[[Path], Path]
    lenient: bool = False
    given: Given = field(default_factory=dict)
    parallel: int = 1

    def find(self, target: str, draft: str | None, lengths: Sequence[DraftTokens]) -> PairFiles:
        """The files of the named models, heads if no draft was; raises IncompatiblePair."""
        if lengths == (0,):
            return PairFiles(self._local(target)[0])
        if draft in (FIND, SELF):
            (file,) = self._local(target)
            found = self._best_draft(target, file) if draft == FIND else self.self_draft(file)
            return PairFiles(file, found, own_heads=found == file)
        is_new = self.resolver.on_disk(target) is None
        if not is_new and draft not in (None, MTP) and self.resolver.on_disk(draft or "") is None:
            self._tell_of_others(target, draft or "")
        file, *rest = self._local(target, *([] if draft is None else [draft]))
        if draft == MTP and rest[0] != file:
            self.ui.say(_beside(rest[0]))
        if rest:
            return PairFiles(file, rest[0], own_heads=draft == MTP and rest[0] == file)
        heads = self._heads(file)
        if heads is None and not lengths:
            # A target that is here already costs no request at each start.
            asks = is_new and self.parallel == 1
            if not (asks and tell_of_heads(target, file, self.ui)):
                self._tell_of_known(file)
        if heads is None and any(length not in (0, "auto") for length in lengths):
            raise UsageError(
                "A draft length was given, but no draft model.",
                "Name one with --draft FILE.gguf, or leave the length out.",
            )
        return PairFiles(file, heads, own_heads=heads == file)

    def _local(self, *names: str) -> list[Path]:
        return ensure_local(names, self.resolver, self.ui, lenient=self.lenient)

    def _heads(self, target: Path, *, asked: bool = False) -> Path | None:
        """The file with prediction heads for a target, if nothing else was named to draft.

        None, with the reason if there are some, if they cannot be used; unless they were
        ``asked`` for, also if several slots share passes, which they may make slower.
        """
        header = read_header(target, tuple(self.given.get("override_kv", ())))
        try:
            found = target if has_heads(header) else sidecar_beside(header)
        except IncompatiblePair as problem:
            if any(is_named_for(file, target) for file in sidecars_of(target)):
                self.ui.say(_UNUSED.format(problem.message))
            return None
        try:
            unstable()
        except EngineError as problem:
            self.ui.say(_UNUSED.format(problem.message))
            return None
        if self.parallel > 1 and not asked:
            name = MTP if found == target else found
            reason = f"In several slots they may not gain: --draft {name} drafts with them."
            self.ui.say(_UNUSED.format(reason))
            return None
        own = "Draft: the model's own prediction heads (MTP)."
        self.ui.say(own if found == target else _beside(found))
        return found

    def _tell_of_others(self, target: str, draft: str) -> None:
        """Name the best draft next to the target, if another one was named and is to be fetched."""
        file = self.resolver.on_disk(target)
        if file and file.is_file() and (found := _best_next_to(read_header(file))):
            self.ui.say(f"{draft} is not on this disk. {found}")

    def _tell_of_known(self, target: Path) -> None:
        """Name a draft next to a target that is named alone, or one of the catalogue."""
        header = read_header(target)
        if self.parallel == 1 and (found := _best_next_to(header)):
            self.ui.say(f"No draft model is used. {found.replace(' fits too', ' fits')}")
            return
        known = [
            (pair, draft)
            for pair in load_catalog()
            if (draft := pair.draft) is not None and is_target_of(pair, header)
        ]
        for pair, draft in sorted(known, key=lambda each: each[0].gain is None)[:1]:
            gain = f"; {pair.gain.standing}: {pair.gain.what}" if pair.gain else ""
            self.ui.say(
                f"No draft model is used. The pair {pair.name} has one ({draft.size_gb:g} GB"
                f"{gain}): --draft {draft.reference} fetches it."
            )

    def _best_draft(self, name: str, target: Path) -> Path:
        """The best draft on this disk, else heads in the repository of the target's ``name``."""
        header = read_header(target)
        suggested = drafts_for(header, self.resolver.inventory.files, lenient=self.lenient)
        if suggested.own_heads:
            return self._heads(target, asked=True) or target
        if found := self._first_that_runs(target, suggested.drafts):
            return found
        heads = fitting_heads(name, header, self.ui)
        if heads is not None:
            _, file = self._local(name, str(heads.reference))
            self.ui.say(_beside(file))
            return file
        by_text = () if suggested.drafts else suggested.by_text[:_MOST_TRIED]
        if found := self._first_that_runs(target, by_text):
            return found
        raise IncompatiblePair(
            f"No model on this disk can draft for {target}.",
            "See the reasons, and other drafts: "
            + shlex.join(["localspec", "suggest", str(target)]),
        )

    def _first_that_runs(self, target: Path, drafts: Sequence[Suggestion]) -> Path | None:
        """The first of these that is worth using and runs; the user gets the reasons."""
        for each in drafts:
            if each.worth > 1 and self._runs(target, each.path):
                self.ui.say(f"Draft: {each.path} ({', '.join(each.reasons)}).")
                return each.path
        return None

    def _runs(self, target: Path, draft: Path) -> bool:
        """Whether llama.cpp runs a draft; if not, the user gets the reason."""
        from localspec.engine.loading.pair import usable_pair

        try:
            usable_pair(*pair_load_options(self.given, target, draft), lenient=self.lenient)
        except LocalspecError as problem:
            self.ui.say(f"{draft} is left out. {problem.message}")
            return False
        return True


def _best_next_to(target: ModelHeader) -> str:
    """The best draft in the target's folder, in a sentence with its flag; "" without one."""
    found = [each for each in drafts_for(target, ()).drafts if each.worth > 1]
    use = shlex.join(["--draft", found[0].name]) if found else ""
    return f"{found[0].name} fits too: {use} uses it." if found else ""


def _beside(sidecar: Path) -> str:
    return _SIDECAR.format(sidecar.name, _KINDS[heads_kind(sidecar.as_posix()) or MTP])
