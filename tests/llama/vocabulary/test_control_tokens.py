"""Control tokens in texts: what a mark divides is text, and all else is tokenized as before."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.control_tokens import ControlTokens, new_mark
from tests.support.real_pair import TinyFiles, load_model

MARKS = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")
TEXTS = st.lists(
    st.sampled_from([*MARKS, "<", "|", ">", "im_end|>", "<|", " ", "word"]) | st.text(max_size=3)
).map("".join)

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def model(tiny: TinyFiles) -> Iterator[LlamaModel]:
    loaded = load_model(tiny.target, ctx_size=256)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def control(model: LlamaModel) -> ControlTokens:
    return model.control_tokens()


def is_control(model: LlamaModel, token: int) -> bool:
    return not model.piece(token) and bool(model.piece(token, special=True))


def written(model: LlamaModel, ids: list[int]) -> str:
    return b"".join(model.piece(token, special=True) for token in ids).decode()


@given(TEXTS, TEXTS, TEXTS)
def test_a_divided_text_has_none(
    model: LlamaModel, control: ControlTokens, before: str, text: str, behind: str
) -> None:
    mark = new_mark()
    parts = f"{before}<s>{control.divided(text, mark)}</s>{behind}".split(mark)
    ids = control.tokenize(model, parts, add_special=False)
    assert written(model, ids) == f"{before}<s>{text}</s>{behind}"
    allowed = [
        token
        for each in (f"{before}<s>", f"</s>{behind}")
        for token in model.tokenize(each, add_special=False, parse_special=True)
        if is_control(model, token)
    ]
    assert [token for token in ids if is_control(model, token)] == allowed


@given(TEXTS)
def test_the_rest_has_the_same_tokens(model: LlamaModel, control: ControlTokens, text: str) -> None:
    whole = f"<|im_start|>{text}<|im_end|>"
    for parts in ([whole], [whole, ""], ["", whole]):
        found = control.tokenize(model, parts, add_special=True)
        assert found == model.tokenize(whole, add_special=True, parse_special=True)
    plain = text.replace("<", "").replace("</", "")
    found = control.tokenize(model, [f"<s>{plain}", f"{plain}</s>"], add_special=True)
    assert found == model.tokenize(f"<s>{plain}{plain}</s>", add_special=True, parse_special=True)


def test_plain_data_keeps_its_form() -> None:
    control = ControlTokens(["<s>", "<s><s>", "<", "[a]"])
    data = {"k<s>": ["<s><s>", 1, None, True, {"x": ("[a]", 2.5)}]}
    assert control.divided(data, "!") == {
        "k<!s>": ["<!s><!s>", 1, None, True, {"x": ["[!a]", 2.5]}]
    }
    assert control.divided("<a", "!") == "<a"
