"""GGUF headers on the Hub, read by range requests, and a pair's check on as few bytes as it takes.

A small first piece is asked for, then larger ones as far as the header goes, and no more as soon as
a refusal of the pair is certain. Weights are never fetched.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.core.errors import NotAGGUF
from localspec.hub.client import DroppedConnection, RemoteModel, stream
from localspec.hub.reference import RemoteFile
from localspec.metadata.byte_reader import AGAIN
from localspec.metadata.header import ModelHeader, StagedHeader, read_header
from localspec.pairing import PairReport, certain_refusal, check_own_heads, check_pair, refused

FIRST_BYTES = 64 << 10  # type, architecture and number of tokens are in there
PIECE_BYTES = 2 << 20
RETRIES = 3  # for each piece
LONGEST_PAUSE = 10.0  # seconds that a Hub may ask for while the user waits for a verdict

Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class PairCheck:
    """The judgement of a pair, and what it took: `bytes_read` from the Hub.

    A header is not complete where the refusal was certain before its end; the report then holds no
    more than what made it certain.
    """

    report: PairReport
    target: ModelHeader
    draft: ModelHeader
    bytes_read: int


class RemoteHeader:
    """The header of a model on the Hub, read in stages; `bytes_read` counts what came so far."""

    def __init__(self, model: RemoteModel, sleep: Sleep = time.sleep) -> None:
        self._sources = [_RemoteSource(model, file, sleep) for file in model.files]
        self._header = StagedHeader(self._sources)

    @property
    def bytes_read(self) -> int:
        return sum(source.bytes_read for source in self._sources)

    def start(self) -> ModelHeader:
        """The kind of model and of tokenizer, and how many tokens it has."""
        with _damage_is_theirs():
            return self._header.start()

    def vocabulary(self) -> ModelHeader:
        """What `start` gave, and the texts and types of the tokens."""
        with _damage_is_theirs():
            return self._header.vocabulary()

    def whole(self) -> ModelHeader:
        """Everything, of all parts. Raises NotAGGUF and HubProblem."""
        with _damage_is_theirs():
            return self._header.whole()


def read_remote(model: RemoteModel, sleep: Sleep = time.sleep) -> tuple[ModelHeader, int]:
    """The header of a model on the Hub, and how many bytes were read for it.

    Raises HubProblem when the Hub refuses or the connection drops again and again, and NotAGGUF as
    `read_header` does.
    """
    header = RemoteHeader(model, sleep)
    return header.whole(), header.bytes_read


def compare(
    target: Path | RemoteModel,
    draft: Path | RemoteModel,
    *,
    weights_needed: bool = True,
    lenient: bool = False,
    sleep: Sleep = time.sleep,
) -> PairCheck:
    """Judge a pair of which either side may be on the Hub, as `check_pair` does.

    A model twice is one that is to draft with prediction heads of its own. Of remote headers only
    so much is read as the verdict takes. Raises what `read_remote` and `read_header` raise.
    """
    if target == draft:
        own, n_bytes = (
            (read_header(target), 0) if isinstance(target, Path) else read_remote(target, sleep)
        )
        return PairCheck(check_own_heads(own), own, own, n_bytes)
    sides = [
        read_header(side) if isinstance(side, Path) else RemoteHeader(side, sleep)
        for side in (target, draft)
    ]
    remote = [side for side in sides if isinstance(side, RemoteHeader)]

    def n_read() -> int:
        return sum(side.bytes_read for side in remote)

    def known(stage: Callable[[RemoteHeader], ModelHeader]) -> list[ModelHeader]:
        return [stage(side) if isinstance(side, RemoteHeader) else side for side in sides]

    for stage in (RemoteHeader.start, RemoteHeader.vocabulary) if remote else ():
        ours, theirs = known(stage)
        if found := certain_refusal(ours, theirs, lenient=lenient):
            return PairCheck(refused(found), ours, theirs, n_read())
    ours, theirs = known(RemoteHeader.whole)
    report = check_pair(ours, theirs, weights_needed=weights_needed, lenient=lenient)
    return PairCheck(report, ours, theirs, n_read())


class _RemoteSource:
    """One file as a source of header bytes: in pieces, each asked for when it is needed."""

    def __init__(self, model: RemoteModel, file: RemoteFile, sleep: Sleep) -> None:
        named = replace(model.reference, file=file.path, tag=None)
        self.path = Path(str(named))
        self.n_bytes = file.size
        self.bytes_read = 0
        self._model = model
        self._file = file
        self._sleep = sleep

    def read(self, least: int) -> bytes:
        """At least so many of the bytes that follow, unless the file ends."""
        pieces = bytearray()
        while len(pieces) < least and self.bytes_read < self.n_bytes:
            size = PIECE_BYTES if self.bytes_read else FIRST_BYTES
            pieces += self._piece(min(self.bytes_read + size, self.n_bytes))
        return bytes(pieces)

    def _piece(self, stop: int) -> bytearray:
        """The bytes up to `stop`; after a dropped connection it goes on from where it was."""
        piece = bytearray()
        for retry in range(RETRIES + 1):
            try:
                for data in stream(self._model, self._file, self.bytes_read, stop):
                    piece += data
                    self.bytes_read += len(data)
                return piece
            except DroppedConnection as error:
                pause = 0.5 * 2**retry if error.retry_after is None else error.retry_after
                if retry == RETRIES or pause > LONGEST_PAUSE:
                    raise
                self._sleep(pause)
        raise AssertionError("the last retry returns or raises")


@contextmanager
def _damage_is_theirs() -> Iterator[None]:
    """A damaged file on the Hub is not mended by downloading it."""
    try:
        yield
    except NotAGGUF as error:
        if error.hint == AGAIN:
            error.hint = "Choose another file, or another repository of the same model."
        raise
