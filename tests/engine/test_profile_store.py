"""Profiles: what was learnt comes back for the same pair, and nonsense does not."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.core import machine
from localspec.core.formatting import size
from localspec.engine import profile_store
from localspec.engine.engine import Engine
from localspec.engine.loading.pair_file import ModelFile, open_pair_file
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.speculative.control.pair_profile import PairProfile
from tests.support.real_pair import TinyFiles, options
from tests.support.toy.models import toy_profile


def learnt() -> PairProfile:
    known = toy_profile()
    for right in (True, True, False):
        known.of("draft model, greedy").observe(1.5, right)
    return known


def saved(known: PairProfile) -> dict[str, Any]:
    """The profile as a file has it."""
    found: dict[str, Any] = json.loads(json.dumps(profile_store.as_json(known)))
    return found


def test_what_was_learnt_comes_back() -> None:
    assert profile_store.from_json(None) is None
    known = learnt()
    known.observe_answer(300, 90)
    known.company = 0.25
    again = profile_store.from_json(saved(known))
    assert again is not None
    assert again.reading == known.reading
    assert again.answers == known.answers
    assert again.company == 0.25
    assert again.verify.seconds(16, 0) == known.verify.seconds(16, 0)
    assert again.draft.seconds(1, 0) == known.draft.seconds(1, 0)
    group = "draft model, greedy"
    assert again.of(group).probability(1.5) == known.of(group).probability(1.5)


def test_an_earlier_profile_has_no_company() -> None:
    document = saved(learnt())
    del document["company"]
    again = profile_store.from_json(document)
    assert again is not None and again.company == PairProfile().company


def test_a_profile_of_many_kinds_of_sampling_is_read_again() -> None:
    known = learnt()
    for i in range(3000):
        known.of(f"draft model, coupled at {i / 10:.1f}").observe(i / 1000, True)
    document = saved(known)
    again = profile_store.from_json(document)
    assert again is not None and again.acceptance.keys() == known.acceptance.keys()
    counts = {"seen": [0] * 16, "right": [0] * 16, "often": [0] * 16}
    document["acceptance"] |= {str(i): counts for i in range(3000)}
    again = profile_store.from_json(document)  # an earlier version's
    assert again is not None and len(again.acceptance) == len(known.acceptance)


@pytest.mark.parametrize("document", ["", [], {}, 3, {"verify": 3}])
def test_a_damaged_profile_is_told(document: object) -> None:
    with pytest.raises(ValueError):
        profile_store.from_json(document)


@pytest.mark.parametrize(
    ("name", "value"),
    [("reading", -1), ("longer_reading", 2), ("reading", "x"), ("verify", {}),
     ("company", 1.5), ("company", -0.1), ("company", float("nan")), ("company", None),
     ("verify", {"widths": {"1": [1, -1, 0]}, "slopes": [0, 0]}), ("draft", []),
     ("acceptance", {"x": {}}), ("acceptance", 3), ("answers", []), ("answers", {"99": 1.0}),
     ("answers", {"x": 1.0}), ("answers", {"5": -1.0}), ("answers", {"5": float("nan")})],
)  # fmt: skip
def test_nonsense_in_a_profile_is_told(name: str, value: Any) -> None:
    with pytest.raises(ValueError):
        profile_store.from_json(saved(learnt()) | {name: value})


@pytest.mark.llama
def test_the_latest_of_two_models_is_found(tiny: TinyFiles) -> None:
    first, second = (
        ModelFile(read_header(path), options(path)) for path in (tiny.target, tiny.draft)
    )
    pair = [first.header, second.header]
    assert profile_store.latest(pair) is None
    for threads, reading in ((1, 0.25), (2, 0.5)):
        given = replace(first.options, threads=threads)
        file = open_pair_file(first._replace(options=given), second)
        file.update(profile=saved(replace(learnt(), reading=reading)))
        os.utime(file.path, (threads, threads))
    found = profile_store.latest(pair)
    assert found is not None and found.reading == 0.5
    assert profile_store.latest(pair[::-1]) is None
    for damage in ('{"profile": 3}', "{", "{}"):  # one that was only tried, too
        file.path.write_text(damage)
        found = profile_store.latest(pair)
        assert found is not None and found.reading == 0.25


@pytest.mark.llama
def test_an_engine_keeps_what_it_learnt(tiny: TinyFiles) -> None:
    pair = options(tiny.target), options(tiny.draft)
    with Engine.load(*pair) as engine:
        known = engine.profile.learnt(float)
        assert engine.profile.learnt(float) is known
        known.of("draft model, greedy").observe(1.5, False)
        path = engine.profile.path
    assert path.exists()
    with Engine.load(*pair) as engine:
        again = engine.profile.learnt(float)
        assert again.of("draft model, greedy").observations == pytest.approx(1)
    document = json.loads(path.read_text())
    disturbed = document["profile"]
    for width, (_, seconds, _) in disturbed["verify"]["widths"].items():
        if int(width) > 1:
            disturbed["verify"]["widths"][width][1] = 50 * seconds
    path.write_text(json.dumps(document | {"profile": disturbed | {"checked": 0}}))
    with Engine.load(*pair) as engine:
        measured = engine.profile.learnt(time.perf_counter)
        assert measured.verify.seconds(4, 0) < 25 * measured.verify.seconds(1, 0)  # again
        assert not any("saved profile" in note for note in engine.notes)
        assert measured.of("draft model, greedy").observations == pytest.approx(1)
    path.write_text("{")
    with Engine.load(*pair) as engine:
        assert engine.profile.learnt(float).of("draft model, greedy").observations == 0
        assert any("discarded" in note for note in engine.notes)


@pytest.mark.llama
@pytest.mark.parametrize("recalibrate", [False, True])
def test_a_folder_that_may_not_be_entered_is_told(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, recalibrate: bool
) -> None:
    def forbidden(*arguments: object, **more: object) -> Any:
        raise PermissionError(13, "Permission denied")

    said: list[str] = []
    with Engine.load(options(tiny.target), options(tiny.draft)) as engine:
        assert engine.profile.path.is_absolute()  # found while the models may be read
        with monkeypatch.context() as patch:
            for name in ("exists", "stat", "unlink", "mkdir", "open"):
                patch.setattr(Path, name, forbidden)
            if recalibrate:
                engine.profile.forget()
            engine.profile.introduce(said.append)
    assert "New on this machine" in said[0]
    assert "cannot be saved for the next time" in said[1] and "Permission denied" in said[1]


@pytest.mark.llama
def test_a_file_in_place_of_the_folder_is_told(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "file"))
    said: list[str] = []
    with Engine.load(options(tiny.target), options(tiny.draft)) as engine:
        engine.profile.forget()
        engine.profile.introduce(said.append)
    assert "cannot be saved for the next time" in said[1] and "Not a directory" in said[1]


@pytest.mark.llama
def test_a_profile_whose_file_cannot_be_written_is_not_read_again(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = options(tiny.target), options(tiny.draft)
    with Engine.load(*pair) as engine:
        engine.profile.learnt(float).of("draft model, greedy").observe(1.5, False)
    with Engine.load(*pair) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", lambda path, target: path.joinpath("x").rmdir())
            engine.profile.forget()
        assert json.loads(engine.profile.path.read_text())["profile"]
        assert engine.profile.learnt(float).of("draft model, greedy").observations == 0


DAY = 24 * 3600


@pytest.mark.llama
@pytest.mark.parametrize(
    ("busy", "checks"),
    [(None, [60, 60 + DAY, 30]), (60, [60, 120, 30])],  # what was checked while busy is not sure
)
def test_costs_are_checked_at_the_second_start_and_then_once_a_day(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, busy: int | None, checks: list[int]
) -> None:
    now, looks = [1e9], list[float]()

    def look(*arguments: object) -> bool:
        looks.append(now[0])
        return True

    monkeypatch.setattr(profile_store, "still_holds", look)
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(machine, "is_busy", lambda: now[0] - 1e9 == busy)
    for start in (0, 60, 120, 60 + DAY - 1, 60 + DAY, 30):  # the last one: the clock was set back
        now[0] = 1e9 + start
        with Engine.load(options(tiny.target), options(tiny.draft)) as engine:
            engine.profile.learnt(time.perf_counter)
    assert [look - 1e9 for look in looks] == checks


@pytest.mark.llama
def test_what_is_measured_again_is_checked_again(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[bool]()

    def look(*arguments: object) -> bool:
        looks.append(len(looks) > 0)
        return looks[-1]

    monkeypatch.setattr(profile_store, "still_holds", look)
    monkeypatch.setattr(machine, "is_busy", lambda: False)
    for _ in range(4):
        with Engine.load(options(tiny.target), options(tiny.draft)) as engine:
            known = engine.profile.learnt(time.perf_counter)
            assert known.company == (0.25 if looks else 0.5)  # it is no cost, and so it stays
            known.company = 0.25
    assert looks == [False, True]


@pytest.mark.llama
def test_passes_that_several_share_have_a_profile_of_their_own(tiny: TinyFiles) -> None:
    """They read the cells of all."""
    loaded = options(tiny.target, ctx_size=256)
    with Engine.load(loaded) as alone, Engine.load(replace(loaded, parallel=2)) as shared:
        assert alone.profile.path != shared.profile.path


@pytest.mark.llama
@pytest.mark.parametrize(
    ("wider", "widest", "step"),
    [(4.0, 99.0, 1.0), (2.5, 60.0, 1.0), (0.8, 99.0, 9.0), (7.5, 99.0, 1.0), (4.0, 99.0, 37.0)],
)
def test_a_draft_that_cannot_pay_is_told_with_its_memory(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, wider: float, widest: float, step: float
) -> None:
    monkeypatch.setattr(machine, "is_busy", lambda: False)
    known = PairProfile(reading=0.1, checked=time.time())
    for width, seconds in ((1, 1.0), (4, wider), (64, widest)):
        known.verify.observe(width, 0, seconds)
        known.draft.observe(width, 0, step * seconds)
    said: list[str] = []
    with Engine.load(options(tiny.target), options(tiny.draft)) as engine:
        engine.profile._profile = None
        engine.profile._file.update(profile=profile_store.as_json(known))
        engine.profile.introduce(said.append)
        assert isinstance(engine.draft, LlamaModel)
        free = size(engine.draft.memory.total)
    if wider < 1 or wider > 4 or step > 1:
        assert not any("will not pay" in sentence for sentence in said)
        busy = [each for each in said if "could not be measured: the machine is busy" in each]
        assert bool(busy) == (not 1 <= wider <= 4)
        return
    with (
        monkeypatch.context() as patched,
        Engine.load(options(tiny.target), options(tiny.draft)) as engine,
    ):
        patched.setattr(machine, "is_busy", lambda: True)
        engine.profile._profile = known
        assert "the machine is busy" in engine.profile._verdict(known)[0]
    # Four tokens in 2.5 passes: a copy of which four in five are right saves time.
    copies = ", and ends prompt lookup, by which edits and quotations come faster"
    assert said[-1] == (
        "The draft model will not pay on this machine (checking 4 tokens takes as long as "
        f"writing {wider}, guessing one as long as 1.00): --draft off frees {free}"
        f"{copies * (wider < 3)}."
    )
