"""A pair as it was asked for: options that were given over those of its file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.core.options.load_options import DraftTokens, LoadOptions
from localspec.core.options.model_options import DraftOptions, ModelOptions
from localspec.core.options.sampling_choice import choose_sampling
from localspec.core.options.sampling_params import SamplingParams, default_length
from localspec.library.acquire import DownloadUI
from localspec.library.pairs.files import PairFinder
from localspec.library.pairs.options import Given, pair_load_options, picked
from localspec.library.resolve import Resolver


@dataclass(frozen=True, slots=True)
class PairRequest:
    """Which models to load and with which options, a pair's own settings included.

    ``target`` and ``draft.model`` are models as they were named, which ``resolver`` finds;
    ``given`` are all options with a value, ``sampling`` those of SamplingParams. ``pair`` is the
    name of a pair, ``note`` a warning about it.
    """

    resolver: Resolver
    target: str
    draft: DraftOptions
    models: ModelOptions
    given: Given
    sampling: Mapping[str, object]
    pair: str | None = None
    note: str = ""

    @property
    def params(self) -> SamplingParams:
        """The sampling asked for, before the model's own recommendation is known."""
        return choose_sampling(self.sampling, {}).params

    @property
    def branches(self) -> int:
        """Most candidates at one place; 1 if nothing is drafted."""
        return 1 if self.draft.lengths == (0,) else self.models.branches

    @property
    def draft_tokens(self) -> DraftTokens:
        """The one draft length asked for, or the default; raises UsageError if it is impossible."""
        usual = self.draft.one_length(default_length(self.params))
        return self.draft.lengths_for(self.params, (usual,))[0]

    def load_options(
        self, ui: DownloadUI, self_draft: Callable[[Path], Path], parallel: int = 1
    ) -> tuple[LoadOptions, LoadOptions | None]:
        """How to load both; missing files are fetched, with the errors of `PairFinder.find`."""
        finder = PairFinder(
            self.resolver, ui, self_draft, self.models.lenient, self.given, parallel
        )
        files = finder.find(self.target, self.draft.model, self.draft.lengths)
        target, draft = pair_load_options(self.given, files.target, files.draft)
        if draft is not None and files.own_heads:
            draft = replace(draft, load_heads=True)  # not the whole model again
        return replace(target, parallel=parallel, branches=self.branches), draft


def resolve_pair(
    target: str | None,
    asked: DraftOptions,
    given: Given,
    *,
    over: Mapping[str, object] | None = None,
    under: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> PairRequest:
    """The request for a target, or a pair by its name, with a draft and options that were given.

    Options count in this order: ``given``, ``over``, those of the pair, ``under``, and of sampling
    ``defaults``. Raises UsageError without a target, UnknownPair for a name that nothing has.
    """
    resolver = Resolver()
    named = resolver.choose(target, asked.model)
    below = {**(under or {}), **named.settings, **(over or {})}
    draft = asked.over(named.draft, below.pop("draft_tokens", None))
    given = {**below, **given}
    models = ModelOptions(**picked(given, ModelOptions))
    sampling = {**(defaults or {}), **picked(given, SamplingParams)}
    return PairRequest(
        resolver, named.target, draft, models, given, sampling, named.pair, named.note
    )
