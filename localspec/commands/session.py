"""From command-line flags to a loaded pair: names resolved, files fetched, sampling chosen."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from localspec.commands.flags.answer import AnswerFlags
from localspec.commands.flags.rows import Given
from localspec.commands.flags.template import TemplateFlags
from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.model_options import ModelOptions
from localspec.display.terminal import console
from localspec.display.terminal.keys import unseen
from localspec.display.terminal.progress import progress
from localspec.library.pairs.options import picked

if TYPE_CHECKING:
    from localspec.engine.engine import Engine
    from localspec.library.acquire import DownloadUI
    from localspec.library.pairs.request import PairRequest


_AUTO_CHAIN = "auto drafts one chain of tokens: --branches needs a fixed --draft-tokens N."
_ONE_CHAIN = "--acceptance rejection judges one chain of tokens: --branches has no effect."


def make_request(
    name: str | None,
    given: Given,
    defaults: Mapping[str, object] | None = None,
    conversation: Mapping[str, object] | None = None,
    *,
    notes: bool = True,
) -> "PairRequest":
    """Resolve a pair's name, or ``name`` in place of --target; its settings fill in for flags.

    Without either, the target is that of the user's settings. Settings count in this order: those
    of a ``conversation``, the user's for the model, what `localspec tune` found, those of the pair,
    the user's for all models. ``defaults`` are a command's own values of sampling parameters.
    Raises UsageError for two targets, and the errors of `resolve_pair`.
    """
    from localspec.commands.flags.pair import PAIR_ROWS
    from localspec.commands.flags.settings import default_target, read_settings
    from localspec.commands.flags.tuned import tuned_values
    from localspec.library.pairs.request import resolve_pair

    models = ModelOptions(**picked(given, ModelOptions))
    if name is not None and models.target is not None:
        raise UsageError(f"Two targets were given: {name} and {models.target}.", "Name one.")
    kept = read_settings()
    model = name or models.target or default_target()
    own, shared = (
        {name: value for name, value in each.items() if name in PAIR_ROWS and name != "target"}
        for each in (kept.of_model(model), kept.shared)
    )
    asked = models.draft_options()
    taken = {*given, *own, *(conversation or {}), *(["draft_tokens"] if asked.lengths else [])}
    found, note = tuned_values(kept, model, asked.model, taken)
    asked = replace(asked, model=found.pop("draft_model", asked.model))
    request = resolve_pair(
        model,
        asked,
        given,
        over={**found, **own, **(conversation or {})},
        under=shared,
        defaults=defaults,
    )
    for sentence in filter(None, (request.note, note)) if notes else ():
        console.note(sentence)
    return request


def download_ui(yes: bool = False) -> "DownloadUI":
    """Speak with the user on stderr; without a terminal, large downloads need ``yes``."""
    from localspec.library.acquire import DownloadUI

    def agree(question: str) -> bool:
        return yes or (sys.stdin is not None and sys.stdin.isatty() and console.ask(question))

    return DownloadUI(console.note, agree, partial(progress, in_bytes=True))


def open_engine(request: "PairRequest", parallel: int = 1, kv_unified: bool = False) -> "Engine":
    """Load the requested models for ``parallel`` answers at a time, and show notes about them."""
    if request.models.lookup_cache is not None:
        from localspec.engine.caches.lookup_cache import require_lookup_cache

        require_lookup_cache(request.models.lookup_cache)
    target, draft = find_files(request, parallel)
    target = replace(target, kv_unified=kv_unified)
    from localspec.engine.engine import Engine
    from localspec.llama import llama_library

    llama_library.log.verbose = request.models.verbose
    with unseen(), progress(elapsed=True) as report:
        report("Loading", 0, 1)
        engine = Engine.load(target, draft, lenient=request.models.lenient, say=console.note)
    for sentence in (*engine.notes, *_without_branches(request, engine)):
        console.note(sentence)
    return engine


def find_files(request: "PairRequest", parallel: int = 1) -> tuple[LoadOptions, LoadOptions | None]:
    from localspec.self_draft.store import require_stored

    self_draft = partial(require_stored, say=console.note)
    return request.load_options(download_ui(request.models.yes), self_draft, parallel)


@contextmanager
def prompt_cache(
    engine: "Engine", answering: AnswerFlags, *, answers: bool = False
) -> Iterator[Callable[[], None] | None]:
    """Use and keep the file of --prompt-cache while the block runs, if one was given.

    Yields a function to call when a prompt was read. To be entered when the pair was measured,
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
def lookup_cache(engine: "Engine", request: "PairRequest", *, default: bool) -> Iterator[None]:
    """Let auto draft from earlier answers in the block: by ``default``, or those of named files."""
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


def generate_options(
    engine: "Engine", request: "PairRequest", options: GenerateOptions
) -> GenerateOptions:
    """The options of each answer: sampling and draft length resolved for the loaded models.

    The model's own recommendation is shown when it decides, also its unsupported parts. auto
    measures a pair that is new here. Raises UsageError if the sampling does not fit the model's
    vocabulary, or forbids the draft length.
    """
    options = replace(options, prompt_lookup=request.models.prompt_lookup)
    options, chosen = engine.resolve_options(request.sampling, options)
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
    measure(engine, request, options)
    return options


def measure(engine: "Engine", request: "PairRequest", options: GenerateOptions) -> None:
    if options.draft_tokens == "auto":
        if request.models.recalibrate:
            engine.profile.forget()
        engine.profile.introduce(console.note)


def use_template(engine: "Engine", flags: TemplateFlags, system: str | None = None) -> None:
    """Write prompts as the flags say; warn about settings that the template ignores."""
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
    if flags.reasoning_budget not in (None, -1) and engine.template.format is None:
        console.note("The chat template has no marks of thoughts: --reasoning-budget is ignored.")


def _without_branches(request: "PairRequest", engine: "Engine") -> list[str]:
    """A note for users who asked for branches that this pair or draft length cannot have."""
    if request.models.branches == 1:
        return []
    if engine.no_trees_reason is not None:
        return [engine.no_trees_reason]
    if not request.params.text_independent_of_draft:
        return [_ONE_CHAIN]
    return [_AUTO_CHAIN] if set(request.draft.lengths) <= {"auto"} else []
