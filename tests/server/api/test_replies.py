"""Parts of replies: timings and log probabilities are numbers that JSON can hold."""

import json
import math

from localspec.chat.stats import GenerationStats
from localspec.server.api.replies import finite, text_of, timings
from localspec.speculative.loop import Prefill
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
