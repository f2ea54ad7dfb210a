"""llama-server's own paths, over the bundled pair."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.core.options.load_options import KeyValue, LoadOptions
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.caches.slot_files import SlotFiles
from localspec.engine.engine import Engine
from localspec.server.service import Defaults
from tests.support.served import Site, serving

pytestmark = pytest.mark.llama
TEXT = "def add(a, b):\n    return"
GREEDY = {"temperature": 0, "n_predict": 12}


def asked(site: Site, path: str, **fields: object) -> Any:
    reply = site.post(path, fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(site: Site, path: str, **fields: object) -> list[dict[str, Any]]:
    lines = site.post(path, fields | {"stream": True}).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


@pytest.fixture(scope="module")
def infilling(demo_files: tuple[Path, Path]) -> Iterator[Site]:
    """A server whose model is told which tokens are those of fill-in-the-middle."""
    names = {"pre": 5, "suf": 6, "mid": 7}
    ids = tuple(KeyValue(f"tokenizer.ggml.fim_{name}_token_id", i) for name, i in names.items())
    options = LoadOptions(demo_files[0], threads=1, override_kv=ids)
    with Engine.load(options, None) as engine, serving(engine, defaults=Defaults()) as site:
        yield site


def test_a_restored_slot_does_not_lose_the_conversation_before(
    demo_files: tuple[Path, Path], tmp_path: Path
) -> None:
    with (
        Engine.load(LoadOptions(demo_files[0], threads=1), None) as engine,
        serving(
            engine, defaults=Defaults(), prefixes=PrefixCache(2**28), slot_folder=tmp_path
        ) as site,
    ):
        asked(site, "/completion", prompt=TEXT, **GREEDY)
        asked(site, "/slots/0?action=save", filename="a")
        other = "Another conversation, long enough to be kept. " * 9
        asked(site, "/completion", prompt=other, **GREEDY)
        asked(site, "/slots/0?action=restore", filename="a")
        assert asked(site, "/completion", prompt=other, **GREEDY)["timings"]["prompt_n"] == 1


def test_a_slot_is_saved_restored_and_erased(server: Site, tmp_path: Path) -> None:
    engine = server.service.engine
    server.service.slot_files = SlotFiles(tmp_path, engine)
    first = asked(server, "/completion", prompt=TEXT, **GREEDY)
    saved = asked(server, "/slots/0?action=save", filename="a")
    tokens = first["tokens_evaluated"] + first["tokens_predicted"] - 1
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (0, "a", tokens)
    erased = server.client.post("/slots/0?action=erase")  # without a body
    assert erased.json() == {"id_slot": 0, "n_erased": tokens}
    restored = asked(server, "/slots/0?action=restore", filename="a")
    assert (restored["n_restored"], restored["n_read"]) == (tokens, saved["n_written"])
    assert asked(server, "/completion", prompt=TEXT, **GREEDY)["timings"]["prompt_n"] == 1
    server.service.slot_files = None
    for path, status, sentence in (
        ("/slots/0?action=save", 400, "Start it with --slot-save-path"),
        ("/slots/1?action=erase", 400, "There is no slot 1"),
        ("/slots/a?action=erase", 400, "slot should be an integer, not 'a'."),
        ("/slots/0?action=burn", 400, "action should be 'save', 'restore' or 'erase'"),
        ("/slots/0", 400, "action: Field required."),
    ):
        reply = server.post(path, {})
        assert (reply.status_code, sentence in reply.text) == (status, True), reply.text


def test_a_completion_is_that_of_openais_path(server: Site) -> None:
    theirs = server.ask("/v1/completions", prompt=TEXT, max_tokens=12, temperature=0)
    ours = asked(server, "/completion", prompt=TEXT, return_tokens=True, **GREEDY)
    assert ours["content"] == theirs["choices"][0]["text"]
    assert (ours["stop"], ours["stop_type"], ours["tokens_predicted"]) == (True, "limit", 12)
    assert len(ours["tokens"]) == 12
    assert ours["tokens_evaluated"] == theirs["usage"]["prompt_tokens"]
    again = asked(server, "/tokenize", content=TEXT, add_special=True)["tokens"]
    assert asked(server, "/completions", prompt=again, **GREEDY)["content"] == ours["content"]


def test_a_stop_string_is_named(server: Site) -> None:
    text = asked(server, "/completion", prompt=TEXT, **GREEDY)["content"]
    stopped = asked(server, "/completion", prompt=TEXT, **GREEDY, stop=["nothing", text[5:8]])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", text[5:8])
    assert stopped["content"] == text[: text.index(text[5:8])]


def test_a_streamed_completion_ends_with_its_figures(server: Site) -> None:
    whole = asked(server, "/completion", prompt=TEXT, **GREEDY)
    *pieces, last = events(server, "/completion", prompt=TEXT, n_probs=1, **GREEDY)
    assert pieces and not any(piece["stop"] for piece in pieces)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert sum(len(piece["tokens"]) for piece in pieces) == 12
    assert last["stop"] and last["timings"]["predicted_n"] == 12
    assert (last["content"], last["tokens"]) == ("", [])
    probabilities = [each for piece in pieces for each in piece["completion_probabilities"]]
    assert len(probabilities) == 12
    assert all(each["top_logprobs"][0]["id"] == each["id"] for each in probabilities)


def test_a_completion_tells_how_it_was_made(server: Site) -> None:
    whole = asked(server, "/completion", prompt=TEXT, seed=7, stop=["zzz"], **GREEDY)
    settings = whole["generation_settings"]
    assert whole["prompt"].endswith(TEXT)
    assert {
        "seed": 7,
        "n_predict": 12,
        "temperature": 0,
        "stop": ["zzz"],
    }.items() <= settings.items()
    assert settings["logit_bias"] == [] and not whole["truncated"]
    endless = asked(server, "/completion", prompt=TEXT, ignore_eos=True, **GREEDY)
    biases = endless["generation_settings"]["logit_bias"]
    assert biases and all(each["bias"] is None for each in biases)
    wanted = ["content", "generation_settings/seed", "no/such"]
    for more in (asked, lambda *args, **fields: events(*args, **fields)[-1]):
        found = more(server, "/completion", prompt=TEXT, seed=7, response_fields=wanted, **GREEDY)
        assert found.keys() == set(wanted[:2]) and found["generation_settings/seed"] == 7


def test_an_answer_that_fills_the_context_is_truncated(server: Site) -> None:
    n_ctx = server.service.engine.target.n_ctx
    prompt = {"prompt": [5] * (n_ctx - 3), "ignore_eos": True}
    assert asked(server, "/completion", **prompt, n_predict=-1)["truncated"]
    assert not asked(server, "/completion", **prompt, n_predict=2)["truncated"]


def test_prompts_have_many_forms(server: Site) -> None:
    ids = asked(server, "/tokenize", content=TEXT, add_special=True)["tokens"]
    text = asked(server, "/completion", prompt=TEXT, **GREEDY)["content"]
    prompts = [
        TEXT,
        ids,
        {"prompt_string": TEXT},
        [TEXT[:5], *asked(server, "/tokenize", content=TEXT[5:])["tokens"]],
    ]
    bodies = asked(server, "/completion", prompt=prompts, **GREEDY)
    assert [body["content"] for body in bodies[:3]] == [text] * 3
    assert bodies[3]["prompt"] == bodies[0]["prompt"]
    assert len(asked(server, "/completion", prompt=[1, "a", 2], **GREEDY)["prompt"]) > 1


def test_texts_are_biased_by_their_tokens(server: Site) -> None:
    def said(**more: object) -> str:
        return str(
            asked(server, "/completion", prompt=TEXT, temperature=0, n_predict=1, **more)["content"]
        )

    first = said()
    (token,) = asked(server, "/tokenize", content=first)["tokens"]
    for bias in ({first: -100}, {str(token): False}, [[token, False]], [[first, -100]]):
        assert said(logit_bias=bias) != first
    for wrong in ([[token]], [[token, True]], [[True, 1]], [[token, "a"]], [[1.5, 1]]):
        reply = server.post("/completion", {"prompt": TEXT, "logit_bias": wrong})
        assert reply.status_code == 400 and "logit_bias" in reply.text


def test_infill_writes_between_two_texts(infilling: Site) -> None:
    around = {"input_prefix": "import os\n", "input_suffix": "\nprint(x)\n", "prompt": "x ="}
    files = [{"filename": "a.py", "text": "import re\n"}]
    found = asked(infilling, "/infill", **around, input_extra=files, **GREEDY)
    assert found["tokens_predicted"] == 12 and found["content"]
    alone = asked(infilling, "/infill", **around, **GREEDY)
    assert alone["tokens_evaluated"] < found["tokens_evaluated"]
    streamed = events(infilling, "/infill", **around, **GREEDY)
    assert "".join(piece["content"] for piece in streamed) == alone["content"]


def test_a_time_limit_ends_an_answer_of_several_lines(infilling: Site) -> None:
    around = {"input_prefix": "import os\n", "input_suffix": "\nprint(x)\n", "n_predict": 60}
    more = GREEDY | around | {"t_max_prompt_ms": 500}
    whole = asked(infilling, "/infill", **more, t_max_predict_ms=-1)
    short = asked(infilling, "/infill", **more, t_max_predict_ms=1e-6)
    assert whole["content"].startswith(short["content"]) and "\n" in short["content"]
    assert short["stop_type"] == "limit" and "warnings" not in short
    assert short["tokens_predicted"] < whole["tokens_predicted"]


def test_infill_names_the_tokens_that_a_model_lacks(server: Site) -> None:
    reply = server.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert reply.status_code == 400
    assert "no token for fim_pre, fim_suf, fim_mid" in reply.json()["error"]["message"]


@pytest.mark.parametrize("text", ["", "def f():\n", "żółw 🐢", "<|endoftext|>"])
def test_tokens_become_their_text_again(server: Site, text: str) -> None:
    tokens = asked(server, "/tokenize", content=text)["tokens"]
    assert asked(server, "/detokenize", tokens=tokens) == {"content": text}
    pieces = asked(server, "/tokenize", content=text, with_pieces=True)["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    data = [p if isinstance(p, list) else list(p.encode()) for p in (e["piece"] for e in pieces)]
    assert bytes(sum(data, [])).decode() == text


def test_a_token_that_the_model_does_not_have_is_refused(server: Site) -> None:
    assert server.post("/detokenize", {"tokens": [10**6]}).status_code == 400


def test_the_template_is_applied(server: Site) -> None:
    messages = [{"role": "user", "content": "Hi there"}]
    prompt = asked(server, "/apply-template", messages=messages)["prompt"]
    assert "Hi there" in prompt
    ids = asked(server, "/tokenize", content=prompt)["tokens"]
    chat = server.ask(messages=messages, max_tokens=1)["usage"]["prompt_tokens"]
    assert chat - len(ids) in (0, 1)  # BOS
    again = asked(server, "/completion", prompt=prompt, n_predict=1)
    assert again["tokens_evaluated"] >= chat  # markup is text there
    without = asked(server, "/apply-template", messages=messages, add_generation_prompt=False)
    assert prompt.startswith(without["prompt"]) and prompt != without["prompt"]


def test_slots_tell_whether_they_are_busy(server: Site) -> None:
    (slot,) = server.get("/slots").json()
    assert (slot["id"], slot["is_processing"]) == (0, False)
    assert slot["n_ctx"] > 0


def test_probabilities_after_sampling_are_those_that_tokens_were_drawn_by(server: Site) -> None:
    asks = {"prompt": TEXT, "n_probs": 5, "post_sampling_probs": True, "n_predict": 6}
    for entry in asked(server, "/completion", **asks, temperature=0)["completion_probabilities"]:
        assert entry["prob"] == 1.0 and [each["id"] for each in entry["top_probs"]] == [entry["id"]]
    sampling = {"temperature": 1.0, "seed": 3, "top_k": 3, "min_p": 0, "top_p": 1}
    for fields in (sampling, sampling | {"grammar": "root ::= [ -~]{20,40}"}):
        reply = asked(server, "/completion", **asks, **fields)
        for entry in reply["completion_probabilities"]:
            top = {each["id"]: each["prob"] for each in entry["top_probs"]}
            assert len(top) <= 3 and sum(top.values()) == pytest.approx(1.0)
            assert entry["prob"] == top[entry["id"]] and "logprob" not in entry
            assert [*top.values()] == sorted(top.values(), reverse=True)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/completion", "prompt"),
        ("/v1/completions", "prompt"),
        ("/v1/chat/completions", "messages"),
        ("/v1/responses", "input"),
    ],
)
def test_a_stream_reports_how_much_of_its_prompt_is_read(
    server: Site, path: str, field: str
) -> None:
    text = f"A text for {path} only. " * 60
    value = [{"role": "user", "content": text}] if field == "messages" else text
    fields = {field: value, "return_progress": True, "max_tokens": 2, "max_output_tokens": 2}
    for again in (False, True):
        lines = server.post(path, fields | {"stream": True, "timings_per_token": True}).text
        bodies = [line.removeprefix("data: ") for line in lines.splitlines() if "data: {" in line]
        found = [json.loads(each) for each in bodies]
        reports = [each for each in found if "prompt_progress" in each]
        read = [each["prompt_progress"] for each in reports]
        total = read[0]["total"]
        assert read[0]["processed"] == read[0]["cache"] and read[-1]["processed"] == total
        assert read[0]["cache"] == (total - 1 if again else read[0]["cache"])
        counts = [each["processed"] for each in read]
        assert len(counts) >= 2 and counts == sorted(set(counts))
        assert reports[0]["timings"]["prompt_n"] == 0 == reports[0]["timings"]["prompt_ms"]
        assert reports[-1]["timings"]["prompt_n"] == total - read[0]["cache"]
        assert found.index(reports[-1]) < len(found) - 1  # before the answer
    whole = server.post(path, fields)
    assert whole.status_code == 200 and "prompt_progress" not in whole.text
