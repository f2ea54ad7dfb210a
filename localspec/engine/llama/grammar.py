"""llama.cpp's grammar engine: a compiled grammar, and the tokens it allows in one answer."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import GrammarError
from localspec.engine.grammar.bounds import check_grammar
from localspec.engine.llama import llama_library
from localspec.speculative.prefix import common_prefix
from localspec.speculative.sampling.constrained import RECALL

_KEPT = RECALL  # states behind the last tokens; older ones are made again if need be
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class GrammarState:
    """A place in a grammar; None in place of llama.cpp's sampler: behind a token it refuses."""

    def __init__(self, native: Any) -> None:
        self._llama = llama_library.library()
        self._native = native
        self._known: dict[int, bool] = {}  # single tokens that were asked about

    @classmethod
    def beginning(cls, text: str, vocab: Any) -> "GrammarState":
        """Compile a grammar over llama.cpp's vocabulary; raises GrammarError for a bad one."""
        check_grammar(text)
        llama = llama_library.library()
        with llama_library.log.watch() as errors, _native_stderr() as complaints:
            native = llama.llama_sampler_init_grammar(vocab, text.encode(), b"root")
        if not native:
            reason = "".join(complaints).partition("error parsing grammar: ")[2]
            told = (reason or " ".join(errors) or "it gave no reason").splitlines()[0][:99]
            raise GrammarError(f"llama.cpp refuses the grammar: {told}.", "Write it otherwise.")
        return cls(native)

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        if token not in self._known:
            self._known[token] = bool(self.allowed(np.array([token]))[0])
        return self._known[token]

    def allowed(self, ids: NDArray[np.int64]) -> NDArray[np.bool]:
        """Which of these tokens may come next; shape (len(ids),)."""
        if self._native is None:
            return np.zeros(len(ids), np.bool)
        llama = self._llama
        candidates = np.zeros(len(ids), _CANDIDATE)
        candidates["id"] = ids
        data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(llama.llama_token_data))
        array = llama.llama_token_data_array(data, len(ids), -1, False)
        llama.llama_sampler_apply(self._native, ctypes.byref(array))
        allowed: NDArray[np.bool] = candidates["logit"] == 0  # else -inf
        return allowed

    def after(self, token: int) -> "GrammarState":
        """The state behind this token. llama.cpp ends the process at one that it refuses."""
        if not self.allows(token):
            return GrammarState(None)
        native = self._llama.llama_sampler_clone(self._native)
        self._llama.llama_sampler_accept(native, token)
        return GrammarState(native)

    def __del__(self) -> None:
        if self._native is not None:
            self._llama.llama_sampler_free(self._native)


class GrammarConstraint:
    """Which tokens a grammar allows in the answer that begins at position ``start``.

    Keeps the state behind each of the last tokens it was shown: a drafted token that is rejected
    costs nothing to take back, and one that is accepted is not accepted twice.
    """

    def __init__(self, beginning: GrammarState, start: int) -> None:
        self._start = start
        self._tokens: list[int] = []  # of the answer, drafted ones included
        self._states = {0: beginning}  # behind so many of them

    def allowed(
        self, ids: NDArray[np.int64], position: int, history: Sequence[int]
    ) -> NDArray[np.bool]:
        """Which of these tokens may stand at ``position``; see `constrained.Constraint`."""
        length = position - self._start
        if length < 0:
            return np.ones(len(ids), np.bool)
        self._follow(length, history)
        state = self._state(length)
        return np.array([state.allows(int(ids[0]))]) if len(ids) == 1 else state.allowed(ids)

    def _follow(self, length: int, history: Sequence[int]) -> None:
        """Let the tokens begin with the last ``length`` of this history."""
        both = min(length, len(self._tokens))
        # A draft's window begins with the first token of all, which is not the one before the rest.
        first = max(0, both - RECALL, length - len(history) + 1)
        if first > both:
            raise ValueError(f"the history has {len(history)} tokens, too few after {both}")
        recent = list(history[len(history) - (length - first) :])
        shared = first + common_prefix(self._tokens[first:both], recent)
        if shared < length:
            if shared < both:
                self._forget(shared)
            self._tokens[shared:] = recent[shared - first :]

    def _forget(self, length: int) -> None:
        """Forget the states behind more than so many tokens."""
        self._states = {at: state for at, state in self._states.items() if at <= length}

    def _state(self, length: int) -> GrammarState:
        """The state behind so many tokens, and those on the way to it."""
        at = max(known for known in self._states if known <= length)
        state = self._states[at]
        for token in self._tokens[at:length]:
            state = state.after(token)
            at += 1
            self._states[at] = state
            if at > _KEPT:
                self._states.pop(at - _KEPT, None)
        return state


@contextmanager
def _native_stderr() -> Iterator[list[str]]:
    """Collect what is written to the process's stderr: llama.cpp's parser does not use its log."""
    written: list[str] = []
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr
        yield written
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # what does not fit is lost: the reason comes first
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield written
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        written.append(os.read(reading, 2000).decode("utf-8", "replace"))
        os.close(reading)
