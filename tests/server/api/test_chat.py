"""Chat completions: answers whole and streamed, in OpenAI's form."""

import pytest

from localspec.chat.answer import collect
from localspec.chat.reasoning import tagged
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from localspec.engine.text_stream import OutputFormat, Prompt
from tests.support.served import HELLO, ServedToy, Site, serving, text_of

SAMPLED = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 40}


def expected(seed: int, stop: str = "", **changes: object) -> str:
    """What an engine of its own says to `HELLO`, plainly."""
    toy = ServedToy(quirk=None)
    params = SamplingParams(seed=seed, **({k: v for k, v in SAMPLED.items() if k != "max_tokens"}))  # type: ignore[arg-type]
    prompt = toy.encode_chat(HELLO)
    return collect(
        stream_generate(
            toy,
            prompt,
            GenerateOptions(params, 0, max_tokens=40, stop=tuple([stop] if stop else [])),
        )
    ).text


def test_a_reply_has_openai_s_form(toy_server: Site) -> None:
    reply = toy_server.ask(max_tokens=6)
    assert reply["object"] == "chat.completion" and reply["model"] == "toy"
    assert reply["id"].startswith("chatcmpl-")
    (choice,) = reply["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant" and len(choice["message"]["content"]) == 6
    usage = reply["usage"]
    assert usage["prompt_tokens"] == len("Uhello\nA") and usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6


@pytest.mark.parametrize("length", [0, 1, 4, "auto", "off"])
def test_text_for_a_seed_is_the_engine_s_with_any_draft_length(
    toy_server: Site, length: object
) -> None:
    asked = {**SAMPLED, "seed": 5, "draft_tokens": length}
    reply = toy_server.ask(**asked)
    assert reply["choices"][0]["message"]["content"] == expected(5)
    assert text_of(toy_server.stream(**asked)) == expected(5)
    drafted = reply["timings"]["draft_n"]
    assert (drafted > 0) == (length in (1, 4)) or length == "auto"
    assert 0 <= reply["timings"]["draft_n_accepted"] <= drafted


def test_several_choices_have_seeds_that_follow_each_other(toy_server: Site) -> None:
    reply = toy_server.ask(**SAMPLED, seed=5, n=3)
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert texts == [expected(5), expected(6), expected(7)]
    assert [choice["seed"] for choice in reply["choices"]] == [5, 6, 7]
    events = toy_server.stream(**SAMPLED, seed=5, n=3)
    assert [text_of(events, i) for i in range(3)] == texts
    assert reply["usage"]["prompt_tokens"] == len("Uhello\nA")


def test_the_seed_that_was_drawn_is_told_and_repeats_the_answer(toy_server: Site) -> None:
    (first,) = toy_server.ask(**SAMPLED)["choices"]
    (other,) = toy_server.ask(**SAMPLED)["choices"]
    assert first["seed"] != other["seed"]
    (again,) = toy_server.ask(**SAMPLED, seed=first["seed"])["choices"]
    assert again["message"] == first["message"]


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(toy_server: Site) -> None:
    first, *middle, last = toy_server.stream(max_tokens=6)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(event["choices"][0]["finish_reason"] is None for event in (first, *middle))
    assert last["choices"][0] | {"seed": None} == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "seed": None,
    }  # fmt: skip
    assert last["timings"]["predicted_n"] == 6
    assert len({event["id"] for event in (first, *middle, last)}) == 1


def test_usage_ends_a_stream_where_it_was_asked_for(toy_server: Site) -> None:
    *events, last = toy_server.stream(max_tokens=6, stream_options={"include_usage": True})
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 6
    assert "timings" in last
    assert all(event["usage"] is None and "timings" not in event for event in events)


