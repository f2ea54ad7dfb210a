"""Toys that stand in for models, and a clock that only moves when told.

`ToyModel` checks the TokenModel contract of `localspec.speculative.loop` strictly and raises
ContractBroken, so that every test which drives the loop also tests how it treats its models.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.control.pair_profile import PairProfile
from localspec.speculative.loop import (
    ALONE,
    Clock,
    Controller,
    Round,
    TokenModel,
    TokenSampler,
    generate_rounds,
    prefill,
)
from localspec.speculative.sampling.sampler import Sampler

WIDEST = 320  # logits drawn for each context: smaller vocabularies share the first ones
GREEDY = Sampler(SamplingParams(temperature=0))


def never_stop(token: int) -> bool:
    """No token ends the text."""
    return False


def start_answer(
    target: TokenModel,
    controller: Controller,
    prompt: Sequence[int],
    max_tokens: int = 30,
    *,
    sampler: TokenSampler = GREEDY,
    is_stop: Callable[[int], bool] = never_stop,
    clock: Clock = float,
) -> Iterator[Round]:
    """The rounds of an answer, behind a prompt that is read at once."""
    controller.begin_answer()
    row = prefill(target, prompt, clock).row
    return generate_rounds(
        target, controller, sampler, prompt,
        max_tokens=max_tokens, is_stop=is_stop, clock=clock, row=row,
    )  # fmt: skip


def emitted(rounds: Iterable[Round]) -> list[int]:
    """The tokens of all rounds."""
    return [token for each in rounds for token in each.tokens]


class ContractBroken(AssertionError):
    """The code under test used a token model in a way that llama.cpp would not forgive."""


def _require(claim: bool, message: str) -> None:
    if not claim:
        raise ContractBroken(message)


class FakeClock:
    """A clock in whole seconds that moves only when something costs time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class WatchedList(list[int]):
    """A list of tokens that counts the elements which are copied, compared or walked over."""

    touched = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.touched += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.touched += len(self)
        return super().__iter__()

    def __eq__(self, other: object) -> bool:
        self.touched += len(self)
        return super().__eq__(other)

    def take_touched(self) -> int:
        """How many since the last call."""
        taken, self.touched = self.touched, 0
        return taken


@lru_cache(maxsize=20_000)
def _drawn(seed: int, last: tuple[int, ...]) -> NDArray[np.float64]:
    key = [seed, *(token + 1 for token in last)]
    return np.random.default_rng(key).standard_normal(WIDEST)


