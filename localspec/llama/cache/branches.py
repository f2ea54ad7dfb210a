"""Trees of candidates on llama.cpp: a path is a sequence, and all share the cells of the text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec.core.interrupt import held_interrupt
from localspec.core.options.load_options import MAX_PATHS, MAX_ROWS
from localspec.llama import llama_library
from localspec.llama.batch import TreeBatch, are_numbers, with_unknown_rows
from localspec.llama.cache.copies import EVERY, TEXT_SEQUENCE, NativeSequence
from localspec.speculative.loop import Logits

if TYPE_CHECKING:
    from localspec.llama.model import LlamaModel


class TreeRows(NamedTuple):
    """Rows of a pass over a tree by depth, the root's being 0, and the paths from it to a leaf.

    ``paths`` are, for each row, the numbers of the paths that lead through it, in order; all lead
    through row 0. Path 0 takes the first candidate at each place. ``lengths`` are the rows in each.
    """

    depths: list[int]
    paths: list[list[int]]
    lengths: list[int]

    @classmethod
    def of(cls, parents: Sequence[int]) -> "TreeRows":
        """The tree in which row i + 1 follows row ``parents[i]``, which comes before it."""
        depths, first = [0], dict[int, int]()
        for row, parent in enumerate(parents, start=1):
            depths.append(depths[parent] + 1)
            first.setdefault(parent, row)
        main = 0
        while main in first:
            main = first[main]
        others = (row for row in range(len(depths)) if row not in first and row != main)
        leaves = [main, *others]
        paths: list[list[int]] = [[] for _ in depths]
        for path, row in enumerate(leaves):
            while row:
                paths[row].append(path)
                row = parents[row - 1]
            paths[0].append(path)
        return cls(depths, paths, [depths[leaf] + 1 for leaf in leaves])

    def shared(self, path: int, rows: Sequence[int]) -> int:
        """How many of ``rows``, which lead down from the root, are also on a path."""
        return sum(path in self.paths[row] for row in rows)


class LlamaTrees:
    """A TreeDecoder for a model whose ``context`` holds `MAX_PATHS` sequences in shared cells.

    A token sees the cells that carry the first of its sequences, up to its own position
    (`llama_kv_cache::set_input_kq_mask`): one that carries all the paths that lead through it sees
    the text and its own predecessors. The text is in sequence `TEXT_SEQUENCE`. Others hold
    a beginning of it, and the rest once a tree needs them: each call walks all cells of the
    context, so few are made.

    Tokens of a branch that was accepted lie in other cells than they would have without it, so that
    later rows may round differently: not for ``--exact``.
    """

    paths = MAX_PATHS

    def __init__(self, model: "LlamaModel", context: Any, branches: int) -> None:
        self.branches = branches
        self._model = model
        self._llama = llama_library.library()
        self._paths = [NativeSequence(self._llama, context, i) for i in range(MAX_PATHS)]
        self._every = NativeSequence(self._llama, context, EVERY)
        self._batch = TreeBatch(self._llama, MAX_ROWS, MAX_PATHS)
        self._tokens: list[int] = []  # of the last pass, its padding included
        self._tree = TreeRows.of(())
        self._begin = 0  # position of its root

    def decode(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """See `TreeDecoder`; raises EngineError when llama.cpp refuses.

        A pass is padded after its last leaf to a multiple of the model's ``min_width``.
        """
        self._begin = self._model.begin_tree()
        filling = min(-len(tokens) % self._model.min_width, MAX_ROWS - len(tokens))
        self._tokens = [*tokens, *[tokens[-1]] * filling]
        self._tree = TreeRows.of([*parents, *range(len(tokens) - 1, len(self._tokens) - 1)])
        with held_interrupt():
            self._copy_text(len(self._tree.lengths))
            positions = [self._begin + depth for depth in self._tree.depths]
            self._batch.fill(self._tokens, positions, self._tree.paths)
            rows = self._model.decode_tree(self._batch.native, self._begin)[: len(tokens)]
        return rows if are_numbers(rows) else self._decode_again(tokens, parents)

    def _decode_again(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """See `LlamaModel.decode`: the logits were not numbers."""
        text, is_from_file = self._model.drop_all()
        if is_from_file:
            self._model.decode(text, 0)
            return self.decode(tokens, parents)
        self._model.decode_anew([*text, tokens[0]])
        self._model.truncate(len(text))
        return with_unknown_rows(self.decode(tokens[:1], ()), len(tokens))

    def commit(self, rows: Sequence[int]) -> None:
        """See `TreeDecoder`.

        While passes are padded, to distinguish rounding from mistakes, tokens after a row that is
        left out are read again: so they lie in the cells that they would have without a tree.
        """
        accepted = [0, *(row for row in rows if row < len(self._tokens))]  # those that were read
        in_order = [row for place, row in enumerate(accepted) if row == place]  # a beginning of it
        kept = in_order if self._model.min_width > 1 else accepted
        with held_interrupt():
            self._drop_others(kept)
            self._model.commit_tree([self._tokens[row] for row in kept])
        if len(kept) < len(accepted):
            self._model.decode([self._tokens[row] for row in accepted[len(kept) :]], 0)

    def free(self) -> None:
        self._batch.free()

    def _copy_text(self, paths: int) -> None:
        """Let the sequences of ``paths`` paths hold the text."""
        for path in self._paths[1:paths]:
            if (held := path.end) < self._begin:
                self._paths[TEXT_SEQUENCE].share(path.number, held, self._begin)

    def _drop_others(self, rows: Sequence[int]) -> None:
        """Leave these rows of the last pass in the text; of other paths only the shared tokens."""
        tree, end = self._tree, self._begin + len(rows)
        if max(tree.lengths) > len(rows):
            self._every.drop(end)
        for path, length in enumerate(tree.lengths):
            shared = tree.shared(path, rows)
            if shared < min(length, len(rows)):
                self._paths[path].drop(self._begin + shared)
        taken = tree.paths[rows[-1]][0]
        if taken != TEXT_SEQUENCE:
            begin = self._begin + tree.shared(TEXT_SEQUENCE, rows)
            self._paths[taken].share(TEXT_SEQUENCE, begin, end)
