"""A draft model of another vocabulary: context and proposals are handed over as text.

The target verifies its own tokens as ever, so the text never depends on such a draft.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from localspec.speculative.drafters import MODEL, Candidate, ModelDrafter
from localspec.speculative.loop import BatchShare, TokenModel

if TYPE_CHECKING:
    from localspec.speculative.sampling.sampler import Sampler

_LONGEST_TAIL = 256  # characters that are tokenized again in each round
_NEAR_END = 32  # of them stay: a word may still grow
_LONGEST_PIECE = 2048  # characters at once: of longer texts llama.cpp is asked in a new thread
_JOINT = 4  # tokens of the target before a proposal, with which it is tokenized
_PATIENCE = 4  # steps of the draft in an unfinished word, so that a row of letters comes to an end


class TextVocabulary(NamedTuple):
    """A vocabulary by its texts.

    ``piece`` gives the bytes of a token, empty for control tokens, ``control`` also theirs.
    ``tokenize`` takes text that follows another, and whether control tokens in it are parsed. Texts
    begin with the tokens ``begin`` and end with the token ``end``.
    """

    piece: Callable[[int], bytes]
    control: Callable[[int], bytes]
    tokenize: Callable[[str, bool], list[int]]
    is_stop: Callable[[int], bool]
    begin: tuple[int, ...] = ()
    end: int | None = None

    def counterpart(self, token: int, other: "TextVocabulary") -> int | None:
        """The one token here with the text of a control token of another vocabulary."""
        text = other.control(token).decode(errors="replace")
        found = self.tokenize(text, True) if text else []
        return found[0] if len(found) == 1 else None


class Vocabularies(NamedTuple):
    """Those of a target and of its draft."""

    target: TextVocabulary
    draft: TextVocabulary


class _Translation:
    """A growing text of the target in the draft's tokens.

    The end alone is tokenized again when the text grows, from a blank between two words on.
    """

    def __init__(self, vocabularies: Vocabularies) -> None:
        self._target, self._draft = vocabularies
        self._start([])

    def _start(self, context: list[int]) -> None:
        self._context, self._read = context, 0
        self.tokens = list(self._draft.begin)
        self._fixed, self._tail = len(self.tokens), ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, context: list[int]) -> list[int]:
        """The draft's tokens; the same list if they only grew."""
        if context is not self._context or len(context) < self._read:
            self._start(context)
        run = list[bytes]()
        for token in islice(context, self._read, None):
            piece = self._target.piece(token)
            if piece:
                run.append(piece)
                continue
            self._add(b"".join(run), final=True)
            run.clear()
            self._fix(len(self._tail))
            other = self._draft.counterpart(token, self._target)
            if other is not None and self.tokens != [other]:  # it may be the BOS that is there
                self._replace([other])
                self._fixed = len(self.tokens)
        self._add(b"".join(run))
        if self._read < len(context):
            self._read = len(context)
            self._replace(self._draft.tokenize(self._tail, False))
        return self.tokens

    @property
    def is_whole(self) -> bool:
        """Whether the text ends after a whole character."""
        return not self._decoder.getstate()[0]

    def followed_by(self, text: str) -> list[int]:
        """The draft's tokens with some text after them."""
        return self.tokens[: self._fixed] + self._draft.tokenize(self._tail + text, False)

    def _add(self, data: bytes, *, final: bool = False) -> None:
        self._tail += self._decoder.decode(data, final)
        while len(self._tail) > _LONGEST_TAIL:
            cut = _word_begin(self._tail, min(len(self._tail) - _NEAR_END, _LONGEST_PIECE))
            if not cut and len(self._tail) <= _LONGEST_PIECE:
                return
            self._fix(cut or _LONGEST_PIECE - _NEAR_END)

    def _fix(self, length: int) -> None:
        """Tokenize the beginning of the tail for good."""
        self._replace(self._draft.tokenize(self._tail[:length], False))
        self._fixed, self._tail = len(self.tokens), self._tail[length:]

    def _replace(self, tail: list[int]) -> None:
        """Put tokens after the fixed ones."""
        before = self.tokens[self._fixed :]
        if tail[: len(before)] == before:
            self.tokens.extend(tail[len(before) :])
        else:
            self.tokens = self.tokens[: self._fixed] + tail


