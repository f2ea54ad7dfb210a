"""A toy engine for `generate`: bytes as tokens, a grammar of slots, a profile that knows it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localspec.chat.answer import Piece
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from localspec.speculative.control.conversations import Conversations
from localspec.speculative.control.pair_profile import LossBudget, PairProfile
from localspec.speculative.history import AnswerHistory
from localspec.speculative.loop import Clock
from localspec.speculative.prompt_lookup import PromptLookup
from localspec.speculative.sampling.logit_changes import TokenRules
from tests.support.toy.models import FakeClock, ToyModel, toy_profile


class ToyProfile:
    """A profile that knows toys from the start, or what it is given."""

    def __init__(self) -> None:
        self._profile = toy_profile()
        self.kept = 0  # times

    @property
    def known(self) -> PairProfile:
        return self._profile

    def learnt(self, clock: Clock) -> PairProfile:
        return self._profile

    def introduce(self, say: Callable[[str], None]) -> None:
        say("Measuring.")

    def save(self) -> None:
        self.kept += 1


class SlotConstraint:
    """A Constraint without llama.cpp: slot by slot the bytes that may stand there, over and over.

    A stop token may follow where the slots have all been filled. Recomputed from what it is shown,
    so nothing can be left over from a text that was taken back.
    """

    def __init__(self, slots: Sequence[bytes], start: int, stop: int, n_vocab: int = 257) -> None:
        self._slots = slots
        self._start = start
        self._stop = stop
        self._ids = range(n_vocab)

    def may(self, token: int, place: int) -> bool:
        """Whether the token may be the one at this place of an answer."""
        at_end = place > 0 and place % len(self._slots) == 0
        inside = self._slots[place % len(self._slots)]
        return (at_end and token == self._stop) or (token < 256 and token in inside)

    def mask(self, position: int, history: Sequence[int]) -> NDArray[np.bool]:
        length = position - self._start
        if length < 0:
            return np.ones(len(self._ids), np.bool)
        answer = list(history[len(history) - length :]) if length else []
        alive = all(self.may(token, place) for place, token in enumerate(answer))
        return np.array([alive and self.may(token, length) for token in self._ids])

    def allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        return bool(self.mask(position, history)[token])

    def forced(self, position: int, history: Sequence[int]) -> list[int]:
        found: list[int] = []
        while len(found) < 8:
            mask = self.mask(position + len(found), [*history, *found])
            if np.count_nonzero(mask) != 1:
                break
            found.append(int(mask.argmax()))
        return found


STOP_TOKEN = 256


COMMON = b"abc de\n\xc3\xa9\xe2\x82\xac"


class ToyEngine:
    """Bytes as tokens and one stop token: an Engine for `generate`, perhaps with a draft.

    It writes mostly the bytes of ``common``; the accents among them make broken characters too.
    With ``noise`` its target rounds by the width of its passes.
    """

    stop, stop_text = STOP_TOKEN, b"<stop>"
    can_roll_back = True
    vocabularies = None
    drafts_off_reason: str | None = None  # of `--exact`
    _session = None  # its answers are generated in the thread that asks
    history: AnswerHistory | None = None
    model_type: type[ToyModel] = ToyModel

    def __init__(
        self,
        *,
        quirk: float | None = 0.3,
        n_ctx: int = 128,
        draft_n_ctx: int | None = None,
        seed: int = 0,
        common: bytes = COMMON,
        clock: FakeClock | None = None,
        noise: Sequence[float] = (),
    ) -> None:
        def model(quirk: float, n_ctx: int, seconds: float) -> ToyModel:
            return self.model_type(
                n_vocab=self.stop + 1, n_ctx=n_ctx, seed=seed, quirk=quirk, favoured=[*set(common)],
                clock=clock, seconds=seconds,
            )  # fmt: skip

        self.profile = ToyProfile()
        self.prompt_lookup = PromptLookup()
        self.conversations = Conversations()
        self.loss_budget = LossBudget()
        self.target = model(0.0, n_ctx, 10.0)
        self.target.noise = noise
        self.draft = None if quirk is None else model(quirk, draft_n_ctx or n_ctx, 1.0)

    def stream(
        self,
        prompt: Sequence[int],
        options: GenerateOptions,
        *,
        clock: Clock = time.perf_counter,
        reports_progress: bool = False,
    ) -> Iterator[Piece]:
        return stream_generate(self, prompt, options, clock=clock)

    @contextmanager
    def plain(self, say: Callable[[str], None]) -> "Iterator[ToyEngine]":
        """As where memory has no room for a second context."""
        yield self

    @contextmanager
    def stream_with_plain(
        self,
        prompt: Sequence[int],
        options: GenerateOptions,
        say: Callable[[str], None],
        *,
        reports_progress: bool = False,
    ) -> Iterator[tuple[Iterator[Piece], Iterator[Piece]]]:
        """One after the other."""
        alone = replace(options, draft_tokens=0)
        yield self.stream(prompt, options), self.stream(prompt, alone)

    def is_stop(self, token: int) -> bool:
        return token == self.stop

    def constraint(self, grammar: str, start: int, *, endless: bool = False) -> SlotConstraint:
        """Of a grammar such as ``ab|c``: slots between bars."""
        return SlotConstraint(grammar.encode().split(b"|"), start, self.stop)

    def piece(self, token: int) -> bytes:
        return self.stop_text if token == self.stop else bytes([token])

    def token_rules(self, params: SamplingParams) -> TokenRules:
        masked = (self.stop,) if params.ignore_eos else ()
        breakers = b"".join(text.encode() for text in params.dry_sequence_breakers)
        return TokenRules(masked, {byte: ((),) for byte in breakers})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    @property
    def min_width(self) -> int:
        return self.target.min_width

    @contextmanager
    def widened(self, width: int) -> Iterator[None]:
        before, self.target.min_width = self.target.min_width, width
        yield
        self.target.min_width = before
