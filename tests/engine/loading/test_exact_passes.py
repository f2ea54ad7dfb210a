"""--exact on real models: one text with any draft, and whatever is in the cache."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec.core import paths
from localspec.core.errors import EngineError
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.loading import exact_passes
from localspec.engine.loading import pair as loading
from localspec.engine.loading.exact_passes import exact_findings
from localspec.llama import model
from localspec.llama.batch import decode
from localspec.llama.pass_class import NATURAL, PassClass, Rounding
from localspec.llama.row_kernels import RowKernels
from tests.support.files.tiny_models import write_tiny_model
from tests.support.llama.row_kernels import FakeLibrary, number_of
from tests.support.real_pair import GREEDY, LENGTHS, TinyFiles, fresh, generate, options

pytestmark = pytest.mark.llama
EXACT: dict[str, object] = {"exact": True, "row_kernels": False}
TEXTS = ("the same beginning, one end", "the same beginning, another end", "others " * 20)


def stored() -> tuple[Path, dict[str, Any]]:
    """The one file that keeps passes, and its parts."""
    files = [*(paths.cache_folder() / "pairs").glob("*.json")]
    (found,) = [
        (path, parts) for path in files if "passes" in (parts := json.loads(path.read_text()))
    ]
    return found


def pair(tiny: TinyFiles) -> Engine:
    """With llama.cpp's own kernels, whose passes round apart."""
    return Engine.load(options(tiny.target, **EXACT), options(tiny.draft))


@pytest.mark.parametrize("alone", [False, True])
def test_one_text_with_any_draft_and_any_cache(tiny: TinyFiles, alone: bool) -> None:
    with pair(tiny) as engine:
        passes = engine.target.passes
    path, parts = stored()
    changed = dict.fromkeys(parts["passes"], asdict(passes) | {"alone": alone})
    path.write_text(json.dumps(parts | {"passes": changed}))
    for params in (GREEDY, SamplingParams(temperature=0.9, seed=7)):
        texts: dict[str, set[tuple[int, ...]]] = {text: set() for text in TEXTS}
        with pair(tiny) as engine:
            assert (engine.draft is None) == alone
            assert any("drafting is off" in note for note in engine.notes) == alone
            for length in LENGTHS:
                engine.target.truncate(0)
                for text in (*TEXTS, *TEXTS[:2]):
                    prompt = engine.encode_text(text)
                    found = generate(engine, prompt, params, length)
                    texts[text].add(tuple(found.tokens))
                    assert found.stats.drafted == 0 or not alone
                longer = [*prompt, *found.tokens[:9]]  # goes on behind what an answer wrote
                warm = generate(engine, longer, params, length)
                cold = fresh(engine, longer, params, length)
                texts.setdefault("longer", set()).update({tuple(warm.tokens), tuple(cold.tokens)})
        assert {text: len(each) for text, each in texts.items()} == dict.fromkeys(texts, 1)


def test_one_text_behind_refused_passes(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever pass llama.cpp refuses, of target or draft, in a prompt or an answer."""
    with pair(tiny) as engine:
        prompt = engine.encode_text(TEXTS[0])
        expected = generate(engine, prompt, GREEDY, 3).tokens
        for refused in range(1, 9):
            assert engine.draft is not None
            engine.target.truncate(0)
            engine.draft.truncate(0)
            codes = iter([*[0] * (refused - 1), 1])
            with monkeypatch.context() as patch, pytest.raises(EngineError, match="code 1"):
                patch.setattr(model, "decode", partial(refusing, codes))
                generate(engine, prompt, GREEDY, 3)
            assert generate(engine, prompt, GREEDY, 3).tokens == expected


def refusing(codes: Iterator[int], *arguments: Any) -> int:
    """A pass, unless the next code refuses it."""
    return next(codes) or decode(*arguments)


def test_a_class_is_searched_once(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with Engine.load(options(tiny.target, **EXACT), say=said.append) as engine:
        passes = engine.target.passes
    assert sum("round alike" in sentence for sentence in said) == 1
    monkeypatch.setattr(exact_passes, "find_class", lambda model: pytest.fail("searched again"))
    with pair(tiny) as engine:  # the same with a draft
        assert engine.target.passes == passes
        assert f"With --exact, {passes}." in exact_findings(engine.target.header)


@pytest.mark.parametrize("damage", ["", [1], {}, {"step": 3, "widest": 9, "alone": False}])
def test_damaged_passes_are_replaced(tiny: TinyFiles, damage: object) -> None:
    for _ in range(2):
        with pair(tiny) as engine:
            passes: PassClass = engine.target.passes
        path, known = stored()
        path.write_text(json.dumps(known | {"passes": dict.fromkeys(known["passes"], damage)}))
    assert [*known["passes"].values()] == [asdict(passes)]


# -- with row kernels ----------------------------------------------------------------------


def with_kernels(path: Path, **changes: object) -> Engine:
    """An engine whose files are used here, without a child before it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "use_first", lambda *given: None)
        return Engine.load(options(path, **changes))


