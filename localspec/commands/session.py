"""From command-line flags to a loaded pair: names resolved, files fetched, sampling chosen."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.commands.flags.answer import AnswerFlags
from localspec.commands.flags.rows import Given
from localspec.commands.flags.template import TemplateFlags
from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import Branches, DraftTokens, LoadOptions
from localspec.core.options.model_options import DraftOptions, ModelOptions
from localspec.core.options.sampling_choice import choose_sampling
from localspec.core.options.sampling_params import SamplingParams, allowed_length
from localspec.display import console
from localspec.display.progress import progress
from localspec.library.pairs.options import pair_load_options, picked

if TYPE_CHECKING:
    from localspec.engine.engine import Engine
    from localspec.library.acquire import DownloadUI
    from localspec.library.resolve import Resolver


_ONE_CHAIN = "--acceptance rejection judges one chain of tokens: --branches has no effect."


@dataclass(frozen=True, slots=True)
class Request:
    """What a command line asks for, a pair's own settings included.

    ``target`` and ``draft.model`` are models as they were named, which ``resolver`` finds;
    ``given`` are all options with a value, ``sampling`` those of SamplingParams. ``pair`` is the
    name of a pair.
    """

    resolver: "Resolver"
    target: str
    draft: DraftOptions
    models: ModelOptions
    given: Given
    sampling: Mapping[str, object]
    pair: str | None = None

    @property
    def params(self) -> SamplingParams:
        """The sampling asked for, before the model's own recommendation is known."""
        return choose_sampling(self.sampling, {}).params

    @property
    def branches(self) -> Branches:
        """Most candidates at one place; 1 where nothing is drafted."""
        return 1 if self.draft.lengths == (0,) else self.models.branches

    @property
    def draft_tokens(self) -> DraftTokens:
        """The one draft length asked for, or the default; raises UsageError for what cannot be."""
        return self.draft.length_for(self.params)


def make_request(
    name: str | None,
    given: Given,
    defaults: Mapping[str, object] | None = None,
    conversation: Mapping[str, object] | None = None,
) -> Request:
    """Resolve a pair's name, or ``name`` in place of --target; its settings fill in for flags.

    ``defaults`` are a command's own values of sampling parameters that nobody gave; the settings
    of a ``conversation`` count before those of its pair and of the file. Raises UsageError for two
    targets or none, UnknownPair for a name that nothing has.
    """
    from localspec.library.resolve import Resolver

    models = ModelOptions(**picked(given, ModelOptions))
    if name is not None and models.target is not None:
        raise UsageError(f"Two targets were given: {name} and {models.target}.", "Name one.")
    options = models.draft_options()
    resolver = Resolver()
    named = resolver.choose(name or models.target, options.model)
    if named.note:
        console.note(named.note)
    below = {**_below(named.settings, name or models.target), **(conversation or {})}
    draft = options.over(named.draft, below.pop("draft_tokens", None))
    given = {**below, **given}
    models = ModelOptions(**picked(given, ModelOptions))
    sampling = {**(defaults or {}), **picked(given, SamplingParams)}
    return Request(resolver, named.target, draft, models, given, sampling, named.pair)


def _below(pair: Mapping[str, object], model: str | None) -> dict[str, object]:
    """What counts where no flag was given: for this model, of its pair, for all models."""
    from localspec.commands.flags.pair import PAIR_ROWS
    from localspec.commands.flags.settings import read_settings

    kept = read_settings()
    found = {**kept.shared, **pair, **kept.of_model(model)}
    return {name: value for name, value in found.items() if name in PAIR_ROWS or name in pair}


def download_ui(yes: bool = False) -> "DownloadUI":
    """Speak with the user on stderr; without a terminal, large downloads need ``yes``."""
    from localspec.library.acquire import DownloadUI

    def agree(question: str) -> bool:
        return yes or (sys.stdin is not None and sys.stdin.isatty() and console.ask(question))

    return DownloadUI(console.note, agree, partial(progress, in_bytes=True))


def open_engine(request: Request, parallel: int = 1) -> "Engine":
    """Load what was asked for, and say what the user should know about it.

    With ``parallel`` it can answer so many at the same time, see `Engine.open_session`.
    """
    if request.models.lookup_cache is not None:
        from localspec.engine.caches.lookup_cache import require_lookup_cache

        require_lookup_cache(request.models.lookup_cache)
    target, draft = find_files(request)
    from localspec.engine.engine import Engine
    from localspec.llama import llama_library

    llama_library.log.verbose = request.models.verbose
    target = replace(target, parallel=parallel, branches=request.branches)
    engine = Engine.load(target, draft, lenient=request.models.lenient, say=console.note)
    for sentence in (*engine.notes, *_without_branches(request, engine)):
        console.note(sentence)
    return engine


