"""Headers of small models, read from real files or from bytes, and what is said of them."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.core.errors import FileProblem
from localspec.metadata.header import ModelHeader, Vocab, read_header
from localspec.pairing import Finding
from tests.support.files.gguf_files import Tensor, model_keys, model_tensors, words, write_gguf

Make = Callable[..., ModelHeader]
N_WORDS = 300
DRAFT_SIZE = 4096


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Headers of small models, read from real files; keyword options go to `vocab_keys`."""
    numbers = count()

    def make(
        tokens: Sequence[str | bytes] | int = N_WORDS,
        *,
        keys: dict[str, object] | None = None,
        tensors: Sequence[Tensor] | None = None,
        parameters: int = DRAFT_SIZE,
        **options: object,
    ) -> ModelHeader:
        model = str(options.get("model", ""))
        texts = words(tokens, model) if isinstance(tokens, int) else tokens
        content = {**model_keys(texts, **options), **(keys or {})}
        content = {key: value for key, value in content.items() if value is not None}
        whole = model_tensors(parameters) if tensors is None else tensors
        return read_header(write_gguf(tmp_path / f"{next(numbers)}.gguf", content, whole))

    return make


def vocab_of(header: ModelHeader) -> Vocab:
    """The vocabulary, which must be there."""
    assert header.vocab is not None
    return header.vocab


def types_of(header: ModelHeader) -> NDArray[np.int32]:
    """The types of the tokens, which must be there."""
    types = vocab_of(header).token_types
    assert types is not None
    return types


def rules(findings: Sequence[Finding]) -> list[str]:
    return [f"{finding.level} {finding.rule}" for finding in findings]


def changed(
    changes: dict[int, str | bytes], size: int = N_WORDS, model: str = "gpt2"
) -> list[str | bytes]:
    tokens: list[str | bytes] = list(words(size, model))
    for token_id, text in changes.items():
        tokens[token_id] = text
    return tokens


def refusal(path: Path) -> FileProblem:
    """The error for `path`, which must be a single clean sentence with a next step."""
    with pytest.raises(FileProblem) as caught:
        read_header(path)
    error = caught.value
    assert error.message.endswith(".") and error.hint.endswith((".", "”"))
    assert error.message.isprintable() and error.hint.isprintable()
    return error


class Bytes:
    """A source that hands out pieces as they come: sometimes no more than it must."""

    def __init__(self, data: bytes, extra: tuple[int, ...] = (0,), name: str = "hf:x.gguf") -> None:
        self.path = Path(name)
        self.n_bytes = len(data)
        self.given = 0
        self._data = data
        self._extra = extra

    def read(self, least: int) -> bytes:
        size = least + self._extra[self.given % len(self._extra)]
        piece = self._data[self.given : self.given + size]
        self.given += len(piece)
        return piece
