"""Stats: what each figure means, None where nothing was measured."""

from dataclasses import asdict

from localspec.chat.stats import GenerationStats, PassStats
from localspec.speculative.loop import Prefill, Round

ROUNDS = (
    Round((1,), 0, 0, 0.5, 0.0, 0.5),
    Round((2, 3, 4, 5), 3, 3, 1.0, 0.25, 0.75, draft_prompt_seconds=2.0, width=4),
    Round((6,), 4, 0, 1.0, 0.375, 0.625, width=5),
    Round((7, 8), 3, 1, 1.0, 0.25, 0.75, width=4),
    Round((9,), 1, 1, 0.5, 0.125, 0.375, finish_reason="stop", width=2),
)


def answered() -> GenerationStats:
    stats = GenerationStats()
    stats.start(Prefill(tokens=8, cached=20, seconds=4.0))
    for each in ROUNDS:
        stats.add(each, each.seconds)
    return stats


def test_nothing_measured_is_none_not_zero() -> None:
    stats = GenerationStats()
    figures = (stats.generation_tps, stats.prompt_tps, stats.acceptance_rate, stats.ttft_s)
    assert {*figures, stats.mean_accepted_length} == {None}
    stats.add(Round((1,), 3, 0, 1.0), 1.0)
    assert stats.acceptance_rate == 0 and stats.accepted_at == [1]
    for tokens, seconds in ((0, 0.0), (0, 1.0)):  # a cached prompt
        stats = GenerationStats()
        stats.start(Prefill(tokens, 30, seconds))
        assert stats.prompt_tps is None and stats.read_tokens == 1


def test_a_snapshot_does_not_change_with_later_rounds() -> None:
    stats = answered()
    snapshot = stats.snapshot()
    assert snapshot == stats
    stats.add(ROUNDS[1], 1.0)
    assert snapshot == answered() != stats


def test_sums() -> None:
    stats = answered()
    assert (stats.tokens, stats.rounds, stats.drafted, stats.accepted) == (9, 5, 11, 5)
    assert (stats.read_tokens, stats.cached_tokens) == (9, 20)
    assert (stats.prompt_seconds, stats.draft_prompt_seconds) == (4.0, 2.0)
    assert (stats.seconds, stats.draft_seconds, stats.verify_seconds) == (4.0, 1.0, 3.0)
    assert stats.seconds == stats.draft_seconds + stats.verify_seconds


def test_derived_figures() -> None:
    stats = answered()
    assert stats.generation_tps == 9 / 4  # the draft's prompt is no part of it
    assert stats.prompt_tps == 8 / 4
    assert stats.acceptance_rate == 5 / 11
    assert stats.mean_accepted_length == 9 / 5
    assert stats.ttft_s == 4.5
    assert stats.slowest_round == 1.0


def test_rounds_are_counted_by_accepted_tokens_and_passes_by_width() -> None:
    stats = answered()
    assert stats.accepted_at == [1, 2, 0, 1]
    assert sum(stats.accepted_at) == 4  # the first round drafted nothing
    assert sum(n * count for n, count in enumerate(stats.accepted_at)) == stats.accepted
    assert stats.accepted_by_position == [3, 1, 1]
    assert stats.acceptance_by_position == [3 / 4, 1 / 3, 1 / 3, 0]  # of 4, 3, 3 and 1 drafted
    assert stats.passes == {
        1: PassStats(1, 0.5), 4: PassStats(2, 1.5), 5: PassStats(1, 0.625), 2: PassStats(1, 0.375),
    }  # fmt: skip


def test_a_shared_pass_counts_by_its_part() -> None:
    stats = GenerationStats()
    for sequences in (1, 2, 4):
        stats.add(Round((1,), 0, 0, 0.1, sequences=sequences), 0.1)
    assert stats.own_passes == 1.75 and stats.drafts == 0


def test_merged_sums_are_those_of_all_rounds() -> None:
    first, second, both = GenerationStats(), GenerationStats(), GenerationStats()
    for stats, rounds in ((first, ROUNDS[:2]), (second, ROUNDS[2:])):
        prefill = Prefill(tokens=8, cached=20, seconds=4.0)
        stats.start(prefill)
        both.start(prefill)
        for each in rounds:
            stats.add(each, each.seconds)
            both.add(each, each.seconds)
    assert (first.ttft_s, second.ttft_s) == (4.5, 5.0)
    total, before = GenerationStats(), asdict(second)
    total.merge(second)
    assert total == second and total.accepted_at is not second.accepted_at
    total.merge(first)
    both.ttft_s = 5.0  # that of the first one merged
    assert total == both and total.answers == 2
    assert total.accepted_at == [1, 2, 0, 1]
    assert asdict(second) == before
    assert total.prompt_tps == (9 - 1 + 9 - 1) / 8
    total.merge(GenerationStats())
    assert total == both
    empty = GenerationStats()
    empty.merge(GenerationStats())
    assert empty == GenerationStats() and empty.ttft_s is None


def test_an_estimate_covers_every_answer_or_none() -> None:
    def answered(plain_seconds: float) -> GenerationStats:
        return GenerationStats(tokens=16, drafted=4, seconds=2.0, plain_seconds=plain_seconds)

    total = GenerationStats()
    total.merge(answered(3.0))
    assert total.estimated_speedup is None  # of 16 tokens
    total.merge(answered(3.0))
    assert total.estimated_speedup == 1.5
    total.merge(answered(0.0))
    assert total.estimated_speedup is None
    total.merge(answered(3.0))  # what came before is still not known
    assert total.estimated_speedup is None
    plain = GenerationStats(tokens=64, seconds=2.0, plain_seconds=1.0)
    assert plain.estimated_speedup is None  # nothing was drafted: there is no gain and no loss


def test_what_trees_gave_is_counted() -> None:
    stats = GenerationStats()
    stats.add(Round((1, 2, 3), 5, 2, 1.0, branched=1), 1.0)
    stats.add(Round((4,), 2, 0, 1.0), 1.0)
    total = GenerationStats()
    total.merge(stats)
    total.merge(stats)
    assert (stats.branched, total.branched) == (1, 2)
    assert stats.acceptance_rate == 2 / 7
