"""Documents of earlier runs: what is compared, what has changed, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from localspec.bench.prompts import Prompt
from localspec.bench.report.document import compare_documents, flat, read_document
from localspec.core.errors import FileProblem, UsageError

PROMPTS = [Prompt("t", ({"role": "user", "content": letter},)) for letter in "abcd"]


def document(seconds: float = 1.0, *, names: str = "abcd", **changes: Any) -> dict[str, Any]:
    """Two repeats of ten tokens, plain and with a draft of 2 in half the time, of each prompt."""
    rows = [
        {"prompt": name, "draft_tokens": length, "repeat": repeat, "tokens": 10,
         "generation_s": seconds / (1 + (length != 0)), "draft_prompt_s": 0.0}
        for length in (0, 2) for repeat in range(2) for name in names
    ]  # fmt: skip
    return {
        "format": 3, "version": "1", "date": "2026-11-26", "answers": rows,
        "prompts": [
            {"name": name, "task": "t", "messages": [{"role": "user", "content": name}]}
            for name in names
        ],
        "overall": {"left_out": []}, "target": {"file": "t.gguf"}, "draft": None,
        "machine": {"cpu": "A", "devices": [{"name": "CPU"}]}, "settings": {"repeats": 2},
    } | changes  # fmt: skip


def test_the_same_lengths_and_prompts_are_compared() -> None:
    now, before = document(0.8), document(1.0, names="abcde")
    for row in before["answers"]:
        if row["prompt"] == "e":
            row["generation_s"] = 99.0  # not measured now
    now["answers"] += [row | {"draft_tokens": "auto"} for row in now["answers"][:4]]
    found = compare_documents(now, before)
    assert (found.prompts, found.date, found.version, found.changes) == (4, "2026-11-26", "1", ())
    plain, drafted = found.ratios
    assert (plain.draft_tokens, drafted.draft_tokens) == (0, 2)
    assert (plain.before_tps, plain.now_tps) == pytest.approx((10, 12.5))
    assert plain.ratio == drafted.ratio == pytest.approx(1.25)
    assert plain.interval == pytest.approx((1.25, 1.25))


def test_the_interval_is_one_over_prompts() -> None:
    now = document()
    for row in now["answers"]:
        row["generation_s"] *= 0.5 if row["prompt"] in "ab" else 1.0
    (plain, _) = compare_documents(now, document()).ratios
    assert plain.interval is not None
    low, high = plain.interval
    assert 1 <= low < plain.ratio < high <= 2
    assert compare_documents(document(names="abc"), document()).ratios[0].interval is None


def test_prompts_are_known_by_their_messages_and_loops_are_left_out() -> None:
    before = document()
    for prompt, name in zip(before["prompts"], "bcda", strict=True):
        prompt["messages"] = [{"content": name, "role": "user"}]
    before["prompts"][3]["messages"][0]["content"] = "other"
    assert compare_documents(document(), before).prompts == 3
    looping = document(overall={"left_out": ["a", "b"]})
    assert compare_documents(looping, document()).prompts == 2


def test_changes_of_machine_files_and_settings() -> None:
    now = document(version="2", draft={"file": "d.gguf"}, settings={"repeats": 3})
    now["machine"] = {"cpu": "B", "devices": [{"name": "CPU"}]}
    assert compare_documents(now, document()).changes == (
        ("version", "1", "2"), ("machine.cpu", "A", "B"), ("settings.repeats", 2, 3),
        ("draft.file", None, "d.gguf"),
    )  # fmt: skip
    assert dict(flat({"a": {"b": [1, 2], "c": True}, "d": [{"e": None}], "f": []})) == {
        "a.b": "1, 2", "a.c": "yes",
    }  # fmt: skip


def test_an_earlier_document_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document()))
    assert read_document(path, PROMPTS) == document()
    with pytest.raises(UsageError, match="none of the prompts"):
        read_document(path, [Prompt("u", PROMPTS[0].messages)])
    path.write_text(json.dumps(document(answers=[], overall=None)))
    with pytest.raises(UsageError, match="none of the prompts"):
        read_document(path, PROMPTS)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "3", "{}", '{"format": 3}', "[" * 10**5, "not JSON",
        json.dumps(document(answers=[{"prompt": "a"}])),
        json.dumps(document(answers=[document()["answers"][0] | {"generation_s": float("nan")}])),
        json.dumps(document(answers=[document()["answers"][0] | {"generation_s": -1}])),
        json.dumps(document(answers=[document()["answers"][0] | {"tokens": 0}])),
        json.dumps(document(answers=[document()["answers"][0] | {"draft_tokens": []}])),
        json.dumps({key: value for key, value in document().items() if key != "date"}),
        json.dumps({key: value for key, value in document().items() if key != "machine"}),
        json.dumps(document(prompts=3)),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(FileProblem, match="is not the document of a benchmark") as refusal:
        read_document(path, PROMPTS)
    assert "--output" in refusal.value.hint


def test_other_formats_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document(format=2)))
    with pytest.raises(FileProblem, match="of format 2; this version reads format 3"):
        read_document(path, PROMPTS)
    with pytest.raises(FileProblem, match=r"cannot be read: No such file"):
        read_document(tmp_path / "none.json", PROMPTS)
