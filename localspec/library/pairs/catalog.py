"""The catalogue of known pairs, `pairs.toml`: models on the Hub, licences, and expected gains.

Its facts about vocabularies are not verified: only `pairing` checks files.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from localspec.core.errors import FileProblem, UnknownPair
from localspec.core.files import read_at_most
from localspec.core.formatting import one_line
from localspec.core.options.load_options import DEFAULT_CTX_SIZE, DRAFT_WINDOW
from localspec.hub.reference import Reference

SHIPPED = Path(__file__).with_name("pairs.toml")
MAX_BYTES = 2**20
SHOWN_NAMES = 5
COMPARED_CHARACTERS = 64  # of a name that is unknown; the longest known one is shorter

# Seconds of passes of 1 to 8 tokens over those of a plain one: Q4_K_M with row kernels
# (docs/internals/kernels.md), and 8B in Q4_0 on an RTX 3090 (benchmarks/cost_tables.py).
_CPU = (1, 1.14, 1.24, 1.65, 1.83, 2.02, 2.22, 2.42)
_GPU = (1, 1.12, 1.20, 1.33, 1.54, 1.74, 1.96, 2.15)
CACHES = 1.15  # times the size of the files, if the shape of their caches is not known
_BUFFERS_GB = 0.2  # of intermediate results of both models
_ACCEPTED = 0.7  # of drafted tokens: gives the gain that was measured for 1.5B and 6B
_BLOCKS = ("draft-dflash", "draft-dspark")  # kinds that draft a block in one step
MTP = "mtp"  # in place of a draft: prediction heads, in the target's file or next to it


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model on the Hub. `size_gb` is in GB of 10^9 bytes, all its `parts` together.

    `cache_kb` is the KV cache of a token in F16, in kB, and `context` the trained one in tokens.

    Without a `file`, because it was renamed, `reference` names the one of this quantization.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    repo: str
    quantization: str
    size_gb: float
    license: str
    n_vocab: int | None = None
    file: str | None = None
    parts: int = 1
    cache_kb: float | None = None
    context: int = 32768

    @property
    def reference(self) -> Reference:
        return Reference(self.repo, self.file, None if self.file else self.quantization)


@dataclass(frozen=True, slots=True)
class Gain:
    """The speedup by drafting: measured or reported by `source`, else unconfirmed or expected.

    A list shows what comes before the semicolon, `pair show` all of it.
    "estimated" is `estimated` from the sizes of the models.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    what: str
    standing: Literal["measured", "reported", "unconfirmed", "expected", "estimated"]
    source: str | None = None


