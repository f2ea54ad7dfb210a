"""Sequential reader of binary headers with bounds: integers, strings and arrays from any source."""

import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn, Protocol

from localspec.core.errors import FileProblem, LocalspecError, MissingFile, NotAGGUF
from localspec.core.files import open_regular
from localspec.core.formatting import one_line
from localspec.metadata.filenames import how_to_convert

# A header is untrusted input; each limit is several times what the largest known model needs.
MAX_STRING_BYTES = 16 << 20
MAX_HEADER_BYTES = 64 << 20
PIECE_BYTES = 256 << 10

_U64 = struct.Struct("<Q")
AGAIN = "Download the file again."


class Source(Protocol):
    """The bytes of one file, in order, once."""

    @property
    def path(self) -> Path:
        """The file's name, also in errors; it need not exist on this disk."""

    @property
    def n_bytes(self) -> int:
        """The size of the whole file."""

    def read(self, least: int) -> bytes:
        """The next bytes: at least ``least``, unless the file ends, and more if they are cheap."""


@dataclass(frozen=True, slots=True)
class LocalSource:
    """An open file on this disk."""

    path: Path
    n_bytes: int
    file: BinaryIO

    def read(self, least: int) -> bytes:
        return self.file.read(max(least, PIECE_BYTES))


@contextmanager
def open_file(path: Path) -> Iterator[LocalSource]:
    """Open `path`; raises FileProblem, also for every OSError."""
    shown = one_line(str(path))
    if "\0" in str(path):
        raise FileProblem(f"{shown} cannot be a path: it holds a null byte.", "Check the path.")
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise _a_directory(path)
        # Opening a pipe would wait for a writer, and a device has no size to check against.
        if not stat.S_ISREG(status.st_mode):
            raise FileProblem(f"{shown} is not a regular file.", "Give the path of a .gguf file.")
        if path.suffix == ".safetensors":
            raise _safetensors(f"{shown} holds safetensors, and is no GGUF file.", path.parent)
        with open_regular(path) as file:
            yield LocalSource(path, status.st_size, file)
    except LocalspecError:
        raise
    except FileNotFoundError:
        raise MissingFile(
            f"There is no file {shown}.", "Check the path: expected a .gguf file."
        ) from None
    except PermissionError:
        raise FileProblem(
            f"{shown} may not be read by this user.", "Change its permissions or copy it."
        ) from None
    except OSError as error:
        reason = one_line(error.strerror or str(error))
        raise FileProblem(f"{shown} cannot be read: {reason}.", "Check the path.") from None


def _a_directory(path: Path) -> FileProblem:
    shown = one_line(str(path))
    if any(path.glob("*.safetensors")) and not any(path.glob("*.gguf")):
        return _safetensors(f"{shown} is a directory of safetensors, without a GGUF file.", path)
    return FileProblem(f"{shown} is a directory.", "Give a .gguf file inside it.")


def _safetensors(message: str, folder: Path) -> FileProblem:
    step = how_to_convert(one_line(str(folder)), on_hub=False)
    return FileProblem(message, f"{step[0].upper()}{step[1:]}.")


class ByteReader:
    """A window that moves over the header; every length is checked before memory is allocated."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.n_bytes = source.n_bytes
        self.reading = "the header"
        self._source = source
        self._window = b""
        self._base = 0
        self._at = 0

    @property
    def offset(self) -> int:
        return self._base + self._at

    def fail(self, sentence: str, hint: str = AGAIN) -> NoReturn:
        raise NotAGGUF(f"{one_line(str(self.path))} {sentence}.", hint)

    def need(self, size: int) -> None:
        """Make `size` bytes available in the window."""
        kept = len(self._window) - self._at
        if size <= kept:
            return
        if size > self.n_bytes - self.offset:
            self.fail(
                f"is cut short: {self.reading} needs {size:,} more bytes at byte "
                f"{self.offset:,}, but the file ends at byte {self.n_bytes:,}"
            )
        if size > MAX_HEADER_BYTES - self.offset:
            self.fail(f"has a header over {MAX_HEADER_BYTES // 10**6} MB, which no model needs")
        more = self._source.read(size - kept)
        self._base, self._window, self._at = self.offset, self._window[self._at :] + more, 0
        if len(self._window) < size:
            self.fail(f"ended while {self.reading} was being read")

    def take(self, size: int) -> bytes:
        self.need(size)
        self._at += size
        return self._window[self._at - size : self._at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]
        return value

    def string(self, limit: int = MAX_STRING_BYTES) -> bytes:
        size = self.u64()
        if size > limit:
            self.fail(f"has {size:,} bytes of text in {self.reading}; the limit is {limit:,}")
        return self.take(size)

    def strings(self, count: int) -> list[bytes]:
        """Texts in a row; those in the window are read without a call for each."""
        found: list[bytes] = []
        while len(found) < count:
            window, begin = self._window, self._at
            ends = self._ends_in_window(count - len(found))
            starts = [begin, *ends[:-1]]
            found += [window[a + 8 : b] for a, b in zip(starts, ends, strict=False)]
            if len(found) < count:  # one that is cut off by the window's end, or is too long
                found.append(self.string())
        return found

    def skip_strings(self, count: int) -> None:
        while count > 0:
            count -= len(self._ends_in_window(count))
            if count > 0:
                self.string()
                count -= 1

    def _ends_in_window(self, most: int) -> list[int]:
        """Skip the next texts that lie wholly in the window, and return the end of each."""
        window, at, end = self._window, self._at, len(self._window)
        size_of, ends = _U64.unpack_from, []
        for _ in range(most):
            if at + 8 > end:
                break
            at += 8 + size_of(window, at)[0]
            if at > end:
                break
            ends.append(at)
        self._at = ends[-1] if ends else self._at
        return ends

    def count(self, what: str, limit: int, each: int) -> int:
        """A u64 count of items, at least `each` bytes long, that must all still fit."""
        count = self.u64()
        if count > limit:
            self.fail(f"claims {count:,} {what} in {self.reading}; the limit is {limit:,}")
        if count * each > self.n_bytes - self.offset:
            self.fail(f"is cut short: {self.reading} announces more {what} than fit, {count:,}")
        return count
