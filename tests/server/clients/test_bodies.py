"""Requests as well-known programs write them, with the fields that they add to each."""

from typing import Any

import pytest

from tests.support.served import CHAT, COMPLETIONS, Site, error_of, events_of

USER = {"role": "user", "content": "hello"}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}],
}
ANSWER: dict[str, object] = {
    "role": "assistant", "content": "hi", "refusal": None, "annotations": [], "audio": None,
    "function_call": None, "tool_calls": None, "reasoning_content": "hm",
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "open-webui, a chat": {
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7,
        "top_p": 0.9, "min_p": 0.05, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "max_tokens": 8, "seed": 1, "stop": ["###"], "logit_bias": {"65": -100},
        "reasoning_effort": "medium", "response_format": {"type": "text"},
    },
    "open-webui, a title": {
        "messages": [USER], "stream": False, "max_completion_tokens": 1000,
    },
    "continue, a chat": {
        "messages": [{"role": "assistant", "content": " "}, PARTS], "max_tokens": 8,
        "temperature": 0.5, "stream": True, "stream_options": {"include_usage": True},
        "stop": ["</s>", "\n```"], "prediction": {"type": "content", "content": "hello"},
    },
    "litellm": {
        "messages": [
            USER, ANSWER | {"provider_specific_fields": {"a": 1}, "thinking_blocks": []}, USER,
        ],
        "n": 1, "user": "me", "metadata": {"a": "b"}, "max_tokens": 8, "top_logprobs": None,
        "logit_bias": {}, "tools": [], "tool_choice": "auto",
    },
    "langchain": {
        "messages": [USER], "temperature": None, "top_p": None, "n": 1, "stop": None,
        "max_tokens": None, "stream": False, "logprobs": False, "parallel_tool_calls": None,
    },
    "the openai package, all that is null": {
        "messages": [USER, ANSWER | {"parsed": {"a": 1}}, USER], "max_tokens": None,
        "max_completion_tokens": None, "stop": None, "seed": None, "tools": None,
        "tool_choice": None, "response_format": None, "logprobs": None, "stream_options": None,
        "store": False, "service_tier": "auto", "modalities": ["text"], "verbosity": "low",
    },
    "ai-sdk": {
        "messages": [{"role": "developer", "content": "Be brief."}, PARTS], "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0, "top_p": 1, "seed": 1,
        "reasoning_effort": "low", "user": "me",
    },
    "zed": {
        "messages": [USER, {"role": "assistant", "content": None}, {"role": "user", "content": []}],
        "stream": True, "max_completion_tokens": 8, "stop": [],
        "temperature": 1, "tool_choice": "none", "parallel_tool_calls": False, "tools": [],
        "prompt_cache_key": "thread-1",
    },
    "open-webui, with Ollama's fields": {
        "messages": [USER], "stream": True, "keep_alive": "5m", "session_id": "a", "chat_id": "b",
        "options": {"num_ctx": 8192}, "functions": [], "reasoning": {"effort": "low"},
    },
    "cline": {
        "messages": [{"role": "system", "content": "Be brief."}, PARTS], "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_chat_is_answered(toy_server: Site, name: str) -> None:
    body = BODIES[name]
    reply = toy_server.post(CHAT, {"model": "toy"} | body)
    assert reply.status_code == 200, reply.text
    if body.get("stream"):
        assert events_of(reply.text)[-1] == "[DONE]"
    else:
        assert reply.json()["choices"][0]["message"]["content"]


def test_a_completion_of_an_editor_is_answered(toy_server: Site) -> None:
    body = {
        "prompt": "def f(", "max_tokens": 4, "temperature": 0.01, "stream": True,
        "stop": ["\n\n", "```"], "top_p": None, "frequency_penalty": None, "suffix": None,
        "echo": False, "best_of": 1, "n": 1, "logprobs": None, "user": "me",
    }  # fmt: skip
    reply = toy_server.post(COMPLETIONS, body)
    assert reply.status_code == 200, reply.text


def test_a_turn_of_claude_code_is_answered(toy_server: Site) -> None:
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}
    body = {
        "model": "toy", "stream": True, "max_tokens": 32000, "metadata": {"user_id": "me"},
        "system": [{"type": "text", "text": "Be brief.", **cached}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello", **cached}]}],
        "tools": [{"name": "Bash", "description": "Runs it", "input_schema": schema, **cached}],
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }  # fmt: skip
    headers = {
        "x-api-key": "none", "anthropic-version": "2023-06-01", "x-app": "cli",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "anthropic-dangerous-direct-browser-access": "true",
    }  # fmt: skip
    reply = toy_server.post("/v1/messages?beta=true", body, **headers)
    assert reply.status_code == 200 and "event: message_stop" in reply.text, reply.text


def test_headers_that_programs_add_change_nothing(toy_server: Site) -> None:
    headers = {
        "authorization": "Bearer sk-none", "openai-organization": "me", "x-title": "a program",
        "http-referer": "http://localhost:3000", "x-stainless-retry-count": "0",
        "x-openwebui-user-name": "me", "accept": "text/event-stream", "cookie": "a=b",
    }  # fmt: skip
    reply = toy_server.post(CHAT, {"messages": [USER]}, **headers)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("messages.0", {"messages": [{"role": "robot", "content": "a"}]}),
        ("messages.0", {"messages": [{"role": "user"}]}),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    toy_server: Site, field: str, body: dict[str, Any]
) -> None:
    reply = toy_server.post(CHAT, body)
    assert reply.status_code == 400
    assert error_of(reply)["param"].startswith(field)