@dataclass(frozen=True, slots=True)
class PairSpec:
    """A known pair. `vocab` says how it is known that the vocabularies fit.

    `spec_type` is llama.cpp's name for the kind of draft; without a draft the target drafts with
    heads of its own. `advice` is about quantization, `gotchas` about everything else; all are whole
    sentences. `sources` are threads (owner/repository#number), files of a repository, or addresses.
    `unseen`: known from public documents alone, since none of its files was ever opened here.
    `experts`: the target has some, which may stay in RAM while a GPU computes the rest.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    name: str
    family: str
    target: ModelSpec
    vocab: Literal["predicted", "reported", "preset", "made-for", "unknown"]
    advice: str
    draft: ModelSpec | None = None
    spec_type: str = "draft-simple"
    gotchas: tuple[str, ...] = ()
    gain: Gain | None = None
    sources: tuple[str, ...] = ()
    unseen: bool = False
    experts: bool = False

    @property
    def size_gb(self) -> float:
        """Both models, in GB of 10^9 bytes."""
        return self.target.size_gb + (self.draft.size_gb if self.draft else 0)

    def memory_gb(self, ctx_size: int = DEFAULT_CTX_SIZE) -> float:
        """GB of both files, caches and buffers, for a context of at most the trained one."""
        if self.target.cache_kb is None:
            return CACHES * self.size_gb
        ctx_size = min(ctx_size, self.target.context)
        cache = self.target.cache_kb * ctx_size
        if self.draft:
            cache += (self.draft.cache_kb or 0) * min(ctx_size, DRAFT_WINDOW)
        return self.size_gb + _BUFFERS_GB + cache / 1e6

    @property
    def draft_name(self) -> str:
        """The draft as a command names it: a reference, or "mtp"."""
        return str(self.draft.reference) if self.draft else MTP

    def as_json(self) -> dict[str, object]:
        """Plain data, with the references that fetch its models."""
        target, draft = (
            model and {"reference": str(model.reference), **asdict(model)}
            for model in (self.target, self.draft)
        )
        sizes = {"size_gb": round(self.size_gb, 3), "memory_gb": round(self.memory_gb(), 3)}
        return {**asdict(self), "target": target, "draft": draft, **sizes}


def estimated(pair: PairSpec) -> Gain | None:
    """The gain that the sizes of both models let expect; None for heads, which have no size."""
    from localspec.speculative.limits import usual_best

    if pair.draft is None:
        return None
    step, is_block = pair.draft.size_gb / pair.target.size_gb, pair.spec_type in _BLOCKS
    cpu, gpu = (
        usual_best(each, step, _ACCEPTED, drafts_block=is_block)[0] for each in (_CPU, _GPU)
    )
    return Gain(
        f"CPU {cpu:.1f}x, GPU {gpu:.1f}x",
        "estimated",
        f"both sizes, {_ACCEPTED:.0%} accepted, pass costs of an EPYC and an RTX 3090",
    )


@cache
def load_catalog() -> tuple[PairSpec, ...]:
    """All known pairs, in the order of the list. Raises FileProblem when the list is damaged."""
    import tomllib

    from pydantic import TypeAdapter

    try:
        document = tomllib.loads(read_at_most(SHIPPED, MAX_BYTES).decode())
        return TypeAdapter(tuple[PairSpec, ...]).validate_python(document["pair"])
    except (OSError, ValueError, KeyError) as error:
        raise FileProblem(
            f"The list of known pairs, {SHIPPED}, is missing or damaged.",
            "Install localspec again.",
        ) from error


def find_pair(name: str, others: Sequence[str] = ()) -> PairSpec:
    """The known pair of this name, in any case; raises UnknownPair with similar names."""
    for pair in load_catalog():
        if pair.name == name.lower():
            return pair
    raise unknown_pair(name, [*others, *(pair.name for pair in load_catalog())])


def of_family(text: str) -> tuple[PairSpec, ...]:
    """The known pairs whose family or name contains `text`, in any case; raises UnknownPair."""
    wanted = _folded(text)
    pairs = load_catalog()
    found = tuple(p for p in pairs if wanted in _folded(p.family) or wanted in _folded(p.name))
    if not found:
        families = dict.fromkeys(pair.family for pair in pairs)
        raise UnknownPair(
            f"No known pair is of the family '{_shown(text)}'.",
            f"Families are: {', '.join(families)}.",
        )
    return found


def unknown_pair(name: str, known: Sequence[str]) -> UnknownPair:
    """The error for a name that is not in ``known``, with similar names."""
    names = near_names(name, known)
    message = f"There is no pair named '{_shown(name)}'"
    return UnknownPair(
        f"{message}; near it: {names}." if names else f"{message}.",
        "See all pairs with: localspec pairs",
    )


def near_names(name: str, known: Sequence[str]) -> str:
    """The names that hold ``name``, else those that begin like it, as a list for a sentence."""
    wanted = name.lower()[:COMPARED_CHARACTERS]
    by_case = {each.lower(): one_line(each) for each in known}
    begun = {each: each.rpartition("/")[2][: len(wanted)] for each in by_case if wanted}
    near = [each for each in begun if wanted in each]
    if not near:
        close = dict.fromkeys(get_close_matches(wanted, begun.values(), SHOWN_NAMES))
        near = [each for begin in close for each, own in begun.items() if own == begin]
    names = ", ".join(by_case[each] for each in near[:SHOWN_NAMES])
    return names + (f" and {len(near) - SHOWN_NAMES} more" if len(near) > SHOWN_NAMES else "")


def _folded(text: str) -> str:
    return "".join(text.lower().split())


def _shown(name: str) -> str:
    return one_line(name[:COMPARED_CHARACTERS])
