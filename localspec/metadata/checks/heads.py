"""Checks of prediction heads: the claims of a file, and whether they fit a target.

Most of these faults trip an assertion in llama.cpp, which ends the process, or make it draft from
zeros silently.
"""

from collections.abc import Iterator

import numpy as np

from localspec.core.formatting import one_line
from localspec.metadata.draft_kind import (
    ASSISTANTS,
    MTP_CHAINS,
    MTP_GRAPHS,
    VARIANTS,
    DraftKind,
    claimed_heads,
    draft_kind,
    has_heads,
    held_heads,
    n_layers,
    output_width,
    whole_number,
)
from localspec.metadata.findings import Finding, counted, make_finding
from localspec.metadata.gguf_file import TensorInfo
from localspec.metadata.header import ModelHeader

# Architectures whose graph hands out the inputs of its layers (`t_layer_inp` in src/models/*.cpp,
# with those that share such a graph); on all others a tap ends the process in
# `llm_graph_result::set_outputs`. qwen4exp is left out: its inputs are several rows wide, at which
# `llama_context::extract_layer_inputs` ends the process too.
LAYER_TAPS = frozenset(
    "bailingmoe3 deepseek4 gemma4 gpt-oss hunyuan-dense hunyuan_vl lfm2 lfm2moe llama mimo2 "
    "minimax-01 minimax-m2 muse-glimmer nanbeige nemotron_h nemotron_h_moe qwen3 qwen35 qwen35moe "
    "qwen3moe qwen3next".split()
)
# Those that also hand out the output of the last layer, as the input of one layer more.
FINAL_LAYER_TAPS = frozenset("deepseek4 mimo2 nemotron_h nemotron_h_moe".split())
# Architectures whose graph hands out its last hidden state (`t_h_nextn`); all others give zeros.
NEXTN_TAPS = MTP_GRAPHS | frozenset(
    "deepseek2-ocr gemma4 glm5-next gpt-oss mistral4 nemotron_h".split()
)

EAGLE3_LAYERS = 3  # whose inputs an EAGLE-3 head reads (`llama_model_eagle3::load_arch_hparams`)
MAX_BLOCK = 1024  # tokens of a DFlash pass; known ones have 8 to 16
# The same for DSpark, whose graph grows with each: for too many llama.cpp has no room, and ends the
# process.
MAX_MARKOV_BLOCK = 32
MAX_MAP = 2_000_000  # tokens of a reduced vocabulary
_WIDTH_UNKNOWN = "does not say how wide the hidden states of its target are"
# Of a NextN layer as of the model's own layers; llama.cpp asserts some of it.
_OF_A_LAYER = (
    "attention.key_length",
    "expert_count",
    "expert_used_count",
    "full_attention_interval",
    "rope.dimension_count",
    "rope.dimension_sections",
)


def heads_problem(header: ModelHeader) -> str | None:
    """Why the prediction heads that a model's header names cannot be used; None if they can."""
    claimed, held = claimed_heads(header), held_heads(header)
    if not claimed or has_heads(header):
        return None
    if not held:
        heads = counted(claimed, "prediction head")
        return f"{one_line(header.path.name)} names {heads}, but its conversion left them out."
    return _too_few(header) if held < claimed else _unsupported(header)


def check_embedded(target: ModelHeader) -> Iterator[Finding]:
    """Findings against a model that is to draft with its own prediction heads."""
    if has_heads(target):
        return
    name = one_line(target.path.name)
    problem = heads_problem(target) or f"{name} has no prediction heads of its own."
    whole = 0 < claimed_heads(target) == held_heads(target)
    yield make_finding("heads-unsupported" if whole else "heads-missing", problem)


def check_heads(header: ModelHeader, kind: DraftKind) -> Iterator[Finding]:
    """Findings against a file of prediction heads alone."""
    if kind.kind == "mtp":
        yield from _check_nextn(header)
    else:
        faults = {"eagle3": _eagle3_faults, "dflash": _dflash_faults}
        yield from _damaged(header, faults[kind.kind](header, kind))
        yield from _damaged(header, _map_faults(header))


