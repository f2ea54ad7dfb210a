"""Completions: texts and token ids, whole and streamed, in OpenAI's form."""

import pytest

from tests.support.served import COMPLETIONS, Site, text_of


def test_a_reply_has_openai_s_form(toy_server: Site) -> None:
    reply = toy_server.ask(COMPLETIONS, max_tokens=6)
    assert reply["object"] == "text_completion" and reply["id"].startswith("cmpl-")
    (choice,) = reply["choices"]
    assert len(choice["text"]) == 6 and choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert reply["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11,
        "prompt_tokens_details": None,
    }  # fmt: skip


def test_a_stream_says_the_same(toy_server: Site) -> None:
    whole = toy_server.ask(COMPLETIONS, max_tokens=30)["choices"][0]["text"]
    events = toy_server.stream(COMPLETIONS, max_tokens=30, draft_tokens=3)
    assert text_of(events) == whole
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "length"
    assert events[-1]["timings"]["predicted_n"] == 30
    assert all(event["object"] == "text_completion" for event in events)


def test_ids_are_read_as_they_are(toy_server: Site) -> None:
    expected = toy_server.ask(COMPLETIONS)["choices"][0]["text"]
    ids = list(b"hello")
    assert toy_server.ask(COMPLETIONS, prompt=ids)["choices"][0]["text"] == expected
    both = toy_server.ask(COMPLETIONS, prompt=[ids, ids])
    assert [choice["text"] for choice in both["choices"]] == [expected] * 2
    status, error = toy_server.refused(COMPLETIONS, prompt=[1, 129])
    assert status == 400 and "129" in error["message"] and error["param"] == "prompt"


def test_several_prompts_have_choices_each(toy_server: Site) -> None:
    asked = {"temperature": 1.0, "seed": 3, "max_tokens": 20}
    reply = toy_server.ask(COMPLETIONS, prompt=["one", "other"], n=2, **asked)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    alone = [
        toy_server.ask(COMPLETIONS, prompt=prompt, **asked | {"seed": seed})["choices"][0]["text"]
        for prompt in ("one", "other")
        for seed in (3, 4)
    ]
    assert [choice["text"] for choice in reply["choices"]] == alone
    assert reply["usage"]["prompt_tokens"] == len("one") + len("other")
    assert reply["usage"]["completion_tokens"] == 80
    events = toy_server.stream(COMPLETIONS, prompt=["one", "other"], n=2, **asked)
    assert [text_of(events, i) for i in range(4)] == alone


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""), ("prompt", []), ("prompt", [[]]), ("prompt", ["a", 1]), ("prompt", [-1]),
        ("prompt", ["a"] * 17), ("prompt", None), ("prompt", [["a"]]), ("echo", True),
        ("best_of", 2), ("suffix", "end"), ("logprobs", -1),
        # Numbers are neither true nor false.
        ("echo", 0), ("echo", 0.0), ("best_of", True),
        ("stream_options", {"include_obfuscation": 0}),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be(toy_server: Site, field: str, value: object) -> None:
    status, error = toy_server.refused(COMPLETIONS, **{field: value})
    assert status == 400 and error["type"] == "invalid_request_error"
    assert error["param"].startswith(field)


def test_what_changes_nothing_is_taken(toy_server: Site) -> None:
    assert toy_server.ask(COMPLETIONS, echo=False, best_of=1, suffix="", user="me", n=None)


def test_logprobs_tell_of_each_token_where_its_text_begins(toy_server: Site) -> None:
    asked = {"max_tokens": 30, "logprobs": 3}
    choice = toy_server.ask(COMPLETIONS, **asked)["choices"][0]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    assert told["text_offset"] == list(range(30))
    for token, logprob, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert len(top) == 3 and logprob <= 0
        assert top[token] == logprob == max(top.values())  # greedy
    parts = [
        event["choices"][0]["logprobs"]
        for event in toy_server.stream(COMPLETIONS, draft_tokens=4, **asked)
    ]
    for name in ("tokens", "text_offset"):
        assert [each for part in parts for each in part[name]] == told[name]
    alone = toy_server.ask(COMPLETIONS, max_tokens=9, logprobs=0)["choices"][0]["logprobs"]
    assert alone["top_logprobs"] == [{}] * 9 and len(alone["token_logprobs"]) == 9
