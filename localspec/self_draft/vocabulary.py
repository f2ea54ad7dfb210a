"""The tokens of a trimmed vocabulary: those that the target uses most."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from localspec.chat.message import Message
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine

ANSWER_TOKENS = 256  # of each prompt
CONTROL = 3  # a token's type

Conversation = Sequence[Message]


def frequent_ids(
    engine: Engine,
    prompts: Sequence[Conversation],
    n_ids: int,
    limit: int,
    is_over: Callable[[], bool] = lambda: False,
) -> list[int]:
    """The ``n_ids`` tokens that a draft of this target should propose, ascending.

    First those that end a turn and the control tokens of the chat template; then what the target
    says most often in its greedy answers to these prompts, and in the prompts; then the
    lowest ids, which in a BPE vocabulary are its first and so most frequent merges. All are below
    ``limit``, the number of the draft's own tokens. FR-Spec (arXiv 2502.14856) counts a corpus; the
    target's own words need none, and are what a draft is to guess. Once ``is_over``, no further
    token is generated. Raises what `Engine.stream` raises.
    """
    counts = count_tokens(engine, prompts, is_over)
    return choose_ids(counts, _marks(engine, counts), n_ids, min(engine.target.n_vocab, limit))


def count_tokens(
    engine: Engine, prompts: Sequence[Conversation], is_over: Callable[[], bool] = lambda: False
) -> Counter[int]:
    """How often each token occurs in these prompts and in the target's greedy answers to them.

    Once ``is_over``, prompts alone are counted.
    """
    counts: Counter[int] = Counter()
    greedy = SamplingParams(temperature=0)
    for prompt in prompts:
        encoded = engine.encode_chat(prompt)
        counts.update(encoded)
        if len(encoded) < engine.target.n_ctx and not is_over():
            options = GenerateOptions(greedy, 0, max_tokens=ANSWER_TOKENS)
            for piece in engine.stream(encoded, options):
                counts.update(piece.tokens)
                if is_over():
                    break
    return counts


def choose_ids(counts: Counter[int], always: Iterable[int], n_ids: int, n_vocab: int) -> list[int]:
    """``n_ids`` ids below ``n_vocab``: those of ``always``, the most frequent, then the lowest."""
    by_rank = [*sorted(always), *(token for token, _ in counts.most_common()), *range(n_vocab)]
    ranked = dict.fromkeys(token for token in by_rank if token < n_vocab)
    return sorted(list(ranked)[:n_ids])


def _marks(engine: Engine, counts: Counter[int]) -> set[int]:
    """Tokens that end a turn, and the control tokens that the chat template writes."""
    target = engine.target
    ends = {token for token in range(target.n_vocab) if target.is_stop(token)}
    turns = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
    written = {*counts, *engine.encode_chat(turns)}
    vocab = target.header.vocab
    control = set() if vocab is None else set(vocab.ids_of_type(CONTROL))
    return ends | (control & written)
