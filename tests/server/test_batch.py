"""Files of requests: what a line may be, results, what is left after an interruption."""

import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.prompts import read_prompts
from localspec.core.errors import FileProblem, UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.session.session import Session
from localspec.server.batch import BatchLine, BatchRun, read_done, read_lines
from localspec.server.service import Defaults, Service
from tests.support.served import HELLO, ServedToy

GREEDY = Defaults(GenerateOptions(SamplingParams(temperature=0), max_tokens=8))


def answered(*requests: object, **settings: Any) -> list[dict[str, Any]]:
    """The results of lines, in the order of the lines."""
    toy, output = ServedToy(), io.StringIO()
    lines = [BatchLine(str(i), request) for i, request in enumerate(requests)]
    with closing(Session([toy])) as session:
        service = Service(cast("Any", toy), session, GREEDY)
        run = BatchRun(service, output, **settings)
        run.run(lines)
    results = [json.loads(line) for line in output.getvalue().splitlines()]
    assert run.results == len(results) == len(requests)
    assert run.errors == sum(each["response"]["status_code"] != 200 for each in results)
    assert all(each["error"] is None for each in results)
    return sorted(results, key=lambda each: int(each["custom_id"]))


def text_of(result: dict[str, Any]) -> str:
    assert result["response"]["status_code"] == 200, result
    return str(result["response"]["body"]["choices"][0]["message"]["content"])


def test_every_form_of_a_line_asks_the_same() -> None:
    body = {"model": "gpt-4o", "messages": HELLO, "stream": True}
    results = answered(
        "hello",
        HELLO,
        {"id": "a", "messages": HELLO},
        {"custom_id": "b", "prompt": "hello"},
        {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": body},
    )
    assert len({text_of(result) for result in results}) == 1
    for result in results:
        assert result["response"]["body"]["usage"]["completion_tokens"] == 8
        assert result["response"]["body"]["timings"]["predicted_n"] == 8


def test_a_completion_continues_a_text() -> None:
    (result,) = answered({"url": "/v1/completions", "body": {"prompt": "hello", "max_tokens": 3}})
    assert result["response"]["body"]["object"] == "text_completion"
    assert result["response"]["body"]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (None, "The line is not a request."),
        (5, "The line is not a request."),
        ({"prompt": "hello", "temperature": "warm"}, "temperature should be a number"),
        ({}, "messages"),
        ({"prompt": 5}, "messages should be a list, not 5."),
        ({"url": "/v1/embeddings", "body": {}}, "There is nothing at /v1/embeddings."),
    ],
)
def test_what_cannot_be_answered_is_a_result(line: object, said: str) -> None:
    refused, hello = answered(line, "hello")
    assert text_of(hello)
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["message"].startswith(said)


def test_a_failure_of_the_engine_ends_no_other_line() -> None:
    broken = {"url": "/v1/completions", "body": {"prompt": "break"}}
    failed, hello = answered(broken, "hello")
    assert failed["response"]["status_code"] == 500 and text_of(hello)
    assert "somebody" not in json.dumps(failed)


def test_flags_hold_where_a_line_says_nothing() -> None:
    fields = {"stop": ["c"]}
    one, two, plain = answered("hello", {"prompt": "hello", "stop": []}, "hello", fields=fields)
    assert "c" not in text_of(one) and text_of(one) == text_of(plain)
    assert text_of(two).startswith(text_of(one)) and "c" in text_of(two)
    assert text_of(answered("hello", system="Be brief")[0]) != ""


def test_lines_keep_their_ids_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    file.write_text('"a"\n\n{"custom_id": "x", "prompt": "b"}\n{"id": 7}\nplain {text}\n')
    assert read_lines(file) == [
        BatchLine("1", "a"),
        BatchLine("x", {"custom_id": "x", "prompt": "b"}),
        BatchLine("7", {"id": 7}),
        BatchLine("5", "plain {text}"),
    ]
    file.write_text('{"custom_id": "2", "prompt": "a"}\n"b"\n')
    with pytest.raises(UsageError, match="custom_id '2'"):
        read_lines(file)


LINES = [BatchLine(name, None) for name in ("1", "ü", "3")]


def result(custom_id: str, status: int = 200) -> str:
    """A line of results."""
    response = {"status_code": status}
    return json.dumps({"id": "batch_req_0", "custom_id": custom_id, "response": response}) + "\n"


RESULTS = "".join(result(each.custom_id) for each in LINES).encode()


