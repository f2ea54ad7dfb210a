"""Trees on real contexts: rows are those of their paths, and the cache holds exactly the text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.core.errors import EngineError
from localspec.core.options.load_options import MAX_PATHS, MAX_ROWS
from localspec.llama import llama_library
from localspec.llama.cache.branches import LlamaTrees, TreeRows
from localspec.llama.cache.rollback import Trim
from localspec.llama.model import LlamaModel
from localspec.llama.parameters import context_parameters
from localspec.speculative.loop import Logits
from tests.support.files.tiny_models import write_tiny_model
from tests.support.llama.today import TRIM, WAYS
from tests.support.real_pair import TinyFiles, load_model, options, random_ids

pytestmark = pytest.mark.llama

TEXT = random_ids(24)
FLOATS = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
NEAR = 1e-3  # of logits as great as 9, where one wrong token changes some by more than 0.05


class Watched(NamedTuple):
    """A model that takes trees, and the same without any."""

    model: LlamaModel
    oracle: LlamaModel

    @property
    def tree(self) -> LlamaTrees:
        assert self.model.tree is not None
        return self.model.tree

    def expected(self, tokens: Sequence[int], rows: int) -> Logits:
        """Logits after the last tokens of a text that is read for the first time."""
        self.oracle.truncate(0)
        return self.oracle.decode(tokens, rows).copy()

    def verify(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Decode a tree; each row is what its path gives without a tree."""
        text = [*self.model.tokens]
        rows = self.tree.decode(tokens, parents).copy()
        assert rows.shape == (len(tokens), self.model.n_vocab)
        for leaf in set(range(len(tokens))) - set(parents):
            path = path_to(leaf, parents)
            expected = self.expected([*text, *(tokens[row] for row in path)], len(path))
            assert np.abs(rows[path] - expected).max() < NEAR
        assert self.model.tokens == text

    def assert_holds(self, tokens: Sequence[int]) -> None:
        """The list, the cells of all sequences, and the next logits are those of these tokens."""
        assert self.model.tokens == list(tokens) and self.model.pending == 0
        llama = llama_library.library()
        memory = llama.llama_get_memory(self.model.context)
        ends = [llama.llama_memory_seq_pos_max(memory, i) + 1 for i in range(MAX_PATHS)]
        assert ends[0] == len(tokens) == max(ends)
        assert llama.llama_memory_seq_pos_min(memory, 0) == (0 if tokens else -1)
        assert [n_cells(self.model, i) for i in range(MAX_PATHS)] == ends
        expected = self.expected([*tokens, 7], 1)
        assert np.abs(self.model.decode([7], 1) - expected).max() < NEAR
        self.model.truncate(len(tokens))


@pytest.fixture(scope="module")
def _watched(tiny: TinyFiles) -> Iterator[Watched]:
    both = [load_model(tiny.floats, ctx_size=512, branches=n, **FLOATS) for n in (3, 1)]
    yield Watched(*both)
    for model in both:
        model.close()


@pytest.fixture
def watched(_watched: Watched) -> Iterator[Watched]:
    """With `TEXT` read."""
    begin(_watched)
    yield _watched
    _watched.model.min_width = 1


def begin(watched: Watched) -> None:
    watched.model.min_width = 1
    watched.model.truncate(0)
    watched.model.decode(TEXT, 0)


