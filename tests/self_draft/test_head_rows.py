"""How many output rows heads get: the best by coverage and costs, and how a step is measured."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.metadata.header import read_header
from localspec.self_draft.head_rows import RowChoice, choose_rows, sizes, step_seconds
from localspec.self_draft.trim_heads import trim_heads
from localspec.speculative.limits import usual_best
from tests.support.files.architectures.specs import N_VOCAB
from tests.support.real_pair import options

VERIFY = [1.0, 1.1, 1.2, 1.3, 1.4]
SIZE = 4096


def choice(coverage: Callable[[int], float], fewest: float, whole: float) -> RowChoice:
    covered = [coverage(n) for n in range(1, SIZE + 1)]
    return choose_rows(covered, VERIFY, 0.8, (sizes(SIZE)[-1], fewest), (SIZE, whole))


@given(st.integers(2, 300_000))
def test_sizes_are_fewer_than_all(size: int) -> None:
    found = sizes(size)
    assert found == sorted({*found}, reverse=True) and 0 < found[-1] and found[0] < size
    assert size < 4096 or (all(each % 64 == 0 for each in found) and len(found) > 5)


def test_what_covers_all_text_is_chosen_and_no_more() -> None:
    found = choice(lambda n: 1.0 if n >= 1024 else 0.5, 0.05, 0.5)
    assert found.rows == 1024 and found.pays
    line = 0.05 + (0.5 - 0.05) * (1024 - sizes(SIZE)[-1]) / (SIZE - sizes(SIZE)[-1])
    assert found.step == pytest.approx(line)
    assert found.speedup == pytest.approx(usual_best(VERIFY, line, 0.8)[0])
    assert found.whole_speedup == pytest.approx(usual_best(VERIFY, 0.5, 0.8)[0])
    assert found.sentence.startswith(
        "Chosen: 1,024 of 4,096 output rows; they cover 100.0% of unseen text"
    )


def test_rows_that_cost_nothing_are_kept() -> None:
    found = choice(lambda n: n / SIZE, 0.1, 0.1)
    assert not found.pays and found.step == found.whole_step
    assert found.sentence.startswith("The whole heads are better here, so nothing is made.")
    noisy = choice(lambda n: n / SIZE, 0.2, 0.1)  # measured on a busy machine
    assert noisy.step == noisy.whole_step and not noisy.pays


def test_a_lost_token_costs_two_chances() -> None:
    found = choice(lambda n: 0.9, 0.1, 0.5)
    assert found.speedup == pytest.approx(usual_best(VERIFY, found.step, 0.8 * 0.81)[0])


def test_heads_that_pay_in_no_way() -> None:
    found = choose_rows([1.0] * SIZE, VERIFY, 0.0, (128, 0.1), (SIZE, 0.5))
    assert not found.pays and found.sentence.startswith("No heads pay here, so nothing is made.")


@pytest.mark.llama
@pytest.mark.parametrize("name", ["qwen35-mtp", "step35-mtp3"])
def test_a_step_is_measured_with_both(
    architecture: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    target, path = read_header(architecture(name)), tmp_path / "few.gguf"
    trim_heads(target, target, range(0, N_VOCAB, 2), path)
    ticks = iter(range(10_000))
    found = step_seconds(target, read_header(path), options(target.path), lambda: next(ticks))
    assert found == (1, 1)  # a clock that moves once in each step
    assert min(step_seconds(target, read_header(path), options(target.path), perf_counter)) > 0
