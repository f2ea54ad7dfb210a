"""The program llm as a client, run as its users do."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.served import PATIENCE, Site

Llm = Callable[..., str]


@pytest.fixture
def llm(toy_server: Site, tmp_path: Path) -> Llm:
    """Runs llm with the server as a model of its own; gives what it wrote."""
    folder = tmp_path / "llm"
    folder.mkdir()
    model = {"model_id": "mine", "model_name": "toy", "api_base": f"{toy_server.url}/v1"}
    models = [model, model | {"model_id": "older", "completion": True}]
    (folder / "extra-openai-models.yaml").write_text(json.dumps(models))  # which YAML holds
    environment = os.environ | {"LLM_USER_PATH": str(folder), "NO_PROXY": "*"}

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "llm", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_a_conversation_streamed_and_whole(llm: Llm, toy_server: Site) -> None:
    greedy = ("-o", "temperature", "0")
    expected = toy_server.ask(temperature=0)["choices"][0]["message"]["content"]
    assert llm("-m", "mine", *greedy, "hello") == f"{expected}\n"
    said = llm("-c", *greedy, "--no-stream", "and?").removesuffix("\n")
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": expected},
        {"role": "user", "content": "and?"},
    ]
    (choice,) = toy_server.ask(messages=messages, temperature=0)["choices"]
    assert said == choice["message"]["content"]


def test_the_older_api(llm: Llm, toy_server: Site) -> None:
    expected = toy_server.ask("/v1/completions", temperature=0)["choices"][0]["text"]
    assert llm("-m", "older", "-o", "temperature", "0", "hello") == f"{expected}\n"
