"""CellBudget: texts never have more cells than there are, and the oldest one always has its own."""

from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.session.cell_budget import CellBudget

CELLS = st.integers(1, 5000)


@given(CELLS, st.lists(st.integers(0, 5000), min_size=1, max_size=32))
def test_older_texts_have_their_cells_before_younger_ones(cells: int, wanted: list[int]) -> None:
    budget = CellBudget(cells, cells, len(wanted))
    served = list(budget.served(wanted))
    taken = 0
    for has_cells, count in zip(served, wanted, strict=True):
        assert has_cells == (taken + count <= cells)
        taken += count * has_cells
    assert taken <= cells
    assert served[0] == (wanted[0] <= cells)


@given(CELLS, st.lists(st.integers(0, 5000), max_size=32), st.integers(0, 5000))
def test_a_younger_text_takes_nothing_from_older_ones(
    cells: int, wanted: list[int], another: int
) -> None:
    budget = CellBudget(cells, cells, 2)
    assert list(budget.served([*wanted, another]))[:-1] == list(budget.served(wanted))


@given(CELLS, st.integers(1, 32), st.data())
def test_an_answer_begins_with_cells_for_its_prompt_and_every_slot_can_have_one(
    cells: int, slots: int, data: st.DataObject
) -> None:
    n_ctx = data.draw(st.integers(1, cells))
    budget = CellBudget(cells, n_ctx, slots)
    share = cells // slots
    most = data.draw(st.sampled_from([None, -1, 0, 3, 10**6]))
    text = data.draw(st.integers(0, n_ctx))
    wanted = budget.wanted(text, most)
    assert text <= wanted <= n_ctx
    small = budget.wanted(min(text, share - share // 4), most)
    assert all(budget.served([small] * slots))
