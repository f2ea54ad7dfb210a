"""The command ``chat``: a conversation, turn by turn, and the pair that answers in it."""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.commands import session
from localspec.commands.chat import conversations
from localspec.commands.chat.conversations import pair_document
from localspec.commands.chat.flags import ConversationFlags
from localspec.commands.flags.answer import PANEL, AnswerFlags
from localspec.commands.flags.completion import models
from localspec.commands.flags.grammar import GrammarFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.pair import NameArgument, PairFlags
from localspec.commands.flags.rows import Given
from localspec.commands.flags.settings import default_target
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.session import make_request, require_prompt_cache
from localspec.commands.start import choose_model
from localspec.core.errors import LocalspecError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams, sampling_fields
from localspec.display.pieces import AnswerStyle
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


@spread_groups
def chat(
    answering: AnswerFlags,
    templating: TemplateFlags,
    constraining: GrammarFlags,
    storing: ConversationFlags,
    given: PairFlags,
    name: NameArgument = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Show Markdown as the model writes it.", rich_help_panel=PANEL
        ),
    ] = False,
) -> None:
    """Chat with a model, turn by turn; /help lists the commands."""
    talk(answering, templating, constraining, storing, given, name, plain=plain)


def talk(
    answering: AnswerFlags,
    templating: TemplateFlags,
    constraining: GrammarFlags,
    storing: ConversationFlags,
    given: Given,
    name: str | None,
    *,
    plain: bool = False,
) -> None:
    """Hold a chat with these flags, also for ``run`` without a prompt."""
    from localspec.chat.conversation import Chat
    from localspec.chat.input_loop import run
    from localspec.display.chat import kept_whole, open_screen

    console.be_quiet(answering.quiet)
    grammar = constraining.read()
    saved = storing.read()
    name, given, settings = conversations.with_saved_pair(saved, name, given)
    if not (name or given.get("target") or default_target()) and console.is_dialogue():
        name = choose_model()
        if name is None:
            raise typer.Exit
    request = make_request(name, given, conversation=settings)
    system = conversations.system_message(saved, name, answering.system)
    templating.check()
    require_prompt_cache(answering)
    look = AnswerStyle.asked(answering.hide_reasoning, answering.show_draft, answering.stats)
    with (
        kept_whole(markdown=not plain),
        LoadedPair(request, given, answering, templating, grammar) as pair,
    ):
        engine, options = pair.open(request, system)
        with open_screen(
            look, markdown=not plain, keep_input=storing.save is not False, models=cache(models)
        ) as screen:
            document = conversations.pair_document(name, given, request, engine)
            conversation = Chat(engine, screen, options, pair=document, load_pair=pair.change)
            if screen.interactive:
                console.note_other_work()
            conversations.begin(conversation, saved, engine, shown=screen.interactive)
            conversation.system = system
            conversation.autosave = storing.autosave(saved, conversation)
            failed = run(conversation)
            if screen.interactive:
                conversations.end(conversation)
    if failed and not screen.interactive:
        raise typer.Exit(1)  # a person has seen the errors, a script has not
