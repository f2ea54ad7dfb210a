"""What both kinds of request share: sampling, draft lengths and limits decide as they do in run."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from localspec.chat.answer import collect
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from localspec.server.api.chat import ChatRequest
from localspec.server.api.completions import CompletionRequest
from localspec.server.api.replies import WARNINGS_HEADER
from localspec.server.api.requests import AnswerRequest
from localspec.server.service import Defaults
from tests.support.served import CHAT, COMPLETIONS, HELLO, ServedToy, Site, serving, text_of

MANY = [f"name {i}" for i in range(9999)]
SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "top_k": st.integers(-1, 50),
        "top_p": st.floats(0.1, 1),
        "min_p": st.floats(0, 0.5),
        "typical_p": st.floats(0.1, 1),
        "repeat_penalty": st.floats(0.5, 2),
        "repeat_last_n": st.integers(-1, 64),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
    },
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    SAMPLING,
    st.integers(0, 2**32 - 1),
    st.integers(1, 3),
    st.integers(0, 40),
    st.lists(st.text("abc de", min_size=1, max_size=3), max_size=3),
    st.sampled_from([0, 1, 3, 8, "auto", "off"]),
)
def test_answers_are_the_engine_s(
    toy_server: Site,
    sampling: dict[str, object],
    seed: int,
    n: int,
    most: int,
    stop: list[str],
    length: object,
) -> None:
    asked = {**sampling, "seed": seed, "n": n, "max_tokens": most, "stop": stop}
    whole = toy_server.ask(COMPLETIONS, draft_tokens=length, **asked)
    events = toy_server.stream(COMPLETIONS, draft_tokens=length, **asked)
    for i, choice in enumerate(whole["choices"]):
        toy = ServedToy(quirk=None)
        params = SamplingParams(**{"temperature": 0.0} | sampling, seed=(seed + i) % 2**32)  # type: ignore[arg-type]
        answer = collect(
            stream_generate(
                toy,
                toy.encode_text("hello"),
                GenerateOptions(params, 0, max_tokens=most, stop=tuple(stop)),
            )
        )
        assert choice["text"] == text_of(events, i) == answer.text
        assert choice["finish_reason"] == answer.finish_reason
        assert choice["seed"] == params.seed


def test_a_request_that_is_silent_takes_the_server_s_defaults() -> None:
    params = SamplingParams(temperature=1.5, top_k=3, seed=9)
    defaults = Defaults(GenerateOptions(params, draft_tokens=2, max_tokens=30), seed=9)
    with serving(ServedToy(), defaults=defaults) as site:
        reply = site.ask(COMPLETIONS)
        spoken = site.ask(COMPLETIONS, top_k=3, max_tokens=30, seed=9, draft_tokens=2)
        null = site.ask(COMPLETIONS, top_k=None, max_tokens=None, seed=None, stop=None, n=None)
        other = site.ask(COMPLETIONS, top_k=0)
        drawn = site.ask(COMPLETIONS, seed=-1)
    assert reply["choices"] == spoken["choices"] == null["choices"] != other["choices"]
    assert reply["timings"]["draft_n"] > 0 and reply["choices"][0]["seed"] == 9
    assert drawn["choices"][0]["seed"] != 9


def test_draft_off_is_not_drafted_and_auto_without_prompt_lookup_needs_a_model() -> None:
    defaults = Defaults(
        GenerateOptions(
            SamplingParams(temperature=0), draft_tokens=4, prompt_lookup=False, max_tokens=8
        )
    )
    with serving(ServedToy(), defaults=defaults) as site:
        assert site.ask(COMPLETIONS, draft_tokens="off")["timings"]["draft_n"] == 0
        assert site.ask(COMPLETIONS, draft_tokens=0)["timings"]["draft_n"] == 0
        assert site.ask(COMPLETIONS)["timings"]["draft_n"] > 0
    with serving(ServedToy(quirk=None), defaults=defaults) as site:
        assert site.ask(COMPLETIONS)["timings"]["draft_n"] == 0
        assert site.ask(COMPLETIONS, draft_tokens="auto")["timings"]["draft_n"] == 0


def test_a_rule_that_needs_a_fixed_length_refuses_auto() -> None:
    params = SamplingParams(acceptance="rejection", temperature=1.0)
    with serving(
        ServedToy(), defaults=Defaults(GenerateOptions(params, draft_tokens=4, max_tokens=8))
    ) as site:
        assert site.ask(COMPLETIONS)
        status, error = site.refused(COMPLETIONS, draft_tokens="auto")
    assert status == 400 and "must be fixed" in error["message"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionRequest, {"prompt": [-1] * 9999}),
        (CompletionRequest, {"prompt": [1.5] * 9999}),
        (CompletionRequest, {"prompt": [[]] * 9999}),
        (CompletionRequest, {"prompt": ["a", *range(9999)]}),
        (CompletionRequest, {"prompt": "a", "stop": [1] * 9999}),
        (CompletionRequest, {"prompt": "a", "logit_bias": dict.fromkeys(MANY, 1)}),
        (CompletionRequest, {"prompt": "a"} | dict.fromkeys(MANY, 1)),
        (ChatRequest, {"messages": [{}] * 9999}),
        (ChatRequest, {"messages": [{"role": "user", "content": [1] * 10_001}]}),
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [1] * 99}] * 99}),
        (ChatRequest, {"messages": HELLO, "tools": [{}] * 99}),
    ],
)
def test_thousands_of_faults_are_found_but_once(
    kind: type[AnswerRequest], fields: dict[str, object]
) -> None:
    # Each would take its microseconds, and a body holds millions of them.
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(fields)
    assert caught.value.error_count() < 9


UNKNOWN = {
    "messages": [{**HELLO[0], "mood": "good"}],
    "stream_options": {"usage": True, "include_usage": True},
    "num_ctx": 4096,
    "temprature": 1,
    "\r\n\x7fé": 1,
    "audio": None,
}


def test_unknown_fields_are_ignored_with_a_warning(toy_server: Site) -> None:
    reply = toy_server.post(CHAT, UNKNOWN)
    (warning,) = reply.json()["warnings"]
    assert all(name in warning for name in ("num_ctx", "messages.0.mood", "stream_options.usage"))
    assert "(did you mean temperature?)" in warning and "audio" not in warning
    assert reply.headers[WARNINGS_HEADER].startswith(warning[:40])
    assert toy_server.post(CHAT, UNKNOWN | {"stream": True}).headers[WARNINGS_HEADER]
    assert toy_server.stream(CHAT, **UNKNOWN)[-1]["warnings"] == [warning]
    assert WARNINGS_HEADER not in toy_server.post(CHAT, {"messages": HELLO}).headers


def test_fields_by_the_names_of_other_servers(toy_server: Site) -> None:
    asked = toy_server.ask(n_predict=5, seed=1, repetition_penalty=1.7)
    ours = toy_server.ask(max_tokens=5, seed=1, repeat_penalty=1.7)
    assert asked["choices"] == ours["choices"] and "warnings" not in asked
    assert asked["usage"]["completion_tokens"] == 5
    status, error = toy_server.refused(repetition_penalty=0)
    assert status == 400 and error["param"] == "repetition_penalty"


def test_what_quotes_a_request_is_short_and_text(toy_server: Site) -> None:
    assert len(toy_server.ask(**{"a" * 9999: 1})["warnings"][0]) < 1100
    reply = toy_server.ask(chat_template_kwargs={"\ud800" + "a" * 9999: 1})
    (warning,) = reply["warnings"]
    assert len(warning) < 1100 and "?aaa" in warning


@pytest.mark.parametrize("as_list", [False, True])
def test_too_many_biases_are_refused_as_too_many(toy_server: Site, as_list: bool) -> None:
    many = [[token, 1] for token in range(1025)]
    given = many if as_list else {str(token): bias for token, bias in many}
    status, error = toy_server.refused(logit_bias=given)
    assert status == 400 and error["param"] == "logit_bias"
    assert "1024" in error["message"] and "dictionary" not in error["message"]
