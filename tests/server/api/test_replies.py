"""Parts of replies: timings and log probabilities are numbers that JSON can hold."""

import json
import math
from typing import Any

from localspec.chat.stats import GenerationStats
from localspec.server.api.replies import finite, speculative_decoding, text_of, timings
from localspec.speculative.loop import Prefill, Round
from tests.support.served import Site


def test_timings_of_nothing_are_finite() -> None:
    told = timings(GenerationStats())
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["predicted_n"] == 0 and "draft_speedup" not in told


def test_timings_are_milliseconds_and_what_the_cache_held_is_apart() -> None:
    stats = GenerationStats()
    stats.start(Prefill(tokens=9, cached=5, seconds=2.0))
    told = timings(stats)
    assert told["cache_n"] == 5 and told["prompt_n"] == 10
    assert told["prompt_ms"] == 2000 and told["prompt_per_token_ms"] == 200
    assert told["prompt_per_second"] == 9 / 2  # the last one waits for the first round


def test_a_prompt_of_one_token_has_the_speed_of_the_round_that_reads_it() -> None:
    stats = GenerationStats()
    stats.start(Prefill(tokens=0, cached=0, seconds=0.0))
    assert timings(stats)["prompt_per_second"] == 0
    stats.add(Round((1,), 0, 0, 0.25), 0.25)
    stats.add(Round((1,), 0, 0, 0.1), 0.1)
    figures = timings(stats)
    assert (figures["prompt_per_second"], figures["prompt_per_token_ms"]) == (4, 250)


def test_drafting_is_told_as_vllm_does() -> None:
    stats = GenerationStats()
    assert speculative_decoding(stats)["acceptance_histogram"] == [0]
    for drafted, accepted in ((3, 3), (3, 0), (1, 1), (3, 1), (0, 0)):
        stats.add(Round((0,) * (accepted + 1), drafted, accepted, 0.1), 0.1)
    assert speculative_decoding(stats) == {
        "mean_acceptance_length": 1 + 5 / 4,
        "draft_acceptance_rate": 5 / 10,
        "acceptance_histogram": [1, 2, 0, 1],
        "acceptance_histogram_by_draft_length": {"1": [0, 1], "3": [1, 1, 0, 1]},
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 5,
        "num_draft_tokens": 10,
        "num_spec_tokens": 3,
    }


def told_of(body: Any) -> Any:
    """What vLLM's object says, where llama-server's names agree with it."""
    told = body["metrics"]["speculative_decoding"]
    assert told["num_draft_tokens"] == body["timings"]["draft_n"] > 0
    assert told["num_accepted_draft_tokens"] == body["timings"]["draft_n_accepted"]
    return told


def test_every_api_tells_of_its_drafts(toy_server: Site) -> None:
    asked = {"max_tokens": 20, "draft_tokens": 3, "temperature": 0}
    wanted = told_of(toy_server.ask(**asked))
    *events, last = toy_server.stream(**asked)
    assert told_of(last) == wanted and not any("metrics" in event for event in events)
    *events, last = toy_server.stream(**asked, stream_options={"include_usage": True})
    assert told_of(last) == wanted and not any("metrics" in event for event in events)
    assert told_of(toy_server.ask("/v1/completions", prompt="Uhello\nA", **asked)) == wanted
    native = asked | {"n_predict": 20, "prompt": "Uhello\nA"}
    assert told_of(toy_server.post("/completion", native).json()) == wanted
    question = [{"role": "user", "content": "hello"}]
    response = asked | {"input": "hello", "max_output_tokens": 20}
    del response["max_tokens"]
    assert told_of(toy_server.post("/v1/responses", response).json()) == wanted
    message = {"max_tokens": 20, "messages": question, "timings_per_token": True}
    told = toy_server.post("/v1/messages", message).json()["metrics"]["speculative_decoding"]
    assert told.keys() == wanted.keys()  # it has no draft length of its own
    several = toy_server.ask(**asked, n=2)
    assert several["metrics"] == {"speculative_decoding": None}
    plain = toy_server.ask(**asked | {"draft_tokens": 0})["metrics"]["speculative_decoding"]
    assert plain["acceptance_histogram"] == [0] and plain["mean_acceptance_length"] == 1


def test_log_probabilities_and_tokens_are_what_json_can_hold() -> None:
    assert finite(-math.inf) == -9999.0 and finite(-3.5) == -3.5
    assert text_of("é".encode()[:1]) == "\ufffd"


def test_logprobs_of_a_chat_tell_of_each_token(toy_server: Site) -> None:
    asked = {"max_tokens": 20, "logprobs": True, "top_logprobs": 2}
    (choice,) = toy_server.ask(**asked)["choices"]
    content = choice["logprobs"]["content"]
    assert "".join([each["token"] for each in content]) == choice["message"]["content"]
    for each in content:
        assert bytes(each["bytes"]).decode() == each["token"] and each["logprob"] <= 0
        first, second = each["top_logprobs"]
        assert (first["token"], first["logprob"]) == (each["token"], each["logprob"])  # greedy
        assert second["logprob"] <= first["logprob"]
    parts = [
        event["choices"][0]["logprobs"] for event in toy_server.stream(draft_tokens=4, **asked)
    ]
    assert [each for part in parts if part for each in part["content"]] == content
    (plain,) = toy_server.ask(logprobs=True)["choices"]
    assert all(each["top_logprobs"] == [] for each in plain["logprobs"]["content"])
    assert toy_server.ask()["choices"][0]["logprobs"] is None