def test_where_all_widths_round_alike_exact_costs_nothing(
    kernels: RowKernels, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found out once, with --exact and without, for any draft."""
    monkeypatch.setattr(exact_passes, "_WORTH_TELLING", 0)
    said: list[str] = []
    with Engine.load(options(tiny.target), options(tiny.draft), say=said.append) as engine:
        assert engine.target.rounding == Rounding(True)
        equality = engine.text_equality
    assert equality is not None and "the drafted text is the plain text" in equality
    assert sum(sentence.startswith("New on this machine") for sentence in said) == 1
    with Engine.load(options(tiny.target, ctx_size=600), None, say=said.append):
        assert said[-1].startswith(
            "New with these settings: checking that drafted text will be the same"
        )
    monkeypatch.setattr(exact_passes, "all_alike", lambda model: pytest.fail("searched again"))
    monkeypatch.setattr(exact_passes, "find_class", lambda model: pytest.fail("searched"))
    said.clear()
    with Engine.load(
        options(tiny.target, exact=True), options(tiny.draft), say=said.append
    ) as engine:
        assert engine.target.passes == NATURAL and engine.draft is not None
        assert not any("round" in sentence for sentence in [*engine.notes, *said])
        assert f"With row kernels, {Rounding(True)}." in exact_findings(engine.target.header)
        prompt = engine.encode_text(TEXTS[0])
        texts = {tuple(fresh(engine, prompt, GREEDY, length).tokens) for length in LENGTHS}
        assert len(texts) == 1


def test_what_the_kernels_leave_is_named_and_stored(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLibrary(left=[(number_of("MUL_MAT"), 11)]).install(monkeypatch)
    monkeypatch.setattr(exact_passes, "all_alike", lambda model: False)
    expected = Rounding(False, "Q3_K in products")
    for _ in range(2):
        with with_kernels(tiny.target) as engine:
            assert engine.target.rounding == expected
            assert engine.text_equality == (
                "Drafted texts may differ from plain ones by rounding: llama.cpp's own code "
                "computes Q3_K in products."
            )
        assert exact_findings(engine._target.header) == [f"With row kernels, {expected}."]
        monkeypatch.setattr(exact_passes, "all_alike", lambda model: pytest.fail("again"))
    alone = PassClass(8, 56, alone=True)
    monkeypatch.setattr(exact_passes, "find_class", lambda model: alone)
    with with_kernels(tiny.target, exact=True) as engine:
        assert engine.target.passes == alone
        assert engine.notes[0].endswith("llama.cpp's own code computes Q3_K in products.")


def test_without_a_trial_known_rounding_is_taken_and_no_other_is_measured(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The children of `localspec tune` load each setting anew, some with one thread."""
    FakeLibrary().install(monkeypatch)
    asked = list[object]()

    def alike(model: object) -> bool:
        asked.append(model)
        return True

    monkeypatch.setattr(exact_passes, "all_alike", alike)
    with Engine.load(options(tiny.target), trial=False) as engine:
        assert engine.target.rounding is None and not asked
    with with_kernels(tiny.target):
        assert len(asked) == 1
    with Engine.load(options(tiny.target), trial=False) as engine:
        assert engine.target.rounds_alike
    with Engine.load(options(tiny.target, threads=2, exact=True), trial=False) as engine:
        assert engine.target.rounds_alike and len(asked) == 2  # or passes would be filled up


def test_windows_that_use_cells_again_are_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLibrary().install(monkeypatch)
    monkeypatch.setattr(exact_passes, "all_alike", lambda model: True)
    path = write_tiny_model(tmp_path / "m.gguf", seed=1, layers=4, window=64, context_length=4096)
    for exact, ctx_size, said in ((False, 2048, "up to 704 tokens"), (True, 2048, "all widths")):
        with with_kernels(path, exact=exact, ctx_size=ctx_size) as engine:
            assert engine.target.rounds_alike and said in (engine.text_equality or "")
    with with_kernels(path, ctx_size=512) as engine:
        assert "all widths" in (engine.text_equality or "")


@pytest.mark.parametrize("damage", ["", [1], {}, {"alike": 1, "left": ""}, {"alike": True}])
def test_damaged_findings_are_replaced(
    tiny: TinyFiles, damage: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLibrary().install(monkeypatch)
    monkeypatch.setattr(exact_passes, "all_alike", lambda model: True)
    for _ in range(2):
        with with_kernels(tiny.target) as engine:
            assert engine.target.rounds_alike
        (path,) = (paths.cache_folder() / "pairs").glob("*.json")
        known = json.loads(path.read_text())
        path.write_text(json.dumps(known | {"rounding": dict.fromkeys(known["rounding"], damage)}))
    assert [*known["rounding"].values()] == [{"alike": True, "left": ""}]


def test_a_tiny_context_has_no_room_to_find_it_out(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLibrary().install(monkeypatch)
    with with_kernels(tiny.target, ctx_size=8) as engine:
        assert engine.target.rounding is None


def test_without_kernels_nothing_is_found_out_unasked(no_kernels: None, tiny: TinyFiles) -> None:
    with with_kernels(tiny.target) as engine:
        assert engine.target.rounding is None and engine.text_equality is None
