"""The corpus: token streams for training and held-out text, and batches drawn from them."""

import json
import platform
import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from scripts.train_demo_models.text.questions import (
    definition_chats,
    question_sample,
    reference_chats,
)
from scripts.train_demo_models.text.sources import (
    HELD_OUT,
    Definition,
    definitions_in,
    is_held_out,
    is_test,
    library_files,
    reference_topics,
    tests_held_out,
)
from scripts.train_demo_models.text.tokenizer import Offsets, TokenIds, encode, train_tokenizer

QUESTIONS_PER_SPLIT = 20
SOURCE_SHARE = 0.55  # of the rows in a mixed batch; the others are chat


@dataclass
class Split:
    """The documents of one split, and the definitions that questions can be asked about."""

    files: list[str] = field(default_factory=list)
    chats: list[str] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)


def build_corpus(work_dir: Path, seed: int, tokenizer: Tokenizer | None = None) -> None:
    """Write the tokenizer, the token streams and corpus.json, unless they are there already.

    Without a tokenizer one is trained on the text.
    """
    done = work_dir / "corpus.json"
    if done.exists():
        return
    rng = random.Random(seed)
    train, held = _collect_documents(rng)
    for documents in (train.files, held.files, train.chats, held.chats):
        rng.shuffle(documents)
    tokenizer = tokenizer or train_tokenizer(train.files + train.chats)
    tokenizer.save(str(work_dir / "tokenizer.json"))
    facts: dict[str, object] = {"python": platform.python_version(), "held_out": list(HELD_OUT)}
    splits = {"train": train, "held": held}
    for name, split in splits.items():
        for kind, documents in (("raw", split.files), ("chat", split.chats)):
            stream = f"{name}_{kind}"
            facts[stream] = _write_stream(work_dir / stream, tokenizer, documents)
    questions = {
        name: question_sample(rng, split.definitions, QUESTIONS_PER_SPLIT)
        for name, split in splits.items()
    }
    done.write_text(json.dumps(facts | {"questions": questions}, indent=2) + "\n")
    print("corpus:", facts, flush=True)


def _collect_documents(rng: random.Random) -> tuple[Split, Split]:
    """The training and the held-out documents of the standard library and its reference."""
    topics = reference_topics()
    train, held = Split(), Split()
    train.files += topics.values()
    train.chats += reference_chats(rng, topics)
    for module, text in library_files():
        if tests_held_out(module):
            continue
        split = held if is_held_out(module) else train
        split.files.append(text)
        if is_test(module):
            continue
        for definition in definitions_in(module, text):
            split.definitions.append(definition)
            split.chats += definition_chats(rng, definition)
    return train, held


def _write_stream(path: Path, tokenizer: Tokenizer, documents: list[str]) -> dict[str, int]:
    """Encode documents and save them as one stream; returns how large it is."""
    ids, starts = encode(tokenizer, documents)
    np.save(path.with_name(f"{path.name}.npy"), ids)
    np.save(path.with_name(f"{path.name}_starts.npy"), starts)
    return {"documents": len(documents), "tokens": len(ids)}


class BatchSampler:
    """Draws batches from one split of the corpus; each row begins with BOS."""

    def __init__(self, work_dir: Path, split: str) -> None:
        self.raw: TokenIds = np.load(work_dir / f"{split}_raw.npy")
        self.chat: TokenIds = np.load(work_dir / f"{split}_chat.npy")
        self.chat_starts: Offsets = np.load(work_dir / f"{split}_chat_starts.npy")

    def batch(
        self, rng: np.random.Generator, rows: int, length: int, kind: str | None = None
    ) -> Tensor:
        """Draw rows of ``length`` + 1 tokens, of one kind or of both in the fixed mixture."""
        kinds = [kind or ("raw" if rng.random() < SOURCE_SHARE else "chat") for _ in range(rows)]
        cut = [self._row(rng, each, length + 1) for each in kinds]
        return torch.from_numpy(np.stack(cut).astype(np.int64))

    def _row(self, rng: np.random.Generator, kind: str, length: int) -> TokenIds:
        """Cut one row: a piece of source code, or whole chat documents one after another."""
        if kind == "raw":
            begin = int(rng.integers(0, len(self.raw) - length))
            piece = self.raw[begin : begin + length].copy()
            piece[0] = 0
            return piece
        last = int(np.searchsorted(self.chat_starts, len(self.chat) - length))
        begin = int(self.chat_starts[int(rng.integers(0, last))])
        return self.chat[begin : begin + length]
