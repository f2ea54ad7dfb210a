"""The library interface: what `load` takes, and answers in each of their forms."""

import asyncio
import builtins
import copy
import gc
import os
import pickle
import pydoc
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

import pydantic
import pytest

import localspec
from localspec.api import GenerateKeywords
from localspec.core import paths
from localspec.core.errors import (
    FileProblem,
    GrammarError,
    IncompatiblePair,
    PromptTooLong,
    TemplateError,
    UsageError,
)
from localspec.core.options.keywords import LoadKeywords
from localspec.core.options.load_options import ALL_LAYERS
from localspec.engine.grammar import source
from localspec.library.pairs import user_pairs
from localspec.llama.model import LlamaModel
from tests.support import fake_hub
from tests.support.fake_hub import FakeHub, flip
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama
hub = fake_hub.hub  # a fixture

QUESTION = "What does json.dumps do?"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def model() -> Iterator[localspec.Model]:
    with localspec.load("demo", threads=1, max_tokens=20) as loaded:
        yield loaded


def test_every_public_name_is_there() -> None:
    assert {name for name in localspec.__all__ if getattr(localspec, name) is None} == set()
    assert {*localspec.__all__} <= {*dir(localspec)}
    with pytest.raises(AttributeError):
        _ = localspec.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 5, "temperature": 1.2}])
def test_each_form_gives_the_same_text(model: localspec.Model, sampling: dict[str, Any]) -> None:
    whole = model.generate(QUESTION, **sampling)
    assert whole.stats.tokens == len(whole.tokens) > 1 and str(whole) == whole.text
    messages = [{"role": "user", "content": QUESTION}]
    pieces = [*model.stream(messages, **sampling)]
    assert "".join(map(str, pieces)) == whole.text
    assert [piece.stats.tokens for piece in pieces][-2:] != [whole.stats.tokens] * 2  # values
    ids = [*model.engine.encode_chat(messages)]
    for length in ("off", 0, 1, 4, "auto"):
        assert model.generate(ids, draft_tokens=length, **sampling).text == whole.text

    async def read() -> str:
        return "".join([str(piece) async for piece in model.stream(QUESTION, **sampling)])

    assert asyncio.run(read()) == whole.text


def test_options_of_one_answer(model: localspec.Model) -> None:
    assert len(model.generate(QUESTION, max_tokens=3, temperature=0).tokens) == 3
    assert len(model.generate(QUESTION, temperature=0).tokens) > 3
    stopped = model.generate(QUESTION, temperature=0, stop=" ")
    assert stopped.finish_reason == "stop" and " " not in stopped.text
    assert "\n" in model.generate("def add(a, b):\n", raw=True, temperature=0).text
    assert model.generate(QUESTION, regex="[0-9]{3}").text.isdecimal()
    schema = {"type": "boolean"}
    assert model.generate(QUESTION, json_schema=schema).text in ("true", "false")
    assert len({model.generate(QUESTION, temperature=3).text for _ in range(4)}) > 1
    described = model.stream(QUESTION, system="Answer in one word.", logprobs=2, max_tokens=1)
    assert len(next(described).logprobs[0].top) == 2
    described.close()


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris"]}},
            "required": ["city"],
        },
    },
}


def test_a_tool_round_trip(model: localspec.Model) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Weather?"}]
    tools: dict[str, Any] = {
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 60,
        "temperature": 0,
    }
    answer = model.generate(messages, **tools)
    (call,) = answer.tool_calls
    assert answer.finish_reason == "tool_calls" and call.parsed_arguments() == {"city": "Paris"}
    messages += [answer.message, call.result({"degrees": 4})]
    assert messages[1]["tool_calls"] == answer.as_json()["tool_calls"]
    assert messages[2]["content"] == '{"degrees": 4}' and messages[2]["tool_call_id"] == call.id
    said = {"role": "assistant", "content": answer.text, "tool_calls": answer.tool_calls}
    counted = [model.count_tokens([messages[0], each, messages[2]]) for each in (messages[1], said)]
    assert counted[0] == counted[1]
    follows = model.generate(messages, tools=[WEATHER], max_tokens=4)
    with_call = model.count_tokens(messages, tools=[WEATHER])
    read = follows.stats.prompt_tokens
    assert read == with_call > model.count_tokens(messages[:1])
    assert model.generate(messages, tools=[WEATHER], tool_choice="none", max_tokens=1).tokens


