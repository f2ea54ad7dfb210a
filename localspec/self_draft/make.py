"""Drafts written out of a target, by a recipe."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from localspec.core.errors import DraftNotMade, EngineError, FileProblem, UsageError
from localspec.core.files import (
    UNWRITABLE,
    appearing_when_complete,
    file_problem,
    require_disk_space,
    temporary_beside,
)
from localspec.core.formatting import one_line
from localspec.core.options.load_options import LoadOptions
from localspec.engine.loading.first_use import prove
from localspec.engine.loading.pair_file import ModelFile
from localspec.llama.quantize import require_type, write_quantized
from localspec.metadata.draft_kind import claimed_heads, draft_kind, n_layers, whole_number
from localspec.metadata.gguf_file import GGML_TYPES_BY_NAME, Value
from localspec.metadata.gguf_writer import copied, write_copy
from localspec.metadata.header import ModelHeader, read_header
from localspec.metadata.splits import read_part
from localspec.self_draft.recipe import KEEP, Recipe, SelfDraftOptions
from localspec.self_draft.trim import require_trimmable
from localspec.self_draft.trim_heads import holds_heads, require_trimmable_heads

LAYERS_KEY = "localspec.draft.layers"
SOURCE_KEY = "localspec.draft.source"
MOST_LAYERS = 512  # LLAMA_MAX_LAYERS

_LAYER = re.compile(r"blk\.(\d{1,4})\.")
# Arrays of an architecture that are not by layer, however long they are.
_OF_THE_MODEL = ("rope.dimension_sections", "target_layers")
_ACTIVATION = "xielu."  # keys without the name of the architecture
_RATIOS = "attention.compress_ratios"  # may be longer than the model
# Keys that count the first layers of another kind than the rest.
LEADING = ("leading_dense_block_count", "hash_layer_count")
_LOWER = "Q4_0"  # agrees with 94 % of the tokens of a 1.5B in F16, at 0.3 of its bytes
_PRECISE = ("F32", "F16", "BF16", "Q8_0")  # targets that a lower type makes much quicker
_ELSEWHERE = "Or name another file with --output."


def chosen_recipe(options: SelfDraftOptions, target: ModelHeader, source: ModelHeader) -> Recipe:
    """The recipe for these options; ``source`` is the draft to be trimmed, else the target.

    MTP heads without a number of rows are to have as many as cover enough text
    (`vocabulary.enough_rows`).

    Raises DraftNotMade or UsageError for options that give no draft of this target, and
    IncompatiblePair if its vocabulary cannot be trimmed.
    """
    kind = options.type if options.type in (None, KEEP) else require_type(options.type)
    require_model(target)
    if options.layers is None and options.type is None and holds_heads(source, target):
        require_trimmable_heads(source, target, options.vocab or 1)
        return Recipe(0, KEEP, options.vocab, heads=True)
    if options.vocab is None and options.counts is not None:
        raise UsageError("--counts is of use with --vocab N alone.", "Give --vocab N with it.")
    if options.vocab is not None:
        # A draft that is made of a split target is one file.
        whole = source if options.source is not None else replace(source, split_count=1)
        require_trimmable(whole, target, options.vocab)
    if options.source is not None:
        return Recipe(n_layers(source), KEEP, options.vocab)
    lower = _LOWER if target.quantization in _PRECISE else KEEP
    recipe = Recipe(options.layers or n_layers(target), kind or lower, options.vocab)
    _require_smaller(recipe, target, n_layers(target))
    return recipe


def _require_smaller(recipe: Recipe, target: ModelHeader, count: int) -> None:
    if recipe.layers > count:
        raise UsageError(
            f"--layers is {recipe.layers}, but {target.path.name} has {count} layers.",
            "Give a number below that.",
        )
    if (recipe.layers, recipe.type) == (count, KEEP):
        raise UsageError(
            f"All {count} layers in their type, {target.quantization}, would be the target itself.",
            "A small model of its family drafts better: "
            + shlex.join(["localspec", "suggest", str(target.path)])
            + f". Or give fewer --layers, such as {count // 2}, or a lower --type such as Q2_K.",
        )


def make_draft(target: ModelHeader, recipe: Recipe, output: Path) -> None:
    """Write the draft that ``recipe`` makes of ``target`` to ``output``, complete or not at all.

    Its vocabulary and chat template are the target's; its header names its origin. A file
    at ``output`` is replaced only if it is such a draft, and only once llama.cpp decodes with the
    new one: some architectures need more layers, or all of them.

    Raises DraftNotMade if the target or the recipe allows no such draft, UsageError for a type
    that cannot be made, LocalspecError for a full disk, FileProblem for a place that is taken.
    """
    require_model(target)
    require_free_place(target, output)
    what = f"The draft could not be written to {output}"
    with file_problem(what, UNWRITABLE), appearing_when_complete(output) as partial:
        with temporary_beside(output) as between:
            write_layers(target, recipe, between, partial)
        _require_decodable(partial, output)


def write_layers(target: ModelHeader, recipe: Recipe, between: Path, output: Path) -> None:
    """Write the layers of a recipe to ``output``, which holds a part if that fails.

    A type other than the target's is written to ``between`` first, with the arrays of all layers.
    Raises DraftNotMade, UsageError, LocalspecError for a full disk, and OSError.
    """
    names = kept_tensors(target, recipe.layers)
    if not names:
        raise DraftNotMade(f"{one_line(target.path.name)} has no tensors.", "Give a whole model.")
    _require_disk(target, recipe, names, output)
    values = shortened_values(target, recipe.layers) | _about(target, recipe)
    if recipe.type == KEEP:
        _copy(target.paths, names, values, output)
    else:
        without = range(recipe.layers, target.block_count or 0)
        write_quantized(target.path, between, recipe.type, without=without)
        _copy([between], names, values, output)


def require_model(header: ModelHeader) -> None:
    """Raise DraftNotMade unless it is a model that continues a text, with a sane header."""
    name = one_line(header.path.name)
    if header.type != "model" or not header.is_autoregressive or not draft_kind(header).is_model:
        raise DraftNotMade(
            f"{name} is not a model that continues a text, so no draft can be made out of it.",
            "Give a model for text, without its sidecars.",
        )
    if not 0 < (header.block_count or 0) <= MOST_LAYERS or not n_layers(header):
        raise DraftNotMade(
            f"{name} has {header.block_count or 0:,} layers, {claimed_heads(header):,} of them for "
            f"prediction heads; expected 1 to {MOST_LAYERS}.",
            "Convert the model again.",
        )


def kept_tensors(header: ModelHeader, layers: int) -> set[str]:
    named = ((tensor.name, _LAYER.match(tensor.name)) for tensor in header.tensors)
    return {name for name, found in named if found is None or int(found[1]) < layers}


def shortened_values(header: ModelHeader, layers: int) -> dict[str, Value | None]:
    """The changes of the header if only the first ``layers`` stay."""
    start = f"{header.architecture}."
    changed: dict[str, Value | None] = {f"{start}block_count": layers}
    if header.get("nextn_predict_layers") is not None:
        changed[f"{start}nextn_predict_layers"] = 0
    for key in LEADING:
        leading = whole_number(header, key)
        if leading is not None:
            changed[start + key] = min(leading, layers)
    for key, value in header.values.items():
        if key.startswith((start, _ACTIVATION)):
            by_layer = _by_layer(header, key.removeprefix(start), value)
            if by_layer is not None:
                changed[key] = by_layer[:layers]
    return changed


def _by_layer(header: ModelHeader, key: str, value: Value) -> tuple[int | float | bool, ...] | None:
    """A value's elements, if it has one for each layer."""
    if not isinstance(value, tuple) or key in _OF_THE_MODEL:
        return None
    numbers = tuple(each for each in value if not isinstance(each, str))
    own, every = n_layers(header), header.block_count or 0
    fits = len(numbers) in (own, every) or (key == _RATIOS and len(numbers) > every)
    return numbers if fits else None


