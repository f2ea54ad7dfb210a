"""Ranks compatible drafts on this disk, heads first, then the closest incompatible ones."""

import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.core.errors import LocalspecError
from localspec.core.formatting import size
from localspec.core.paths import is_bundled
from localspec.engine import profile_store
from localspec.library.local_models import LocalModel
from localspec.library.pairs.catalog import PairSpec, load_catalog
from localspec.library.scan import files_beside
from localspec.library.sidecars import is_named_for
from localspec.llama.memory.estimate import tensor_bytes
from localspec.llama.memory.plan import default_ctx_size
from localspec.llama.memory.probe import memory_for_models, pair_bytes
from localspec.metadata.draft_kind import claimed_heads, draft_kind, has_heads
from localspec.metadata.filenames import model_name
from localspec.metadata.findings import LENIENT
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import MIN_RATIO, PairReport, check_pair
from localspec.speculative.control.valuation import LONGEST_AUTO
from localspec.speculative.limits import usual_best

_HEADS_FIRST = 10.0  # heads were trained with their target, and cost little
_FAR = 4.0
_DISTANCES = dict.fromkeys(LENIENT, 1.0) | {  # of a finding, in steps away from a pair that fits
    "token-text-user-defined": 1.0, "token-text-normal": 2.0, "token-text-byte": 2.0,
    "vocab-size": 2.0, "vocab-type": 3.0,
}  # fmt: skip