def test_a_models_text_and_tokens(model: localspec.Model) -> None:
    text = "def größe(x): return x"
    ids = model.tokenize(text)
    assert model.detokenize(ids) == text and ids == [*model.engine.encode_text(text)]
    assert model.count_tokens(text, raw=True) == model.count_tokens(ids) == len(ids)
    brief = model.count_tokens(QUESTION, system="Be brief.")
    assert brief > model.count_tokens(QUESTION) > len(model.tokenize(QUESTION))
    answer = model.generate(QUESTION, temperature=0, logprobs=2)
    assert model.detokenize(answer.tokens) == answer.text
    assert [entry.token for entry in answer.logprobs] == answer.tokens
    assert not model.generate(QUESTION, max_tokens=2).logprobs
    for use in (model.detokenize, model.generate, model.count_tokens):
        with pytest.raises(UsageError, match="token ids"):
            use([0, model.engine.target.n_vocab])


def test_what_is_loaded_is_shown(tiny: TinyFiles) -> None:
    async def use() -> localspec.Model:
        async with localspec.load(tiny.target, tiny.draft, threads=1, ctx_size=128) as model:
            assert (model.name, model.context_size) == (tiny.target.stem, 128)
            shown = repr(model)
            assert tiny.target.name in shown and tiny.draft.name in shown and "128" in shown
        assert repr(model) == f"{shown[:-1]}, closed>"
        return model

    with pytest.raises(UsageError, match="The model is closed"):
        asyncio.run(use()).generate("word")
    with localspec.load("demo", "off", threads=1) as demo:
        assert demo.name == "demo" and ", draft " not in repr(demo)


@pytest.mark.parametrize("prompts", ["one prompt", b"one", {"role": "user"}])
def test_many_prompts_are_a_list(model: localspec.Model, prompts: Any) -> None:
    with pytest.raises(UsageError, match="expected a list of prompts"):
        model.generate_many(prompts)


