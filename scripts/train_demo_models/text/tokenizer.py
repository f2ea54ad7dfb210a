"""The byte-level BPE tokenizer that both models share, its special tokens and chat template."""

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (BOS, TURN, END)
VOCABULARY_SIZE = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

TokenIds = NDArray[np.uint16]
Offsets = NDArray[np.int64]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a byte-level BPE that splits text as GPT-2 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token; exits with a message where the tokenizer lacks it."""
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise SystemExit(f"The tokenizer has no {token}.")
    return found


def encode(tokenizer: Tokenizer, documents: list[str]) -> tuple[TokenIds, Offsets]:
    """Encode documents into one stream, a BOS before each, and the offset where each starts."""
    ids: list[int] = []
    starts: list[int] = []
    bos = token_id(tokenizer, BOS)
    for encoding in tokenizer.encode_batch(documents):
        starts.append(len(ids))
        ids.append(bos)
        ids.extend(encoding.ids)
    return np.array(ids, dtype=np.uint16), np.array(starts, dtype=np.int64)