def check_heads_of(target: ModelHeader, draft: ModelHeader) -> Iterator[Finding]:
    """Findings against heads with this target: architecture, widths, layers, vocabulary.

    By the rules of `common_speculative_impl_draft_mtp`, `_eagle3` and `_dflash` in llama.cpp, and
    of its graphs in src/models/.
    """
    kind = draft_kind(draft)
    if kind.kind == "mtp":
        yield from _check_same_model(target, draft)
    else:
        yield from _check_taps(target, kind)
    yield from _check_widths(target, draft, kind)
    n_target, n_draft = n_tokens(target), n_tokens(draft)
    if n_target and n_draft and n_target != n_draft:
        message = f"The heads are for {n_draft:,} tokens, the target has {n_target:,}."
        yield make_finding("heads-vocabulary", message)


def n_tokens(header: ModelHeader) -> int:
    """Number of tokens; without a tokenizer, as many as llama.cpp makes up.

    For a trimmed vocabulary all tokens that can be read.
    """
    if header.trimmed is not None:
        return header.trimmed.size
    return len(header.vocab or ()) or whole_number(header, "vocab_size") or 0


def _damaged(header: ModelHeader, faults: Iterator[str]) -> Iterator[Finding]:
    for fault in faults:
        yield make_finding("heads-header", f"{one_line(header.path.name)} {fault}.")


def _too_few(header: ModelHeader) -> str:
    claimed = counted(claimed_heads(header), "prediction head")
    name = one_line(header.path.name)
    return f"{name} claims {claimed}, but holds the tensors of {held_heads(header)}."


def _unsupported(header: ModelHeader) -> str:
    name, architecture = one_line(header.path.name), one_line(header.architecture)
    if header.architecture not in MTP_GRAPHS:
        return f"llama.cpp cannot run the prediction heads of {architecture}, which {name} has."
    heads = f"{claimed_heads(header)} prediction heads"
    return f"{name} has {heads}, and llama.cpp runs only one of {architecture}."


def _check_nextn(header: ModelHeader) -> Iterator[Finding]:
    """NextN layers stored without the model's own."""
    claimed = claimed_heads(header)
    if header.architecture in ASSISTANTS:
        if whole_number(header, "embedding_length_out") in (None, header.embedding_length):
            yield from _damaged(header, iter([_WIDTH_UNKNOWN]))
    elif header.architecture not in (MTP_CHAINS if claimed > 1 else MTP_GRAPHS):
        yield make_finding("heads-unsupported", _unsupported(header))
    elif held_heads(header) < claimed:
        yield make_finding("heads-missing", _too_few(header))


def _eagle3_faults(header: ModelHeader, kind: DraftKind) -> Iterator[str]:
    """Values at which llama.cpp throws, or asserts."""
    if len(kind.target_layers) != EAGLE3_LAYERS:
        yield f"names {counted(len(kind.target_layers), 'layer')} of its target, not three"
    if header.block_count != 1:
        yield f"has {header.block_count} layers, where an EAGLE-3 head has one"
    if not kind.target_width:
        yield _WIDTH_UNKNOWN
    if header.get("attention.key_length") != header.get("attention.value_length"):
        yield "has keys and values of different lengths"


def _dflash_faults(header: ModelHeader, kind: DraftKind) -> Iterator[str]:
    """Values without which a block cannot be drafted."""
    if not kind.target_layers:
        yield "names no layers of its target"
    most = MAX_MARKOV_BLOCK if kind.variant == "DSpark" else MAX_BLOCK
    if not 2 <= kind.block_size <= most:
        yield f"has blocks of {kind.block_size:,} tokens, expected 2 to {most:,}"
    if kind.mask_token is None or not kind.mask_token < n_tokens(header):
        yield "names no mask token of its vocabulary"
    if kind.variant == "DFlash2" and not 0 < kind.selected <= n_tokens(header):
        yield f"selects among {kind.selected:,} tokens for each place"
    if {tensor.name for tensor in header.tensors}.issuperset(VARIANTS):
        yield "is both a DSpark and a DFlash2 head"