def test_timings_come_with_each_event_where_they_were_asked_for(toy_server: Site) -> None:
    _, *events = toy_server.stream(max_tokens=20, timings_per_token=True)
    counts = [event["timings"]["predicted_n"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 20 and len(set(counts)) > 1


def test_origins_cover_the_text(toy_server: Site) -> None:
    asked = {"max_tokens": 40, "draft_tokens": 4, "return_origins": True}
    events = toy_server.stream(**asked)
    pieces = [piece for e in events for piece in e["choices"][0].get("origins", [])]
    assert "".join([piece["text"] for piece in pieces]) == text_of(events)
    assert {"draft", "corrected"} <= {piece["origin"] for piece in pieces}
    assert all("origins" not in event["choices"][0] for event in toy_server.stream(max_tokens=9))


@pytest.mark.parametrize("as_list", [False, True])
def test_an_answer_ends_before_a_stop_text(toy_server: Site, as_list: bool) -> None:
    whole = expected(5)
    stop = whole[10:12]
    asked = {**SAMPLED, "seed": 5, "stop": [stop, "\0"] if as_list else stop}
    (choice,) = toy_server.ask(**asked)["choices"]
    assert choice["message"]["content"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert text_of(toy_server.stream(**asked)) == choice["message"]["content"]


def test_the_newer_limit_wins_and_the_server_s_holds_without_any(toy_server: Site) -> None:
    def tokens(**fields: object) -> int:
        return int(toy_server.ask(**fields)["usage"]["completion_tokens"])

    assert tokens() == 8
    assert tokens(max_tokens=5) == 5
    assert tokens(max_tokens=5, max_completion_tokens=3) == 3
    assert tokens(max_tokens=None, max_completion_tokens=2) == 2
    assert tokens(max_tokens=0) == 0


def test_a_prefix_is_read_once(toy_server: Site) -> None:
    question = [{"role": "user", "content": "a long question " * 9}]
    toy_server.ask(messages=question)
    again = toy_server.ask(messages=question)
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == again["usage"]["prompt_tokens"] - 1 == again["timings"]["cache_n"]
    assert again["timings"]["prompt_n"] == 1
    whole = toy_server.ask(messages=question, cache_prompt=False)
    assert whole["timings"]["cache_n"] == 0
    assert whole["timings"]["prompt_n"] == again["usage"]["prompt_tokens"]


def test_a_bias_bans_a_token(toy_server: Site) -> None:
    plain = toy_server.ask()["choices"][0]["message"]["content"]
    bias = {str(ord(plain[0])): -100}
    assert toy_server.ask(logit_bias=bias)  # toys know no biases; the real pair's test does
    status, error = toy_server.refused(logit_bias={"999999999": 1})
    assert status == 400 and "999999999" in error["message"]


def test_a_length_is_refused_with_the_reason_where_exact_turned_drafts_off() -> None:
    toy = ServedToy(quirk=None)
    toy.drafts_off_reason = "drafting is off"
    with serving(toy) as site:
        status, error = site.refused(draft_tokens=3)
        assert status == 400 and "--exact: drafting is off." in error["message"]


def test_without_a_draft_a_length_is_refused_and_auto_is_not() -> None:
    with serving(ServedToy(quirk=None)) as site:
        status, error = site.refused(draft_tokens=4)
        assert status == 400 and "no draft model" in error["message"]
        assert site.ask(draft_tokens="off") and site.ask(draft_tokens=0)
        assert site.ask(draft_tokens="auto")["timings"]["predicted_n"] == 8


def test_an_answer_that_fills_the_context_ends_for_its_length(toy_server: Site) -> None:
    (choice,) = toy_server.ask(max_tokens=-1)["choices"]
    assert choice["finish_reason"] == "length"
    *_, last = toy_server.stream(max_tokens=-1)
    assert last["choices"][0]["finish_reason"] == "length"


def test_thoughts_come_apart() -> None:
    class Thinker(ServedToy):
        """Says what a thinking model might, whatever it is asked."""

        def encode_chat(self, messages: object, **told: object) -> Prompt:
            prompt = super().encode_chat(HELLO)
            said = iter(b"<think>hm, a tree</think>It is a tree.")
            reading = OutputFormat(lambda token: bytes([next(said)]), tagged("<think>", "</think>"))
            return Prompt(prompt, reading)

    with serving(Thinker(quirk=None)) as site:
        (choice,) = site.ask(max_tokens=38)["choices"]
        assert choice["message"]["reasoning_content"] == "hm, a tree"
        assert choice["message"]["content"] == "It is a tree."
        events = site.stream(max_tokens=38)
        assert text_of(events, key="reasoning_content") == "hm, a tree"
        assert text_of(events) == "It is a tree."


BEGUN = {"role": "assistant", "content": "Once"}


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, "Uhello\nAOnce\n"),
        ({"continue_final_message": True}, "Uhello\nAOnce\n"),
        ({"continue_final_message": False}, "Uhello\nAOnce\nA"),
        ({"add_generation_prompt": True}, "Uhello\nAOnce\nA"),
        ({"add_generation_prompt": False}, "Uhello\nAOnce\n"),
        ({"add_generation_prompt": False, "continue_final_message": "content"}, "Uhello\nAOnce\n"),
    ],
)
def test_the_last_answer_goes_on(toy_server: Site, fields: dict[str, object], tokens: str) -> None:
    reply = toy_server.ask(messages=[*HELLO, BEGUN], max_tokens=2, **fields)
    assert reply["usage"]["prompt_tokens"] == len(tokens)


def test_a_message_that_cannot_go_on(toy_server: Site) -> None:
    asked = {"continue_final_message": True}
    status, error = toy_server.refused(messages=HELLO, **asked)
    assert status == 400 and "not a text of the assistant" in error["message"]
    both = {**asked, "add_generation_prompt": True}
    status, error = toy_server.refused(messages=[*HELLO, BEGUN], **both)
    assert (status, error["param"]) == (400, "continue_final_message")
