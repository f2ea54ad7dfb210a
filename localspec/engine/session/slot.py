"""Slots of a loaded pair; each answers one request at a time."""

from localspec.core.options.load_options import LoadOptions
from localspec.engine.generate import TextEngine
from localspec.engine.session.batching import Batcher, SequenceHandle
from localspec.engine.session.llama_context import SharedContext
from localspec.engine.session.shared_heads import SharedHeads
from localspec.engine.session.slot_model import SlotModel
from localspec.llama.heads.head import Head
from localspec.speculative.control.conversations import Conversations
from localspec.speculative.control.pair_profile import LossBudget
from localspec.speculative.prompt_lookup import PromptLookup

_ONE_AT_A_TIME = "Requests are answered one after the other: {}."
ROUNDS_APART = _ONE_AT_A_TIME.format("--exact demands passes that do not depend on others")
NOT_ROLLED_BACK = _ONE_AT_A_TIME.format("llama.cpp cannot roll a sequence back by itself")


class Slot:
    """A `TextEngine` on one sequence of the target and of its draft.

    Vocabularies, profile and history are those of ``engine``.
    """

    can_roll_back = True

    def __init__(
        self, engine: TextEngine, target: SlotModel, draft: SlotModel | Head | None
    ) -> None:
        self.target = target
        self.draft = draft
        self.prompt_lookup = PromptLookup()
        self.conversations = Conversations()
        self.loss_budget = LossBudget()
        self.history, self.profile = engine.history, engine.profile
        self.is_stop, self.piece = engine.is_stop, engine.piece
        self.constraint, self.token_rules = engine.constraint, engine.token_rules
        self.vocabularies = engine.vocabularies


def make_slots(
    engine: TextEngine,
    count: int,
    batcher: Batcher,
    target: SharedContext,
    draft: SharedContext | SharedHeads | None,
) -> list[Slot]:
    slots = []
    for i in range(count):
        handle = SequenceHandle(batcher)
        model = SlotModel(target, i, handle)
        drafting: SlotModel | Head | None = None
        if isinstance(draft, SharedHeads):
            drafting = draft.head(model, target, i, handle)
        elif draft is not None:
            drafting = SlotModel(draft, i, handle)
        slots.append(Slot(engine, model, drafting))
    return slots


def one_at_a_time(options: LoadOptions) -> str | None:
    """Why answers cannot share passes, in a sentence; None if they can."""
    if options.exact and not options.own_cells:
        return ROUNDS_APART
    return None
