"""Settings that change the speed of a pair, each against the current one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from localspec.core.options.load_options import ALL_LAYERS, LoadOptions
from localspec.library.pairs.options import Given, pair_load_options

Values = Mapping[str, Any]  # of options by name, as `localspec config` keeps them
NOW: Values = MappingProxyType({})
# Those of an answer: a loaded pair can change them.
OF_ANSWERS = ("draft_tokens", "prompt_lookup")
_MOST_DRAFTS = 2  # others on this disk: each takes as long as all else that is tried
_SHARES = (0.75, 0.5, 0.0)  # of the layers on GPUs


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change of one ``knob``; ``rounds`` if logits may then round otherwise."""

    knob: str
    values: Values
    rounds: bool = False

    @property
    def shown(self) -> str:
        """The change in the words of `localspec config`."""
        return shown(self.values)

    @property
    def is_of_draft(self) -> bool:
        """Whether passes of the target stay as they are."""
        return self.knob in ("draft", "draft threads")


def shown(values: Values) -> str:
    """Settings as NAME=VALUE; "current" without any."""
    return " ".join(f"{name}={_word(value)}" for name, value in values.items()) or "current"


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return Path(value).name if isinstance(value, str) and value.endswith(".gguf") else str(value)


def load_key(values: Values) -> tuple[tuple[str, Any], ...]:
    """The settings for which models are loaded again, in a fixed order."""
    return tuple(sorted((n, v) for n, v in values.items() if n not in OF_ANSWERS))


@dataclass(frozen=True, slots=True)
class PairFiles:
    """A pair as it is loaded now: ``given`` options by name, and both models with theirs.

    ``answers`` are the settings of answers now, ``others`` drafts on this disk, the best first.
    """

    given: Given
    target: LoadOptions
    draft: LoadOptions | None
    answers: Values
    others: tuple[Path, ...] = ()

    def with_values(self, values: Values) -> tuple[LoadOptions, LoadOptions | None]:
        """How to load the pair with other settings; raises UsageError."""
        path = None if self.draft is None else self.draft.path
        if "draft_model" in values:
            path = Path(values["draft_model"])
        own = {name: value for name, value in values.items() if name not in OF_ANSWERS}
        model = Path(own.pop("target", self.target.path))
        target, draft = pair_load_options({**self.given, **own}, model, path)
        if draft is not None and self.draft is not None and "draft_model" not in values:
            draft = replace(draft, load_heads=self.draft.load_heads)
        return replace(target, branches=self.target.branches), draft


def candidates(
    pair: PairFiles, cores: Sequence[int], *, has_kernels: bool, layers: int
) -> list[Candidate]:
    """The candidates for a pair, the most promising first.

    ``cores`` are numbers of threads that may be best here, first the default; ``layers`` are those
    of the target that could be on GPUs, 0 without one. Cache types and contexts stay: they change
    more than speed.
    """
    now, threads = pair.target, pair.target.threads or cores[0]
    found = [Candidate("draft", {"draft_model": str(path)}) for path in pair.others[:_MOST_DRAFTS]]
    if has_kernels:
        found.append(Candidate("kernels", {"row_kernels": not now.row_kernels}, rounds=True))
    found += [Candidate("threads", {"threads": n}) for n in cores if n != threads]
    if pair.draft is not None and not pair.draft.load_heads:
        fewer = (n for n in cores if n < threads and n != pair.draft.threads)
        found += [Candidate("draft threads", {"draft_threads": n}) for n in fewer]
    more = (n for n in cores if n > threads and n != now.threads_batch)
    found += [Candidate("threads of passes", {"threads_batch": n}) for n in more]
    if layers:
        wanted = {round(layers * share) for share in _SHARES} | {ALL_LAYERS}
        ordered = sorted(wanted - {now.gpu_layers or ALL_LAYERS}, reverse=True)
        found += [Candidate("layers", {"gpu_layers": n}, rounds=True) for n in ordered]
        found += [Candidate("micro-batch", {"ubatch_size": 2048, "batch_size": 2048})]
    other = "off" if now.flash_attention != "off" else "on"
    found.append(Candidate("flash attention", {"flash_attention": other}, rounds=True))
    return found


def modes(pair: PairFiles, lengths: Iterable[int]) -> list[Candidate]:
    """Settings of answers with a loaded pair: automatic lengths, none, or fixed ``lengths``."""
    found = [Candidate("lookup", {"prompt_lookup": not pair.answers["prompt_lookup"]})]
    fixed = () if pair.draft is None else map(str, lengths)
    for length in ("off", "auto", *fixed):
        found.append(Candidate("length", {"draft_tokens": length}))
    return [each for each in found if not each.values.items() <= pair.answers.items()]


def combinations(chosen: Sequence[Candidate]) -> Iterator[tuple[Candidate, ...]]:
    """Every combination with at most one candidate of each knob, that of none first."""
    knobs = dict.fromkeys(each.knob for each in chosen)
    sides = [[None, *(each for each in chosen if each.knob == knob)] for knob in knobs]
    for each in product(*sides):
        yield tuple(candidate for candidate in each if candidate is not None)


def merged(chosen: Iterable[Candidate]) -> Values:
    """The settings of several candidates together."""
    return {name: value for each in chosen for name, value in each.values.items()}
