"""Who proposes: a draft model, or nobody.

This room owns the proposals and the draft model's cache. It does not decide how far to draft
(`control`) nor what is accepted (`loop`).
"""

from collections.abc import Callable

from localspec.speculative.loop import Picker, TokenModel, common_prefix


class NoDraft:
    """Proposes nothing: plain decoding."""

    def catch_up(self, context: list[int]) -> None:
        """Nothing to prepare."""

    def propose(self, context: list[int], limit: int) -> list[int]:
        """No tokens."""
        return []


class ModelDrafter:
    """Proposes what a small model would say next, by the target's own picking rule.

    Sharing the rule, noise included, is what makes the picks agree at a temperature above 0
    (arXiv 2408.07978). The cache is never rolled back to the prompt: accepted tokens stay in it.
    llama.cpp decodes them a second time (its TAG_SPEC_AVOID_DRAFT_REEVAL).

    ``n_target_vocab`` is the target's number of ids; the draft may have more or fewer.
    """

    def __init__(
        self,
        model: TokenModel,
        picker: Picker,
        n_target_vocab: int,
        is_stop: Callable[[int], bool],
    ) -> None:
        self._model = model
        self._picker = picker
        self._n_shared = min(model.n_vocab, n_target_vocab)
        self._is_stop = is_stop

    def catch_up(self, context: list[int]) -> None:
        """Read all of ``context`` but its last token, unless the draft cannot hold it."""
        unread = self._unread(context)
        if unread is not None and len(unread) > 1:
            self._model.decode(unread[:-1], 0)

    def propose(self, context: list[int], limit: int) -> list[int]:
        """The draft's continuation; empty where its context or its vocabulary ends."""
        limit = min(limit, self._model.n_ctx - len(context))
        unread = self._unread(context)
        if limit <= 0 or unread is None:
            return []
        # The pending token rides in the same batch as whatever else the draft has not read.
        rows = self._model.decode(unread, 1)
        history = list(context)
        while True:
            # Ids that the target lacks are masked before the pick, not rejected after it.
            token = self._picker.pick(rows[0][: self._n_shared], len(history), history)
            history.append(token)
            if len(history) - len(context) == limit or self._is_stop(token):
                return history[len(context) :]
            rows = self._model.decode([token], 1)

    def _unread(self, context: list[int]) -> list[int] | None:
        """Forget what left ``context``, and return what is new in it, at least its last token.

        None where the context outgrows the draft's, or holds an id that the draft lacks.
        """
        if len(context) > self._model.n_ctx:
            return None
        shared = min(common_prefix(self._model.tokens, context), len(context) - 1)
        unread = context[shared:]
        if max(unread) >= self._model.n_vocab:
            return None
        self._model.keep(shared)
        return unread