def _map_faults(header: ModelHeader) -> Iterator[str]:
    """Of the map from a reduced vocabulary (`d2t`), which llama.cpp uses as row numbers."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    mapped, output = tensors.get("d2t"), tensors.get("output.weight")
    if mapped is None:
        return
    n_mapped = mapped.n_elements
    if mapped.type_name != "I64" or len(mapped.shape) != 1 or not 0 < n_mapped <= MAX_MAP:
        yield "has an invalid map of tokens"
    elif output is None or output.shape[1:2] != mapped.shape:
        yield f"maps {n_mapped:,} tokens, but has no output matrix for so many"
    elif (last := _highest(header, mapped)) is not None and last >= n_tokens(header):
        yield f"maps to the token {last:,}, of {n_tokens(header):,} that it has"


def _highest(header: ModelHeader, mapped: TensorInfo) -> int | None:
    """The highest id in the map, with negative ones above all; None for a remote file."""
    try:
        with open(header.path, "rb") as file:
            file.seek(header.data_start + mapped.offset)
            data = file.read(mapped.n_bytes)
    except OSError:
        return None
    ids = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
    return int(ids.max()) if len(ids) else None


def _check_same_model(target: ModelHeader, draft: ModelHeader) -> Iterator[Finding]:
    """NextN layers have the architecture of their model, or name another."""
    wanted = ASSISTANTS.get(draft.architecture, draft.architecture)
    if target.architecture != wanted:
        theirs, ours = one_line(wanted), one_line(target.architecture)
        message = f"The heads are for a target of the architecture {theirs}, not {ours}."
        yield make_finding("heads-architecture", message)
    elif draft.architecture in ASSISTANTS:
        yield from _check_cached_keys(target, draft)
    else:
        expected, found = n_layers(target), n_layers(draft)
        if expected and found and expected != found:
            message = f"The heads follow {found} layers, but the target has {expected}."
            yield make_finding("heads-layers", message)
        for key in _OF_A_LAYER:
            own, other = target.get(key), draft.get(key)
            if own is not None and own != other:
                shown = "not given" if other is None else one_line(str(other))
                message = f"{key} is {one_line(str(own))} for the target but {shown} for the heads."
                yield make_finding("heads-width", message)


def _check_cached_keys(target: ModelHeader, draft: ModelHeader) -> Iterator[Finding]:
    """Assistants read the keys that their target has cached."""
    for key in ("attention.key_length", "attention.key_length_swa"):
        lengths = whole_number(target, key), whole_number(draft, key)
        if None not in lengths and lengths[0] != lengths[1]:
            message = f"The target's keys are {lengths[0]} wide, the heads read {lengths[1]}."
            yield make_finding("heads-width", message)
    have, read = (_of_layers(each, "attention.head_count_kv") for each in (target, draft))
    if have and read - have:
        message = f"The heads read {min(read - have)} keys of a layer, which no layer has."
        yield make_finding("heads-width", message)


def _of_layers(header: ModelHeader, key: str) -> set[int]:
    """The numbers that a key has for the layers, or for all of them."""
    value = header.get(key)
    values = value if isinstance(value, tuple) else (value,)
    return {each for each in values if isinstance(each, int)}


def _check_taps(target: ModelHeader, kind: DraftKind) -> Iterator[Finding]:
    """Whether the target has the layers that are read, and llama.cpp hands out their inputs."""
    architecture, layers = one_line(target.architecture), n_layers(target)
    wrong = [i for i in kind.target_layers if not 0 <= i <= layers]
    if wrong:
        message = f"The draft reads layer {wrong[0]:,} of its target, which has {layers}."
        yield make_finding("heads-layers", message)
        return
    final = NEXTN_TAPS if kind.kind == "eagle3" else FINAL_LAYER_TAPS
    known = {i: LAYER_TAPS if i < layers else final for i in kind.target_layers}
    if not all(target.architecture in taps for taps in known.values()):
        message = f"llama.cpp does not hand out the hidden states of {architecture}"
        if target.architecture in LAYER_TAPS:
            message += " after its last layer"
        yield make_finding("heads-unsupported", f"{message}, which this draft reads.")


def _check_widths(target: ModelHeader, draft: ModelHeader, kind: DraftKind) -> Iterator[Finding]:
    """Hidden states of one width on both sides; of the embedding too, if it is the target's."""
    ours = output_width(target) if kind.kind == "mtp" else target.embedding_length
    read, own = kind.target_width, draft.embedding_length
    if ours and read is not None and ours != read:
        message = f"The target's hidden states are {ours:,} wide, the heads read {read:,}."
        yield make_finding("heads-width", message)
        return
    names = {tensor.name for tensor in draft.tensors}
    shared = {"token_embd.weight", "output.weight"} - names if kind.kind == "eagle3" else set()
    if shared and ours is not None and own is not None and ours != own:
        message = f"The draft is {own:,} wide and has no {min(shared)} of its own; the target's is"
        yield make_finding("heads-width", f"{message} {ours:,} wide.")
