"""Distributions of samplers: ours, and llama.cpp's own applied to the same row of logits."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.options.sampling_params import SamplingParams, parse_logit_bias
from localspec.llama import llama_library
from localspec.speculative.sampling.sampler import Sampler


def probabilities(
    sampler: Sampler, logits: NDArray[np.float32], history: Sequence[int], position: int = 0
) -> NDArray[np.float64]:
    """What `Sampler.pick` draws from: shape (n_vocab,), summing to 1."""
    distribution, dense = sampler.distribution(logits, position, history), np.zeros(len(logits))
    dense[distribution.ids] = distribution.probabilities
    return dense


@contextmanager
def llama_chain(params: SamplingParams, n_vocab: int, vocab: Any = None) -> Iterator["LlamaChain"]:
    """The chain of `common_sampler_init` without its last step, the draw.

    Without a ``vocab`` DRY has no sequence breakers. XTC's own dice are asked; a probability of 1
    leaves nothing to them.
    """
    llama = llama_library.library()
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    for sampler in _samplers(llama, params, n_vocab, vocab):
        llama.llama_sampler_chain_add(chain, sampler)
    yield LlamaChain(llama, chain)
    llama.llama_sampler_free(chain)


class LlamaChain:
    """A chain that has accepted some tokens."""

    def __init__(self, llama: Any, chain: Any) -> None:
        self._llama, self._chain = llama, chain

    def logits(
        self, row: NDArray[np.float32], history: Sequence[int]
    ) -> tuple[list[int], NDArray[np.float64]]:
        """Ids and logits of what is left behind this history, in no order; masked ones are not."""
        llama = self._llama
        llama.llama_sampler_reset(self._chain)
        for token in history:
            llama.llama_sampler_accept(self._chain, token)
        rows = np.zeros(len(row), llama.llama_token_data)  # a call for each token takes seconds
        rows["id"], rows["logit"] = np.arange(len(row)), row
        data = rows.ctypes.data_as(ctypes.POINTER(llama.llama_token_data))
        array = llama.llama_token_data_array(data, len(row), -1, False)
        llama.llama_sampler_apply(self._chain, ctypes.byref(array))
        left = np.ctypeslib.as_array(array.data, (array.size,))
        kept = left[left["logit"] > -np.inf]
        return kept["id"].tolist(), kept["logit"].astype(np.float64)

    def distribution(self, row: NDArray[np.float32], history: Sequence[int]) -> dict[int, float]:
        """The probability of each token that is left."""
        ids, logits = self.logits(row, history)
        weights = np.exp(logits - logits.max())
        return dict(zip(ids, (weights / weights.sum()).tolist(), strict=True))


def _samplers(llama: Any, params: SamplingParams, n_vocab: int, vocab: Any) -> Iterator[Any]:
    """In the order of `common_params_sampling.samplers`."""
    biases = [llama.llama_logit_bias(*parse_logit_bias(text)) for text in params.logit_bias]
    yield llama.llama_sampler_init_logit_bias(
        n_vocab, len(biases), (llama.llama_logit_bias * len(biases))(*biases)
    )
    yield llama.llama_sampler_init_penalties(
        n_vocab,
        params.repeat_last_n,
        params.repeat_penalty,
        params.frequency_penalty,
        params.presence_penalty,
    )
    breakers = [text.encode() for text in params.dry_sequence_breakers] if vocab else []
    yield llama.llama_sampler_init_dry(
        vocab,
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        params.dry_penalty_last_n,
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )
    yield llama.llama_sampler_init_top_n_sigma(params.top_n_sigma)
    yield llama.llama_sampler_init_top_k(params.top_k)
    yield llama.llama_sampler_init_typical(params.typical_p, 0)
    yield llama.llama_sampler_init_top_p(params.top_p, 0)
    yield llama.llama_sampler_init_min_p(params.min_p, 0)
    yield llama.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, 0, 1)
    yield llama.llama_sampler_init_temp_ext(
        params.temperature, params.dynatemp_range, params.dynatemp_exp
    )
