"""Controllers: a fixed length stays, auto drafts where it pays, else stops, and learns."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.speculative.control.controllers import Adaptive, FixedLength, NoDraft, longest
from localspec.speculative.control.conversations import Conversations
from localspec.speculative.control.costs import PassCosts
from localspec.speculative.control.pair_profile import LossBudget, PairProfile
from localspec.speculative.drafters import MODEL, ModelDrafter
from localspec.speculative.loop import Controller, DraftStatus, Round
from localspec.speculative.prompt_lookup import PromptLookup
from tests.support.toy.models import GREEDY, FakeClock, ToyModel, emitted, never_stop, start_answer

FLAT = (1.0, 0.05)  # seconds of a pass, and more for each token in it
STEEP = (0.0, 1.0)


class Costly(ToyModel):
    """A toy whose passes cost what they are told to, and more as ``extra`` says."""

    def __init__(self, clock: FakeClock, costs: tuple[float, float], **options: Any) -> None:
        seconds, seconds_per_token = costs
        super().__init__(
            n_ctx=4096, clock=clock, seconds=seconds, seconds_per_token=seconds_per_token, **options
        )
        self.clock = clock

    def extra(self, width: int) -> float:
        """Seconds of the next pass besides."""
        return 0.0

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        self.clock.advance(self.extra(len(tokens)))
        return super().decode(tokens, rows)


class Copyist(Costly):
    """Says what stands 16 tokens before."""

    back = 16

    def row(self, context: Sequence[int]) -> NDArray[np.float32]:
        row = super().row(context) * 0
        row[context[-self.back]] = 1.0
        return row


class Rewriter(Copyist):
    """Says again what stands 700 tokens before."""

    back = 700


def calibrated(verify: tuple[float, float], draft: tuple[float, float]) -> PairProfile:
    """What a calibration finds of such costs."""
    known = PairProfile(reading=draft[1])
    for width in (1, 2, 4, 8, 16, 33):
        known.verify.observe(width, 0, verify[0] + verify[1] * width)
        known.draft.observe(width, 0, draft[0] + draft[1] * width)
    return known


def answer(
    make: Callable[[FakeClock], Controller],
    costs: tuple[float, float],
    prompt: Sequence[int],
    tokens: int,
    kind: type[Costly] = Costly,
) -> tuple[float, list[Round]]:
    """Seconds behind the prompt, and rounds."""
    clock = FakeClock()
    rounds = start_answer(kind(clock, costs), make(clock), prompt, tokens, clock=clock)
    began = clock()
    found = list(rounds)
    return clock() - began, found


def drafting(clock: FakeClock, costs: tuple[float, float], **options: Any) -> ModelDrafter:
    """A draft model of these costs."""
    return ModelDrafter(Costly(clock, costs, **options), GREEDY, 16, never_stop)


def auto(
    quirk: float,
    draft: tuple[float, float],
    known: PairProfile,
    index: PromptLookup | None = None,
    budget: LossBudget | None = None,
) -> Callable[[FakeClock], Controller]:
    return lambda clock: Adaptive(
        known, clock, drafting(clock, draft, quirk=quirk), index, loss_budget=budget
    )


def lookup_alone(
    known: PairProfile, budget: LossBudget | None = None
) -> Callable[[FakeClock], Controller]:
    return lambda clock: Adaptive(known, clock, None, PromptLookup(), loss_budget=budget)


def in_debt(seconds: float, plain: float) -> LossBudget:
    """The budget of a slot whose last round took so long for one token."""
    budget = LossBudget()
    budget.add(seconds, 1, plain)
    return budget


def fixed(
    quirk: float, draft: tuple[float, float], length: int
) -> Callable[[FakeClock], Controller]:
    return lambda clock: FixedLength(drafting(clock, draft, quirk=quirk), length, clock)


def drafted(rounds: Sequence[Round]) -> int:
    return sum(each.drafted for each in rounds)


def plain_seconds(costs: tuple[float, float], tokens: int) -> float:
    return answer(lambda clock: NoDraft(), costs, [1], tokens)[0]


# -- fixed lengths -------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4, 9])
def test_a_fixed_length_stays(length: int) -> None:
    _, rounds = answer(fixed(9, (1, 0), length), FLAT, [1, 2], 60)
    assert {each.drafted for each in rounds[1:-9]} == {length}
    assert {source for each in rounds for source in each.sources} == {"draft"}
    assert longest(length) == length


def test_plain_is_plain() -> None:
    assert drafted(answer(lambda clock: NoDraft(), FLAT, [1], 20)[1]) == 0


# -- auto ----------------------------------------------------------------------------------


def test_a_good_cheap_draft_is_used_far() -> None:
    draft = (0.02, 0.0)
    seconds, rounds = answer(auto(0.02, draft, calibrated(FLAT, draft)), FLAT, [1, 2], 300)
    assert plain_seconds(FLAT, 300) / seconds > 2.5
    assert max(each.drafted for each in rounds) > 6
    assert longest("auto") >= max(each.drafted for each in rounds)


@pytest.mark.parametrize("tokens", [64, 300])
@pytest.mark.parametrize(
    ("quirk", "draft", "verify"),
    [
        (9.0, (0.05, 0.0), FLAT),  # knows nothing
        (0.05, (1.0, 0.0), FLAT),  # as slow as the target
        (0.05, (0.05, 0.0), STEEP),  # nothing to win
        (9.0, (1.0, 0.1), STEEP),
        (0.6, (0.2, 0.0), (0.5, 0.5)),  # on the edge
    ],
)
def test_where_drafting_cannot_pay_it_hardly_costs(
    quirk: float, draft: tuple[float, float], verify: tuple[float, float], tokens: int
) -> None:
    seconds, _ = answer(auto(quirk, draft, calibrated(verify, draft)), verify, [1, 2], tokens)
    # The allowance, and the round that overdrew it.
    assert seconds <= plain_seconds(verify, tokens) * 1.01 + 5 * sum(verify)


def test_hopeless_costs_are_not_even_tried() -> None:
    draft = (0.5, 0.0)
    known = calibrated(STEEP, draft)
    seconds, rounds = answer(auto(0.0, draft, known), STEEP, [1, 2], 200)
    assert drafted(rounds) == 0
    assert seconds == plain_seconds(STEEP, 200)
    assert known.of(f"{MODEL}, greedy").observations == 0


def test_what_one_answer_taught_helps_the_next() -> None:
    draft, verify = (0.3, 0.0), (0.6, 0.4)
    known = calibrated(verify, draft)
    first, _ = answer(auto(9.0, draft, known), verify, [1, 2], 100)
    taught = known.of(f"{MODEL}, greedy").observations
    second, rounds = answer(auto(9.0, draft, known), verify, [3, 4], 100)
    assert taught > 0
    assert second <= first
    assert drafted(rounds) <= 8


def test_a_draft_that_is_not_used_is_watched_and_comes_back() -> None:
    draft, verify = (0.2, 0.0), (0.7, 0.3)
    known = calibrated(verify, draft)
    for _ in range(200):  # it was bad once, on another text
        known.of(f"{MODEL}, greedy").observe(2.0, False)
    _, rounds = answer(auto(0.02, draft, known), verify, [1, 2], 1500)
    assert drafted(rounds[:200]) == 0
    assert drafted(rounds) > 300


def test_a_long_prompt_is_not_read_for_a_short_answer() -> None:
    draft = (0.05, 0.05)
    prompt = [i % 16 for i in range(2000)]
    known = calibrated(FLAT, draft)
    seconds, rounds = answer(auto(0.05, draft, known), FLAT, prompt, 40)
    assert drafted(rounds) == 0
    assert seconds == pytest.approx(plain_seconds(FLAT, 40))  # nor is the draft reviewed
    _, rounds = answer(auto(0.05, draft, known), FLAT, prompt, 1500)
    reading = [each.draft_prompt_seconds for each in rounds if each.draft_prompt_seconds]
    assert len(reading) == 1 and reading[0] > 90
    assert drafted(rounds) > 500


@pytest.mark.parametrize("sequences", [1, 4])
def test_what_others_share_counts_before_the_first_pass(sequences: int) -> None:
    """A row more costs a fifth of a lone pass, but as much as a token of four: none is drafted."""
    clock = FakeClock()
    known = calibrated((0.8, 0.2), (0.2, 0.01))
    controller = auto(0.05, (0.2, 0.01), known)(clock)
    context = [i % 16 for i in range(100)]
    controller.begin_answer()
    others = sequences - 1
    controller.observe(Round((0,), 0, 0, 0.0, width=0, sequences=sequences, others=others))
    proposal = controller.propose([*context, 0], 200)
    assert bool(proposal.tokens) is (sequences == 1)
    assert (proposal.reading_seconds > 0) is (sequences == 1)


def test_a_useless_draft_is_found_out_without_a_long_prompt() -> None:
    draft, prompt = (0.05, 0.02), [i % 16 for i in range(2000)]
    known = calibrated(FLAT, draft)
    seconds, rounds = answer(auto(9.0, draft, known), FLAT, prompt, 300)
    assert known.of(f"{MODEL}, greedy").observations > 5
    assert not any(each.draft_prompt_seconds for each in rounds)
    assert seconds <= answer(lambda clock: NoDraft(), FLAT, prompt, 300)[0] * 1.01 + 4 * sum(FLAT)


class Eager(Adaptive):
    """Reads every prompt with the draft at once."""

    def _worth_reading(self, *asked: object) -> bool:
        return True


class Chat:
    """Short answers on a prompt that grows, with caches that are kept, on one clock."""

    def __init__(
        self, draft: tuple[float, float], quirk: float = 0.05, kind: type[Adaptive] = Adaptive
    ) -> None:
        self._kind = kind
        self.clock = FakeClock()
        self.target = Costly(self.clock, FLAT)
        self.known = calibrated(FLAT, draft)
        for _ in range(60):  # a draft that is known from elsewhere
            self.known.of(f"{MODEL}, greedy").observe(2.0, True)
        self.conversations = Conversations()
        self._draft = Costly(self.clock, draft, quirk=quirk)

    def answer(
        self, prompt: list[int], tokens: int = 40, *, plain: bool = False
    ) -> tuple[float, list[Round]]:
        """Seconds behind the prompt, and rounds; the status is kept."""
        drafter = ModelDrafter(self._draft, GREEDY, 16, never_stop)
        auto = self._kind(self.known, self.clock, drafter, conversations=self.conversations)
        self.controller: Controller = NoDraft() if plain else auto
        rounds = start_answer(self.target, self.controller, prompt, tokens, clock=self.clock)
        began = self.clock()
        found = list(rounds)
        return self.clock() - began, found

    def turns(self, prompt: int, count: int, *, plain: bool = False) -> list[tuple[float, bool]]:
        """Of each turn the seconds, and whether anything was drafted."""
        text, found = [i * i % 16 for i in range(prompt)], []
        for i in range(count):
            seconds, rounds = self.answer(text, plain=plain)
            found.append((seconds, drafted(rounds) > 0))
            text += [*emitted(rounds), *[i % 16] * 15]
        return found


@pytest.mark.parametrize("prompt", [500, 700, 1000])
def test_a_prompt_is_read_once_its_short_answers_have_missed_what_that_costs(prompt: int) -> None:
    draft = (0.05, 0.05)
    found = Chat(draft).turns(prompt, 20)
    drafts = [drafted for _, drafted in found]
    first = drafts.index(True)
    assert first < 15 and all(drafts[first:])
    never = sum(seconds for seconds, _ in Chat(draft).turns(prompt, 20, plain=True))
    at_once = sum(seconds for seconds, _ in Chat(draft, kind=Eager).turns(prompt, 20))
    assert sum(seconds for seconds, _ in found) < 1.5 * min(never, at_once)


def test_an_answer_behind_which_nothing_comes_costs_no_more_than_plain() -> None:
    chat = Chat((0.05, 0.05))
    for start in range(1, 9):  # each time another text
        seconds, rounds = chat.answer([i * i * start % 16 for i in range(start, start + 1000)])
        assert drafted(rounds) == 0
        assert seconds == pytest.approx(plain_seconds(FLAT, 40))
        assert chat.controller.status == DraftStatus.ANSWER_TOO_SHORT


def test_a_long_conversation_with_a_bad_draft_costs_one_reading_at_most() -> None:
    draft = (0.05, 0.05)
    found = sum(seconds for seconds, _ in Chat(draft, quirk=9).turns(1000, 20))
    plain = sum(seconds for seconds, _ in Chat(draft).turns(1000, 20, plain=True))
    assert found <= plain * 1.01 + 0.05 * 2200 + 6 * sum(FLAT)


@pytest.mark.parametrize("dear", ["verify", "draft"])
def test_costs_measured_beside_other_work_are_doubted(dear: str) -> None:
    draft = (0.05, 0.0)
    known = calibrated(FLAT, draft)
    disturbed = PassCosts()
    if dear == "verify":
        known.verify = disturbed
        for width in (1, 2, 4, 8, 16):
            disturbed.observe(width, 0, FLAT[0] if width == 1 else 3.0 * width)
    else:
        known.draft = disturbed
        disturbed.observe(1, 0, 3.0)
    seconds, rounds = answer(auto(0.02, draft, known), FLAT, [1, 2], 6000)
    assert drafted(rounds[:200]) == 0
    assert drafted(rounds[-200:]) > 200
    assert seconds < plain_seconds(FLAT, 6000) / 1.3


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("stall", [10, 1000])
def test_a_pass_held_up_is_not_the_drafts_fault(width: int, stall: int) -> None:
    class HeldUp(Costly):
        """One pass of this width takes far longer."""

        def extra(self, own: int) -> float:
            if own < width or len(self.tokens) <= 60 or held:
                return 0.0
            held.append(True)
            return stall

    held: list[bool] = []
    draft = (0.02, 0.0)
    seconds, rounds = answer(auto(0.02, draft, calibrated(FLAT, draft)), FLAT, [1, 2], 600, HeldUp)
    assert held
    assert drafted(rounds[len(rounds) // 4 :]) > 200
    assert seconds - stall < plain_seconds(FLAT, 600) / 1.6


def test_quick_plain_passes_are_no_credit() -> None:
    class Jittery(Costly):
        """Every second plain pass takes half as long again, the others half."""

        def extra(self, width: int) -> float:
            return (len(self.tokens) % 2 - 0.5) * sum(verify) if width == 1 else 0.0

    verify = (0.6, 0.4)
    known, budget = calibrated(verify, FLAT), LossBudget()
    nothing = lambda clock: Adaptive(known, clock, None, loss_budget=budget)  # noqa: E731
    answer(nothing, verify, [1, 2], 64, Jittery)
    assert budget.may_spend(1.0, 1.0, 0.0)
    assert not budget.may_spend(1.0 + 0.013 * 64, 1.0, 0.0)  # the share of the time


def test_plain_decoding_is_tried_now_and_then() -> None:
    draft, verify = (0.05, 0.0), (0.5, 0.5)
    known = calibrated(verify, draft)
    known.verify = PassCosts()
    for width in (1, 2, 4, 8, 16):  # the plain pass was held up when it was measured
        known.verify.observe(width, 0, 10.0 if width == 1 else verify[0] + verify[1] * width)
    first, _ = answer(auto(0.4, draft, known), verify, [1, 2], 600)
    second, _ = answer(auto(0.4, draft, known), verify, [3, 4], 600)
    assert known.verify.seconds(1, 0) < 1.3
    assert second < plain_seconds(verify, 600) * 1.03


def test_a_draft_that_lacks_a_token_teaches_nothing_of_reading() -> None:
    draft = (0.05, 0.05)
    known = calibrated(FLAT, draft)
    _, rounds = answer(
        lambda clock: Adaptive(known, clock, drafting(clock, draft, n_vocab=10)),
        FLAT, [12, 1, 2] * 20, 200,
    )  # fmt: skip
    assert drafted(rounds) == 0 and known.reading == pytest.approx(0.05)


def test_the_index_alone_doubts_costs_too() -> None:
    known = PairProfile()
    for width in (1, 2, 4, 8, 33):  # measured beside other work
        known.verify.observe(width, 0, 1.0 if width == 1 else 3.0 * width)
    _, rounds = answer(lookup_alone(known), FLAT, [*range(16)] * 3, 3000, Copyist)
    assert drafted(rounds[:200]) == 0 < drafted(rounds[-50:])


@pytest.mark.parametrize("what", ["step", "reading"])
def test_a_stall_is_not_remembered_for_long(what: str) -> None:
    draft = (0.05, 0.01)
    known = calibrated(FLAT, draft)
    if what == "step":
        known.draft.observe(1, 0, 1000.0)
    else:
        known.observe_reading(30, 30_000.0)
    seconds, rounds = answer(auto(0.02, draft, known), FLAT, [1, 2] * 10, 300)
    assert drafted(rounds) > 150
    assert seconds < plain_seconds(FLAT, 300) / 1.8


def test_costs_are_learnt_while_it_runs() -> None:
    draft = (0.02, 0.0)
    known = calibrated((0.9, 0.1), draft)  # told that width costs little, which is not so
    costs = (0.5, 0.5)
    seconds, _ = answer(auto(0.4, draft, known), costs, [1, 2], 400)
    # The allowance, and the round that overdrew it: at most 16 drafted tokens.
    assert seconds < plain_seconds(costs, 400) * 1.01 + 4 * sum(costs) + 17 * costs[1]
    assert known.verify.seconds(4, 100) > 1.7


@pytest.mark.parametrize(
    ("quirk", "draft", "verify", "prompt", "expected"),
    [
        (0.02, (0.02, 0.0), FLAT, 2, DraftStatus.DRAFTING),
        (0.05, (0.05, 0.0), STEEP, 2, DraftStatus.VERIFICATION_TOO_SLOW),
        (9.0, (0.3, 0.0), (0.6, 0.4), 2, DraftStatus.DRAFT_TOO_OFTEN_WRONG),
        (0.05, (0.05, 0.05), FLAT, 2000, DraftStatus.ANSWER_TOO_SHORT),
    ],
)
def test_the_status_at_the_end_of_an_answer(
    quirk: float,
    draft: tuple[float, float],
    verify: tuple[float, float],
    prompt: int,
    expected: DraftStatus,
) -> None:
    made: list[Controller] = []

    def make(clock: FakeClock) -> Controller:
        made.append(auto(quirk, draft, calibrated(verify, draft))(clock))
        return made[-1]

    answer(make, verify, [i % 16 for i in range(prompt)], 60)
    assert made[-1].status == expected


@pytest.mark.parametrize(("prompt", "is_read"), [(40, True), (80, False)])
def test_a_new_draft_reads_a_short_prompt_to_find_out_what_it_gains(
    prompt: int, is_read: bool
) -> None:
    """By the acceptance assumed of new drafts, reading neither prompt would pay."""
    draft, verify = (0.3, 0.12), (0.8, 0.2)
    known = calibrated(verify, draft)
    seconds, rounds = answer(auto(0.02, draft, known), verify, [i % 16 for i in range(prompt)], 200)
    assert (drafted(rounds) > 0) is is_read
    assert seconds < plain_seconds(verify, 200) / (1.2 if is_read else 0.999)


def test_a_draft_that_was_never_tried_is_not_called_wrong() -> None:
    draft, verify = (0.5, 0.0), (0.6, 0.4)  # gains only where nearly all is right
    controller = auto(0.02, draft, calibrated(verify, draft))(FakeClock())
    assert controller.propose([1, 2, 3], 9).tokens == ()
    assert controller.status == DraftStatus.ANSWER_TOO_SHORT


def test_a_lookup_that_drafts_does_not_hide_why_the_model_does_not() -> None:
    draft = (2.0, 0.0)  # a step costs more than a pass of the target
    controller = auto(0.05, draft, calibrated(FLAT, draft), PromptLookup())(FakeClock())
    assert controller.propose([1, 2, 3, 4, 5, 6] * 6, 9).sources[0] == "lookup"
    assert controller.status == DraftStatus.VERIFICATION_TOO_SLOW


def test_a_debt_from_before_is_the_reason_not_to_draft() -> None:
    draft, verify = (0.35, 0.0), (0.7, 0.3)  # may gain a little
    make = auto(0.02, draft, calibrated(verify, draft), budget=in_debt(20.0, 1.0))
    controller = make(FakeClock())
    assert controller.propose([1, 2, 3], 9).tokens == ()
    assert controller.status == DraftStatus.RECENTLY_SLOWER


def test_the_loss_of_one_slot_is_no_reason_for_another_nor_does_it_take_its_credit() -> None:
    draft, verify = (0.35, 0.0), (0.7, 0.3)
    known, spares = calibrated(verify, draft), LossBudget()
    spares.add(1.0, 10, 1.0)  # a long copy, in an answer that goes on
    loses = auto(0.02, draft, known, budget=in_debt(20.0, 1.0))(FakeClock())
    for controller in (loses, auto(0.02, draft, known, budget=spares)(FakeClock())):
        controller.propose([1, 2, 3], 9)
    assert controller.status == DraftStatus.DRAFTING
    loses.begin_answer()
    assert spares.may_spend(9.0, 1.0, 0.0)


def test_candidates_teach_the_kind_of_sampling_they_were_drafted_in() -> None:
    draft = (0.02, 0.0)
    known = calibrated(FLAT, draft)
    for sampling_kind in ("greedy", "coupled at 0.8"):
        known.of(f"{MODEL}, {sampling_kind}").observe(2.0, True)
    controller = auto(0.02, draft, known)(FakeClock())
    drafted = controller.propose([1, 2, 3], 9).tokens
    assert known.of(f"{MODEL}, greedy").observations == 1
    controller.observe(Round((drafted[0] + 1,), len(drafted), 0, 1.0, past=2, width=1))
    assert known.of(f"{MODEL}, greedy").observations == pytest.approx(1.999)
    assert known.of(f"{MODEL}, coupled at 0.8").observations == 1


def test_a_good_draft_is_used_from_the_second_round_of_a_first_answer() -> None:
    draft = (0.02, 0.0)
    _, rounds = answer(auto(0.02, draft, calibrated(FLAT, draft)), FLAT, [1, 2], 30)
    assert rounds[0].drafted == 0 < rounds[1].drafted <= 3  # not far, until it is known


def test_the_controllers_own_time_is_no_loss_of_drafting() -> None:
    class Slow(PromptLookup):
        """A look-up takes a twentieth of a plain pass, and finds nothing."""

        def update(self, context: list[int]) -> None:
            clocks[-1].advance(0.05)

    clocks: list[FakeClock] = []
    draft, verify = (0.4, 0.0), (0.7, 0.3)
    known = calibrated(verify, draft)

    def make(clock: FakeClock) -> Controller:
        clocks.append(clock)
        return auto(0.02, draft, known, Slow(), in_debt(20.0, 1.0))(clock)

    _, rounds = answer(make, verify, [1, 2], 800)
    assert drafted(rounds[:20]) == 0 < drafted(rounds)


def test_no_debt_forbids_the_index_what_gains_much() -> None:
    known = calibrated(FLAT, (0.9, 0.0))
    prompt = [*range(16)] * 3
    for _ in range(9):
        known.of("lookup 16+, greedy").observe(3.0, True)
    budget = in_debt(20.0, sum(FLAT))  # by whatever was drafted before
    make = auto(9, (0.9, 0.0), known, PromptLookup(), budget)
    _, rounds = answer(make, FLAT, prompt, 40, Copyist)
    assert rounds[1].accepted > 5


def test_what_a_moving_window_reads_again_is_no_prompt() -> None:
    draft, prompt = (0.02, 0.01), [i % 16 for i in range(100)]
    known = calibrated(FLAT, draft)

    def make(clock: FakeClock) -> Controller:
        model = Costly(clock, draft, quirk=0.02)
        model.n_ctx = 128
        return Adaptive(known, clock, ModelDrafter(model, GREEDY, 16, never_stop))

    _, rounds = answer(make, FLAT, prompt, 300)
    assert len([each for each in rounds if each.draft_prompt_seconds]) == 1
    assert drafted(rounds[-20:]) > 0


def test_one_long_draft_that_was_all_wrong_does_not_forbid_drafting_for_long() -> None:
    draft = (0.02, 0.0)
    budget = in_debt(12.0, 1.05)  # eight plain tokens more than the allowance
    _, rounds = answer(auto(0.02, draft, calibrated(FLAT, draft), budget=budget), FLAT, [1, 2], 300)
    assert next(i for i, each in enumerate(rounds) if each.drafted) < 80


def test_only_the_prompt_that_a_draft_reads_is_no_part_of_the_rounds() -> None:
    draft = (0.05, 0.05)
    known = calibrated(FLAT, draft)
    for _ in range(60):  # it was bad once, so that it reads late
        known.of(f"{MODEL}, greedy").observe(2.0, False)
    prompt = [i % 16 for i in range(100)]
    _, rounds = answer(auto(0.02, draft, known), FLAT, prompt, 600)
    reading = [each.draft_prompt_seconds for each in rounds if each.draft_prompt_seconds]
    assert drafted(rounds) > 100
    assert sum(reading) <= draft[0] + draft[1] * len(prompt)


# -- prompt lookup --------------------------------------------------------------------------

DICE = [*map(Random(1).randrange, [16] * 700)]


def test_text_that_repeats_needs_no_draft_model() -> None:
    prompt = [*range(16)] * 3
    make = lookup_alone(calibrated(FLAT, FLAT))
    seconds, rounds = answer(make, FLAT, prompt, 320, Copyist)
    assert 320 * 1.05 / seconds > 3
    assert {source for each in rounds for source in each.sources} == {"lookup"}


def test_a_copy_of_600_tokens_takes_few_rounds() -> None:
    """On costs like those of a GPU."""
    make = lookup_alone(calibrated(FLAT, FLAT))
    seconds, rounds = answer(make, FLAT, DICE, 600, Rewriter)
    assert max(len(each.tokens) for each in rounds) > 32
    assert len(rounds) < 600 / 16
    assert seconds < plain_seconds(FLAT, 600) / 7


@pytest.mark.parametrize("step", [34, 50])
def test_a_width_that_was_never_tried_costs_little_where_it_is_dear(step: int) -> None:
    """Passes from ``step`` tokens on take 20 times as long, and nobody knows."""

    class Cliff(Rewriter):
        def extra(self, width: int) -> float:
            return 20.0 if step <= width < 100 else 0.0

    _, rounds = answer(lookup_alone(calibrated(FLAT, FLAT)), FLAT, DICE, 2000, Cliff)
    assert len([each for each in rounds if each.width >= step]) <= 8


def test_prose_loses_nothing_to_the_index() -> None:
    seconds, _ = answer(lookup_alone(calibrated(FLAT, FLAT)), FLAT, [1, 2], 300)
    assert seconds <= plain_seconds(FLAT, 300) * 1.01 + 4 * sum(FLAT)


def test_every_source_is_learnt_from_whoever_was_chosen() -> None:
    draft = (0.02, 0.0)
    known = calibrated(FLAT, draft)
    answer(auto(0.02, draft, known, PromptLookup()), FLAT, [1, 2, 3] * 4, 300)
    assert known.of(f"{MODEL}, greedy").observations > 20
    lookups = [each for group, each in known.acceptance.items() if group.startswith("lookup")]
    assert any(each.observations > 0 for each in lookups)


def test_many_short_answers_do_not_lose_many_beginnings() -> None:
    draft, verify, tokens, answers = (0.1, 0.0), (0.9, 0.1), 12, 14
    known, budget = calibrated(verify, draft), LossBudget()
    seconds = 0.0
    for i in range(answers):
        known.acceptance.clear()  # each time it looks like a new, promising draft
        make = auto(9.0, draft, known, budget=budget)
        seconds += answer(make, verify, [i, i + 1], tokens)[0]
    plain = answers * plain_seconds(verify, tokens)
    # One allowance for all of them; an allowance for each came to 25 plain tokens.
    assert seconds <= plain * 1.01 + 6 * sum(verify)


class Changing(Costly):
    """Another width than that of the last pass costs a quarter of a plain pass more, as on GPUs."""

    width = 0

    def extra(self, width: int) -> float:
        changed, self.width = width != self.width, width
        return 0.25 * changed


@pytest.mark.parametrize("quirk", [0.15, 0.3, 0.6])
def test_a_change_of_the_width_is_charged_where_it_costs(quirk: float) -> None:
    """The mean cost of a width holds what changing to it cost: one that is kept becomes cheap."""
    draft, verify, tokens = (0.08, 0.0), (0.9, 0.1), 1200

    def seconds(make: Callable[[FakeClock], Controller]) -> float:
        return answer(make, verify, [1, 2, 3], tokens, Changing)[0]

    best = min(seconds(fixed(quirk, draft, length)) for length in (1, 2, 3, 4, 6))
    ours = seconds(auto(quirk, draft, calibrated(verify, draft)))
    assert ours <= best / 0.82
    assert ours <= plain_seconds(verify, tokens) * 1.01
