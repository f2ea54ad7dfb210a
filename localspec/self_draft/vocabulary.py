"""The tokens of a trimmed vocabulary: those that the target uses most, or a text of the user's."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from localspec.chat.message import Message
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import read_text
from localspec.core.formatting import one_line
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine

ANSWER_TOKENS = 256  # of each prompt
CONTROL = 3  # a token's type
MAX_BYTES = 16 * 2**20  # of a file that is counted
_PIECE = 2**12  # characters that are tokenized at once: a word cut in two counts little
_JSON_LINES = (".jsonl", ".ndjson")
# A drafted token and the one before it need a row: the chance of acceptance falls by its square.
_ENOUGH = 0.98
_GRAIN, _MOST = 64, 0.7  # rows are a multiple, and a share of all: more would save little

Conversation = Sequence[Message]
Texts = Sequence[Counter[int]]  # how often each token occurs in each text


def ranked(engine: Engine, texts: Texts, limit: int) -> list[int]:
    """The tokens of a target by their use for a draft, the likeliest first.

    First those that end a turn and the control tokens of the chat template; then the most frequent
    ones in ``texts``; then the lowest ids, which in a BPE vocabulary are its first and so most
    frequent merges. All are below ``limit``, the number of the draft's own tokens.
    """
    counts = sum(texts, Counter[int]())
    return rank(counts, _marks(engine, counts), min(engine.target.n_vocab, limit))


def coverage(engine: Engine, texts: Texts, limit: int) -> list[float]:
    """The share of text that the likeliest 1, 2, 3, ... tokens cover, as `ranked` has them.

    Every other text is ranked by the rest: by its own counts it would be covered too well.
    """
    halves = texts[::2], texts[1::2]
    covered = np.zeros(min(engine.target.n_vocab, limit))
    for seen, other in (halves, halves[::-1]):
        counts = sum(other, Counter[int]())
        covered += [counts[token] for token in ranked(engine, seen, limit)]
    shares: list[float] = (covered.cumsum() / max(1, sum(map(Counter.total, texts)))).tolist()
    return shares


def enough_rows(covered: Sequence[float]) -> int:
    """The fewest output rows that cover almost all of unseen text, by its `coverage`."""
    size = len(covered)
    rows = next((n for n, share in enumerate(covered, 1) if share >= _ENOUGH), size)
    return max(1, min(-(-rows // _GRAIN) * _GRAIN, round(_MOST * size)))


def count_file(engine: Engine, path: Path) -> list[Counter[int]]:
    """Tokens in the pieces of a text file or its JSON strings; raises FileProblem, UsageError."""
    text = read_text(path, MAX_BYTES, expected="a text file, or JSON lines")
    texts = [text]
    if path.suffix.lower() in _JSON_LINES:
        texts = [said for each in enumerate(text.splitlines(), 1) for said in _said(path, *each)]
    counts = list[Counter[int]]()
    length = min(_PIECE, engine.target.n_ctx)  # more than a context holds is not tokenized
    for each in texts:
        for begin in range(0, len(each), length):
            piece = each[begin : begin + length]
            ids = engine.target.tokenize(piece, add_special=False, parse_special=False)
            counts.append(Counter(ids))
    if not any(counts):
        raise UsageError(f"{one_line(str(path))} has no text to count.", "Name another file.")
    return counts


def _said(path: Path, number: int, line: str) -> list[str]:
    """The strings in a line of JSON, but for names of fields; raises FileProblem for another."""
    try:
        found = json.loads(line) if line.strip() else ""
    except (ValueError, RecursionError):
        raise FileProblem(
            f"Line {number} of {one_line(str(path))} is not JSON.",
            "Give one JSON value a line, or a text file with another ending than .jsonl.",
        ) from None
    strings, rest = list[str](), [found]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            strings.append(each)
        elif isinstance(each, dict | list):
            rest.extend(each.values() if isinstance(each, dict) else each)
    return strings


def count_tokens(
    engine: Engine, prompts: Sequence[Conversation], is_over: Callable[[], bool] = lambda: False
) -> list[Counter[int]]:
    """How often each token occurs in each prompt and the target's greedy answer to it.

    FR-Spec (arXiv 2502.14856) counts a corpus; a draft is to guess the target's own words. Once
    ``is_over``, prompts alone are counted. Raises the errors of `Engine.stream`.
    """
    counts = list[Counter[int]]()
    options = GenerateOptions(SamplingParams(temperature=0), 0, max_tokens=ANSWER_TOKENS)
    for prompt in prompts:
        encoded = engine.encode_chat(prompt)
        counts.append(Counter(encoded))
        if len(encoded) < engine.target.n_ctx and not is_over():
            for piece in engine.stream(encoded, options):
                counts[-1].update(piece.tokens)
                if is_over():
                    break
    return counts


def rank(counts: Counter[int], always: Iterable[int], n_vocab: int) -> list[int]:
    """All ids below ``n_vocab``: those of ``always``, the most frequent, then the lowest."""
    by_rank = [*sorted(always), *(token for token, _ in counts.most_common()), *range(n_vocab)]
    return list(dict.fromkeys(token for token in by_rank if token < n_vocab))


def _marks(engine: Engine, counts: Counter[int]) -> set[int]:
    """Tokens that end a turn, and the control tokens that the chat template writes."""
    target = engine.target
    ends = {token for token in range(target.n_vocab) if target.is_stop(token)}
    turns = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
    written = {*counts, *engine.encode_chat(turns)}
    vocab = target.header.vocab
    control = set() if vocab is None else set(vocab.ids_of_type(CONTROL))
    return ends | (control & written)