def n_cells(model: LlamaModel, sequence: int) -> int:
    """How many cells a sequence has, by the size of its state: one more is 1,036 bytes more."""
    llama = llama_library.library()
    size: int = llama.llama_state_seq_get_size(model.context, sequence)
    return max(0, (size - 72) // 1036)


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    """The rows from the root on."""
    return [0] if row == 0 else [*path_to(parents[row - 1], parents), row]


@st.composite
def trees(draw: st.DrawFn, most: int = 20) -> list[int]:
    """Parents of at least one candidate, and no more leaves than there may be."""
    parents: list[int] = []
    for row in range(draw(st.integers(1, most))):
        parent = draw(st.integers(0, row))
        more = {*range(len(parents) + 2)} - {*parents, parent}
        parents.append(parent if len(more) <= MAX_PATHS else row)
    return parents


@given(trees())
def test_each_path_leads_to_a_leaf(parents: list[int]) -> None:
    tree = TreeRows.of(parents)
    leaves = set(range(len(parents) + 1)) - set(parents)
    found = [
        [row for row, paths in enumerate(tree.paths) if path in paths]
        for path in range(len(tree.lengths))
    ]
    assert sorted(found) == sorted(path_to(leaf, parents) for leaf in leaves)
    assert tree.lengths == [len(rows) for rows in found]
    assert tree.depths == [len(path_to(row, parents)) - 1 for row in range(len(parents) + 1)]
    assert all(paths == sorted(paths) for paths in tree.paths)


def test_the_first_candidates_are_path_0() -> None:
    tree = TreeRows.of([0, 0, 1, 1, 3])  # 1 and 2 follow the root, 3 and 4 follow 1, 5 follows 3
    assert [row for row, paths in enumerate(tree.paths) if 0 in paths] == [0, 1, 3, 5]
    assert tree.lengths == [4, 2, 3]
    assert tree.shared(2, [0, 1, 3]) == 2 and tree.shared(1, [0, 1, 3]) == 1


KINDS = ["tree", "tree", "tree", "chain", "truncate", "abandon", "fail", "restore", "width"]
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), trees(), st.integers(0, 20)), min_size=3, max_size=10
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.integers(0, 99))
def test_after_any_history_the_cache_holds_the_text(
    watched: Watched, steps: list[tuple[str, list[int], int]], seed: int
) -> None:
    begin(watched)
    model, text, rng = watched.model, [*TEXT], np.random.default_rng(seed)
    for step, parents, number in steps:
        ids = rng.integers(0, 256, 1 + len(parents)).tolist()
        if step == "tree":
            watched.verify(parents, ids)
            path = path_to(min(number, len(parents)), parents)
            watched.tree.commit(path[1:])
            text += [ids[row] for row in path]
        elif step == "chain":
            ids = rng.integers(0, 256, number + 1).tolist()
            model.decode(ids, len(ids))
            text += ids[: number // 2 + 1]
            model.truncate(len(text))
        elif step == "truncate":
            text = text[: max(0, len(text) - number)]
            model.truncate(len(text))
        elif step == "abandon":
            watched.tree.decode([1, 2, 3, 4], [0, 0, 1])
        elif step == "fail":
            with pytest.raises(EngineError, match="could not decode"):
                watched.tree.decode([1, 2, 3, model.n_vocab], [0, 0, 1])
        elif step == "restore" and text:
            state = model.state()
            model.decode([1, 2, 3], 0)
            assert model.restore(text, state)
        elif step == "width":
            model.min_width = max(1, number)
        if number % 2 and step not in ("abandon", "width"):  # else the next step finds it so
            watched.assert_holds(text)
    model.min_width = 1
    model.truncate(len(text))
    watched.assert_holds(text)


def test_rows_of_a_tree_are_bit_for_bit_those_of_chains(demo_files: tuple[Path, Path]) -> None:
    """Flash attention skips masked cells; in F32 without it, sums are grouped otherwise."""
    branched, chains = (load_model(demo_files[0], ctx_size=256, branches=n) for n in (3, 1))
    tokens, parents = [5, 6, 7, 8, 9, 10, 11, 12], [0, 1, 2, 0, 4, 4, 1]
    branched.decode(TEXT, 0)
    assert branched.tree is not None
    rows = branched.tree.decode(tokens, parents).copy()
    for leaf in (3, 5, 6, 7):
        path = path_to(leaf, parents)
        chains.truncate(0)
        chains.decode(TEXT, 0)
        # As wide as the tree: rows of narrow passes round otherwise.
        ids = [tokens[row] for row in path] + [0] * (len(tokens) - len(path))
        assert np.array_equal(rows[path], chains.decode(ids, len(ids))[: len(path)])
    branched.close()
    chains.close()


@pytest.mark.parametrize(
    ("parents", "path"), [([0, 0, 2, 2], [2, 4]), ([0, 0, 1, 3], [1, 3]), ([0, 1, 1, 0], [1, 3])]
)
def test_widened_passes_leave_the_cells_in_order(
    demo_files: tuple[Path, Path], parents: list[int], path: list[int]
) -> None:
    """So texts with and without branches can be compared bit by bit, whichever rows were taken."""
    branched, chains = (load_model(demo_files[0], ctx_size=256, branches=n) for n in (3, 1))
    text = [*TEXT]
    for model in (branched, chains):
        model.min_width = 8
        model.decode(text, 0)
    assert branched.tree is not None
    for i in range(3):
        tokens = [30 + i, 40, 50, 60, 70]
        branched.tree.decode(tokens, parents)
        branched.tree.commit(path)
        taken = [tokens[row] for row in (0, *path)]
        chains.decode(taken, len(taken))
        text += taken
        assert branched.tokens == text
    assert np.array_equal(branched.decode([9], 1), chains.decode([9], 1))
    branched.close()
    chains.close()


def test_ctrl_c_while_tokens_are_read_again_leaves_a_beginning(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.model.min_width = 6
    watched.tree.decode([1, 2, 3, 4], [0, 0, 2])
    llama = llama_library.library()
    decode = llama.llama_decode

    def interrupted(*given: Any) -> None:
        decode(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(llama, "llama_decode", interrupted)
        watched.tree.commit([2, 3])
    watched.model.min_width = 1
    watched.model.truncate(len(TEXT) + 1)
    watched.assert_holds([*TEXT, 1])


def test_the_widest_tree(watched: Watched) -> None:
    """As many paths as there may be, and as many rows."""
    parents = [*[0] * MAX_PATHS, *range(1, MAX_ROWS - MAX_PATHS)]
    watched.verify(parents, random_ids(MAX_ROWS))
    last = path_to(MAX_ROWS - 1, parents)
    watched.tree.commit(last[1:])
    assert len(last) > 2
    watched.assert_holds([*TEXT, *(random_ids(MAX_ROWS)[row] for row in last)])


def test_two_leaves_cost_one_copy_of_what_is_missing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of llama.cpp walks all cells; sequences that no path needs are left alone."""
    made = count_calls(monkeypatch)

    def round_of(parents: Sequence[int], path: Sequence[int]) -> list[tuple[Any, ...]]:
        held = len(watched.model.tokens)
        made.clear()
        watched.tree.decode(random_ids(1 + len(parents)), parents)
        watched.tree.commit(path)
        return [
            (*call[:-2], *(end if end < 0 else end - held for end in call[-2:])) for call in made
        ]

    hedge = (0, 1, 2, 0)  # a chain of three, and another candidate for its first place
    assert round_of(hedge, [1, 2]) == [("cp", 0, 1, -24, 0), ("rm", -1, 3, -1), ("rm", 1, 1, -1)]
    assert round_of(hedge, [1, 2, 3]) == [("cp", 0, 1, -2, 0), ("rm", 1, 1, -1)]
    assert round_of(hedge, []) == [("cp", 0, 1, -3, 0), ("rm", -1, 1, -1)]
    assert round_of(hedge, [4]) == [("rm", -1, 2, -1), ("rm", 0, 1, -1), ("cp", 1, 0, 1, 2)]
    assert round_of((0, 1, 2), [1, 2, 3]) == []
    assert round_of((0, 1, 2), [1]) == [("rm", -1, 2, -1)]


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is asked of llama.cpp's memory from here on: sequences, and positions."""
    made: list[tuple[Any, ...]] = []
    llama = llama_library.library()

    def watch(short: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(memory: Any, *given: int) -> Any:
            made.append((short, *given))
            return call(memory, *given)

        return watched

    for short in ("cp", "rm"):
        name = f"llama_memory_seq_{short}"
        monkeypatch.setattr(llama, name, watch(short, getattr(llama, name)))
    return made


def test_a_context_that_is_full_is_as_it_was(tiny: TinyFiles) -> None:
    model = load_model(tiny.floats, ctx_size=256, branches=2)
    assert model.tree is not None
    model.decode(random_ids(250), 0)
    with pytest.raises(EngineError, match="could not decode 8 tokens at position 250"):
        model.tree.decode([*range(8)], [0] * 7)
    assert model.tokens == random_ids(250)
    model.tree.decode([*range(6)], [0] * 5)  # no cell was lost
    model.tree.commit([5])
    assert model.tokens == [*random_ids(250), 0, 5]
    model.close()


def test_a_state_that_does_not_fit_leaves_nothing_behind(watched: Watched) -> None:
    """Nor do the sequences of the tree before it."""
    watched.tree.decode([1, 2, 3], [0, 0])
    watched.tree.commit([1])
    state = watched.model.state()
    assert not watched.model.restore([1, 2], state)
    watched.assert_holds([])
    watched.verify([0, 0], [1, 2, 3])
    watched.tree.commit([2])
    watched.assert_holds([1, 3])


def test_a_state_serves_contexts_without_trees_and_the_other_way_round(watched: Watched) -> None:
    watched.tree.decode([1, 2, 3, 4], [0, 0, 2])
    watched.tree.commit([2, 3])
    text = [*TEXT, 1, 3, 4]
    assert watched.oracle.restore(text, watched.model.state())
    state, row = watched.oracle.state(), watched.oracle.decode([7], 1).copy()
    watched.model.truncate(0)
    assert watched.model.restore(text, state)
    watched.assert_holds(text)
    assert np.abs(watched.expected([*text, 7], 1) - row).max() < NEAR


@pytest.mark.parametrize("follows", ["tree", "chain", "truncate", "state", "returns_to", "lengths"])
def test_a_pass_of_which_nothing_was_taken_is_undone(watched: Watched, follows: str) -> None:
    """As after Ctrl-C while the sampler picks."""
    watched.tree.decode([1, 2, 3, 4], [0, 0, 1])
    text = [*TEXT]
    if follows == "tree":
        watched.verify([0, 1, 0], [5, 6, 7, 8])
        watched.tree.commit([3])
        text += [5, 8]
    elif follows == "chain":
        watched.model.decode([5, 6], 1)
        text += [5, 6]
    elif follows == "truncate":
        watched.model.truncate(len(text))
    elif follows == "state":
        assert watched.oracle.restore(text, watched.model.state())
    elif follows == "returns_to":
        assert watched.model.returns_to(len(text) + 2) == len(text)
    else:
        assert watched.model.reusable_lengths().last(len(text)) == len(text)
    watched.assert_holds(text)


def test_narrow_passes_are_filled_up(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the last leaf, whatever is taken then."""
    llama = llama_library.library()
    decode, widths = llama.llama_decode, list[int]()

    def noting(context: Any, batch: Any) -> int:
        widths.append(batch.n_tokens)
        return int(decode(context, batch))

    monkeypatch.setattr(llama, "llama_decode", noting)
    text = [*TEXT]
    for path in ([1, 2], [3], []):
        watched.model.min_width = 17
        rows = watched.tree.decode([1, 2, 3, 4], [0, 1, 0])
        assert rows.shape == (4, watched.model.n_vocab) and widths[-1] == 17
        watched.tree.commit(path)
        text += [1, *([2, 3, 4][row - 1] for row in path)]
        watched.model.min_width = 1
        watched.assert_holds(text)


def test_what_a_made_up_state_leaves_in_cells_is_wiped(watched: Watched) -> None:
    """Else masked cells with NaN in them would make all that is read NaN."""
    state = watched.model.state()
    state[-4000:] = 0xFF
    assert not watched.model.restore(TEXT[:-1], state)
    watched.verify([0, 0], [1, 2, 3])
    watched.tree.commit([2])
    watched.assert_holds([1, 3])


def test_heads_that_read_along_keep_the_chain(watched: Watched) -> None:
    watched.model.listener = lambda tokens, position, rows: None
    assert watched.model.tree is None
    watched.model.listener = None
    assert watched.model.tree is not None


def test_branches_can_be_lowered(watched: Watched) -> None:
    assert watched.tree.branches == 3 and watched.tree.paths == MAX_PATHS
    watched.tree.branches = 1
    assert watched.model.tree is not None and watched.model.tree.branches == 1
    watched.tree.branches = 3


@pytest.mark.parametrize("changes", [{"parallel": 2}, {"exact": True}])
def test_contexts_of_chains_are_as_without_branches(
    tiny: TinyFiles, changes: dict[str, Any]
) -> None:
    asked = options(tiny.target, branches=3, **changes)
    with_branches, without = (
        context_parameters(each, 64, 1, Trim.name) for each in (asked, replace(asked, branches=1))
    )
    assert bytes(with_branches) == bytes(without)
    model = load_model(tiny.target, branches=3, **changes)
    assert model.tree is None
    model.close()


def test_models_that_keep_more_than_the_text_have_none(tiny: TinyFiles, tmp_path: Path) -> None:
    sliding = write_tiny_model(tmp_path / "sliding.gguf", seed=1, layers=4, window=32)
    for path in (tiny.recurrent, sliding):
        found, without = (load_model(path, branches=branches) for branches in (3, 1))
        assert found.tree is None and found.memory == without.memory
        assert found.rollback.name == without.rollback.name
        found.close()
        without.close()


@pytest.mark.parametrize("name", [name for name, ways in WAYS.items() if ways == TRIM])
def test_architectures_that_trim(name: str, architecture: Callable[[str], Path]) -> None:
    """Those with sliding layers keep chains; experts are chosen for each row by itself."""
    exact = FLOATS | {"ctx_size": 256}
    model, oracle = (load_model(architecture(name), branches=n, **exact) for n in (3, 1))
    watched = Watched(model, oracle)
    assert (model.tree is None) == (name in ("gemma4", "step35"))
    model.decode(TEXT, 0)
    if model.tree is not None:
        watched.verify([0, 1, 0, 0, 3, 3], [1, 2, 3, 4, 5, 6, 7])
        watched.tree.commit([3, 6])
        watched.verify([0, 0], [8, 9, 10])
    model.close()
    oracle.close()


def test_a_cache_that_mixes_up_its_paths_gets_a_context_of_chains(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if llama.cpp let each token see the tokens of all paths."""
    llama = llama_library.library()
    decode = llama.llama_decode

    def mixing(context: Any, batch: Any) -> int:
        for i in range(batch.n_tokens):
            batch.pos[i] = batch.pos[0] + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        return int(decode(context, batch))

    monkeypatch.setattr(llama, "llama_decode", mixing)
    model = load_model(tiny.target, branches=3)
    assert model.tree is None and model.rollback.name == Trim.name
    assert model.options.branches == 1 and llama.llama_n_seq_max(model.context) == 1
    model.close()


def test_tokens_without_a_logit_are_no_reason_against_trees(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(model: LlamaModel, rows: Logits) -> Logits:
        return np.where(np.arange(model.n_vocab) < 5, np.float32(-np.inf), rows)

    monkeypatch.setattr(LlamaModel, "by_id", lacking)
    model = load_model(tiny.target, branches=3)
    assert model.tree is not None
    model.close()


def test_a_cache_that_takes_no_trees_gets_a_context_of_chains(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if llama.cpp refused tokens of several sequences."""
    llama = llama_library.library()
    decode = llama.llama_decode

    def refusing(context: Any, batch: Any) -> int:
        return -1 if batch.n_seq_id[0] > 1 else int(decode(context, batch))

    monkeypatch.setattr(llama, "llama_decode", refusing)
    model, oracle = (load_model(tiny.target, branches=branches) for branches in (3, 1))
    assert model.tree is None and model.rollback.name == Trim.name
    assert np.array_equal(model.decode(TEXT, 1), oracle.decode(TEXT, 1))
    model.close()
    oracle.close()