def find_files(request: Request) -> tuple[LoadOptions, LoadOptions | None]:
    """How to load the target and its draft, which are fetched where they are missing.

    Raises what `PairFinder.find` does.
    """
    from localspec.library.pairs.files import PairFinder

    ui = download_ui(request.models.yes)
    finder = PairFinder(
        request.resolver,
        ui,
        partial(_self_draft, loading=request.given, agree=ui.agree),
        request.models.lenient,
        request.given,
    )
    return finder.load_options(request.target, request.draft.model, request.draft.lengths)


def _self_draft(target: Path, loading: Given, agree: Callable[[str], bool]) -> Path | None:
    from localspec.self_draft.selection import stored_or_made

    load = partial(pair_load_options, loading)
    return stored_or_made(target, load, console.note, progress, agree)


@contextmanager
def prompt_cache(
    engine: "Engine", answering: AnswerFlags, *, answers: bool = False
) -> Iterator[Callable[[], None] | None]:
    """Use and keep the file of --prompt-cache while the block runs, if one was given.

    Yields what is to be called when a prompt was read. To be entered when the pair was measured,
    which empties the caches.
    """
    if answering.prompt_cache is None:
        yield None
        return
    from localspec.engine.caches.prompt_cache import PromptCache

    read_only = answering.prompt_cache_ro
    with PromptCache(
        answering.prompt_cache, engine, console.note, read_only=read_only, answers=answers
    ) as cache:
        yield cache.save_prompt


@contextmanager
def lookup_cache(engine: "Engine", request: Request, *, default: bool) -> Iterator[None]:
    """Let auto draft from earlier answers while the block runs, where that is wanted.

    By ``default`` those of this process, and those of the files that were named.
    """
    models = request.models
    asked = models.lookup_cache is not None or models.lookup_files
    if not request.models.prompt_lookup or not (asked or default):
        yield
        return
    from localspec.engine.caches.lookup_cache import LookupCache

    with LookupCache(engine, console.note, models.lookup_cache, models.lookup_files):
        yield


def require_prompt_cache(answering: AnswerFlags) -> None:
    """Refuse, before anything is loaded, a --prompt-cache that would destroy another file."""
    if answering.prompt_cache is None:
        if answering.prompt_cache_ro:
            raise UsageError(
                "--prompt-cache-ro has no file.", "Add --prompt-cache FILE, or leave it out."
            )
        return
    from localspec.engine.caches import prompt_cache

    prompt_cache.require_prompt_cache(answering.prompt_cache)


def usable_length(engine: "Engine", length: DraftTokens, request: Request) -> DraftTokens:
    """The draft length that what was loaded allows; auto measures a pair that is new here."""
    looks_up = request.models.prompt_lookup and engine.can_roll_back
    has_draft = engine.draft is not None
    length = allowed_length(length, request.params, has_draft=has_draft, looks_up=looks_up)
    if length == "auto":
        if request.models.recalibrate:
            engine.profile.forget()
        engine.profile.introduce(console.note)
    return length


def sampling_for(engine: "Engine", request: Request) -> SamplingParams:
    """What was given over the model's own recommendation, which is shown when it decides.

    What is recommended and cannot be done is shown too. Raises UsageError where the parameters do
    not fit the model's vocabulary.
    """
    chosen = choose_sampling(request.sampling, engine.target.header.sampling)
    if chosen.recommended:
        values = ", ".join(
            f"{name} {getattr(chosen.params, name):g}" for name in chosen.recommended
        )
        console.note(f"Sampling recommended by the model: {values}.")
    if chosen.ignored:
        console.note(
            "Recommended by the model, but unknown here or out of range, and not used: "
            f"{', '.join(chosen.ignored)}."
        )
    engine.token_rules(chosen.params)
    return chosen.params


def generate_options(
    engine: "Engine",
    request: Request,
    length: DraftTokens,
    answering: AnswerFlags,
    grammar: str | None,
) -> GenerateOptions:
    """Options of each answer, limited to what the loaded models support."""
    return GenerateOptions(
        sampling_for(engine, request),
        usable_length(engine, length, request),
        prompt_lookup=request.models.prompt_lookup,
        max_tokens=answering.max_tokens,
        stop=tuple(answering.stop),
        grammar=grammar,
    )


def use_template(engine: "Engine", flags: TemplateFlags, system: str | None = None) -> None:
    """Write prompts as the flags say; what the template makes nothing of is noted."""
    source = flags.source()
    engine.template = replace(
        engine.template,
        source=engine.template.source if source is None else source,
        name=engine.template.name if source is None else flags.name(),
        thinking=flags.thinking,
        variables=flags.variables(),
    )
    for sentence in engine.template.notes(system):
        console.note(sentence)


def _without_branches(request: Request, engine: "Engine") -> list[str]:
    """A note for users who asked for branches that this pair cannot have."""
    if request.models.branches in ("auto", 1):
        return []
    if engine.no_trees_reason is not None:
        return [engine.no_trees_reason]
    return [] if request.params.text_independent_of_draft else [_ONE_CHAIN]
