"""Text equality: where drafted text differs from plain text, and whether rounding explains it.

Kernels round differently by the width of a pass, so both texts are generated again with passes of
one width: if they are equal then, only rounding made the difference. Some kernels of GPUs round
differently by the place where a pass begins too: there a near tie is rounding if it is closer
than the logits of such passes.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from localspec.bench.plan import FILLED, PromptIds, Variant, widest_pass
from localspec.chat.answer import Answer
from localspec.core.options.load_options import DraftTokens
from localspec.speculative.loop import Logits, TokenModel, prefill
from localspec.speculative.prefix import common_prefix
from localspec.speculative.sampling.sampler import Sampler

_MOST_APART = 1.0  # logits: rows that differ by more are no rounding; 0.46 was the most seen


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference from the plain answer, after ``position`` equal tokens.

    ``margin`` is the lead of the plain pick over the runner-up there, in logits (None: there was
    none). ``repeatable`` is whether both sides (of auto: plain) gave their texts again. If so,
    ``proven_at`` is the width of pass at which both give the same text: the difference is proven to
    be rounding. ``apart``, if no such width was found but passes of equal width differ too, is the
    distance of their logits after the same text, if that explains the difference. Without either
    it counts as a mistake.
    """

    prompt: str
    draft_tokens: DraftTokens
    position: int
    margin: float | None
    repeatable: bool
    proven_at: int | None
    apart: float | None = None

    @property
    def is_rounding(self) -> bool:
        return self.proven_at is not None or self.apart is not None


@dataclass(slots=True)
class DifferenceFinder:
    """Finds where answers to one prompt differ from the ``plain`` text, and why."""

    name: str
    prompt: PromptIds
    plain: list[int]
    _replayed: dict[tuple[Variant, int], list[int]] = field(default_factory=dict)

    def explain(self, variant: Variant, answers: Sequence[Answer]) -> Iterator[Difference]:
        """One for each text of a variant that is not the plain one."""
        if not variant.plan.params.text_independent_of_draft:
            return
        texts = {tuple(one.tokens) for one in answers}
        if len(answers) > 1 and len(texts) == 1:  # each repeat gave the text again
            self._replayed[variant, variant.engine.min_width] = answers[0].tokens
        for other in sorted(texts - {tuple(self.plain)}):
            yield self._explain(variant, list(other))

    def _explain(self, variant: Variant, other: list[int]) -> Difference:
        position = common_prefix(self.plain, other)
        width = variant.engine.min_width
        # The width of auto's passes depends on the clock; if rounding decides, so does its text.
        again = other if variant.length == "auto" else self._replay(variant, width)
        repeatable = self._replay(_plain(variant), width) == self.plain and again == other
        proven_at = self._proven_at(variant) if repeatable else None
        is_open = repeatable and proven_at is None and position < len(other)
        return Difference(
            prompt=self.name,
            draft_tokens=variant.length,
            position=position,
            margin=self._margin(variant, self.plain[:position]),
            repeatable=repeatable,
            proven_at=proven_at,
            apart=self._apart(variant, other[: position + 1]) if is_open else None,
        )

    def _proven_at(self, variant: Variant) -> int | None:
        """The width of pass at which plain and drafted text are the same; see `filled_widths`."""
        engine = variant.engine
        for width in filled_widths(widest_pass(variant.length), _widest_tree(variant)):
            needed = variant.plan.needed_ctx(len(self.prompt), width)
            if width > engine.min_width and needed <= engine.target.n_ctx:
                if self._replay(_plain(variant), width) == self._replay(variant, width):
                    return width
        return None

    def _apart(self, variant: Variant, text: Sequence[int]) -> float | None:
        """The distance of logits between passes of equal width, if it explains the last pick."""
        engine, params = variant.engine, variant.plan.params
        context, width = [*self.prompt, *text[:-1]], filled_widths(widest_pass(variant.length))[-1]
        if variant.plan.needed_ctx(len(self.prompt), width) > engine.target.n_ctx:
            return None
        with engine.widened(width):
            alone = _last_row(engine.target, context, 1)
            together = (
                _last_row(engine.target, context, tokens)
                for tokens in range(2, min(width, len(context) - 1) + 1)
            )
            apart = max((float(np.abs(alone - row).max()) for row in together), default=0.0)
        sampler = Sampler(params, engine.token_rules(params))
        short = sampler.shortfall(alone, len(context), context, text[-1])
        return apart if 0 < apart <= _MOST_APART and short <= 2 * apart else None

    def _replay(self, variant: Variant, width: int) -> list[int]:
        key = (variant, width)
        if key not in self._replayed:
            with variant.engine.widened(width):
                self._replayed[key] = variant.answer(self.prompt).tokens
        return self._replayed[key]

    def _margin(self, variant: Variant, tokens: list[int]) -> float | None:
        """The lead of the plain pick after these tokens, on logits computed as plain does."""
        context, target, params = list(self.prompt), variant.engine.target, variant.plan.params
        target.truncate(0)
        row = _first_row(target, context)
        for token in tokens:
            context.append(token)
            row = target.decode([token], 1)[0]
        return Sampler(params, variant.engine.token_rules(params)).margin(
            row, len(context), context
        )


def filled_widths(*widest: int) -> list[int]:
    """Widths to whose multiples passes are filled to prove rounding, the narrowest first.

    On processors all passes of multiples of `FILLED` tokens round alike; GPU kernels change at
    larger widths again, so that both sides are brought to the same one.
    """
    return sorted({FILLED, *(-(-width // FILLED) * FILLED for width in widest)})


def _plain(variant: Variant) -> Variant:
    return replace(variant, name="0", length=0)


def _widest_tree(variant: Variant) -> int:
    tree, length = variant.engine.target.tree, variant.length
    if tree is None or length == "auto":
        return widest_pass(length)
    return widest_pass(length) + min(tree.paths - 1, length * (tree.branches - 1))


def _last_row(target: TokenModel, context: list[int], tokens: int) -> Logits:
    """The logits after a text, whose last tokens are read in one pass."""
    target.truncate(len(context) - tokens)
    unread = context[len(target.tokens) : -tokens]
    if unread:
        target.decode(unread, 0)
    row: Logits = target.decode(context[-tokens:], tokens)[-1].copy()
    return row


def _first_row(target: TokenModel, prompt: Sequence[int]) -> Logits:
    row = prefill(target, prompt, time.perf_counter).row
    return target.decode(prompt[-1:], 1)[0] if row is None else row