class TextDrafter:
    """Drafts as `ModelDrafter` does, with a model whose tokens are others than the target's.

    The draft is greedy at any temperature: noise of other tokens would not agree. Its text is
    tokenized as the target would; a token is proposed once the word that it is in is finished. Its
    confidence is the least of those tokens of the draft whose text it has.
    """

    drafts_block = False
    follows_target = False

    def __init__(self, model: TokenModel, sampler: "Sampler", vocabularies: Vocabularies) -> None:
        self._target, self._draft = vocabularies
        self._text = _Translation(vocabularies)
        self._model = ModelDrafter(model, sampler, model.n_vocab, self._draft.is_stop)

    @property
    def batch_share(self) -> BatchShare:
        """How the model's last pass was batched."""
        return self._model.batch_share

    def unread(self, context: list[int]) -> int:
        """How many of the draft's tokens a proposal must read first."""
        tokens = self._text.of(context)
        return self._model.unread(tokens) if tokens else 1

    def read(self, context: list[int]) -> None:
        """Read all of ``context`` but the draft's last token of it."""
        if tokens := self._text.of(context):
            self._model.read(tokens)

    def propose(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """Candidates after ``context`` and ``ahead``, computed one by one.

        There are none within a character, and none after control tokens ``ahead``.
        """
        tokens, pieces = self._text.of(context), [self._target.piece(each) for each in ahead]
        if not self._text.is_whole or not all(pieces):
            return
        if ahead:
            try:
                tokens = self._text.followed_by(b"".join(pieces).decode())
            except UnicodeDecodeError:
                return
        if tokens:
            yield from self._retokenized([*context[-_JOINT:], *ahead], tokens)

    def step(self, context: list[int]) -> int | None:
        """Make one step, as `ModelDrafter.step` does."""
        tokens = self._text.of(context)
        return self._model.step(tokens) if tokens else None

    def to_review(self, context: list[int], longest: int) -> int:
        """How many of the draft's tokens a review reads."""
        tokens = self._text.of(context)
        return self._model.to_review(tokens, self._covering(context, longest)) if tokens else 0

    def score_past_tokens(self, context: list[int], longest: int) -> list[tuple[Candidate, int]]:
        """Candidates for the last tokens, each with the actual token, where both begin and end."""
        tokens, reviewed = self._text.of(context), list[tuple[Candidate, int]]()
        if not tokens or not self._text.is_whole:
            return []
        guesses = self._model.score_past_tokens(tokens, self._covering(context, longest))
        begins, place = dict[int, int](), 0
        for i in range(len(guesses) - 1, -1, -1):
            place -= len(self._draft.piece(guesses[i][1]))
            begins[place] = i
        place, begins[0] = 0, len(guesses)
        for token in reversed(context[len(context) - longest :]):
            end, place = place, place - len(self._target.piece(token))
            first, last = begins.get(place), begins.get(end)
            if first is not None and last is not None and first < last:
                reviewed.append((_joined(guesses[first:last], token), token))
        return reviewed[::-1]

    def _covering(self, context: list[int], longest: int) -> int:
        """How many of the draft's last tokens hold the text of the last ``longest`` ones."""
        left = sum(len(self._target.piece(each)) for each in context[len(context) - longest :])
        for count, token in enumerate(reversed(self._text.tokens)):
            if left <= 0:
                return count
            left -= len(self._draft.piece(token))
        return len(self._text.tokens)

    def _retokenized(self, before: Sequence[int], tokens: list[int]) -> Iterator[Candidate]:
        """The draft's continuation of its tokens as candidates of the target."""
        joint, drafted = _Joint(self._target, before), b""
        ends, done, place, waited = list[tuple[int, float]](), list[int](), 0, 0
        for each in self._model.propose(tokens):
            piece = b"" if self._draft.is_stop(each.token) else self._draft.piece(each.token)
            drafted += piece
            ends.append((len(drafted), each.confidence))
            found = joint.tokenize(drafted, is_whole=not piece, patient=waited < _PATIENCE)
            if found[: len(done)] != done[: len(found)] or waited > 2 * _PATIENCE:
                return
            waited = 0 if len(found) > len(done) else waited + 1
            for token in found[len(done) :]:
                begin, place = place, place + len(self._target.piece(token))
                yield Candidate(token, _least(ends, begin, place), MODEL)
                done.append(token)
            if not piece:
                if (last := self._stop(each.token)) is not None:
                    yield Candidate(last, each.confidence, MODEL)
                return

    def _stop(self, token: int) -> int | None:
        """The target's token for a control token of the draft."""
        other = self._target.counterpart(token, self._draft)
        if other is None and self._draft.is_stop(token):
            return self._target.end
        return other


# Either of them drafts for a controller.
Drafter: TypeAlias = ModelDrafter | TextDrafter


class _Joint:
    """Tokenizes drafted text after the last tokens of the target."""

    def __init__(self, target: TextVocabulary, before: Sequence[int]) -> None:
        self._target, self._before, self._text = target, list[int](), ""
        for i, token in enumerate(before):
            if not target.piece(token):
                continue
            run = b"".join(map(target.piece, before[i:]))
            if all(map(target.piece, before[i:])) and _is_text(run):
                self._before, self._text = list(before[i:]), run.decode()
                return

    def tokenize(self, drafted: bytes, *, is_whole: bool, patient: bool) -> list[int]:
        """The tokens that more text cannot change; those of an unfinished word if not patient.

        Where the target's last tokens would be others with the text, it is tokenized alone.
        """
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(drafted, is_whole)
        whole = self._target.tokenize(self._text + text, False)
        n = len(self._before)
        found = whole[n:] if whole[:n] == self._before else self._target.tokenize(text, False)
        if is_whole:
            return found
        del found[-1:]
        return found[: self._finished(text, found)] if patient else found

    def _finished(self, text: str, found: list[int]) -> int:
        """How many of these tokens end where a word does, if its script has words."""
        data, end, finished = text.encode(), 0, 0
        for i, token in enumerate(found):
            end += len(self._target.piece(token))
            last = data[:end].decode(errors="ignore")[-1:]
            after = data[end : end + 4].decode(errors="ignore")[:1]
            if not (_is_cased(after) and (last == " " or _is_cased(last))):
                finished = i + 1
        return finished


def _joined(guesses: Sequence[tuple[Candidate, int]], token: int) -> Candidate:
    """One candidate of the draft's guesses in the place of a token: that token if all are right."""
    least = float("inf")
    for guess, came in guesses:
        least = min(least, guess.confidence)
        if guess.token != came:
            return Candidate(-1, least, MODEL)
    return Candidate(token, least, MODEL)


def _least(ends: Sequence[tuple[int, float]], begin: int, end: int) -> float:
    """The least confidence of the draft's tokens with text between these places."""
    starts = [0, *(place for place, _ in ends)]
    within = [ends[i][1] for i in range(len(ends)) if starts[i] < end and begin < ends[i][0]]
    return min(within, default=ends[-1][1])


def _word_begin(text: str, most: int) -> int:
    """The last place, up to this one, of a blank between two words; 0 if there is none."""
    place = most
    while (place := text.rfind(" ", 1, place)) > 0:
        if not text[place - 1].isspace() and text[place + 1].isalpha():
            return place
    return 0


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_cased(character: str) -> bool:
    return character.lower() != character.upper()
