"""--lookup-cache and --lookup-files: earlier answers and files to draft from."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from localspec.core.errors import FileProblem
from localspec.core.files import appearing_when_complete, read_at_most, read_text, require_kind
from localspec.engine.engine import Engine
from localspec.speculative.history import CAPACITY, AnswerHistory

_MAGIC = b"localspec lookup 1\n"
_DIGEST = hashlib.sha256().digest_size
_MOST_BYTES = len(_MAGIC) + 2 * _DIGEST + 4 * CAPACITY
_LARGEST = 2**20  # bytes of a file that is read as text
_PIECE = 4000  # characters that are tokenized at once
_MOST_FILES = 20_000


class LookupCache:
    """Lets an engine draft from earlier answers, from those in ``path`` and from ``files``.

    On exit, all are saved to ``path``, readable by its owner only. The file is for one
    vocabulary; ``say`` gets a note if it cannot be used and will be overwritten. ``files`` may be
    folders; raises FileProblem for files that cannot be read.
    """

    def __init__(
        self,
        engine: Engine,
        say: Callable[[str], None],
        path: Path | None = None,
        files: Sequence[Path] = (),
    ) -> None:
        self._engine = engine
        self._say = say
        self._path = path
        self._files = files
        self._history = AnswerHistory()

    def __enter__(self) -> "LookupCache":
        if self._path is not None:
            self._read(self._path)
        before = len(self._history)
        for path in self._files:
            for text in _texts(path):
                self._history.add(self._tokens(text))
        if self._files:
            self._say(f"Files to look up: {len(self._history) - before:,} tokens.")
        self._engine.history = self._history
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            try:
                self._write(self._path)
            except OSError as problem:
                self._say(
                    f"The lookup cache {self._path} cannot be written: {problem.strerror}. "
                    "Make room on the disk, or name another file: --lookup-cache FILE."
                )

    def _tokens(self, text: str) -> list[int]:
        """Token ids, tokenized in pieces cut at line ends."""
        found: list[int] = []
        piece = ""
        for line in text.splitlines(keepends=True):
            if piece and len(piece) + len(line) > _PIECE:
                found += self._tokenize(piece)
                piece = ""
            piece += line
        return found + self._tokenize(piece)

    def _tokenize(self, text: str) -> list[int]:
        parts = (text[i : i + _PIECE] for i in range(0, len(text), _PIECE))
        tokenize = self._engine.target.tokenize
        return [t for part in parts for t in tokenize(part, add_special=False, parse_special=False)]

    def _vocabulary(self) -> bytes:
        vocab = self._engine.target.header.vocab
        return hashlib.sha256(b"\0".join(vocab.tokens if vocab is not None else ())).digest()

    def _read(self, path: Path) -> None:
        try:
            self._load(read_at_most(path, _MOST_BYTES))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self._say(f"The lookup cache {path} cannot be used: {reason}; it will be overwritten.")

    def _load(self, data: bytes) -> None:
        """Load a file's bytes; raises ValueError if it is damaged or for another vocabulary."""
        start = len(_MAGIC)
        vocabulary, digest = data[start : start + _DIGEST], data[start + _DIGEST :][:_DIGEST]
        body = data[start + 2 * _DIGEST :]
        if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest or len(body) % 4:
            raise ValueError("it is no lookup cache, or damaged")
        if vocabulary != self._vocabulary():
            raise ValueError("it was made for another vocabulary")
        tokens = np.frombuffer(body, "<i4")
        if len(tokens) and tokens.max() >= self._engine.target.n_vocab:
            raise ValueError("it holds tokens that the model does not have")
        ends = np.flatnonzero(tokens < 0)
        for answer in np.split(tokens, ends + 1):
            if len(answer):
                self._history.add(answer[answer >= 0].tolist())

    def _write(self, path: Path) -> None:
        body = self._history.tokens().astype("<i4").tobytes()
        with appearing_when_complete(path, private=True) as partial:
            partial.write_bytes(_MAGIC + self._vocabulary() + hashlib.sha256(body).digest() + body)


def require_lookup_cache(path: Path) -> None:
    """Raise FileProblem, before anything is loaded, for a path that holds another kind of file."""
    refusal = f"{path} is another file than a lookup cache."
    require_kind(path, _MAGIC, FileProblem(refusal, "Name one, or a new file."))


def _texts(path: Path) -> Iterator[str]:
    """The text of a file, or of a folder's files without hidden, large and binary ones."""
    if not os.path.isdir(path):
        yield read_text(path, 4 * CAPACITY, expected="a folder, or a text file")
        return
    found = sorted(
        each
        for each in path.rglob("*")
        if not any(part.startswith(".") for part in each.relative_to(path).parts)
    )
    for file in found[:_MOST_FILES]:
        try:
            text = read_at_most(file, _LARGEST).decode()
        except (OSError, ValueError):
            continue
        if "\0" not in text:
            yield text
