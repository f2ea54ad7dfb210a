"""Slots of a loaded pair: each answers one request, beside the others where the pair can."""

from contextlib import AbstractContextManager

from localspec.core.config import LoadOptions
from localspec.core.sampling_params import SamplingParams
from localspec.engine.generate import Profile, TextEngine
from localspec.engine.slots.batch_scheduler import BatchScheduler, SequenceHandle
from localspec.engine.slots.slot_model import SequenceContext, SlotModel
from localspec.llama.memory.estimate import keeps_state
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import ModelHeader
from localspec.speculative.control.conversations import Conversations
from localspec.speculative.prompt_lookup import PromptLookup
from localspec.speculative.sampling.constrained import Constraint
from localspec.speculative.sampling.logit_changes import TokenRules

_ONE_AT_A_TIME = "Requests are answered one after the other: {}."
NOT_TRIMMED = _ONE_AT_A_TIME.format("a recurrent state takes tokens back for one text only")


class Slot:
    """One sequence of the target and of its draft, and what else each answer has for itself.

    A `TextEngine`; what it does not need for itself it takes from the ``engine``. It is used by one
    thread at a time, and answers inside `answering`.
    """

    can_roll_back = True

    def __init__(
        self,
        engine: TextEngine,
        seat: SequenceHandle,
        target: SlotModel,
        draft: SlotModel | None,
    ) -> None:
        self._engine = engine
        self._seat = seat
        self.target = target
        self.draft = draft
        self.prompt_lookup = PromptLookup()
        self.history = engine.history
        self.conversations = Conversations()

    def answering(self) -> AbstractContextManager[None]:
        """To be entered around an answer: passes wait for all slots that answer.

        Inside, no other slot's Python runs but while this one waits for a pass.
        """
        return self._seat.answering()

    @property
    def profile(self) -> Profile:
        """What is known of the pair, learnt from all slots."""
        return self._engine.profile

    def is_stop(self, token: int) -> bool:
        """See `TextEngine`."""
        return self._engine.is_stop(token)

    def constraint(self, grammar: str, start: int, *, endless: bool = False) -> Constraint:
        """See `TextEngine`."""
        return self._engine.constraint(grammar, start, endless=endless)

    def piece(self, token: int) -> bytes:
        """See `TextEngine`."""
        return self._engine.piece(token)

    def token_rules(self, params: SamplingParams) -> TokenRules:
        """See `TextEngine`."""
        return self._engine.token_rules(params)


def make_slots(
    engine: TextEngine,
    count: int,
    passes: BatchScheduler,
    target: SequenceContext,
    draft: SequenceContext | None,
) -> list[Slot]:
    """So many slots on the sequences of these contexts, whose passes they share."""
    seats = [SequenceHandle(passes) for _ in range(count)]
    return [
        Slot(
            engine,
            seat,
            SlotModel(target, i, seat),
            None if draft is None else SlotModel(draft, i, seat),
        )
        for i, seat in enumerate(seats)
    ]


def one_at_a_time(
    target: ModelHeader, draft: ModelHeader | None, options: LoadOptions
) -> str | None:
    """Why a pair's answers cannot share passes, in a sentence; None where they can.

    Without a header of its own, the draft is none, or the target's own heads.
    """
    if keeps_state(target) or (draft is not None and keeps_state(draft)):
        return NOT_TRIMMED
    if options.load_heads or (draft is not None and not draft_kind(draft).is_model):
        return _ONE_AT_A_TIME.format("heads draft for one text only")
    if options.exact:
        return _ONE_AT_A_TIME.format("--exact demands passes that do not depend on others")
    return None