def _copy(
    parts: Sequence[Path], names: set[str], values: Mapping[str, Value | None], output: Path
) -> None:
    """Write one file of these tensors of the model in ``parts``, with its first part's header."""
    headers = [read_part(part) for part in parts]
    tensors = [
        copied(part, each) for part in headers for each in part.tensors if each.name in names
    ]
    write_copy(output, headers[0], values, tensors)


def _about(target: ModelHeader, recipe: Recipe) -> dict[str, Value | None]:
    source = target.name or target.path.stem
    words = recipe.describe(n_layers(target))
    return {
        "general.name": f"{source} draft: {words}",
        "general.size_label": None,  # of the target
        LAYERS_KEY: tuple(range(recipe.layers)),
        SOURCE_KEY: source,
    }


def require_free_place(target: ModelHeader, output: Path) -> None:
    """Raise FileProblem for a place that holds anything but a draft made by `make_draft`."""
    shown = one_line(str(output))
    if not os.path.isdir(output.parent):
        raise FileProblem(f"There is no folder {one_line(str(output.parent))}.", _ELSEWHERE)
    if not os.path.exists(output):
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
            f"{shown} is there, and is not a draft made by localspec.",
            "Remove it, or name another file with --output.",
        )


def _require_disk(target: ModelHeader, recipe: Recipe, names: set[str], output: Path) -> None:
    """Raise LocalspecError if the draft, and the file between, do not fit on the disk."""
    kept = [tensor for tensor in target.tensors if tensor.name in names]
    needed = sum(tensor.n_bytes for tensor in kept)
    if recipe.type != KEEP:
        stem = "_".join(require_type(recipe.type).lower().split("_")[:2])
        stored = GGML_TYPES_BY_NAME.get(stem, GGML_TYPES_BY_NAME["q8_0"])
        elements = sum(tensor.n_elements for tensor in kept)
        # Twice: quantized, and its copy with the new header. A few matrices get better types.
        needed = 2 * elements * stored.block_bytes // stored.block_elements * 5 // 4
    require_disk_space(output.parent, needed + target.data_start, "The draft", _ELSEWHERE)


def _require_decodable(partial: Path, output: Path) -> None:
    try:
        prove(ModelFile(read_header(partial), LoadOptions(partial)))
    except EngineError as problem:
        shown, reason = one_line(output.name), problem.message.replace(partial.name, output.name)
        raise DraftNotMade(
            f"The draft {shown} was made, but llama.cpp does not run it: {reason}",
            "Keep more layers, or all of them with a lower --type.",
        ) from problem