class ToyModel:
    """A TokenModel whose logits are drawn by a hash of its seed and the last three tokens.

    ``quirk`` mixes in the logits of another seed: 0 is the same model, 0.3 a good draft for it, 9
    one that knows nothing. Ids in ``favoured`` get higher logits. ``seconds`` and
    ``seconds_per_token`` move the clock at each decode. With ``noise`` it rounds: so much is added
    by width of pass, the last also beyond.
    """

    def __init__(
        self,
        *,
        n_vocab: int = 16,
        n_ctx: int = 64,
        seed: int = 0,
        quirk: float = 0.0,
        favoured: Sequence[int] = (),
        clock: FakeClock | None = None,
        seconds: float = 0.0,
        seconds_per_token: float = 0.0,
        noise: Sequence[float] = (),
    ) -> None:
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.decoded: Counter[tuple[int, ...]] = Counter()  # by cache: everything up to a token
        self.calls: list[tuple[int, int]] = []  # tokens and rows of each decode
        self._seed = seed
        self._quirk = quirk
        self._bias = np.zeros(n_vocab)
        self._bias[list(favoured)] = 4.0
        self._clock = clock
        self._seconds = (seconds, seconds_per_token)
        self.noise = noise
        self.min_width = 1
        self._cache: list[int] = []
        self._lent: NDArray[np.float32] | None = None

    @property
    def tokens(self) -> list[int]:
        return self._cache

    pending = 0

    @property
    def reusable(self) -> int:
        return len(self.tokens)

    block_size: int | None = None
    confidences: Sequence[float] | None = None
    follows_target = False
    gives_prompt_row = False
    batch_share = ALONE
    tree: "ToyTree | None" = None

    def checkpoint(self) -> None:
        """Attention forgets without preparation."""

    def row(self, context: Sequence[int]) -> NDArray[np.float32]:
        """The logits after ``context``, without any cache: the oracle."""
        last = tuple(context[-3:])
        logits = _drawn(self._seed, last)
        if self._quirk:
            logits = logits + self._quirk * _drawn(self._seed + 1, last)
        return (2.5 * logits[: self.n_vocab] + self._bias).astype(np.float32)

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        parents = [*range(-1, len(tokens) - 1)]
        found = self.read(tokens, parents, rows)
        self._cache += tokens
        filled = -(-len(tokens) // self.min_width) * self.min_width
        return self._rounded(found, filled) if self.noise else found

    def _rounded(self, rows: NDArray[np.float32], width: int) -> NDArray[np.float32]:
        shift = np.float32(self.noise[min(width, len(self.noise)) - 1])
        return rows + shift * np.roll(rows, 1, axis=1)

    def read(self, tokens: Sequence[int], parents: Sequence[int], rows: int) -> NDArray[np.float32]:
        """A pass that changes no cache: each token follows that of its parent, -1 the cache."""
        _require(self.tree is None or self.tree.open is None, "a tree was decoded and not taken")
        _require(len(tokens) > 0, "decode of nothing")
        _require(0 <= rows <= len(tokens), f"{rows} rows asked of {len(tokens)} tokens")
        _require(rows <= MAX_DRAFT_TOKENS + 2, f"{rows} rows are more than llama.cpp was told of")
        for token in tokens:
            _require(isinstance(token, int), f"{token!r} is no int")
            _require(0 <= token < self.n_vocab, f"id {token} of {self.n_vocab}")
        length = len(self._cache) + len(tokens)
        _require(length <= self.n_ctx, f"{length} tokens in a context of {self.n_ctx}")
        if self._clock is not None:
            self._clock.advance(self._seconds[0] + self._seconds[1] * len(tokens))
        self.calls.append((len(tokens), rows))
        texts: list[list[int]] = []
        for token, parent in zip(tokens, parents, strict=True):
            texts.append([*(texts[parent] if parent >= 0 else self._cache), token])
            self.decoded[tuple(texts[-1])] += 1
        return self._lend([self.row(text) for text in texts[len(texts) - rows :]])

    def truncate(self, length: int) -> None:
        _require(length >= 0, f"truncate({length}) is no absolute length")
        _require(self.tree is None or self.tree.open is None, "a tree was decoded and not taken")
        del self._cache[length:]

    def _lend(self, rows: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        """A read-only view; the one lent before is spoilt, as llama.cpp's buffer would be."""
        if self._lent is not None:
            self._lent.fill(np.nan)
        self._lent = np.array(rows, np.float32).reshape(len(rows), self.n_vocab)
        view = self._lent.view()
        view.flags.writeable = False
        return view


class ToyTree:
    """A TreeDecoder of a toy: `take` must follow `decode`, and name one path of it."""

    def __init__(self, model: ToyModel, branches: int = 3, paths: int = 16) -> None:
        self._model = model
        self.branches = branches
        self.paths = paths
        self.open: tuple[list[int], list[int]] | None = None  # tokens and parents of a pass
        self.passes: list[tuple[int, ...]] = []  # the parents of each

    def decode(self, tokens: Sequence[int], parents: Sequence[int]) -> NDArray[np.float32]:
        _require(len(tokens) == len(parents) + 1 > 1, "each candidate has one parent")
        beside = Counter(parents)
        for row, parent in enumerate(parents, start=1):
            _require(0 <= parent < row, f"row {row} follows {parent}")
        leaves = len(set(range(1, len(tokens))) - set(parents))
        _require(max(beside.values()) <= self.branches, f"{beside} in {self.branches} branches")
        _require(leaves <= self.paths, f"{leaves} leaves in {self.paths} paths")
        found = self._model.read(tokens, [-1, *parents], len(tokens))
        self.open = list(tokens), list(parents)
        self.passes.append(tuple(parents))
        return found

    def commit(self, rows: Sequence[int]) -> None:
        _require(self.open is not None, "nothing was decoded")
        assert self.open is not None
        (tokens, parents), self.open = self.open, None
        path = [0, *rows]
        _require([parents[row - 1] for row in rows] == path[:-1], f"{path} is no path")
        self._model.tokens.extend(tokens[row] for row in path)


class ReplayingToy(ToyModel):
    """Goes back to where its last wide pass began, and reads what was kept of it again."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._marked = self._held = 0

    @property
    def pending(self) -> int:  # type: ignore[override]
        return len(self.tokens) - self._held

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        again = self.tokens[self._held :]
        del self._cache[self._held :]
        if rows > 1:
            self._marked = self._held
        found = super().decode([*again, *tokens], rows)
        self._held = len(self.tokens)
        return found

    def truncate(self, length: int) -> None:
        if length < self._held:
            self._held = self._marked if self._marked <= length else 0
        super().truncate(length)


def toy_profile() -> PairProfile:
    """Passes that cost the same at any width, and draft steps a tenth of that."""
    known = PairProfile(reading=0.1)
    for width in (1, 33):
        known.verify.observe(width, 0, 10.0)
    known.draft.observe(1, 0, 1.0)
    known.draft.observe(8, 0, 1.0)
    return known
