"""GGUF headers on the Hub, read by range requests; a pair is checked on as few bytes as needed.

A small first piece is requested, then larger ones, until the header ends or a refusal of the pair
is certain.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep

from localspec.core.errors import NotAGGUF
from localspec.hub.client import DroppedConnection, RangeIgnored, RemoteModel, stream_resuming
from localspec.hub.reference import RemoteFile
from localspec.metadata.byte_reader import AGAIN
from localspec.metadata.header import ModelHeader, StagedHeader, read_header
from localspec.pairing import PairReport, certain_refusal, check_own_heads, check_pair, refused

FIRST_BYTES = 64 << 10  # type, architecture and number of tokens are in there
PIECE_BYTES = 2 << 20
PAUSES = (0.5, 1.0, 2.0)  # seconds before each retry of a piece, unless the Hub asks for another
LONGEST_PAUSE = 10.0  # seconds that the Hub may ask for while the user waits

Stage = Callable[[StagedHeader], ModelHeader]


@dataclass(frozen=True, slots=True)
class PairCheck:
    """The report on a pair, and how many `bytes_read` from the Hub it took.

    If a refusal was certain early, the headers are not complete and the report has it alone.
    """

    report: PairReport
    target: ModelHeader
    draft: ModelHeader
    bytes_read: int


class RemoteHeader:
    """The header of a model on the Hub, read in the stages of `StagedHeader`."""

    def __init__(self, model: RemoteModel) -> None:
        self._sources = [_RemoteSource(model, file) for file in model.files]
        self._header = StagedHeader(self._sources)

    @property
    def bytes_read(self) -> int:
        return sum(source.bytes_read for source in self._sources)

    def read(self, stage: Stage) -> ModelHeader:
        """The header as of a stage. Raises NotAGGUF and HubProblem."""
        try:
            return stage(self._header)
        except NotAGGUF as error:
            if error.hint == AGAIN:  # which would not help with a damaged file on the Hub
                error.hint = "Choose another file, or another repository of the same model."
            raise


def read_remote(model: RemoteModel) -> tuple[ModelHeader, int]:
    """The header of a model on the Hub, and the bytes read for it; raises HubProblem, NotAGGUF."""
    header = RemoteHeader(model)
    return header.read(StagedHeader.whole), header.bytes_read


def compare(
    target: Path | RemoteModel,
    draft: Path | RemoteModel,
    *,
    weights_needed: bool = True,
    lenient: bool = False,
) -> PairCheck:
    """`check_pair` of models here or on the Hub, read as far as needed; one twice: own heads."""
    if target == draft:
        own, n_bytes = (read_header(target), 0) if isinstance(target, Path) else read_remote(target)
        return PairCheck(check_own_heads(own), own, own, n_bytes)
    sides = [
        read_header(side) if isinstance(side, Path) else RemoteHeader(side)
        for side in (target, draft)
    ]
    remote = [side for side in sides if isinstance(side, RemoteHeader)]

    def n_read() -> int:
        return sum(side.bytes_read for side in remote)

    def known(stage: Stage) -> list[ModelHeader]:
        return [side.read(stage) if isinstance(side, RemoteHeader) else side for side in sides]

    for stage in (StagedHeader.start, StagedHeader.vocabulary) if remote else ():
        ours, theirs = known(stage)
        if found := certain_refusal(ours, theirs, lenient=lenient):
            return PairCheck(refused(found), ours, theirs, n_read())
    ours, theirs = known(StagedHeader.whole)
    report = check_pair(ours, theirs, weights_needed=weights_needed, lenient=lenient)
    return PairCheck(report, ours, theirs, n_read())


class _RemoteSource:
    """`Source` of a header on the Hub, in pieces that are requested when needed."""

    def __init__(self, model: RemoteModel, file: RemoteFile) -> None:
        self.path = Path(str(replace(model.reference, file=file.path, tag=None)))
        self.n_bytes = file.size
        self.bytes_read = 0
        self._model = model
        self._file = file

    def read(self, least: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < least and self.bytes_read < self.n_bytes:
            size = PIECE_BYTES if self.bytes_read else FIRST_BYTES
            pieces += self._piece(min(self.bytes_read + size, self.n_bytes))
        return bytes(pieces)

    def _piece(self, stop: int) -> bytearray:
        piece, pauses = bytearray(), iter(PAUSES)

        def wait(failure: DroppedConnection | RangeIgnored, failures: int) -> None:
            pause = next(pauses, None)
            asked = failure.retry_after if isinstance(failure, DroppedConnection) else None
            too_long = asked is not None and asked > LONGEST_PAUSE
            if pause is None or too_long or isinstance(failure, RangeIgnored):
                raise failure
            sleep(pause if asked is None else asked)

        for data in stream_resuming(self._model, self._file, self.bytes_read, stop, wait):
            piece += data
            self.bytes_read += len(data)
        return piece
