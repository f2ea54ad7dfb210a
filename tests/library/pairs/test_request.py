"""A request for a pair: which value of an option counts."""

from pathlib import Path

import pytest

from localspec.core.errors import UsageError
from localspec.core.options.model_options import DraftOptions
from localspec.library.pairs import user_pairs
from localspec.library.pairs.request import resolve_pair

PLACES = ("given", "over", "pair", "under", "defaults")


@pytest.mark.parametrize("first", range(len(PLACES)))
def test_options_count_in_the_order_of_their_places(first: int) -> None:
    values = {place: i / 10 for i, place in enumerate(PLACES) if i >= first}
    option = {place: {"temperature": value} for place, value in values.items()}
    user_pairs.add("mine", "/models/big.gguf", "/models/small.gguf", option.get("pair", {}), [])
    request = resolve_pair(
        "mine",
        DraftOptions(),
        option.get("given", {}),
        over=option.get("over"),
        under=option.get("under"),
        defaults=option["defaults"],
    )
    assert request.params.temperature == first / 10
    assert (request.target, request.draft.model, request.pair) == (
        "/models/big.gguf", "/models/small.gguf", "mine",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "over", "length"), [(3, 4, 3), (None, 4, 4), (None, None, 5), (0, 4, 0)]
)
def test_the_draft_length_of_a_pair_counts_last(
    asked: int | None, over: int | None, length: int
) -> None:
    user_pairs.add("mine", "/models/big.gguf", "/models/small.gguf", {"draft_tokens": 5}, [])
    lengths = DraftOptions(lengths=() if asked is None else (asked,))
    kept = {} if over is None else {"draft_tokens": over}
    request = resolve_pair("mine", lengths, {"branches": 2}, over=kept)
    assert request.draft_tokens == length
    assert request.branches == (1 if length == 0 else 2)


def test_auto_goes_with_no_rule_that_the_draft_changes(tmp_path: Path) -> None:
    path = str(tmp_path / "big.gguf")
    rule = {"acceptance": "rejection"}
    assert resolve_pair(path, DraftOptions(), rule).draft_tokens == 4
    with pytest.raises(UsageError, match="must be fixed"):
        _ = resolve_pair(path, DraftOptions(lengths=("auto",)), rule).draft_tokens
