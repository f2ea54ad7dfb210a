"""A slot of a session with its job, and the cells that it takes of those that slots share."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from localspec.core.errors import LocalspecError
from localspec.engine.caches.prefix_cache import WORTH_KEEPING, PrefixCache
from localspec.engine.generate import TextEngine
from localspec.engine.session.batching import SequenceHandle, SlotTask
from localspec.engine.session.job import GenerationRequest, Job
from localspec.engine.session.slot_model import SlotModel
from localspec.speculative.prefix import common_prefix


class SlotState(NamedTuple):
    """A slot, whether it answers a request now, and how much of that prompt it has read.

    ``n_decoded`` counts the tokens of the answer that its cache holds. ``prompt_seconds_left`` is
    an estimate, None before the first pass and after the last.
    """

    id: int
    is_processing: bool
    n_prompt_tokens: int = 0
    n_prompt_tokens_processed: int = 0
    n_decoded: int = 0
    prompt_seconds_left: float | None = None


class Seat:
    """A slot with its task; ``waits`` for a pass, or else can continue.

    Its cached tokens belong to one owner. With a job it may take ``cells``; while it ``is_paused``
    it has none, and its text is read again once there are as many.
    """

    def __init__(self, engine: TextEngine) -> None:
        self.engine = engine
        self._owner = ""
        self.calls: deque[Callable[[], None]] = deque()  # to be made between two answers
        self.job: Job | None = None
        self.task: SlotTask | None = None
        self.waits: SequenceHandle | None = None
        self.cells = 0
        self.is_paused = False

    @property
    def is_busy(self) -> bool:
        return self.job is not None or bool(self.calls)

    @property
    def begun_at(self) -> float:
        """When its job began; a call comes before all jobs."""
        return 0.0 if self.job is None else self.job.begun_at or 0.0

    @property
    def _models(self) -> list[SlotModel]:
        models = (self.engine.draft, self.engine.target)
        return [model for model in models if isinstance(model, SlotModel)]

    @property
    def held(self) -> int:
        """The tokens of the longer one of its caches."""
        return max((len(model.tokens) for model in self._models), default=0)

    @property
    def needed(self) -> int:
        """Cells for all that it holds, and for the next token of its answer."""
        return self.held if self.job is None else len(self.engine.target.tokens) + 1

    def share(self, make_room: Callable[["Seat", int], int]) -> None:
        """Let its caches ask for cells before they hold a text that was not read in passes."""
        for model in self._models:
            model.make_room = lambda tokens: make_room(self, tokens)

    def pause(self, cells: int) -> None:
        """Free all cells of this slot; its answer continues when ``cells`` are free."""
        self.is_paused, self.cells = True, cells
        for model in self._models:
            model.vacate()

    def shorten(self, length: int) -> None:
        """Forget the tokens of earlier texts from this length on."""
        self.cells = length
        for model in self._models:
            model.truncate(length)

    def empty(self, prefixes: PrefixCache) -> None:
        """Free the cells of an idle slot; its tokens are saved if that takes no pass."""
        if any(model.pending for model in self._models):
            self.shorten(0)
        with suppress(LocalspecError):
            prefixes.vacate(self.engine, self._owner)

    def state(self, number: int) -> SlotState:
        """The present state of this slot, read from any thread."""
        job = self.job
        if job is None:
            return SlotState(number, False)
        target, total = self.engine.target, len(job.request.prompt)
        held = len(target.tokens) - target.pending
        left = None if job.progress is None else job.progress.seconds_left
        return SlotState(number, True, total, min(total, held), max(0, held - total), left or None)

    def shared(self, request: GenerationRequest) -> int:
        """Tokens of the prompt in the owner's cache; 0 for too few to prefer this slot.

        Few are enough if they are the whole prompt, or all that the slot holds.
        """
        held = self.engine.target.tokens if request.owner == self._owner else []
        shared = common_prefix(held, list(request.prompt))
        enough = min(WORTH_KEEPING, len(request.prompt) - 1, len(held))
        return shared if shared >= enough else 0

    def claim(self, owner: str, prefixes: PrefixCache) -> None:
        """Save and clear the slot's caches if they belong to another owner."""
        if owner != self._owner:
            prefixes.vacate(self.engine, self._owner)
            self._owner = owner
