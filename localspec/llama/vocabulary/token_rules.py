"""Token rules: sampling parameters in the ids of a loaded model's vocabulary."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from localspec.core.errors import UsageError
from localspec.core.options.sampling_params import SamplingParams, parse_logit_bias
from localspec.speculative.sampling.dry import Breakers
from localspec.speculative.sampling.logit_changes import TokenRules

_LONGEST_TAIL = 20  # tokens of a sequence breaker after its first


class Vocabulary(Protocol):
    """The part of a model that token rules need; see `model.LlamaModel`."""

    n_vocab: int

    def is_stop(self, token: int) -> bool: ...
    def suppressed(self) -> list[int]: ...
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def text_alone(self, token: int) -> bytes: ...


def token_rules(vocabulary: Vocabulary, params: SamplingParams) -> TokenRules:
    """The masked ids and the sequence breakers; takes up to a second if DRY is on."""
    masked = set(vocabulary.suppressed())
    if params.ignore_eos:
        masked.update(filter(vocabulary.is_stop, range(vocabulary.n_vocab)))
    breakers = _breakers(vocabulary, params.dry_sequence_breakers) if params.dry else {}
    return TokenRules(tuple(sorted(masked)), breakers)


def require_known_tokens(params: SamplingParams, n_vocab: int) -> None:
    """Raise UsageError for a logit bias of an id that the vocabulary does not have."""
    for text in params.logit_bias:
        if parse_logit_bias(text)[0] >= n_vocab:
            raise UsageError(
                f"--logit-bias {text} names a token that the model does not have.",
                f"Its ids are 0 to {n_vocab - 1}.",
            )


def _breakers(vocabulary: Vocabulary, texts: Sequence[str]) -> Breakers:
    """Tokens in whose text a breaker lies or begins, each with the ids that complete one.

    As llama.cpp does (`get_overlapping_token_sequences`), except that a breaker is not found if
    one of its characters is divided between tokens.
    """
    known = len(texts) - texts[::-1].index("none") if "none" in texts else 0
    wanted = [text.encode("utf-8", "surrogatepass") for text in texts[known:]]
    found: dict[int, set[tuple[int, ...]]] = {}
    tails: dict[bytes, tuple[int, ...]] = {b"": ()}
    for token in range(vocabulary.n_vocab):
        word = vocabulary.text_alone(token)
        for rest in (rest for breaker in wanted for rest in _missing(word, breaker)):
            if rest not in tails:
                text = rest.decode("utf-8", "surrogatepass")
                ids = vocabulary.tokenize(text, add_special=False, parse_special=False)
                tails[rest] = tuple(ids[:_LONGEST_TAIL])
            found.setdefault(token, set()).add(tails[rest])
    return {token: tuple(sorted(each)) for token, each in found.items()}


def _missing(word: bytes, breaker: bytes) -> Iterator[bytes]:
    """Texts that complete the breaker after the word; nothing more if the word contains it."""
    if breaker in word:
        yield b""
        return
    for length in range(1, len(breaker)):
        rest = breaker[length:]
        if word.endswith(breaker[:length]) and rest[0] & 0xC0 != 0x80:  # begins a character
            yield rest
