"""`--draft` is read as meant, and what competes is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import UsageError
from localspec.core.options.load_options import MAX_DRAFT_TOKENS, DraftTokens
from localspec.core.options.model_options import DraftOptions, choose_draft, parse_draft_tokens


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("8", (8,)),
        ("0", (0,)),
        ("62", (62,)),
        ("off", (0,)),
        ("auto", ("auto",)),
        ("0,2,4", (0, 2, 4)),
        (" off , 3,auto ", (0, 3, "auto")),
        ("", None),
        (",", None),
        ("3,", None),
        ("-1", None),
        ("2.5", None),
        ("AUTO", None),
        ("draft.gguf", None),
        ("8.gguf", None),
        ("./8", None),
        ("3,draft.gguf", None),
        ("\u00b2", None),
    ],
)
def test_parse_lengths(text: str, lengths: tuple[DraftTokens, ...] | None) -> None:
    assert parse_draft_tokens(text) == lengths


@pytest.mark.parametrize("text", ["63", "1,63", "99999999"])
def test_a_draft_longer_than_we_verify_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=str(MAX_DRAFT_TOKENS)):
        parse_draft_tokens(text)
    with pytest.raises(UsageError):
        choose_draft([text], None, None)


@given(st.lists(st.one_of(st.integers(0, MAX_DRAFT_TOKENS), st.just("auto")), min_size=1))
def test_lengths_are_read_as_written(lengths: list[DraftTokens]) -> None:
    assert parse_draft_tokens(",".join(map(str, lengths))) == tuple(lengths)


SMALL, OTHER = "small.gguf", "other.gguf"


@pytest.mark.parametrize(
    ("either", "model", "lengths", "expected"),
    [
        ([], None, None, DraftOptions()),
        (["8"], None, None, DraftOptions(None, (8,))),
        (["auto"], None, None, DraftOptions(None, ("auto",))),
        (["off"], None, None, DraftOptions(None, (0,))),
        (["0,2"], None, None, DraftOptions(None, (0, 2))),
        (["small.gguf"], None, None, DraftOptions(SMALL)),
        (["small.gguf", "4"], None, None, DraftOptions(SMALL, (4,))),
        (["4", "small.gguf"], None, None, DraftOptions(SMALL, (4,))),
        (["off", "small.gguf"], None, None, DraftOptions(SMALL, (0,))),
        ([], SMALL, None, DraftOptions(SMALL)),
        ([], None, "4", DraftOptions(None, (4,))),
        ([], SMALL, "auto", DraftOptions(SMALL, ("auto",))),
        (["4"], SMALL, None, DraftOptions(SMALL, (4,))),
        (["small.gguf"], None, "4,off", DraftOptions(SMALL, (4, 0))),
    ],
)
def test_choose_draft(
    either: list[str], model: str | None, lengths: str | None, expected: DraftOptions
) -> None:
    before = list(either)
    assert choose_draft(either, model, lengths) == expected
    assert either == before


@pytest.mark.parametrize(
    ("either", "model", "lengths", "message"),
    [
        (["small.gguf", "other.gguf"], None, None, "Two draft models"),
        (["small.gguf"], OTHER, None, "Two draft models"),
        (["small.gguf", "4"], OTHER, None, "Two draft models"),
        (["4", "5"], None, None, "Two draft lengths"),
        (["4", "auto"], None, None, "Two draft lengths"),
        (["off"], None, "4", "Two draft lengths"),
        ([], None, "many", "no draft length"),
        (["small.gguf"], None, "", "no draft length"),
        ([], None, "small.gguf", "no draft length"),
    ],
)
def test_competing_drafts_are_refused(
    either: list[str], model: str | None, lengths: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        choose_draft(either, model, lengths)
    assert raised.value.hint


def test_one_length() -> None:
    assert DraftOptions().one_length("auto") == "auto"
    assert DraftOptions(None, (0,)).one_length("auto") == 0
    with pytest.raises(UsageError, match="not a list"):
        DraftOptions(None, (0, 4)).one_length("auto")


@pytest.mark.parametrize("text", ["-3", "1.5", "-1,5"])
def test_a_number_that_is_no_length_is_not_taken_for_a_file(text: str) -> None:
    with pytest.raises(UsageError, match="no draft length"):
        choose_draft([text], None, None)
