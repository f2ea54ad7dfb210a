"""A toy engine that can chat, for `test_chat` and for the processes that `test_screen` starts.

ASCII codes are its tokens, so that a text has exactly one way to be tokens and the cache of a
turn can serve the next one.
"""

import time
from collections.abc import Iterator, Sequence

from localspec.chat.answer import Piece
from localspec.chat.message import Message
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from localspec.llama.vocabulary.token_rules import require_known_tokens
from localspec.speculative.loop import ALONE
from localspec.speculative.sampling.logit_changes import NO_RULES, TokenRules
from tests.support.toy.engine import ToyEngine


class ChatToy(ToyEngine):
    """A ChatEngine over two ToyModels, which remembers what it was asked."""

    stop, stop_text = 128, b""

    def __init__(
        self, *, quirk: float | None = 0.3, n_ctx: int = 512, common: bytes = b"abc de"
    ) -> None:
        super().__init__(quirk=quirk, n_ctx=n_ctx, common=common)
        self.asked: list[list[Message]] = []

    def token_rules(self, params: SamplingParams) -> TokenRules:
        require_known_tokens(params, self.stop + 1)
        return NO_RULES

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        self.asked.append(list(messages))
        turns = [f"{message['role'][0].upper()}{message['content']}\n" for message in messages]
        return list(("".join(turns) + "A").encode("ascii", "replace"))

    def system_notes(self, system: str) -> list[str]:
        return []


class Reciter:
    """A ChatEngine that says given pieces of text, one each ``seconds``, as a model would."""

    n_ctx = 100_000
    draft = None
    history = None

    def __init__(self, answers: Sequence[Sequence[str]], seconds: float = 0.0) -> None:
        pieces = sorted({piece for answer in answers for piece in answer})
        self._pieces = [piece.encode("utf-8", "surrogateescape") for piece in pieces]
        self._answers = [[pieces.index(piece) for piece in answer] for answer in answers]
        self._seconds = seconds
        self.n_vocab = len(pieces) + 2  # a token to ask with, and one that ends an answer
        self.tokens: list[int] = []
        self.target = self

    def token_rules(self, params: SamplingParams) -> TokenRules:
        return NO_RULES

    def is_stop(self, token: int) -> bool:
        return token == self.n_vocab - 1

    def piece(self, token: int) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        self._turn = sum(message["role"] == "user" for message in messages) - 1
        return [self.n_vocab - 2] * (self._turn + 1)

    def system_notes(self, system: str) -> list[str]:
        return []

    def stream(
        self, prompt: Sequence[int], options: GenerateOptions, *, reports_progress: bool = False
    ) -> Iterator[Piece]:
        return stream_generate(self, prompt, options)  # type: ignore[arg-type]

    def decode(self, tokens: Sequence[int], rows: int) -> object:
        import numpy as np

        if rows:
            time.sleep(self._seconds)
        self.tokens.extend(tokens)
        answer = self._answers[min(self._turn, len(self._answers) - 1)]
        said = len(self.tokens) - (self._turn + 1)
        logits = np.full((max(rows, 0), self.n_vocab), -99, np.float32)
        if rows:
            logits[-1, answer[said] if said < len(answer) else self.n_vocab - 1] = 99
        return logits

    pending = 0

    @property
    def reusable(self) -> int:
        return len(self.tokens)

    block_size: int | None = None
    confidences: Sequence[float] | None = None
    follows_target = False
    batch_share = ALONE
    tree = None

    def checkpoint(self) -> None:
        pass

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
