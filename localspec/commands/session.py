"""From command-line flags to a loaded pair: names resolved, files fetched, sampling chosen."""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.commands.flags.answer import AnswerFlags
from localspec.commands.flags.groups import Given
from localspec.commands.flags.pair import pair_load_options, picked
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.self_draft import self_draft
from localspec.core.config import Branches, DraftTokens
from localspec.core.errors import EngineError, IncompatiblePair, UsageError
from localspec.core.model_options import DraftOptions, ModelOptions, parse_draft_tokens
from localspec.core.sampling_choice import choose_sampling
from localspec.core.sampling_params import SamplingParams, default_length, require_fixed_length
from localspec.display import console
from localspec.display.progress import progress
from localspec.library.catalog import MTP
from localspec.library.resolve import FIND, SELF

if TYPE_CHECKING:
    from localspec.engine.engine import Engine
    from localspec.library.acquire import DownloadUI
    from localspec.library.resolve import Resolver


_WORDS = (None, MTP, FIND)  # what may stand for heads of the target, in place of a file
_ONE_CHAIN = "--acceptance rejection judges one chain of tokens: --branches has no effect."
_BESIDE = "Draft: the prediction heads of {} (MTP), beside the target."


@dataclass(frozen=True, slots=True)
class Request:
    """What a command line asks for, a pair's own settings included.

    ``target`` and ``draft.model`` are models as they were named, which ``resolver`` finds;
    ``given`` are all options with a value, ``sampling`` those of SamplingParams.
    """

    resolver: "Resolver"
    target: str
    draft: DraftOptions
    models: ModelOptions
    given: Given
    sampling: Mapping[str, object]

    @property
    def params(self) -> SamplingParams:
        """The sampling asked for, before the model's own recommendation is known."""
        return choose_sampling(self.sampling, {}).params

    @property
    def prompt_lookup(self) -> bool:
        """Whether auto may use prompt lookup."""
        return self.models.prompt_lookup

    @property
    def branches(self) -> Branches:
        """Most candidates at one place; 1 where nothing is drafted."""
        return 1 if self.draft.lengths == (0,) else self.models.branches

    @property
    def draft_tokens(self) -> DraftTokens:
        """The one draft length asked for, or the default; raises UsageError for what cannot be."""
        length = self.draft.one_length(default_length(self.params))
        require_fixed_length(length, self.params)
        return length