# Times plain speed that a pair may reach by its learnt profile, None if too little was learnt.
Learnt = Callable[[ModelHeader, ModelHeader], float | None]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A compatible draft on this disk; ``worth`` only ranks it."""

    path: Path
    name: str
    reasons: tuple[str, ...]
    worth: float

    def command(self, target: str) -> str:
        return shlex.join(["localspec", "chat", "--target", target, "--draft", self.name])

    def as_json(self, target: str) -> dict[str, object]:
        return {
            "name": self.name,
            "path": str(self.path),
            "reasons": list(self.reasons),
            "command": self.command(target),
        }


@dataclass(frozen=True, slots=True)
class Refusal:
    """A smaller model on this disk that cannot draft, and the first reason why."""

    path: Path
    name: str
    reason: str
    hint: str
    harmless: bool  # --lenient runs the pair

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "path": str(self.path),
            "reason": self.reason,
            "hint": self.hint,
            "lenient_runs_it": self.harmless,
        }


@dataclass(frozen=True, slots=True)
class Suggestions:
    """The candidates for one target: drafts, the best first; refused ones, the nearest first.

    ``by_text`` are drafts of another vocabulary, for a target that has no others.
    ``own_heads`` counts the prediction heads in the target's own file, with which it drafts best.
    """

    drafts: tuple[Suggestion, ...]
    refused: tuple[Refusal, ...]
    known: tuple[PairSpec, ...]
    own_heads: int = 0
    by_text: tuple[Suggestion, ...] = ()


def drafts_for(
    target: ModelHeader, local: Sequence[LocalModel], *, lenient: bool = False
) -> Suggestions:
    """Every draft for ``target`` among the files ``local`` and next to it, and its known pairs."""
    found = _headers(target.path, local)
    return suggest(target, found, load_catalog(), memory_for_models(), _learnt, lenient=lenient)


def same_models(target: ModelHeader, local: Sequence[LocalModel]) -> Iterator[ModelHeader]:
    """Headers of the same model in another quantisation, by name and shape."""

    def shape(header: ModelHeader) -> object:
        name = model_name(header.name or "")
        return name, header.architecture, header.parameters, header.block_count

    for _, header in _headers(target.path, local):
        if shape(header) == shape(target) and header.quantization != target.quantization:
            yield header


def _headers(target: Path, local: Sequence[LocalModel]) -> Iterator[tuple[str, ModelHeader]]:
    """Shown names and headers of the candidates, each file once, the target left out."""
    named = [
        (str(m.path) if m.source == "folder" else m.name, m.path)
        for m in local
        if m.source != "bundled" or is_bundled(target)
    ]
    seen = {os.path.realpath(target)}
    for name, path in (*named, *((str(path), path) for path in files_beside(target))):
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        with suppress(LocalspecError):  # a broken file cannot draft; `list` and `inspect` show it
            yield name, read_header(path)


def _learnt(target: ModelHeader, draft: ModelHeader) -> float | None:
    known = profile_store.latest([target, draft])
    usual = None if known is None else known.usual_best(LONGEST_AUTO)
    return None if usual is None else usual[0]


def suggest(
    target: ModelHeader,
    candidates: Iterable[tuple[str, ModelHeader]],
    catalog: Sequence[PairSpec],
    free_ram: int | None,
    learnt: Learnt,
    *,
    lenient: bool = False,
) -> Suggestions:
    """Judge and rank ``candidates``, pairs of a shown name and a header; the target is left out."""
    drafts: list[Suggestion] = []
    by_text: list[Suggestion] = []
    refused: list[tuple[float, Refusal]] = []
    for name, header in candidates:
        is_model = draft_kind(header).is_model
        largest = target.parameters if is_model else header.parameters + 1
        if header.path == target.path or not 0 < header.parameters < largest:
            continue
        report = check_pair(target, header, lenient=lenient)
        if report.compatible:
            reasons, worth = _judge(target, header, free_ram, learnt(target, header))
            if report.by_text:
                reasons.insert(0, "of another vocabulary: drafts by text")
            kind = by_text if report.by_text else drafts
            kind.append(Suggestion(header.path, name, tuple(reasons), worth))
        elif is_model or is_named_for(header.path, target.path):
            first = report.errors[0]
            entry = Refusal(header.path, name, first.message, first.hint, report.harmless)
            refused.append((_distance(report), entry))
    return Suggestions(
        _best_first(drafts),
        tuple(entry for _, entry in sorted(refused, key=lambda each: (each[0], each[1].name))),
        tuple(pair for pair in catalog if is_target_of(pair, target)),
        claimed_heads(target) if has_heads(target) else 0,
        _best_first(by_text),
    )


def _best_first(drafts: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    return tuple(sorted(drafts, key=lambda each: (-each.worth, each.name)))


def is_target_of(pair: PairSpec, target: ModelHeader) -> bool:
    """Whether a known pair is for this model, by file name or name, of any quantisation."""
    theirs = {model_name(pair.target.repo.removesuffix("-GGUF"))}
    if pair.target.file:
        theirs.add(model_name(pair.target.file))
    ours = {model_name(target.path.name), model_name(target.name or "")}
    return bool((ours & theirs) - {""})


def rule_of_thumb(cost: float, ratio: float) -> float:
    """How many times faster a draft might make things, for ranking only.

    ``cost`` is the cost of a draft step in target steps, ``ratio`` how many times larger the target
    is: the smaller the draft, the less often it is right. A usual chance of acceptance is
    assumed, and passes that cost the same at any width.
    """
    chance = min(0.85, max(0.3, 0.9 - 0.06 * math.log2(max(1.0, ratio))))
    return usual_best([1.0] * (LONGEST_AUTO + 1), cost, chance)[0]


def _judge(
    target: ModelHeader, draft: ModelHeader, free_ram: int | None, learnt: float | None
) -> tuple[list[str], float]:
    """Reasons and worth of a draft; a ``learnt`` speed-up is its worth."""
    reasons, worth = _by_kind(target, draft)
    if draft.trimmed is not None:
        reasons.append(f"proposes {draft.trimmed.describe()}")
    ours, theirs = _families(target), _families(draft)
    if family := next((shown for key, shown in ours.items() if key in theirs), None):
        reasons.append(f"of the same family, {family}")
        worth *= 1.05
    taken = pair_bytes(target, draft, default_ctx_size(target))
    reasons += [draft.quantization, f"both need {size(taken)}"]
    if free_ram is not None and taken > free_ram:
        reasons[-1] += f", {size(free_ram)} are free"
        worth *= 0.5
    if learnt is not None:  # auto drafts where it is confident, so other text gains less
        reasons.append(f"up to {learnt:.2f}x plain, an estimate from costs and acceptance here")
    return reasons, worth if learnt is None else learnt


def _by_kind(target: ModelHeader, draft: ModelHeader) -> tuple[list[str], float]:
    """The first reasons for a draft, by its kind and size, and its worth from these alone."""
    ratio = target.parameters / draft.parameters
    read = tensor_bytes(draft) / max(1, tensor_bytes(target))
    worth = rule_of_thumb(read, ratio)
    kind = draft_kind(draft)
    if kind.is_model:
        smaller = f"{ratio:.0f} times smaller" if ratio >= 9.5 else f"{ratio:.1f} times smaller"
        is_large = max(ratio, 1 / max(read, 1e-9)) < MIN_RATIO
        return [smaller, *(["too large to gain much"] if is_large else [])], worth
    if is_named_for(draft.path, target.path):
        return [kind.words, size(draft.n_bytes)], worth + _HEADS_FIRST
    # The right sizes are no proof: many models share them.
    return [kind.words, size(draft.n_bytes), "not named for this model"], worth


def _families(header: ModelHeader) -> dict[str, str]:
    """Families that a header names, as written, by their names without case and separators."""
    keys = ("general.basename", "general.base_model.0.name", "general.base_model.0.repo_url")
    names = [value for key in keys if isinstance(value := header.values.get(key), str)]
    size_of_model = re.compile(r"[-_ ]v?\d+(?:\.\d+)?[bm]\b", re.IGNORECASE)
    families = (size_of_model.split(name.split("/")[-1])[0] for name in names)
    return {model_name(each): each for each in families if re.search("[a-zA-Z]", each)}


def _distance(report: PairReport) -> float:
    """How far a refused pair is from a compatible one: by its worst finding, then their number."""
    worst = max(_DISTANCES.get(finding.rule, _FAR) for finding in report.errors)
    return worst + len(report.errors) / 100
