"""The served engine with its queue, metrics and defaults for requests."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import MAX_SEED
from localspec.engine.caches.slot_files import SlotFiles
from localspec.engine.engine import Engine
from localspec.engine.session.session import Session
from localspec.server import BUILD
from localspec.server.errors import BadRequest
from localspec.server.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for absent fields of requests; without ``seed``, each answer draws its own."""

    options: GenerateOptions = GenerateOptions()
    seed: int | None = None


@dataclass(eq=False)
class Service:
    """One engine with its queue; ``names`` are those that requests may use for its model.

    ``about`` is added to `/props`, and slots may be saved in ``slot_folder``. With
    ``share_cache``, the owners of requests share prompts, answers and saved slots. ``say`` gets
    warnings of bad states in saved slots. Thread-safe.
    """

    engine: Engine
    session: Session
    defaults: Defaults = Defaults()
    names: Sequence[str] = ("model",)
    about: Mapping[str, Any] = field(default_factory=dict)
    slot_folder: Path | None = None
    share_cache: bool = False
    say: Callable[[str], None] = lambda sentence: None

    def __post_init__(self) -> None:
        folder = self.slot_folder
        self.slot_files = None if folder is None else SlotFiles(folder, self.engine, self.say)
        self.created = int(time.time())
        self.metrics = Metrics(self.session)

    @property
    def model(self) -> str:
        return self.names[0]

    def props(self) -> dict[str, Any]:
        options = asdict(self.defaults.options)
        params = options["sampling"] | {"seed": self.defaults.seed}
        names = ("draft_tokens", "prompt_lookup", "max_tokens")
        target = self.engine.target
        return {
            **self.about,
            "model_alias": self.model,
            "build_info": BUILD,
            "total_slots": len(self.session.slots()),
            "n_ctx": target.n_ctx,
            "n_vocab": target.n_vocab,
            "has_draft": self.engine.draft is not None,
            "is_sleeping": False,
            "default_generation_settings": {
                **{name: options[name] for name in names},
                "n_ctx": target.n_ctx,
                "params": params,
            },
        }

    def name_warnings(self, name: str | None) -> list[str]:
        """A warning for a name such as gpt-4o."""
        if name is None or self._is_own(name):
            return []
        return [f"There is no model {name[:100]!r} here: {self.model} answers."]

    def require_model(self, name: str | None) -> None:
        """Raise BadRequest for another model's name."""
        if name is not None and not self._is_own(name):
            raise BadRequest(
                f"There is no model {name!r} here: this server answers as {self.model}.",
                "Ask for that, or start the server with --alias.",
                status=404,
                param="model",
                code="model_not_found",
            )

    def _is_own(self, name: str) -> bool:
        """Whether a name is one of this model's, also as Ollama spells it: qwen3:14b."""
        return not {name, name.replace(":", "-")}.isdisjoint(self.names)

    def seed(self, given: int | None) -> int:
        """The seed of a request's first answer; -1 draws one, as in llama.cpp."""
        seed = self.defaults.seed if given is None else given
        return secrets.randbelow(MAX_SEED + 1) if seed in (None, -1) else int(seed or 0)
