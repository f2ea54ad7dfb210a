"""Prompts: ours are of every kind, a file's are read with care."""

import json
from pathlib import Path

import pytest

from localspec.bench.prompts import BenchPrompt, by_task, in_turn, read_prompts
from localspec.commands.bench.bench import BenchFlags
from localspec.core.errors import FileProblem, UsageError
from localspec.core.options.option import options


def test_ours_cover_every_kind_of_task_twice() -> None:
    groups = by_task(read_prompts())
    assert list(groups) == ["code", "translate", "summarise", "write", "maths", "answer", "edit"]
    texts = [prompt.messages[0]["content"] for group in groups.values() for prompt in group]
    assert {len(group) for group in groups.values()} == {2}
    assert len(set(texts)) == len(texts) and min(map(len, texts)) > 100


def test_tasks_take_turns_and_a_single_one_keeps_its_name() -> None:
    groups = by_task(read_prompts())
    (mixed,) = in_turn(groups).values()
    assert [prompt.task for prompt in mixed] == [*groups, *groups]
    assert mixed[7] == groups["code"][1]
    assert in_turn({"code": groups["code"]}) == {"code": groups["code"]}


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "prompts.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Größe?"},
        {"role": "assistant", "content": "12"},
        {"role": "user", "content": "And now?"},
    ]
    path = written(tmp_path, {"prompt": "One."}, "", {"task": "talk", "messages": talk}, "  ")
    assert read_prompts(path) == [
        BenchPrompt("prompts", ({"role": "user", "content": "One."},)),
        BenchPrompt("talk", tuple(talk)),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize(
    "line", ['Write "a".', '"Write \\"a\\"."', '[{"role": "user", "content": "Write \\"a\\"."}]']
)
def test_a_line_may_be_text_or_messages(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(f'{line}\n42\n"a" or b\n')
    texts = [prompt.messages[0]["content"] for prompt in read_prompts(path)]
    assert texts == ['Write "a".', "42", '"a" or b']


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", "[1, 2", "{}", '{"prompt": 3}', '{"prompt": "a", "task": 3}',
        '{"prompt": "a", "task": " "}', '{"messages": []}', '{"messages": "a"}',
        '{"messages": ["a"]}', '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "robot", "content": "a"}]}',
        '{"messages": [{"role": "user", "content": 3}]}',
        '{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(FileProblem, match="prompts.jsonl, line 2: ") as raised:
        read_prompts(written(tmp_path, {"prompt": "Fine."}, line))
    assert '{"task": "code", "prompt"' in raised.value.hint


def test_files_without_prompts(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="holds no prompts"):
        read_prompts(written(tmp_path, "", " "))
    with pytest.raises(FileProblem, match="cannot be read: No such file"):
        read_prompts(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(FileProblem, match="cannot be read: .*utf-8"):
        read_prompts(tmp_path / "latin.jsonl")


def test_what_editors_do_to_files(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    text = json.dumps({"task": " code ", "prompt": "one\u2028two"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n{text}\r\n".encode())
    once = BenchPrompt("code", ({"role": "user", "content": "one\u2028two"},))
    assert read_prompts(path) == [once, once]


def test_an_endless_file_is_not_read() -> None:
    if Path("/dev/zero").exists():
        with pytest.raises(FileProblem, match="is larger than"):
            read_prompts(Path("/dev/zero"))


def test_groups_keep_their_order() -> None:
    prompts = [BenchPrompt(task, ()) for task in ("b", "a", "b", "c")]
    groups = by_task(prompts)
    assert {task: len(group) for task, group in groups.items()} == {"b": 2, "a": 1, "c": 1}
    assert list(groups) == ["b", "a", "c"]
    assert list(by_task(prompts, " c,b,")) == ["b", "c"]
    for wanted, missing in (("a,x", "x"), (",", ","), ("", "")):
        with pytest.raises(UsageError, match=f"no task '{missing}'") as raised:
            by_task(prompts, wanted)
        assert raised.value.hint == "Tasks here: b, a, c."


def test_the_shipped_tasks_are_named_in_help() -> None:
    (named,) = (each for each in options(BenchFlags).values() if "--tasks" in each.flags)
    assert ", ".join(sorted({prompt.task for prompt in read_prompts()})) in named.help
