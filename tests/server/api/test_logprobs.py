"""Log probabilities: a stream has those of a whole reply, also of text that is held back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.chat.tools.forms import HERMES
from localspec.chat.tools.tool import Tool
from localspec.engine.text_stream import OutputFormat, Prompt
from tests.support.served import (
    COMPLETIONS,
    ServedModel,
    ServedToy,
    Site,
    serving,
    text_of,
)

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


class Saying(ServedModel):
    """Writes the text that its prompt asks for."""

    said = b""
    begins = 0

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        logits = super().decode(tokens, rows).copy()
        for row in range(rows):
            at = len(self.tokens) - rows + 1 + row - self.begins
            logits[row, self.said[at] if 0 <= at < len(self.said) else self.n_vocab - 1] = 99
        return logits


class Speaker(ServedToy):
    """Says ``said``, in which calls of f are found."""

    stop, stop_text = 256, b""
    model_type = Saying

    def __init__(self, said: str) -> None:
        super().__init__(quirk=None)
        self.target.said = said.encode()  # type: ignore[attr-defined]

    def encode_chat(self, *args: Any, **told: Any) -> Prompt:
        return self._begun(super().encode_chat(*args, **told))

    def encode_text(self, text: str, *, special: bool = False) -> Prompt:
        return self._begun(super().encode_text(text))

    def _begun(self, ids: Prompt) -> Prompt:
        self.target.begins = len(ids)  # type: ignore[attr-defined]
        return Prompt(ids, OutputFormat(self.piece, calls=HERMES, tools=(Tool("f", {}, {}),)))


def streamed(site: Site, **asked: object) -> list[Any]:
    choices = [choice for each in site.stream(**asked) for choice in each["choices"]]
    found = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    return [entry for each in found for entry in each["content"]]


@pytest.mark.parametrize(
    ("said", "stop", "text"),
    [
        ("Hi \N{GRINNING FACE}!", None, "Hi \N{GRINNING FACE}!"),
        ("Hi \N{GRINNING FACE}!", "!", "Hi \N{GRINNING FACE}"),
        ("one, two", "two", "one, "),
        ("one, tw", "two", "one, tw"),
        (f"I look. {CALL}", None, "I look."),
        (f"{CALL}\n{CALL}", None, ""),
        ('```json\n{"name": "f", "arguments": {"a": 1}}\n```', None, ""),
        ("a <tool_call> b", None, "a <tool_call> b"),
    ],
)
def test_a_stream_has_those_of_a_whole_reply(said: str, stop: str | None, text: str) -> None:
    asked = {"logprobs": True, "top_logprobs": 2, "stop": stop, "max_tokens": 200}
    with serving(Speaker(said)) as site:
        (choice,) = site.ask(**asked)["choices"]
        assert (choice["message"]["content"] or "") == text == text_of(site.stream(**asked))
        whole = choice["logprobs"]["content"]
        assert len(whole) == len(said.encode()) and streamed(site, **asked) == whole


def test_offsets_of_completions_count_characters() -> None:
    said = "é \N{GRINNING FACE}\N{GRINNING FACE} so"
    with serving(Speaker(said)) as site:
        asked = {"logprobs": 0, "max_tokens": 200, "prompt": "Say it"}
        (choice,) = site.ask(COMPLETIONS, **asked)["choices"]
        assert choice["text"] == said
        found = choice["logprobs"]["text_offset"]
        assert found == [i for i, char in enumerate(said) for _ in char.encode()]
        parts = [e["choices"][0]["logprobs"] for e in site.stream(COMPLETIONS, **asked)]
        assert [each for part in parts for each in part["text_offset"]] == found