def test_misspelt_and_mistyped_options(model: localspec.Model) -> None:
    """Mypy refuses each of them too: strict, it refuses an ignored error that is none."""
    with pytest.raises(UsageError):
        localspec.load("demo", ctx_sise=512)  # type: ignore[call-arg]
    with pytest.raises(UsageError):
        localspec.load("demo", ctx_size="512")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        localspec.load("demo", cache_type_k="q9")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        model.generate("hi", temprature=1)  # type: ignore[call-arg]
    with pytest.raises(UsageError):
        model.stream("hi", top_k=1.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        model.generate_many(["hi"], logit_bias="5+1")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        model.count_tokens("hi", temperature=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        localspec.lod  # type: ignore[attr-defined]  # noqa: B018


def test_none_is_as_if_left_out(tiny: TinyFiles) -> None:
    given: dict[str, Any] = dict.fromkeys(get_type_hints(LoadKeywords))
    with localspec.load(tiny.target, tiny.draft, **given) as model:
        changes: dict[str, Any] = dict.fromkeys(get_type_hints(GenerateKeywords))
        assert model.generate("word", **changes | {"max_tokens": 2}).tokens
        assert model.generate("word", tools=None, raw=None, tool_choice=None, max_tokens=1).tokens
        assert model.count_tokens("word", tools=None) == model.count_tokens("word")


def test_words_for_layers(tiny: TinyFiles) -> None:
    with localspec.load(tiny.target, gpu_layers="all", threads=1) as model:
        assert model.engine.target.options.gpu_layers == ALL_LAYERS


def test_hints_name_arguments(tiny: TinyFiles) -> None:
    with localspec.load(tiny.target, threads=1, ctx_size=64) as model:
        for start in (model.generate, lambda prompt: next(model.stream(prompt))):
            with pytest.raises(PromptTooLong) as raised:
                start("word " * 400)
            assert "ctx_size" in raised.value.hint and "--" not in raised.value.hint
            assert str(raised.value).endswith(f" {raised.value.hint}")
    with pytest.raises(UsageError, match="^ubatch_size=256 is more than batch_size=128"):
        localspec.load(tiny.target, batch_size=128, ubatch_size=256)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"warmth": 1}, "There is no option warmth"),
        ({"n_ctx": 64}, "There is no option n_ctx"),
        ({"chat_template": "chatml"}, "There is no option chat_template"),
        ({"stream": True}, "There is no option stream"),
        ({"chat_template_kwargs": "low"}, "chat_template_kwargs is 'low'"),
        ({"chat_template_kwargs": {"messages": []}}, "cannot set messages"),
        ({"temperature": -1}, "temperature is -1.0"),
        ({"draft_tokens": "some"}, "no draft length"),
        ({"regex": "a", "json_schema": {}}, "Both json_schema and regex"),
        ({"logit_bias": ("999999+1",)}, "999999"),
        ({"temperature": "hot"}, "temperature is 'hot', expected a number"),
        ({"top_k": 2.5}, "top_k is 2.5, expected a whole number"),
        ({"max_tokens": "8"}, "max_tokens is '8', expected a whole number"),
        ({"logprobs": "a"}, "logprobs is 'a'"),
        ({"stop": 5}, "stop is 5, expected a list"),
        ({"logit_bias": "5+1"}, "logit_bias is '5\\+1', expected a list"),
        ({"tools": "x"}, "tools is 'x'"),
        ({"tools": ["x"]}, r"tools\[0\] is 'x'"),
    ],
)
def test_options_that_cannot_be(model: localspec.Model, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        model.generate(QUESTION, **changes)
    assert raised.value.hint


@pytest.mark.parametrize("given", [{"regex": 4}, {"json_schema": 5}, {"json_schema": {1}}])
def test_grammars_that_cannot_be(model: localspec.Model, given: dict[str, Any]) -> None:
    with pytest.raises(GrammarError) as raised:
        model.generate(QUESTION, **given)
    assert raised.value.hint


@pytest.mark.parametrize("prompt", [5, None, [], b"hi", [5, "a"], ["a"], {"role": "user"}])
def test_what_is_no_prompt(model: localspec.Model, prompt: Any) -> None:
    with pytest.raises(UsageError) as raised:
        model.generate(prompt)
    assert raised.value.hint


@pytest.mark.parametrize("messages", ["hi", ["hi"], None])
def test_what_are_no_messages(model: localspec.Model, messages: Any) -> None:
    with pytest.raises(UsageError, match="^messages") as raised:
        model.engine.encode_chat(messages)
    assert "role" in raised.value.hint


@pytest.mark.parametrize(
    "given", [{"ctx_size": "big"}, {"parallel": "2"}, {"branches": "x"}, {"max_tokens": "8"}]
)
def test_wrong_types_are_refused_before_loading(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected a whole number"):
        localspec.load("demo", **given)


@pytest.mark.parametrize(
    "given",
    [
        {"max_tokens": -3},
        {"max_seconds": -1.0},
        {"grammar": "root ::= ("},
        {"regex": "("},
        {"prompt": [1] * 100_000},
        {"logprobs": 101},
        {"thinking": True},
        {"raw": True, "system": "Be short."},
        {"raw": True, "prompt": [{"role": "user", "content": "hi"}]},
        {"prompt": [1, 2], "system": "Be short."},
        {"prompt": [1, 2], "tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_what_cannot_be_is_raised_before_there_is_a_stream(
    model: localspec.Model, given: dict[str, Any]
) -> None:
    with pytest.raises((UsageError, GrammarError, PromptTooLong)) as raised:
        model.stream(**{"prompt": QUESTION, **given})
    assert str(raised.value) == f"{raised.value.message} {raised.value.hint}".strip()


def test_a_stream_knows_its_answer(model: localspec.Model) -> None:
    whole = model.generate(QUESTION, temperature=0)
    with model.stream(QUESTION, temperature=0) as stream:
        first = next(stream)
        assert stream.answer.text == first.text
        for _ in stream:
            pass
        assert (stream.answer.text, stream.answer.tokens) == (whole.text, whole.tokens)
        assert stream.answer.finish_reason == whole.finish_reason
    with model.stream(QUESTION, temperature=0) as unread:
        next(unread)
    assert unread.answer.finish_reason == "cancelled" and list(unread) == []


@pytest.mark.parametrize("parallel", [1, 2])
def test_what_is_forgotten_is_read_again_and_no_answer_is_drafted_from_it(parallel: int) -> None:
    with localspec.load("demo", threads=1, max_tokens=40, parallel=parallel) as model:
        model.forget()  # nothing yet
        asked: dict[str, Any] = {"temperature": 0, "draft_tokens": "auto"}
        first, again = (model.generate(QUESTION, **asked) for _ in range(2))
        assert again.stats.cached_tokens > 0 and "history" in str(again.stats.sources)
        model.forget()
        later = model.generate(QUESTION, **asked)
        assert later.stats.cached_tokens == 0 and "history" not in str(later.stats.sources)
        assert first.text == again.text == later.text
    with pytest.raises(UsageError):
        model.forget()


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_content_that_no_model_here_reads_is_refused(model: localspec.Model, kind: str) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "data:,"}}]
    with pytest.raises(UsageError, match="which localspec cannot read"):
        model.generate([{"role": "user", "content": parts}])


def test_streams_are_awaited(model: localspec.Model) -> None:
    whole = model.generate(QUESTION, temperature=0)

    async def ask() -> list[str]:
        async with model.stream(QUESTION, temperature=0) as stream:
            assert (await anext(stream)).text
            rest = await stream
        return [rest.text, (await model.agenerate(QUESTION, temperature=0)).text]

    assert asyncio.run(ask()) == [whole.text] * 2


def test_a_second_reader_of_a_stream_is_refused(model: localspec.Model) -> None:
    refused = list[Exception]()
    seen = threading.Event()

    def read(stream: localspec.Stream) -> None:
        try:
            for _ in stream:
                pass
        except UsageError as error:
            refused.append(error)
            seen.set()

    stream = model.stream(QUESTION, temperature=0, max_tokens=400, ignore_eos=True)
    threads = [threading.Thread(target=read, args=(stream,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert seen.wait(PATIENCE)
    stream.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert "read by another" in str(refused[0])


def test_progress_precedes_the_answer(model: localspec.Model) -> None:
    found = list[localspec.Progress]()
    answer = model.generate(QUESTION * 30, temperature=0, max_tokens=2, on_progress=found.append)
    assert [each.read for each in found] == sorted(each.read for each in found)
    assert found[-1].total == answer.stats.prompt_tokens and answer.tokens
    again = model.generate(QUESTION * 30, temperature=0, max_tokens=2)
    assert again.stats.cached_tokens > again.stats.read_tokens
    assert again.stats.prompt_tokens == answer.stats.prompt_tokens
    pieces = [*model.stream(QUESTION, max_tokens=2, progress=True)]
    assert pieces[0].progress is not None and pieces[-1].progress is None


def test_a_seed_gives_its_text_again(model: localspec.Model) -> None:
    answer = model.generate(QUESTION, temperature=1.5)
    again = model.generate(QUESTION, temperature=1.5, seed=answer.seed)
    assert (again.text, again.seed) == (answer.text, answer.seed) and answer.seed is not None
    assert repr(answer).startswith("<Answer ") and "\n" not in repr(answer)


def test_functions_are_tools_and_classes_are_schemas(model: localspec.Model) -> None:
    class City(pydantic.BaseModel):
        name: Literal["Paris", "Rome"]

    def weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather in a city."""
        return city

    found = City.model_validate_json(
        model.generate("A city.", temperature=0, max_tokens=60, json_schema=City).text
    )
    assert found.name in ("Paris", "Rome")
    given: dict[str, Any] = {"tool_choice": "required", "max_tokens": 60, "temperature": 0}
    (call,) = model.generate("The weather in Rome?", tools=[weather], **given).tool_calls
    assert call.name == "weather" and weather(**call.parsed_arguments()) in ("Paris", "Rome")

    def unknown(of: threading.Lock) -> None: ...

    with pytest.raises(UsageError, match="arguments of unknown"):
        model.stream("x", tools=[unknown])


def test_notes_are_logged(tiny: TinyFiles, caplog: pytest.LogCaptureFixture) -> None:
    said = list[str]()
    with caplog.at_level("INFO", "localspec"):
        localspec.load(tiny.target, tiny.draft, threads=1, on_note=said.append).close()
    assert said and caplog.messages == said


def test_each_answer_comes_when_it_is_complete(model: localspec.Model) -> None:
    prompts = [QUESTION, "x" * 200_000, "What is a lock?"]
    found = dict(model.answer_each(prompts, temperature=0, max_tokens=4))
    assert sorted(found) == [0, 1, 2]
    assert isinstance(found[1], PromptTooLong)
    assert str(found[2]) == model.generate(prompts[2], temperature=0, max_tokens=4).text
    with pytest.raises(PromptTooLong):
        model.generate_many(prompts, temperature=0, max_tokens=4)
    rest = model.answer_each([QUESTION] * 3, max_tokens=4)
    next(rest)
    rest.close()
    assert model.generate(QUESTION, max_tokens=1).tokens


def test_streams_of_one_thread_wait_for_each_other(model: localspec.Model) -> None:
    first, second = model.stream(QUESTION, temperature=0), model.stream(QUESTION, temperature=0)
    assert next(first).text + next(second).text
    assert "".join(map(str, second)) == "".join(map(str, first)) != ""


def test_ctrl_c_in_a_whole_answer_is_raised(
    model: localspec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(model.engine, "piece", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.generate([1, 2, 3], ignore_eos=True)  # whose first token has text
    monkeypatch.undo()
    assert model.generate(QUESTION, temperature=0).text


@pytest.mark.parametrize("parallel", [1, 3])
def test_many_answers_are_those_of_each_alone(tiny: TinyFiles, parallel: int) -> None:
    prompts = [f"word {i} " * (i + 1) for i in range(5)]
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "raw": True}
    with localspec.load(tiny.target, tiny.draft, threads=1, ctx_size=256) as alone:
        expected = [alone.generate(prompt, **given).tokens for prompt in prompts]
    loading: dict[str, Any] = {"threads": 1, "ctx_size": 256, "parallel": parallel}
    with localspec.load(tiny.target, tiny.draft, **loading) as together:
        assert [each.tokens for each in together.generate_many(prompts, **given)] == expected
        found: list[list[int]] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(together.generate(prompts[4], **given).tokens)
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected[4]] * 3


def test_options_of_loading_and_of_all_answers(tiny: TinyFiles) -> None:
    notes: list[str] = []
    with localspec.load(
        str(tiny.target),
        str(tiny.draft),
        ctx_size=256,
        draft_ctx_size=128,
        threads=1,
        temperature=0,
        max_tokens=5,
        draft_tokens=3,
        on_note=notes.append,
    ) as model:
        assert (model.engine.target.n_ctx, model.engine.draft.n_ctx) == (256, 128)  # type: ignore[union-attr]
        answer = model.generate("some words")
        assert len(answer.tokens) == 5 and answer.stats.drafted
        assert model.notes == [note for note in notes if note in model.notes]


def test_a_pairs_name_brings_its_draft_and_settings(tiny: TinyFiles) -> None:
    settings = {"draft_tokens": 2, "ctx_size": 128, "temperature": 0.0, "threads": 1}
    user_pairs.add("twins", str(tiny.target), str(tiny.draft), settings)
    with localspec.load("twins", max_tokens=8) as model:
        assert model.engine.target.n_ctx == 128
        assert model.generate("word").stats.passes.keys() <= {1, 2, 3}
        assert model.generate("word").text == model.generate("word").text  # greedy
    with localspec.load("twins", draft="off", max_tokens=8) as plain:
        assert plain.engine.draft is None and plain.generate("word").stats.drafted == 0


@pytest.mark.parametrize(
    ("draft", "options", "error", "said"),
    [
        (4, {}, UsageError, "no draft model"),
        ("self", {}, IncompatiblePair, "draft make"),
        ("mtp", {}, IncompatiblePair, "heads"),
        ("nowhere.gguf", {}, FileProblem, "no file"),
        ("auto", {"max_token": 1}, UsageError, "no option max_token. Did you mean max_tokens?"),
        ("auto", {"n_ctx": 1}, UsageError, "no option n_ctx. It is ctx_size here."),
        ("auto", {"n_gpu_layers": 1}, UsageError, "It is gpu_layers here."),
        ("auto", {"draft_model": "x"}, UsageError, "It is draft here."),
        ("auto", {"model_path": "x"}, UsageError, "It is target here."),
        ("auto", {"rpc": "nowhere"}, UsageError, "expected HOST:PORT"),
        ("auto", {"loras": ["none.gguf"]}, FileProblem, "no file"),
        ("auto", {"override_kv": ["a"]}, UsageError, "expected KEY=TYPE:VALUE"),
        (True, {}, UsageError, "draft is True"),
        ("auto", {"json_schema": {}}, UsageError, "an option of Model.generate: json_schema"),
        ("auto", {"ctx_size": 128, "parallel": 99}, UsageError, "99"),
        (None, {"temperature": -1}, UsageError, "temperature"),
        ("auto", {"draft_tokens": "0,2"}, UsageError, "not a list"),
    ],
)
def test_what_cannot_be_loaded(
    tiny: TinyFiles,
    draft: str | int | None,
    options: dict[str, Any],
    error: type[localspec.LocalspecError],
    said: str,
) -> None:
    with pytest.raises(error) as raised:
        localspec.load(tiny.target, draft, **options)
    assert said in f"{raised.value.message} {raised.value.hint}"


def test_a_closed_model_answers_nothing(tiny: TinyFiles) -> None:
    with localspec.load(tiny.target, threads=1) as model:
        pass
    model.close()
    with pytest.raises(UsageError, match="The model is closed"):
        model.generate("word")


def test_nothing_of_a_closed_model_is_used(tiny: TinyFiles) -> None:
    model = localspec.load(tiny.target, threads=1)
    model.close()
    engine = model.engine
    for use in (
        lambda: engine.encode_text("word"),
        lambda: engine.encode_chat([{"role": "user", "content": "word"}]),
        lambda: engine.piece(3),
        lambda: next(iter(engine.stream([1]))),
    ):
        with pytest.raises(UsageError, match="closed"):
            use()
    engine.close()


@pytest.mark.parametrize("parallel", [1, 2])
def test_closing_ends_the_answers_under_way(tiny: TinyFiles, parallel: int) -> None:
    model = localspec.load(tiny.target, threads=1, parallel=parallel)
    stream = model.stream("word", max_tokens=200)
    next(stream)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(model.generate, "word", max_tokens=200) if parallel > 1 else None
        model.close()
        answers: list[Callable[[], object]] = [lambda: list(stream)]
        for answer in answers if other is None else [*answers, other.result]:
            with pytest.raises(localspec.ModelClosed, match="The model is closed"):
                answer()


def test_options_in_the_form_of_other_libraries(tiny: TinyFiles) -> None:
    with localspec.load(tiny.target, threads=1, flash_attention=False, max_tokens=3) as model:
        assert model.engine.target.options.flash_attention == "off"
        wanted = model.tokenize("word")[-1]
        answer = model.generate("word", temperature=0, logit_bias={wanted: 900})
        assert answer.tokens == [wanted] * 3
        answers = [model.generate(ids, temperature=0) for ids in (range(3, 6), [3, 4, 5])]
        assert answers[0].tokens == answers[1].tokens
    for target in (None, 5, b"x"):
        with pytest.raises(UsageError, match="target is"):
            localspec.load(target)  # type: ignore[arg-type]


def test_calls_and_members_of_other_libraries_are_answered_with_those_here(
    model: localspec.Model,
) -> None:
    other: Any = model
    asked: Any = {"messages": [{"role": "user", "content": "hi"}]}
    for ask in (model.generate, model.stream, model.agenerate, model.count_tokens):
        with pytest.raises(UsageError, match="There is no option messages. It is prompt here."):
            cast(Any, ask)(**asked)
    with pytest.raises(UsageError, match=r"cannot be called. It is generate\(prompt\) here."):
        other("hi")
    with pytest.raises(UsageError, match=r"localspec.load\('demo'\)"):
        localspec.Model("demo")  # type: ignore[arg-type]
    answer = model.generate("hi", max_tokens=1)
    with pytest.raises(AttributeError, match=r"no create_completion. It is generate\(prompt\)"):
        attrgetter("create_completion")(model)
    with pytest.raises(AttributeError, match=r"no choices. It is text, and message here."):
        attrgetter("choices")(answer)
    assert not hasattr(other, "other") and not hasattr(answer, "other")
    assert copy.deepcopy(answer) == pickle.loads(pickle.dumps(answer)) == answer


@pytest.mark.parametrize("name", ["load", "Model.stream", "Model.generate", "Model.agenerate"])
def test_help_lists_the_options(name: str) -> None:
    shown = pydoc.plain(pydoc.render_doc(attrgetter(name)(localspec)))
    assert "temperature: " in shown and "Default: 0.8." in shown and " --" not in shown
    assert ("ctx_size: " in shown) == (name == "load") != ("``max_tokens``" in shown)


def test_another_chat_template(tiny: TinyFiles) -> None:
    template = "{{ messages[0].content }}{{ word }}"
    with localspec.load(tiny.target, threads=1, chat_template=template) as model:
        counts = [
            model.count_tokens("word", chat_template_kwargs={"word": "word" * times})
            for times in (0, 1, 2)
        ]
        assert counts == [len(model.tokenize("word" * times)) for times in (1, 2, 3)]
        given = {"word": " more"}
        answer = model.generate("word", chat_template_kwargs=given, max_tokens=1)
        assert answer.stats.prompt_tokens == len(model.tokenize("word more"))
    with localspec.load(tiny.target, threads=1, chat_template="chatml") as model:
        assert model.count_tokens("word") > len(model.tokenize("word"))
    for other in ("no-such-template", 5):
        with pytest.raises(UsageError) as raised:
            localspec.load(tiny.target, chat_template=other)  # type: ignore[arg-type]
        assert "chatml" in raised.value.hint
    with pytest.raises(TemplateError):
        localspec.load(tiny.target, chat_template="{% if %}")


def test_a_fixed_length_needs_a_draft(tiny: TinyFiles, tmp_path: Path) -> None:
    with localspec.load(tiny.target, threads=1) as model:
        with pytest.raises(UsageError, match="no draft model"):
            model.generate("word", draft_tokens=4)


def test_rejection_has_a_fixed_length(tiny: TinyFiles) -> None:
    sampled: dict[str, Any] = {"acceptance": "rejection", "temperature": 1.0, "max_tokens": 16}
    with localspec.load(tiny.target, tiny.draft, threads=1, **sampled) as model:
        assert model.generate("word", ignore_eos=True).stats.drafted
    with pytest.raises(UsageError, match="must be fixed"):
        localspec.load(tiny.target, tiny.draft, draft_tokens="auto", **sampled)


def documented() -> dict[str, list[str]]:
    """The built-in errors that docs/library/api.md names for each error."""
    text = (paths.CHECKOUT / "docs" / "library" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|`(\w+)`\|((?:`\w+`(?:, )?)+)\|[^|]+\|$", text, re.MULTILINE)
    return {name: re.findall(r"\w+", others) for name, others in rows}


def test_every_error_is_documented_with_its_built_in_one() -> None:
    public = {name for name in localspec.__all__ if hasattr(getattr(localspec, name), "exit_code")}
    found = documented()
    assert found.keys() == public - {"LocalspecError"}
    for name, others in found.items():
        for other in others:
            assert issubclass(getattr(localspec, name), (getattr(builtins, other),))


def misuse(name: str, tiny: TinyFiles, folder: Path, hub: FakeHub) -> None:
    """What raises the error of this name."""
    other = partial(write_tiny_model, seed=2, context_length=256)
    match name:
        case "UsageError":
            localspec.load(tiny.target, temperature=-1)
        case "MissingFile":
            localspec.load(folder / "nowhere.gguf")
        case "UnknownPair":
            localspec.load("no-such-pair")
        case "FileProblem":
            localspec.load(folder)
        case "NotAGGUF":
            (folder / "text.gguf").write_text("a text")
            localspec.load(folder / "text.gguf")
        case "IncompatiblePair":
            localspec.load(tiny.target, other(folder / "other.gguf", extra_tokens=["other"] * 9))
        case "NotEnoughMemory":
            localspec.load(tiny.target, ctx_size=2**31 - 1)
        case "EngineError":
            localspec.load(tiny.target, rpc="127.0.0.1:1")
        case "HubProblem":
            localspec.load("hf:org/nothing:Q4_K_M")
        case "DownloadProblem":
            data = tiny.target.read_bytes()
            hub.add("org/model", "model.gguf", data)
            hub.faults.append(flip(len(data) - 1, times=None))
            localspec.load("hf:org/model/model.gguf")
        case "TemplateError":
            path = other(folder / "refuses.gguf", chat_template="{{ raise_exception('no') }}")
            localspec.load(path, threads=1).generate("word")
        case "TemplateLimitExceeded":
            endless = "{{ range(10**5) | list * 10**6 }}{{ messages }}"
            path = other(folder / "endless.gguf", chat_template=endless)
            localspec.load(path, threads=1).generate("word")
        case _:
            with localspec.load(tiny.target, threads=1, ctx_size=64) as model:
                misuse_of_an_answer(name, model)


def misuse_of_an_answer(name: str, model: localspec.Model) -> None:
    match name:
        case "PromptTooLong":
            model.generate("word " * 400)
        case "ModelClosed":
            model.close()
            model.generate("word")
        case "GrammarError":
            model.generate("word", regex="(")
        case "WorkerLost":
            for _ in range(source.MOST_WAITING):
                source._waiting.acquire()
            try:
                model.generate("word", regex="a")
            finally:
                source._waiting.release(source.MOST_WAITING)


@pytest.mark.parametrize("name", documented())
def test_the_built_in_error_catches_it(
    name: str, tiny: TinyFiles, tmp_path: Path, hub: FakeHub
) -> None:
    for other in documented()[name]:
        with pytest.raises(getattr(builtins, other)) as raised:
            misuse(name, tiny, tmp_path, hub)
        assert type(raised.value) is getattr(localspec, name), raised.value
        assert raised.value.hint in str(raised.value)


def test_a_model_that_nothing_refers_to_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts refer to each other; a stream keeps it as long as it is read."""
    freed, real, ctx_size = threading.Semaphore(0), LlamaModel.close, 777

    def close(model: LlamaModel) -> None:
        real(model)
        if model.options.ctx_size == ctx_size:  # other tests' models are freed at any time
            freed.release()

    monkeypatch.setattr(LlamaModel, "close", close)
    for parallel in (1, 2):
        made = localspec.load(
            "demo", "off", threads=1, max_tokens=9, parallel=parallel, ctx_size=ctx_size
        )
        made.generate(QUESTION, regex="[a-z ]+")
        stream = made.stream(QUESTION)
        del made
        assert len([*stream]) > 1 and not freed.acquire(blocking=False)
        del stream
        gc.collect()
        assert freed.acquire(timeout=PATIENCE)
        localspec.load("demo", "off", threads=1, ctx_size=ctx_size)
        assert freed.acquire(timeout=PATIENCE)  # without a collection of ours


FORKS = """
import os, sys, localspec
model = localspec.load("demo", threads=1, max_tokens=8, temperature=0)
text = model.generate("hi").text
if os.fork() == 0:
    for use in (model.generate, model.count_tokens, model.stream):
        try:
            use("hi")
        except localspec.UsageError as error:
            assert "fork" in error.message and "spawn" in error.hint
        else:
            os._exit(1)
    model.close()
    own = localspec.load("demo", threads=1, max_tokens=8, temperature=0)
    obeys = own.generate("hi", regex="[a-z]+", max_tokens=3).text.isalpha()
    os._exit(0 if obeys and own.generate("hi").text == text else 2)
assert os.wait()[1] == 0
assert model.generate("hi").text == text
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_the_child_is_told_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
