"""A real engine that says given answers: its own tokenizer, template and control tokens.

Only llama.cpp's decoding is replaced, so a test sees what a model would do whose answers have
thoughts, channels or tags in them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from localspec.engine.engine import Engine
from localspec.engine.text_stream import Prompt
from localspec.llama.model import LlamaModel
from tests.support.files.tiny_models import write_tiny_model

HARMONY_TOKENS = (
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>",
)  # fmt: skip
TAG_TOKENS = ("[THINK]", "[/THINK]", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def write_reciter(path: Path, chat_template: str | None) -> Path:
    """A tiny model whose vocabulary has the marks of gpt-oss and Ministral as control tokens."""
    return write_tiny_model(
        path,
        seed=1,
        layers=1,
        context_length=4096,
        chat_template=chat_template,
        control_tokens=(*HARMONY_TOKENS, *TAG_TOKENS),
    )


@contextmanager
def reciting(*answers: str) -> Iterator[list[str]]:
    """Let every engine say these answers, one a prompt; gives the prompts as text."""
    encode, text = Engine.encode_chat, Engine.encode_text
    prompts: list[str] = []
    begins = [0]  # the length of the prompt at hand

    def remember(engine: Engine, prompt: Prompt) -> Prompt:
        begins.append(len(prompt))
        said = b"".join(engine.target.piece(token, special=True) for token in prompt)
        prompts.append(said.decode("utf-8", "replace"))
        return prompt

    def encode_chat(
        engine: Engine, messages: Sequence[Mapping[str, object]], **told: Any
    ) -> Prompt:
        return remember(engine, encode(engine, messages, **told))

    def encode_text(engine: Engine, prompt: str, *, special: bool = False) -> Prompt:
        return remember(engine, text(engine, prompt, special=special))

    def decode(model: LlamaModel, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        model.tokens.extend(tokens)
        model.cells.held = len(model.tokens)
        vocab = model.header.vocab
        assert vocab is not None and vocab.eos_id is not None
        answer = answers[min(len(prompts), len(answers)) - 1]
        ids = model.tokenize(answer, add_special=False, parse_special=True)
        logits = np.full((rows, model.n_vocab), -99, np.float32)
        for row in range(rows):
            said = len(model.tokens) - rows + row + 1 - begins[-1]
            logits[row, ids[said] if 0 <= said < len(ids) else vocab.eos_id] = 99
        return logits

    def truncate(model: LlamaModel, length: int) -> None:
        del model.tokens[length:]
        model.cells.held = len(model.tokens)

    with (
        patch.object(Engine, "encode_chat", encode_chat),
        patch.object(Engine, "encode_text", encode_text),
        patch.object(LlamaModel, "decode", decode),
        patch.object(LlamaModel, "truncate", truncate),
    ):
        yield prompts