@given(st.integers(0, len(RESULTS)))
def test_a_result_that_was_cut_off_is_made_again(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "results.jsonl"
    file.write_bytes(RESULTS[:length])
    whole = RESULTS[:length].rpartition(b"\n")[0]
    assert read_done(file, LINES) == {json.loads(each)["custom_id"] for each in whole.splitlines()}
    assert file.read_bytes() == (whole + b"\n" if whole else b"")


def test_other_files_are_not_written_into(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for text in (
        '{"custom_id": "4"}\n',
        "precious\nwords\n",
        "[" * 10_000 + "\n",
        "\n\n",
        '{"custom_id": []}\n',
        '{"custom_id": "1", "prompt": "a"}\n',
        '{"custom_id": "1", "response": {"status_code": []}}\n',
        "precious words",  # which are no result that was cut off
        '{"precious": "words"}',
        '{"id": "batch_1',
        '{"custom_id": "1", "prompt": "a"}\n{"custom_id": "3", "prompt": "b"}',  # the requests
        result("1") + '{"custom_id": "3", "prompt": "b"}',
    ):
        file.write_text(text)
        with pytest.raises(FileProblem, match="something else"):
            read_done(file, LINES)
        assert file.read_text() == text
    assert read_done(tmp_path / "none.jsonl", LINES) == set()


def test_an_id_that_is_no_text_is_an_error_of_its_line(tmp_path: Path) -> None:
    batch, results = tmp_path / "batch.jsonl", tmp_path / "results.jsonl"
    batch.write_text('{"custom_id": "\\ud800", "prompt": "hello"}\n"hello"\n')
    lines = read_lines(batch)
    with results.open("w", encoding="utf-8") as output, closing(Session([ServedToy()])) as queue:
        run = BatchRun(Service(cast("Any", ServedToy()), queue, GREEDY), output)
        run.run(lines)
    found = {
        each["custom_id"]: each for each in map(json.loads, results.read_text("utf-8").splitlines())
    }
    assert found["\ud800"]["response"]["status_code"] == 400
    assert found["2"]["response"]["status_code"] == 200 and run.errors == 1
    assert read_done(results, lines) == {"2"}


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    "cut", [b"", '{"id": "batch_req_0", "custom_id": "ü'.encode()[:-1], b'{"id": "batch']
)
def test_bytes_are_counted_behind_a_byte_order_mark(
    tmp_path: Path, start: bytes, cut: bytes
) -> None:
    file = tmp_path / "results.jsonl"
    file.write_bytes(start + RESULTS + cut)
    assert read_done(file, LINES) == {"1", "ü", "3"}
    assert file.read_bytes() == start + RESULTS


def test_what_failed_is_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    results = [
        result(line.custom_id, status) for line, status in zip(LINES, (503, 200, 400), strict=True)
    ]
    file.write_text("".join(results) + '{"id"')
    assert read_done(file, LINES) == {"ü"} and file.read_text() == results[1]


def test_a_line_may_be_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text('What is a lock?\n"a\\nb"\n7\n"Hello," she said\nid, ego\n')
    assert [line.request for line in read_lines(path)] == [
        "What is a lock?",
        "a\nb",
        "7",
        '"Hello," she said',
        "id, ego",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[\n  {"prompt": "a"},\n  {"prompt": "b"}\n]\n', 1),
        ('[{"prompt": "a"},\n{"prompt": "b"}]\n', 1),
        ('[{"prompt": "a"}, {"prompt": "b"}]\n', 1),
        ('["a", "b"]\n', 1),
        ('{\n  "prompt": "a"\n}\n', 1),
        ('\n{"prompt": "a"},\n{"prompt": "b"}\n', 2),
        ('"a",\n"b"\n', 1),
        ('"a"\n"What is a\nlock?"\n', 2),
        ('"a"\n{"prompt": "What is a\nlock?"}\n', 2),
        ('{"prompt": "a"}\n{"prompt": "What is', 2),
        ("prompt\nWhat is a lock?\n", 1),
        ('id,prompt\n1,"What is a lock?"\n', 1),
        ('"ID";"Question"\n1;"What is a lock?"\n', 1),
        ("nr\ttext\n1\tWhat is a lock?\n", 1),
        ("[" * 100_000, 1),
    ],
)
def test_json_over_several_lines_and_tables_are_refused_whole(
    tmp_path: Path, text: str, line: int
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(FileProblem, match=f"prompts.jsonl, line {line}: ") as raised:
        read_lines(path)
    assert "on a line of its own" in raised.value.hint
    with pytest.raises(FileProblem, match=f"prompts.jsonl, line {line}: "):
        read_prompts(path)


def test_a_table_by_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text("nr,frage\n1,Was?\n")
    with pytest.raises(FileProblem, match="prompts.csv, line 1: this is a table"):
        read_lines(path)
