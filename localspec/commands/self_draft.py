"""The draft that stands behind ``--draft self``: the one kept for a target, or made now."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.commands.flags.groups import Given
from localspec.commands.flags.pair import pair_load_options
from localspec.display import console
from localspec.display.progress import progress

if TYPE_CHECKING:
    from localspec.self_draft.selection import Selection, SelfDraftOptions
    from localspec.self_draft.store import Kept


def self_draft(target: Path, loading: Given) -> Path | None:
    """The file of the target's self-draft, made now if none is kept; None where it does not pay.

    What the user should know of it is noted.
    """
    from localspec.metadata.header import read_header
    from localspec.self_draft import store
    from localspec.self_draft.selection import SelfDraftOptions

    header = read_header(target)
    kept = store.find(header)
    if kept is None:
        console.note("No draft was made of this target here yet, or it is out of date.")
        kept = make_self_draft(target, SelfDraftOptions(), loading)[1]
        assert kept is not None
    console.note(_said(kept))
    return kept.path


def make_self_draft(
    target: Path,
    wish: "SelfDraftOptions",
    loading: Given,
    use: "Callable[[Selection], None]" = lambda selection: None,
) -> "tuple[Selection, Kept | None]":
    """Select a draft of a target and keep it for ``--draft self``; ``use`` has its file first.

    Besides the selection, what is kept of it; None where `_tells` says no.
    """
    from localspec.self_draft import store
    from localspec.self_draft.selection import selected

    with progress() as on_progress:
        with selected(
            target, wish, partial(pair_load_options, loading), console.note, on_progress
        ) as found:
            kept = None
            try:
                use(found)
            finally:  # a file that cannot be written elsewhere is not lost
                if _tells(found, wish, store.find(found.target)):
                    kept = store.store_draft(
                        found.target, found.best.recipe, found.file, found.verdict
                    )
    return found, kept


def _tells(found: "Selection", wish: "SelfDraftOptions", before: "Kept | None") -> bool:
    """Whether what was found is to stand behind ``--draft self`` from now on.

    That none pays is told by a search of everything alone, or of a draft that was kept; and what
    was not measured replaces nothing. What was made of another draft is none of the target.
    """
    from localspec.self_draft.selection import SelfDraftOptions

    if wish.draft is not None:
        return False
    if found.verdict is None:
        return before is None
    again = before is not None and before.recipe == found.best.recipe
    return found.verdict.pays or wish == SelfDraftOptions() or again


def _said(kept: "Kept") -> str:
    """One line on what is kept, with its figure."""
    verdict = kept.verdict
    if verdict is None:
        return f"Draft: {kept.path}, made of the target; whether it pays was not measured."
    figure = f"{verdict.speedup:.2f}x plain, prompt lookup alone {verdict.lookup_speedup:.2f}x"
    if kept.path is None:
        return (
            f"A draft made of this target does not pay here ({figure}): it is not used. With other "
            "flags it may: localspec draft make measures again."
        )
    return f"Draft: {kept.path}, made of the target ({figure})."
