"""Drafts written out of a target, by a recipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localspec.core.errors import DraftNotMade, EngineError, FileProblem
from localspec.core.files import appearing_when_complete, require_disk_space
from localspec.core.formatting import one_line
from localspec.metadata.gguf_file import GGML_TYPES_BY_NAME, Value
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft.recipe import KEEP, Recipe
from localspec.self_draft.writing.layers import removable, require_removable
from localspec.self_draft.writing.renumbering import new_names, new_values
from localspec.self_draft.writing.writer import write_copy

Progress = Callable[[int, int], None]  # tensors done, in all

LAYERS_KEY = "localspec.draft.layers"
SOURCE_KEY = "localspec.draft.source"
_ELSEWHERE = "Or name another file with --output."


def make_draft(
    target: ModelHeader, recipe: Recipe, output: Path, on_progress: Progress | None = None
) -> None:
    """Write the draft that ``recipe`` makes of ``target`` to ``output``, complete or not at all.

    Its vocabulary and chat template are the target's; its header says what it was made of. That
    llama.cpp loads it is proven before it takes its place. A file at ``output`` is replaced only if
    it is such a draft. ``on_progress`` hears of tensors; what it raises ends the making.

    Raises DraftNotMade where the target or the recipe allows no such draft, UsageError for a type
    that cannot be made, LocalspecError for a full disk, FileProblem for a place to leave alone.
    """
    require_removable(target, recipe.layers)
    require_free_place(target, output)
    names = new_names(target, recipe.layers)
    if not names:
        raise DraftNotMade(f"{one_line(target.path.name)} has no tensors.", "Give a whole model.")
    _require_room(target, recipe, names, output)
    values = {**new_values(target, recipe.layers), **_about(target, recipe)}

    def on_tensor(done: int) -> None:
        if on_progress is not None:
            on_progress(min(done, len(names)), len(names))

    try:
        with appearing_when_complete(output) as partial:
            if recipe.type == KEEP:
                write_copy(target.paths, partial, names, values, on_tensor)
            else:
                with _requantized(target, recipe, partial, on_tensor) as between:
                    same = {name: name for name in names.values()}
                    write_copy([between], partial, same, values)
            _require_loadable(partial, output)
    except OSError as problem:
        raise FileProblem(
            f"The draft could not be written to {output}: {problem.strerror or problem}.",
            "Check that the folder exists, is writable and has room.",
        ) from problem


@contextmanager
def _requantized(
    target: ModelHeader, recipe: Recipe, partial: Path, on_tensor: Callable[[int], None]
) -> Iterator[Path]:
    """A file beside ``partial`` with the layers in the recipe's type, for as long as it is needed.

    Its header still has the target's arrays by layer, so llama.cpp might not load it.
    """
    from localspec.llama.quantize import quantize

    between = partial.with_name(f"{partial.name}.{recipe.type}")
    without = sorted(set(range(target.block_count or 0)) - set(recipe.layers))
    try:
        quantize(target.path, between, recipe.type, without=without, on_tensor=on_tensor)
        yield between
    finally:
        between.unlink(missing_ok=True)


def _about(target: ModelHeader, recipe: Recipe) -> dict[str, Value | None]:
    """What the draft's header says of its origin."""
    source = target.name or target.path.stem
    words = recipe.describe(removable(target).n_layers)
    return {
        "general.name": f"{source} draft: {words}",
        "general.size_label": None,  # of the target
        LAYERS_KEY: recipe.layers,
        SOURCE_KEY: source,
    }


def require_free_place(target: ModelHeader, output: Path) -> None:
    """Raise FileProblem for a place that holds anything but a draft of ours."""
    shown = one_line(str(output))
    if not output.parent.is_dir():
        raise FileProblem(f"There is no folder {one_line(str(output.parent))}.", _ELSEWHERE)
    if not output.exists():
        return
    if any(output.samefile(part) for part in target.paths):
        raise FileProblem(f"{shown} is the target itself.", "Name another file with --output.")
    try:
        header = read_header(output)
        ours = LAYERS_KEY in header.values or header.trimmed is not None
    except FileProblem:
        ours = False
    if not ours:
        raise FileProblem(
            f"{shown} is there, and is no draft made by localspec.",
            "Remove it, or name another file with --output.",
        )


def _require_room(target: ModelHeader, recipe: Recipe, names: dict[str, str], output: Path) -> None:
    """Raise LocalspecError where the draft, and the file between, do not fit on the disk."""
    kept = [tensor for tensor in target.tensors if tensor.name in names]
    needed = sum(tensor.n_bytes for tensor in kept)
    if recipe.type != KEEP:
        from localspec.llama.quantize import require_type

        stem = "_".join(require_type(recipe.type).lower().split("_")[:2])
        stored = GGML_TYPES_BY_NAME.get(stem, GGML_TYPES_BY_NAME["q8_0"])
        elements = sum(tensor.n_elements for tensor in kept)
        # Twice: quantized, and its copy with the new header. A few matrices get better types.
        needed = 2 * elements * stored.block_bytes // stored.block_elements * 5 // 4
    require_disk_space(output.parent, needed + target.data_start, "The draft", _ELSEWHERE)


def _require_loadable(partial: Path, output: Path) -> None:
    from localspec.llama.memory.probe import require_loadable

    try:
        require_loadable(partial)
    except EngineError as problem:
        shown, reason = one_line(output.name), problem.message.replace(partial.name, output.name)
        raise DraftNotMade(
            f"The draft {shown} was made, but llama.cpp does not run it: {reason}",
            "Keep other layers, or all of them with a lower --type.",
        ) from problem
