"""``--draft self``: the stored draft of a target, or one made now."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.commands.flags.groups import Given
from localspec.display import console
from localspec.display.progress import progress
from localspec.library.pairs.options import pair_load_options

if TYPE_CHECKING:
    from localspec.self_draft.selection import Selection, SelfDraftOptions
    from localspec.self_draft.store import StoredDraft


def self_draft(target: Path, loading: Given) -> Path | None:
    """The file of the target's self-draft, made now if none is stored; None where it does not pay.

    A note tells the user which draft it is, and what it was measured to give.
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
    console.note(_note(kept))
    return kept.path


def make_self_draft(
    target: Path,
    options: "SelfDraftOptions",
    loading: Given,
    use: "Callable[[Selection], None]" = lambda selection: None,
) -> "tuple[Selection, StoredDraft | None]":
    """Select a draft of a target and store it for ``--draft self``; ``use`` gets its file first.

    Also returns what was stored, None where `_replaces` is false.
    """
    from localspec.self_draft import store
    from localspec.self_draft.selection import selected

    with progress() as on_progress:
        with selected(
            target, options, partial(pair_load_options, loading), console.note, on_progress
        ) as found:
            kept = None
            try:
                use(found)
            finally:  # so that it is not lost if --output cannot be written
                if _replaces(found, options, store.find(found.target)):
                    kept = store.store_draft(found.target, found.recipe, found.file, found.verdict)
    return found, kept


def _replaces(
    found: "Selection", options: "SelfDraftOptions", before: "StoredDraft | None"
) -> bool:
    """Whether ``--draft self`` shall use what was found instead of what was stored before.

    That no draft pays only follows from a search without options, or from measuring the stored
    draft again. What was not measured replaces nothing, nor does a draft that was given.
    """
    from localspec.self_draft.selection import SelfDraftOptions

    if options.draft is not None:
        return False
    if found.verdict is None:
        return before is None
    again = before is not None and before.recipe == found.recipe
    return found.verdict.pays or options == SelfDraftOptions() or again


def _note(kept: "StoredDraft") -> str:
    """One line on a stored draft, with its figure."""
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