def make_request(
    name: str | None, given: Given, defaults: Mapping[str, object] | None = None
) -> Request:
    """Resolve a pair's name, or ``name`` in place of --target; its settings fill in for flags.

    ``defaults`` are a command's own values of sampling parameters that nobody gave. Raises
    UsageError for two targets or none, UnknownPair for a name that nothing has.
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
    settings = dict(named.settings)
    kept = settings.pop("draft_tokens", None)
    lengths = options.lengths or (() if kept is None else parse_draft_tokens(str(kept)) or ())
    given = {**settings, **given}
    models = ModelOptions(**picked(given, ModelOptions))
    sampling = {**(defaults or {}), **picked(given, SamplingParams)}
    draft = DraftOptions(named.draft, lengths)
    return Request(resolver, named.target, draft, models, given, sampling)


def download_ui(yes: bool = False) -> "DownloadUI":
    """Speak with the user on stderr; without a terminal, large downloads need ``yes``."""
    from localspec.library.acquire import DownloadUI

    def agree(question: str) -> bool:
        return yes or (sys.stdin is not None and sys.stdin.isatty() and console.ask(question))

    return DownloadUI(console.note, agree, partial(progress, in_bytes=True))


def open_engine(request: Request, parallel: int = 1) -> "Engine":
    """Load what was asked for, and say what the user should know about it.

    With ``parallel`` it can answer so many at the same time, see `Engine.open_slots`.
    """
    if request.models.lookup_cache is not None:
        from localspec.engine.lookup_cache import require_lookup_cache

        require_lookup_cache(request.models.lookup_cache)
    target_file, draft_file = _files(request)
    target, draft = pair_load_options(request.given, target_file, draft_file)
    if draft is not None and draft_file == target_file and request.draft.model in _WORDS:
        draft = replace(draft, load_heads=True)  # the heads in it, not the whole model again
    from localspec.engine.engine import Engine
    from localspec.llama import llama_library

    llama_library.log.verbose = request.models.verbose
    target = replace(target, parallel=parallel, branches=request.branches)
    engine = Engine.load(target, draft, lenient=request.models.lenient, say=console.note)
    for sentence in (*engine.notes, *_without_branches(request, engine)):
        console.note(sentence)
    return engine


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
    from localspec.engine.prompt_cache import PromptCache

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
    if not request.prompt_lookup or not (asked or default):
        yield
        return
    from localspec.engine.lookup_cache import LookupCache

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
    from localspec.engine import prompt_cache

    prompt_cache.require_prompt_cache(answering.prompt_cache)


def usable_length(engine: "Engine", length: DraftTokens, request: Request) -> DraftTokens:
    """The draft length that what was loaded allows; auto measures a pair that is new here."""
    if engine.draft is None and not (
        length == "auto" and request.prompt_lookup and engine.target.can_roll_back
    ):
        return 0
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


def use_template(engine: "Engine", flags: TemplateFlags, system: str | None = None) -> None:
    """Write prompts as the flags say; what the template makes nothing of is noted."""
    source = flags.source()
    engine.template = replace(
        engine.template,
        source=engine.template.source if source is None else source,
        thinking=flags.thinking,
        variables=flags.variables(),
    )
    for sentence in engine.template.notes(system):
        console.note(sentence)


def _without_branches(request: Request, engine: "Engine") -> list[str]:
    """Why there are none, for who asked for some: auto goes without them where they do not pay."""
    if request.models.branches in ("auto", 1):
        return []
    if engine.chain_only is not None:
        return [engine.chain_only]
    return [] if request.params.seed_decides else [_ONE_CHAIN]


def _files(request: Request) -> tuple[Path, Path | None]:
    """The files of target and draft, fetched from the Hub where they are named but missing."""
    from localspec.library.acquire import ensure_local

    lengths = request.draft.lengths
    draft = None if lengths == (0,) else request.draft.model
    resolver, ui, lenient = request.resolver, download_ui(), request.models.lenient
    if draft == FIND:
        (target,) = ensure_local([request.target], resolver, ui)
        return target, _find_draft(target, resolver, lenient, request.given)
    if draft == SELF:
        (target,) = ensure_local([request.target], resolver, ui)
        return target, self_draft(target, request.given)
    names = [request.target, *([] if draft is None else [draft])]
    target, *rest = ensure_local(names, resolver, ui, lenient=lenient)
    if draft == MTP and rest[0] != target:
        console.note(_BESIDE.format(rest[0].name))
    if rest or lengths == (0,):
        return target, rest[0] if rest else None
    heads = _heads(target, request.given)
    if heads is None and any(length not in (0, "auto") for length in lengths):
        raise UsageError(
            "A draft length was given, but no draft model.",
            "Name one with --draft FILE.gguf, or leave the length out.",
        )
    return target, heads


def _heads(target: Path, given: Given) -> Path | None:
    """The file with prediction heads for a target, where nothing else is to draft; named.

    None, with the reason if there are some, where they cannot be used: nobody asked for them.
    """
    from localspec.library.sidecars import is_named_for, mtp_beside, mtp_files
    from localspec.llama.heads.unstable import unstable
    from localspec.metadata.draft_kind import has_heads
    from localspec.metadata.header import read_header

    header = read_header(target, given.get("override_kv", ()))
    try:
        found = target if has_heads(header) else mtp_beside(header)
    except IncompatiblePair as problem:
        if any(is_named_for(file, target) for file in mtp_files(target)):
            console.note(f"No heads are used. {problem.message}")
        return None
    try:
        unstable()
    except EngineError as problem:
        console.note(f"No heads are used. {problem.message}")
        return None
    own = "Draft: the model's own prediction heads (MTP)."
    console.note(own if found == target else _BESIDE.format(found.name))
    return found


def _find_draft(target: Path, resolver: "Resolver", lenient: bool, given: Given) -> Path:
    """The best draft on this disk that is worth using, named."""
    from localspec.library.suggest import drafts_for
    from localspec.metadata.header import read_header

    suggested = drafts_for(read_header(target), resolver.inventory.files, lenient=lenient)
    found = suggested.drafts
    if suggested.own_heads:
        return _heads(target, given) or target
    if not found or found[0].worth <= 1:
        raise IncompatiblePair(
            f"No model on this disk can draft for {target}.",
            "See why, and what there is elsewhere: "
            + shlex.join(["localspec", "suggest", str(target)]),
        )
    console.note(f"Draft: {found[0].path} ({', '.join(found[0].reasons)}).")
    return found[0].path
