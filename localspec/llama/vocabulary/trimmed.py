"""A draft with a trimmed vocabulary as a model that speaks its target's ids."""

import numpy as np

from localspec.core.config import LoadOptions
from localspec.llama.batch import AnyBatch
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.embeddings import EmbeddingBatch, EmbeddingRows
from localspec.metadata.header import ModelHeader
from localspec.speculative.loop import Logits


def open_draft_model(header: ModelHeader, options: LoadOptions) -> LlamaModel:
    """A whole model as a draft, of its own vocabulary or of a trimmed one."""
    return (LlamaModel if header.trimmed is None else TrimmedModel)(header, options)


class TrimmedModel(LlamaModel):
    """A TokenModel of all its target's ids; those that it cannot propose have the logit -inf.

    After FR-Spec (arXiv 2502.14856): the output matrix has rows of the most frequent tokens alone,
    all tokens are read. llama.cpp gets them as embeddings, so that it need not know their ids. The
    file's header must be one that is ``trimmed``. Raises EngineError as `LlamaModel` does.
    """

    def __init__(self, header: ModelHeader, options: LoadOptions) -> None:
        assert header.trimmed is not None
        self._trimmed = header.trimmed
        self._columns = header.trimmed.ids.astype(np.intp)  # what numpy indexes with by itself
        self._spread = np.empty((0, header.trimmed.size), np.float32)
        super().__init__(header, options)
        self.n_vocab = header.trimmed.size

    def make_batch(self) -> AnyBatch:
        """One that takes embeddings."""
        rows = EmbeddingRows(self.header, self._trimmed)
        return EmbeddingBatch(self._llama, self.weights.handle, rows, self.options.batch_size)

    def by_id(self, rows: Logits) -> Logits:
        """The same in the target's ids: a buffer of which no other columns ever change."""
        if len(rows) > len(self._spread):
            self._spread = np.full((len(rows), self._trimmed.size), -np.inf, np.float32)
        spread = self._spread[: len(rows)]
        for row, logits in zip(spread, rows, strict=True):  # one by one is several times as fast
            row[self._columns] = logits
        return spread
