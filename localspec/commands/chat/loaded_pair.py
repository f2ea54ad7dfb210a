"""The pair that answers in a chat, and another that takes its place."""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import typer

from localspec.commands import session
from localspec.commands.chat.conversations import pair_document
from localspec.commands.flags.answer import AnswerFlags
from localspec.commands.flags.rows import Given
from localspec.commands.flags.template import TemplateFlags
from localspec.core.errors import LocalspecError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams, sampling_fields
from localspec.display.terminal import console

if TYPE_CHECKING:
    from localspec.chat.conversation import Chat
    from localspec.engine.engine import Engine
    from localspec.library.pairs.request import PairRequest

_OF_ONE_PAIR = ("target", "draft", "draft_model", "draft_tokens")


@dataclass(slots=True)
class LoadedPair:
    """The pair of a chat with its caches, loaded as the flags say.

    Only one pair is in memory: another is loaded when the files of both its models were found and
    this one is closed; if that fails, this one is loaded again. --prompt-cache is for the
    ``first`` pair alone.
    """

    first: "PairRequest"
    given: Given
    answering: AnswerFlags
    templating: TemplateFlags
    grammar: str | None
    _request: "PairRequest" = field(init=False)
    _options: GenerateOptions = field(default_factory=GenerateOptions, init=False)
    _open: ExitStack = field(default_factory=ExitStack, init=False)

    def __enter__(self) -> "LoadedPair":
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()

    def open(
        self, request: "PairRequest", system: str | None, changed: dict[str, object] | None = None
    ) -> tuple["Engine", GenerateOptions]:
        """Load a pair; ``changed`` is sampling that was set in the chat."""
        length = request.draft_tokens
        with ExitStack() as stack:
            engine = stack.enter_context(session.open_engine(request))
            session.use_template(engine, self.templating, system)
            asked = self.templating.limited(self.answering.options(length, self.grammar))
            options = session.generate_options(engine, request, asked)
            sampling: SamplingParams = replace(options.sampling, **(changed or {}))  # type: ignore[arg-type]
            engine.token_rules(sampling)
            stack.enter_context(session.lookup_cache(engine, request, default=True))
            if request is self.first:
                stack.enter_context(session.prompt_cache(engine, self.answering, answers=True))
            self._open = stack.pop_all()
        self._request, self._options = request, options
        return engine, replace(options, sampling=sampling)

    def change(self, chat: "Chat", name: str) -> None:
        """Let another pair go on with a conversation; its sampling stays as it was set there."""
        given = {key: value for key, value in self.given.items() if key not in _OF_ONE_PAIR}
        request, before = session.make_request(name, given), self._request
        session.find_files(request)  # raises while this pair is loaded
        now, then = chat.options, self._options
        changed = {
            each: getattr(now.sampling, each)
            for each in sampling_fields()
            if getattr(now.sampling, each) != getattr(then.sampling, each)
        }
        self._open.close()
        try:
            engine, chat.options = self.open(request, chat.system, changed)
        except (LocalspecError, KeyboardInterrupt):
            console.note("Loading the pair before again.")
            chat.engine, chat.options = self._again(before, chat.system, changed)
            chat.options = replace(chat.options, draft_tokens=now.draft_tokens)
            raise
        chat.engine, chat.pair = engine, pair_document(name, given, request, engine)
        chat.ui.say(f"{name} goes on with the conversation.")

    def _again(
        self, request: "PairRequest", system: str | None, changed: dict[str, object]
    ) -> tuple["Engine", GenerateOptions]:
        try:
            return self.open(request, system, changed)
        except LocalspecError as problem:
            console.error(problem)
            raise typer.Exit(1) from problem
