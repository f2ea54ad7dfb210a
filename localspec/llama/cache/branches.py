"""Trees of candidates on llama.cpp: a path is a sequence, and all share the cells of the text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from localspec.core.config import BRANCHES, MAX_PATHS, MAX_ROWS
from localspec.core.interrupt import held_interrupt
from localspec.llama import llama_library
from localspec.llama.batch import TreeBatch
from localspec.llama.cache.copies import EVERY, LIVE
from localspec.llama.cache.tree import Tree
from localspec.speculative.loop import Logits

if TYPE_CHECKING:
    from localspec.llama.model import LlamaModel


class Branches:
    """A TreeDecoder for a model whose context holds `MAX_PATHS` sequences in shared cells.

    A token sees the cells that carry the first of its sequences, up to its own position
    (`llama_kv_cache::set_input_kq_mask`): one that carries all the paths that lead through it sees
    the text and what it follows. The text is in sequence `LIVE`. Others hold a beginning of it, and
    the rest once a tree needs them: each call walks all cells of the context, so few are made.

    Tokens of a branch that was accepted lie in other cells than they would have without it, so that
    later rows may round differently: nothing for ``--exact``.
    """

    paths = MAX_PATHS

    def __init__(self, model: "LlamaModel") -> None:
        asked = model.options.branches
        self.by_value = asked == "auto"
        self.branches = BRANCHES.high if asked == "auto" else asked
        self._model = model
        self._llama = llama_library.library()
        self._memory: Any = self._llama.llama_get_memory(model.context)
        self._batch = TreeBatch(self._llama, MAX_ROWS, MAX_PATHS)
        self._tokens: list[int] = []  # of the last pass, its filling included
        self._tree = Tree.of(())
        self._begin = 0  # position of its root

    def decode(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """See `TreeDecoder`; raises EngineError when llama.cpp refuses.

        A pass narrower than the model's ``min_width`` goes on behind its last leaf.
        """
        self._begin = self._model.begin_tree()
        self._tokens = [*tokens, *[tokens[-1]] * (self._model.min_width - len(tokens))]
        self._tree = Tree.of([*parents, *range(len(tokens) - 1, len(self._tokens) - 1)])
        with held_interrupt():
            self._bring_up(len(self._tree.lengths))
            positions = [self._begin + depth for depth in self._tree.depths]
            self._batch.fill(self._tokens, positions, self._tree.paths)
            return self._model.run(self._batch.native, self._begin)[: len(tokens)]

    def commit(self, rows: Sequence[int]) -> None:
        """See `TreeDecoder`.

        While passes are widened, to tell rounding from mistakes, tokens behind a row that is left
        out are read again: so they lie in the cells that they would have without a tree.
        """
        way = [0, *rows]
        in_order = [row for place, row in enumerate(way) if row == place]  # a beginning of it
        kept = in_order if self._model.min_width > 1 else way
        with held_interrupt():
            self._drop(kept)
            self._model.commit_tree([self._tokens[row] for row in kept])
        if len(kept) < len(way):
            self._model.decode([self._tokens[row] for row in way[len(kept) :]], 0)

    def free(self) -> None:
        """Give back what passes are written into."""
        self._batch.free()

    def _bring_up(self, paths: int) -> None:
        """Let the sequences of so many paths hold the text."""
        for path in range(1, paths):
            held = self._llama.llama_memory_seq_pos_max(self._memory, path) + 1
            if held < self._begin:
                self._llama.llama_memory_seq_cp(self._memory, LIVE, path, held, self._begin)

    def _drop(self, way: Sequence[int]) -> None:
        """Leave of the last pass this way in the text; of other paths what they share with it."""
        tree, end = self._tree, self._begin + len(way)
        if max(tree.lengths) > len(way):
            self._llama.llama_memory_seq_rm(self._memory, EVERY, end, -1)
        for path, length in enumerate(tree.lengths):
            shared = tree.shared(path, way)
            if shared < min(length, len(way)):
                self._llama.llama_memory_seq_rm(self._memory, path, self._begin + shared, -1)
        taken = tree.paths[way[-1]][0]
        if taken != LIVE:
            begin = self._begin + tree.shared(LIVE, way)
            self._llama.llama_memory_seq_cp(self._memory, taken, LIVE, begin, end)
