"""What a server answers with: one engine, its queue, and what holds where a request is silent."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from localspec.chat.template import ChatTemplate
from localspec.chat.tools.tool import ToolChoice
from localspec.core.config import DraftTokens
from localspec.core.errors import UsageError
from localspec.core.generate_options import GenerateOptions
from localspec.core.sampling_params import MAX_SEED
from localspec.engine.generate import TextEngine
from localspec.engine.text_stream import Prompt
from localspec.server.errors import BadRequest
from localspec.server.metrics import Metrics
from localspec.server.queue.scheduler import Scheduler


class ServedEngine(TextEngine, Protocol):
    """An engine that also makes tokens of texts and conversations; see `engine.Engine`."""

    template: ChatTemplate

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, object]] = (),
        tool_choice: ToolChoice = "auto",
        variables: Mapping[str, object] | None = None,
    ) -> Prompt:
        """Token ids of a conversation, up to the assistant's turn."""
        ...

    def encode_text(self, text: str, *, special: bool = False) -> Prompt:
        """Raw text as token ids."""
        ...


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request says nothing; without ``seed``, each answer draws its own."""

    options: GenerateOptions = GenerateOptions()
    seed: int | None = None


class Service:
    """One engine behind its queue, under the names by which requests may call its model.

    ``about`` is what `/props` tells of it besides the defaults. Its methods may be called from any
    thread.
    """

    def __init__(
        self,
        engine: ServedEngine,
        scheduler: Scheduler,
        defaults: Defaults = Defaults(),
        names: Sequence[str] = ("model",),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.engine = engine
        self.scheduler = scheduler
        self.defaults = defaults
        self.names = tuple(names)
        self.about = dict(about or {})
        self.created = int(time.time())
        self.metrics = Metrics(scheduler)

    @property
    def model(self) -> str:
        """The name that replies carry."""
        return self.names[0]

    def props(self) -> dict[str, Any]:
        """What is loaded, and what holds where a request says nothing, as plain data."""
        options = asdict(self.defaults.options)
        params = options["sampling"] | {"seed": self.defaults.seed}
        silent = ("draft_tokens", "prompt_lookup", "max_tokens")
        target = self.engine.target
        return {
            **self.about,
            "model_alias": self.model,
            "n_ctx": target.n_ctx,
            "n_vocab": target.n_vocab,
            "has_draft": self.engine.draft is not None,
            "default_generation_settings": {
                **{name: options[name] for name in silent},
                "params": params,
            },
        }

    def require_model(self, name: str | None) -> None:
        """Refuse a request for another model: its answer would not be what was asked for."""
        if name is not None and name not in self.names:
            raise BadRequest(
                f"There is no model {name!r} here: this server answers as {self.model}.",
                "Ask for that, or start the server with --alias.",
                status=404,
                param="model",
                code="model_not_found",
            )

    def seed(self, given: int | None) -> int:
        """The seed of a request's first answer; -1 draws one, as in llama.cpp."""
        seed = self.defaults.seed if given is None else given
        return secrets.randbelow(MAX_SEED + 1) if seed in (None, -1) else int(seed or 0)

    def draft_length(self, asked: DraftTokens | None) -> DraftTokens:
        """The draft length of a request; raises UsageError for one that needs a draft model.

        "auto" drafts with what there is, be it nothing.
        """
        options = self.defaults.options
        length = options.draft_tokens if asked is None else asked
        if self.engine.draft is not None:
            return length
        if length == "auto":
            return "auto" if options.prompt_lookup and self.engine.can_roll_back else 0
        if asked not in (None, 0):
            raise UsageError(
                f"draft_tokens is {length}, but this server has no draft model.",
                'Ask for "auto" or "off", or start the server with --draft MODEL.',
            )
        return 0
