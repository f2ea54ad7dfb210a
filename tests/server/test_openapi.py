"""The server does what its OpenAPI document says, for requests that fit it and for others."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from localspec.server.front.app import ANSWERED
from tests.support.served import CHAT, COMPLETIONS, PATIENCE, Site

OPERATIONS = [
    ("POST", CHAT), ("POST", COMPLETIONS), ("POST", "/v1/embeddings"), ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"), ("GET", "/health"), ("GET", "/v1/health"), ("GET", "/props"),
    ("GET", "/metrics"), ("GET", "/slots"), ("POST", "/completion"), ("POST", "/completions"),
    ("POST", "/infill"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("POST", "/apply-template"), ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/chat/completions/input_tokens"), ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/responses"), ("GET", "/v1/responses/{name}"), ("DELETE", "/v1/responses/{name}"),
    ("POST", "/slots/{slot}"),
]  # fmt: skip
# What is asked for by its path alone cannot be asked for wrongly.
CASES = [(*each, GenerationMode.POSITIVE) for each in OPERATIONS]
CASES += [(*each, GenerationMode.NEGATIVE) for each in OPERATIONS if each[0] == "POST"]
# The names of models, responses and slots are guessed.
REFUSED = ("/v1/embeddings", "/v1/models/{name}", "/v1/responses/{name}", "/slots/{slot}")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
# Twenty examples of each; two hundred with --hypothesis-profile=search.
FUZZED = settings(
    max_examples=settings().max_examples // 5,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)


@pytest.fixture(scope="module")
def schema(toy_server: Site) -> Any:
    return schemathesis.openapi.from_dict(toy_server.get("/openapi.json").json())


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.trust_env = False  # no proxy
        yield made


def test_every_operation_is_fuzzed(schema: Any) -> None:
    found = [each.ok() for each in schema.get_all_operations()]
    assert {(each.method.upper(), each.path) for each in found} == set(OPERATIONS)
    # A front forwards all that a model answers.
    answered = {path for method, path in OPERATIONS if method == "POST"}
    assert answered - {"/v1/embeddings", "/slots/{slot}"} == set(ANSWERED)


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_replies_are_as_documented(
    schema: Any,
    session: requests.Session,
    toy_server: Site,
    method: str,
    path: str,
    mode: GenerationMode,
) -> None:
    statuses: Counter[int] = Counter()

    @FUZZED
    @given(case=schema[path][method].as_strategy(mode))
    def ask(case: Case[Any]) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # which a random name would be none of
            case.body.pop("previous_response_id", None)
        reply = case.call(base_url=toy_server.url, session=session, timeout=PATIENCE)
        case.validate_response(reply, checks=CHECKS)
        statuses[reply.status_code] += 1

    ask()
    if mode is GenerationMode.POSITIVE and path not in REFUSED:
        assert statuses[200]  # enough of it gets past the refusals
