"""The command doctor: the facts of this machine, healthy or not."""

import json

import pytest

from localspec import __version__
from localspec.commands.flags import tuned
from localspec.engine import doctor
from localspec.engine.doctor import DoctorReport
from localspec.engine.loading import exact_passes
from tests.support.command import Command

pytestmark = pytest.mark.llama


def test_doctor(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_passes, "_WORTH_TELLING", 0)  # the demo's models are small
    done = localspec("doctor")
    assert done.code == 0 and done.err.endswith("for up to a minute.\n")
    assert done.out.startswith("localspec") and "\ndemo              runs: " in done.out
    again = localspec("doctor", "--json")
    assert again.err == ""  # what was found is kept
    facts = json.loads(again.out)
    assert facts["healthy"] is True and facts["facts"]["localspec"] == __version__


def test_the_doctor_names_tuned_models(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda say: DoctorReport({"demo": "runs"}))
    tuned.keep("big", None, {"threads": 1})
    assert "tuned  big (" in localspec("doctor").out


def test_an_unhealthy_doctor(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    ill = DoctorReport({"demo": "fails: so it is"}, ["Mend it."], healthy=False)
    monkeypatch.setattr(doctor, "examine", lambda say: ill)
    done = localspec("doctor")
    assert (done.code, done.out) == (1, "demo  fails: so it is\nadvice: Mend it.\n")
    assert localspec("doctor", "--json").code == 1
