"""Engine on real llama.cpp: the same text with any draft, a cache that is always what it says."""

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.chat.answer import collect
from localspec.chat.templates.template import ChatTemplate
from localspec.core.errors import (
    EngineError,
    IncompatiblePair,
    PromptTooLong,
    UsageError,
)
from localspec.core.interrupt import Cancelled, stopped_when
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import MAX_DRAFT_TOKENS, DraftTokens
from localspec.core.options.sampling_params import AcceptanceRule, SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.engine.loading import pair as loading
from localspec.llama import llama_library
from localspec.llama.memory.plan import FreeMemory
from localspec.llama.model import LlamaModel
from localspec.llama.pass_class import find_class
from localspec.llama.weights import Weights
from tests.support.chat import tool_templates
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import (
    GREEDY,
    LENGTHS,
    TinyFiles,
    fresh,
    generate,
    interrupt,
    load_model,
    options,
    press_ctrl_c,
    random_ids,
    retuned,
    unfinished_passes,
)

pytestmark = pytest.mark.llama

PARAMS = (GREEDY, *(SamplingParams(temperature=0.8, seed=seed) for seed in (0, 1, 2)))
LONG = "It was a long story, and the teller took the time that the teller had. " * 12

# -- the same text -------------------------------------------------------------------------


def test_text_does_not_depend_on_the_draft(engine: Engine) -> None:
    prompt = engine.encode_chat([{"role": "user", "content": "Tell the thing again"}])
    drafted = accepted = 0
    for params in PARAMS:
        plain = fresh(engine, prompt, params, 0, max_tokens=48)
        assert plain.stats.drafted == 0
        for length in LENGTHS[1:]:
            answer = fresh(engine, prompt, params, length, max_tokens=48)
            assert answer.tokens == plain.tokens
            assert answer.text == plain.text
            assert answer.finish_reason == plain.finish_reason
            drafted += answer.stats.drafted
            accepted += answer.stats.accepted
    assert 0 < accepted < drafted  # else nothing was tested


RARE: list[dict[str, Any]] = [
    {"presence_penalty": 0.4, "frequency_penalty": 0.2, "repeat_last_n": -1},
    {"dry_multiplier": 4.0, "dry_allowed_length": 0, "dry_penalty_last_n": 300},
    {"dry_multiplier": 4.0, "dry_allowed_length": 0, "temperature": 0},
    {"top_n_sigma": 1.0, "top_k": 0},
    {"typical_p": 0.8},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "temperature": 0},
    {"dynatemp_range": 0.5, "dynatemp_exp": 1.3},
    {"logit_bias": ("5+2", "9-inf"), "ignore_eos": True},
]


@pytest.mark.parametrize("changes", RARE)
@pytest.mark.parametrize("rule", ["coupled", "match"])
def test_no_sampler_lets_the_text_depend_on_the_draft(
    engine: Engine, changes: dict[str, Any], rule: AcceptanceRule
) -> None:
    params = SamplingParams(**({"seed": 3, "acceptance": rule} | changes))
    prompt = engine.encode_chat([{"role": "user", "content": "Tell the thing again"}])
    plain = fresh(engine, prompt, params, 0, max_tokens=40)
    without = SamplingParams(params.temperature, seed=3)
    assert plain.tokens != fresh(engine, prompt, without, 0, max_tokens=40).tokens
    answers = [fresh(engine, prompt, params, length, max_tokens=40) for length in LENGTHS[1:]]
    assert [each.tokens for each in answers] == [plain.tokens] * len(answers)
    assert 0 < sum(each.stats.accepted for each in answers)


@pytest.mark.parametrize("threads", [1, 2])
def test_exact_text_does_not_depend_on_the_draft_far_behind(tiny: TinyFiles, threads: int) -> None:
    # Beyond 512 tokens and with two threads llama.cpp splits the attention of one-token passes.
    target = options(tiny.target, threads=threads, exact=True)
    with Engine.load(target, options(tiny.draft, threads=threads)) as engine:
        prompt = engine.encode_text(LONG)
        assert len(prompt) > 600
        for params in PARAMS:
            plain = fresh(engine, prompt, params, 0)
            for length in LENGTHS[1:]:
                assert fresh(engine, prompt, params, length).tokens == plain.tokens


@pytest.mark.parametrize("base", [20, 700])
def test_exact_logits_do_not_depend_on_the_width(tiny: TinyFiles, base: int) -> None:
    model = load_model(tiny.target, threads=2, exact=True, row_kernels=False)
    passes = find_class(model)
    assert passes.step > 1  # F16 rounds differently when one token is decoded alone
    model.use_class(replace(passes, alone=False))
    ids = random_ids(base + 63)
    model.decode(ids[:base], 0)
    expected = model.decode(ids[base:], 63)[0].copy()
    for width in (1, 2, 3, 5, 10, 17, 33, 63):
        model.truncate(base)
        found = model.decode(ids[base : base + width], width)[0]
        assert np.array_equal(found, expected), f"{width} tokens wide"
    model.close()


@pytest.mark.parametrize("width", [2, 5, 9])
def test_widened_passes_round_as_wide_ones_do(tiny: TinyFiles, width: int) -> None:
    # F16 rounds differently when one token is decoded alone.
    stock = options(tiny.target, threads=2, row_kernels=False)
    with Engine.load(stock, options(tiny.draft)) as engine:
        ids = random_ids(60)
        engine.target.decode(ids[:50], 0)
        expected = engine.target.decode(ids[50 : 50 + width], width).copy()
        engine.target.truncate(50)
        alone = engine.target.decode(ids[50:51], 1)[0].copy()
        engine.target.truncate(50)
        with engine.widened(width):
            found = [engine.target.decode([token], 1)[0].copy() for token in ids[50:53]]
            assert engine.target.tokens == ids[:53]
            engine.target.truncate(50)
            engine.target.decode(ids[50:51], 0)  # no rows wanted, and none to come
            assert np.array_equal(engine.target.decode(ids[51:53], 2)[1], found[2])
        assert np.array_equal(found[0], expected[0])
        assert not np.array_equal(found[0], alone)
        engine.target.truncate(50)
        assert np.array_equal(engine.target.decode(ids[50:51], 1)[0], alone)


def test_a_failure_ends_the_widening(engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt), engine.widened(5):
        assert engine.target.min_width == 5
        raise KeyboardInterrupt
    assert engine.target.min_width == 1


def test_what_two_prompts_share_is_read_once(engine: Engine) -> None:
    first = engine.encode_text("the same beginning, one end")
    second = engine.encode_text("the same beginning, another end of it")
    shared = shared_prefix(first, second)
    assert 10 < shared < len(first) - 1
    expected = fresh(engine, second, length=4).tokens
    fresh(engine, first, length=4)
    answer = generate(engine, second, length=4)
    assert answer.stats.cached_tokens == shared
    assert answer.tokens == expected


def shared_prefix(a: list[int], b: list[int]) -> int:
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


# -- where contexts and vocabularies end ---------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("length", [0, 4, MAX_DRAFT_TOKENS, "auto"])
def test_the_context_is_filled_and_never_overrun(
    tiny: TinyFiles, length: DraftTokens, exact: bool
) -> None:
    # 256 is a whole number of llama.cpp's cells: one token more would not fit.
    target = options(tiny.target, ctx_size=256, exact=exact)
    with Engine.load(target, options(tiny.draft, ctx_size=256)) as engine:
        prompt = random_ids(230)
        emitted = 0
        for response in stream_generate(engine, prompt, GenerateOptions(GREEDY, length)):
            emitted += len(response.tokens)
            assert len(engine.target.tokens) <= 256
            assert engine.draft is not None and len(engine.draft.tokens) <= 256
        assert response.finish_reason == "context"
        assert emitted == 26
        full = generate(engine, random_ids(255), length=length, max_tokens=None)
        assert (len(full.tokens), full.finish_reason) == (1, "context")
        with pytest.raises(
            PromptTooLong, match="256 tokens, which exceeds the available context size of 256"
        ):
            generate(engine, random_ids(256), length=length)


def test_a_draft_of_smaller_context_sees_the_most_recent_part(
    tiny: TinyFiles, engine: Engine
) -> None:
    prompt = random_ids(20)
    plain = fresh(engine, prompt, max_tokens=60)
    with Engine.load(options(tiny.target), options(tiny.draft, ctx_size=40)) as short:
        drafted: list[int] = []
        emitted: list[int] = []
        for response in stream_generate(short, prompt, GenerateOptions(GREEDY, 4, max_tokens=60)):
            emitted += response.tokens
            drafted.append(response.stats.drafted)
            assert short.draft is not None and len(short.draft.tokens) <= 40
        assert emitted == plain.tokens
        assert drafted[-1] > drafted[len(drafted) // 2] > 0  # to the end
        beyond = fresh(short, random_ids(50), length=4)
        assert beyond.stats.drafted > 0
        assert beyond.tokens == fresh(engine, random_ids(50)).tokens


def test_lenient_runs_a_pair_with_other_control_tokens(tiny: TinyFiles) -> None:
    pair = (options(tiny.target), options(retuned(tiny.draft)))
    with pytest.raises(IncompatiblePair) as caught:
        Engine.load(*pair)
    assert "--lenient runs the pair" in caught.value.hint
    with Engine.load(*pair, lenient=True) as engine:
        assert any("control token" in note for note in engine.notes)
        for params in PARAMS:
            plain = fresh(engine, random_ids(8), params, max_tokens=60)
            for length in (1, 4):
                answer = fresh(engine, random_ids(8), params, length, max_tokens=60)
                assert answer.tokens == plain.tokens and answer.stats.accepted > 0


# -- the cache -----------------------------------------------------------------------------

# Logits reach 8 here. The greatest difference between batch widths was 9e-6 (recurrent: 0), with
# flash attention up to 0.03; a wrong cache differs by whole units.
CLOSE = 1e-4


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    difference = float(np.abs(found - expected).max())
    assert difference < CLOSE, f"the greatest difference is {difference}"


def by_pieces(model: LlamaModel, ids: list[int], width: int) -> np.ndarray:
    """The logits after every token of ``ids``, decoded ``width`` at a time."""
    model.truncate(0)
    starts = range(0, len(ids), width)
    rows = [model.decode(ids[s : s + width], len(ids[s : s + width])).copy() for s in starts]
    return np.concatenate(rows)


def test_keep_forgets_what_it_should(floats: LlamaModel) -> None:
    ids = random_ids(60)
    expected = by_pieces(floats, ids, 10)
    floats.truncate(0)
    floats.decode(ids[:40], 0)
    for wrong in range(1, 6):
        floats.decode(random_ids(wrong, seed=wrong), wrong)
        floats.truncate(40)
        assert floats.tokens == ids[:40]
    floats.truncate(30)
    floats.truncate(35)  # longer than what is there: nothing to forget
    assert floats.tokens == ids[:30]
    assert_close(floats.decode(ids[30:], 30), expected[30:])


def test_forgetting_does_not_copy_what_is_kept(floats: LlamaModel) -> None:
    held = floats.tokens
    floats.decode(random_ids(40), 0)
    floats.truncate(30)
    floats.decode(random_ids(5), 1)
    assert floats.tokens is held and len(held) == 35


def test_llama_cpp_is_asked_once_for_the_bytes_of_a_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    piece = engine.target.piece

    def ask(token: int) -> bytes:
        asked.append(token)
        return piece(token)

    monkeypatch.setattr(engine, "_pieces", {})
    monkeypatch.setattr(engine.target, "piece", ask)
    (stop,) = engine.target.tokenize("<|im_end|>", add_special=False, parse_special=True)
    ids = [*engine.encode_text("the thing"), stop]
    for _ in range(3):
        assert b"".join(map(engine.piece, ids)) == b"the thing"
    assert sorted(asked) == sorted(set(ids))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("count", [511, 512, 513, 515, 700])
def test_prompts_in_several_batches(floats: LlamaModel, count: int, rows: int) -> None:
    ids = random_ids(count)
    expected = by_pieces(floats, ids, 50)
    floats.truncate(0)
    assert_close(floats.decode(ids, rows), expected[count - rows :])
    assert floats.tokens == ids


def test_logits_are_one_row_per_token_asked_for(floats: LlamaModel) -> None:
    assert floats.decode(random_ids(9), 0).shape == (0, floats.n_vocab)
    assert floats.decode(random_ids(9), 2).shape == (2, floats.n_vocab)
    most = MAX_DRAFT_TOKENS + 1
    assert floats.decode(random_ids(most), most).shape == (most, floats.n_vocab)


def test_a_pass_that_only_reads_is_over_when_it_returns(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else on a GPU its seconds would be counted as those of the next round."""
    unfinished = unfinished_passes(monkeypatch)
    for model in (engine.target, engine.draft):
        assert isinstance(model, LlamaModel)
        model.decode(random_ids(200), 0)
        assert not unfinished


@pytest.mark.parametrize("bad", [[300], [*range(10), -1]])
def test_a_refused_decode_leaves_the_cache_as_it_was(floats: LlamaModel, bad: list[int]) -> None:
    ids = random_ids(30)
    expected = by_pieces(floats, ids, 10)
    floats.truncate(20)
    with pytest.raises(EngineError, match="could not decode"):
        floats.decode([*random_ids(600, seed=5), *bad], 1)  # the first batch goes well
    assert floats.tokens == ids[:20]
    assert_close(floats.decode(ids[20:], 10), expected[20:])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("function", ["llama_decode", "llama_memory_seq_rm"])
@pytest.mark.parametrize("exact", [False, True])
def test_after_ctrl_c_the_same_engine_continues_rightly(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch, function: str, after: bool, exact: bool
) -> None:
    with Engine.load(options(tiny.target, exact=exact), options(tiny.draft)) as engine:
        prompt = engine.encode_text(LONG)
        expected = fresh(engine, prompt, length=3, max_tokens=12).tokens
        for call in range(1, 10):
            engine.target.truncate(500)  # so that reading the prompt takes part
            with monkeypatch.context() as patch:
                cut = interrupt(patch, call, function, after=after)
                try:
                    answer = generate(engine, prompt, length=3, max_tokens=12)
                except KeyboardInterrupt:  # while the cache is emptied, before the generator runs
                    continue
            assert cut.fired and answer.finish_reason == "cancelled"
            assert answer.tokens == expected[: len(answer.tokens)]
            assert generate(engine, prompt, length=3, max_tokens=12).tokens == expected


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("function", ["llama_decode", "llama_memory_seq_rm"])
def test_after_ctrl_c_the_cache_is_what_it_says(
    floats: LlamaModel, monkeypatch: pytest.MonkeyPatch, function: str, after: bool
) -> None:
    ids, more = random_ids(700), random_ids(7, seed=1)
    for call in (1, 2):
        floats.truncate(0)
        floats.decode(ids[:40], 0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupt(patch, call, function, after=after)
            floats.truncate(20)
            floats.decode(ids[20:], 0)
            floats.truncate(10)
        held = list(floats.tokens)
        found = floats.decode(more, 7).copy()
        assert floats.tokens == [*held, *more]
        assert_close(found, by_pieces(floats, [*held, *more], 47)[-7:])


def test_ctrl_c_stops_within_a_batch_and_keeps_those_before(
    floats: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, codes = random_ids(900), list[int]()
    expected = by_pieces(floats, ids, 50)[-1:]
    floats.truncate(0)
    decode = llama_library.library().llama_decode

    def pressed_while(*arguments: object) -> Any:
        if len(codes) == 1:  # the second batch
            press_ctrl_c()
        codes.append(decode(*arguments))
        return codes[-1]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(llama_library.library(), "llama_decode", pressed_while)
        floats.decode(ids, 1)
    assert codes == [0, 2]  # 2: aborted
    assert floats.tokens == ids[:64]
    assert_close(floats.decode(ids[64:], 1), expected)


@pytest.mark.parametrize("model", ["target", "draft"])
def test_another_thread_ends_a_pass_and_keeps_the_batches_before(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """The reading of a long prompt by either model of a pair, outside the main thread."""
    prompt, codes, unwanted = random_ids(900), list[int](), threading.Event()
    read: LlamaModel = getattr(engine, model)
    expected = fresh(engine, prompt, length=4).tokens
    engine.target.truncate(0 if model == "target" else 900)
    read.truncate(0)
    decode = llama_library.library().llama_decode

    def while_reading(context: Any, batch: Any) -> Any:
        if context == read.context and len(codes) == 1:  # the second batch
            unwanted.set()
        code = decode(context, batch)
        if context == read.context:
            codes.append(code)
        return code

    def answer() -> None:
        with stopped_when(unwanted.is_set), pytest.raises(Cancelled):
            list(stream_generate(engine, prompt, GenerateOptions(GREEDY, 4, max_tokens=24)))

    with monkeypatch.context() as patch:
        patch.setattr(llama_library.library(), "llama_decode", while_reading)
        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()
    assert codes == [0, 2]  # 2: aborted
    assert read.tokens == prompt[:64]
    again = generate(engine, prompt, length=4)
    assert again.tokens == expected
    if model == "target":
        assert again.stats.cached_tokens == 64


def test_what_is_unwanted_is_not_begun(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where llama.cpp asks nobody, as on CUDA, a prompt ends between two batches."""
    with monkeypatch.context() as patch, stopped_when(lambda: True), pytest.raises(Cancelled):
        patch.setattr(llama_library.library(), "llama_decode", None)
        engine.target.decode(random_ids(100), 0)
    assert engine.target.tokens == []
    engine.target.decode(random_ids(100), 0)


def test_closing_twice_is_harmless(tiny: TinyFiles) -> None:
    engine = Engine.load(options(tiny.target), options(tiny.draft))
    engine.close()
    engine.close()


def test_nothing_is_learnt_while_passes_are_widened(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target), options(tiny.draft)) as engine:
        known = engine.profile.learnt(time.perf_counter)
        before = known.verify.as_json()
        with engine.widened(33):
            generate(engine, random_ids(20), length="auto", max_tokens=20)
        assert engine.profile.learnt(time.perf_counter) is known
        assert known.verify.as_json() == before
        generate(engine, random_ids(20), length="auto", max_tokens=20)
        assert known.verify.as_json() != before


# -- sliding windows -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three of its four layers see 16 tokens back."""
    path = tmp_path_factory.mktemp("sliding") / "sliding.gguf"
    return write_tiny_model(path, seed=2, layers=4, window=16, context_length=4096)


@pytest.mark.parametrize("length", [1, 15, 440, 700, 1180, 1199])
def test_a_window_that_has_moved_on_is_read_again(sliding: Path, length: int) -> None:
    ids, model = random_ids(1300), load_model(sliding, ctx_size=2048, flash_attention="off")
    model.decode(ids[:1200], 0)
    model.truncate(length)
    assert model.tokens == ids[:length]
    again = model.decode(ids[length : length + 8], 8).copy()
    model.truncate(0)
    model.decode(ids[:length], 0)
    assert_close(again, model.decode(ids[length : length + 8], 8))
    model.close()


# -- models whose state has no past ---------------------------------------------------------


def test_where_no_way_works_all_is_read_again(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.load(options(tiny.recurrent)) as plain:
        expected = fresh(plain, plain.encode_text("the thing"))
    monkeypatch.setattr(LlamaModel, "_works", lambda model: False)
    with Engine.load(options(tiny.recurrent), options(tiny.draft)) as engine:
        assert engine.draft is None and not engine.can_roll_back
        assert any("running plain, the draft is not used" in note for note in engine.notes)
        prompt = engine.encode_text("the thing")
        assert fresh(engine, prompt, length=4).tokens == expected.tokens
        engine.target.truncate(3)
        assert engine.target.tokens == prompt[:3] and engine.target.pending == 3


@pytest.mark.parametrize(
    ("target", "heads", "kind"),
    [("qwen35-mtp", None, "draft-mtp"), ("qwen35", "mtp-qwen35", "draft-mtp"),
     ("llama", "eagle3", "draft-eagle3"), ("llama", "dflash", "draft-dflash"),
     ("llama", "dspark", "draft-dspark"), ("llama", "dflash2", "draft-dflash")],
)  # fmt: skip
def test_settings_tell_the_kind_of_draft(
    architecture: Callable[[str], Path], target: str, heads: str | None, kind: str
) -> None:
    path = architecture(target)
    draft = options(path, load_heads=True) if heads is None else options(architecture(heads))
    with Engine.load(options(path, ctx_size=256), replace(draft, ctx_size=256)) as engine:
        told = engine.settings()["draft"]
    assert isinstance(told, dict) and told["spec_type"] == kind


@pytest.mark.parametrize("params", PARAMS)
def test_exact_answers_of_a_recurrent_target_are_exactly_the_same(
    architecture: Callable[[str], Path], params: SamplingParams
) -> None:
    """With the widths that its kernels see in a fork, where a padded pass is taken back."""
    path = architecture("falcon-h1")
    given = options(path, ctx_size=256, exact=True)
    with Engine.load(given, options(architecture("mamba2"), ctx_size=256), lenient=True) as engine:
        assert engine.target.rollback.name == "fork"
        prompt = engine.encode_text("the thing")
        plain = fresh(engine, prompt, params, 0, 150)
        for length in (1, 3, 8):
            assert fresh(engine, prompt, params, length, 150).tokens == plain.tokens


# -- the tokenizer -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizers(tiny: TinyFiles, demo_files: tuple[Path, Path]) -> list[Engine]:
    return [Engine.load(options(path, ctx_size=256)) for path in (tiny.target, demo_files[0])]


@settings(max_examples=2 * settings().max_examples)
@given(text=st.text(max_size=60))
def test_tokens_hold_every_byte_of_the_text(tokenizers: list[Engine], text: str) -> None:
    for engine in tokenizers:
        ids = engine.encode_text(text)
        assert b"".join(map(engine.piece, ids)) == text.encode()  # BOS has no bytes
        assert ids.count(bos_of(engine)) == 1


def bos_of(engine: Engine) -> int:
    vocab = engine.target.header.vocab
    assert vocab is not None and vocab.bos_id is not None
    return vocab.bos_id


def test_control_tokens_count_in_raw_text(engine: Engine) -> None:
    (stop,) = engine.target.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert engine.is_stop(stop)
    ids = engine.encode_text("a<|im_end|>b")
    assert ids.count(stop) == 1 and len(engine.template.bos) > 2
    assert engine.encode_text(f"{engine.template.bos}a") == engine.encode_text("a")  # one BOS
    assert ids.output.piece(stop) == b""
    shown = engine.encode_text("a<|im_end|>b", special=True)
    assert shown == ids and shown.output.piece(stop) == b"<|im_end|>"


@pytest.mark.parametrize(
    "place", ["system", "user", "assistant", "tool", "reasoning", "arguments", "description"]
)
def test_control_tokens_in_messages_are_text(
    engine: Engine, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "template", ChatTemplate(tool_templates.HERMES))

    def prompt(text: str) -> list[int]:
        """The conversation with a text in this place."""
        said = dict.fromkeys(("system", "user", "assistant", "tool", "reasoning"), "x") | {
            place: text
        }
        arguments = {"a": [text if place == "arguments" else "x"]}
        call = {"function": {"name": "f", "arguments": arguments}, "id": "c"}
        about = text if place == "description" else "x"
        tool = {"type": "function", "function": {"name": "f", "description": about}}
        messages: list[Mapping[str, object]] = [
            {"role": "system", "content": said["system"]},
            {"role": "user", "content": said["user"]},
            {"role": "assistant", "content": said["assistant"], "tool_calls": [call],
             "reasoning_content": said["reasoning"]},
            {"role": "tool", "content": said["tool"]},
        ]  # fmt: skip
        return engine.encode_chat(messages, tools=[tool])

    def control(ids: list[int]) -> list[int]:
        return [token for token in ids if not engine.piece(token)]

    text = "a<|im_end|>b<<|im_start|>"
    assert control(prompt(text)) == control(prompt("y"))
    assert control(engine.encode_text(text))[1:]
    shown = b"".join(engine.target.piece(token, special=True) for token in prompt(text))
    assert (text.encode() in shown) == (b"Y_Y" in b"".join(map(engine.piece, prompt("Y_Y"))))


def test_lone_surrogates_do_not_end_the_process(engine: Engine) -> None:
    # They come from arguments that are not UTF-8.
    assert engine.encode_text("a\udcff\ud800b")


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0]['content'] }}", "hello"])
def test_a_chat_never_has_two_bos(tmp_path: Path, add_bos: bool, template: str) -> None:
    path = write_tiny_model(
        tmp_path / "bos.gguf", seed=0, add_bos=add_bos, chat_template=template, layers=1
    )
    with Engine.load(options(path)) as engine:
        ids = engine.encode_chat([{"role": "user", "content": "hello"}])
        wanted = add_bos or "bos_token" in template
        assert ids.count(bos_of(engine)) == int(wanted)
        assert (ids[0] == bos_of(engine)) == wanted


# -- files that cannot be loaded -----------------------------------------------------------


def test_a_pair_that_does_not_fit_is_refused_before_loading(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", seed=0, add_bos=False)
    monkeypatch.setattr(loading, "LlamaModel", None)  # weights are never reached
    with pytest.raises(IncompatiblePair, match=r"other\.gguf cannot draft for .*target\.gguf"):
        Engine.load(options(tiny.target), options(other))


def test_a_file_that_passes_the_header_check_but_not_llama_cpp(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "odd.gguf", seed=0)
    data = path.read_bytes()
    assert data.count(b"blk.1.ffn_up.weight") == 1
    path.write_bytes(data.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xp.weight"))
    with pytest.raises(EngineError) as caught:
        Engine.load(options(path))
    assert "tensor 'blk.1.ffn_up.weight'" in caught.value.message
    assert "--verbose" in caught.value.hint


def test_a_draft_that_fails_frees_the_target(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[Path] = []
    close = Weights.close

    def noted_close(weights: Weights) -> None:
        freed.append(weights.header.path)
        close(weights)

    monkeypatch.setattr(Weights, "close", noted_close)
    with pytest.raises(UsageError):
        Engine.load(options(tiny.target), options(tiny.draft, override_tensors=("blk=nowhere",)))
    assert {*freed} == {tiny.target, tiny.draft}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "nonesuch"}, "no device 'nonesuch'"),
        ({"override_tensors": ("[=CPU",)}, "not a regular expression"),
        ({"override_tensors": ("blk=nowhere",)}, "no buffer type 'nowhere'"),
        ({"override_tensors": ("blk",)}, "no buffer type ''"),
    ],
)
def test_options_that_make_no_sense(
    tiny: TinyFiles, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load_model(tiny.target, **changes)
    assert caught.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "none"},
        {"cpu_moe_layers": 1},
        {"override_tensors": (r"blk\.0\..*=CPU",)},
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        {"flash_attention": "on"},
        {"flash_attention": "off"},
        {"gpu_layers": 0},
        {"threads_batch": 1},
    ],
)
def test_options_that_change_no_text(
    tiny: TinyFiles, engine: Engine, changes: dict[str, object]
) -> None:
    expected = fresh(engine, random_ids(9), max_tokens=3)
    with Engine.load(options(tiny.target, **changes)) as loaded:
        assert fresh(loaded, random_ids(9), max_tokens=3).tokens == expected.tokens


def test_llama_cpps_own_reason_is_told(tiny: TinyFiles) -> None:
    with pytest.raises(EngineError) as caught:
        load_model(tiny.target, cache_type_v="q8_0", flash_attention="off")
    assert "flash" in caught.value.message.lower() and caught.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the process's memory")
def test_a_context_larger_than_memory(tiny: TinyFiles) -> None:
    code = """
import resource, sys
from pathlib import Path
from localspec.core.options.load_options import LoadOptions
from localspec.engine.engine import Engine
from localspec.core.errors import NotEnoughMemory
Engine.load(LoadOptions(Path(sys.argv[1]), threads=1)).close()
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
try:
    Engine.load(LoadOptions(Path(sys.argv[1]), threads=1, ctx_size=10_000_000))
except NotEnoughMemory as problem:
    print(problem.message)
    print(problem.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny.target)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    message, hint = done.stdout.splitlines()
    assert message.startswith("target.gguf and a context of 10,000,000 tokens need ")
    assert "of what this shell allows a process" in message and "ctx" in hint


def test_paths_that_are_not_utf8(tiny: TinyFiles, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"odd \xff name.gguf")
    try:
        path.write_bytes(tiny.target.read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with Engine.load(options(path)) as engine:
        assert generate(engine, random_ids(4), max_tokens=2).tokens


# -- a plain answer in turn ----------------------------------------------------------------


PROMPT = "the thing and the other thing " * 3
FIXED = GenerateOptions(GREEDY, 3, max_tokens=40)


def test_a_plain_answer_comes_in_turn_and_reads_no_prompt_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, contexts = engine.encode_text(PROMPT), list[int]()
    expected = fresh(engine, prompt, GREEDY, 0, max_tokens=40).tokens
    engine.target.truncate(0)
    decode, own = llama_library.library().llama_decode, engine.target.context

    def recorded(context: Any, batch: Any) -> int:
        contexts.append(context)
        return int(decode(context, batch))

    monkeypatch.setattr(llama_library.library(), "llama_decode", recorded)
    with engine.stream_with_plain(prompt, FIXED, print) as streams:
        drafted, plain = map(collect, streams)
    assert drafted.tokens == plain.tokens == expected
    assert drafted.stats.drafted > 0 == plain.stats.drafted
    assert (drafted.stats.cached_tokens, plain.stats.cached_tokens) == (0, len(prompt) - 1)
    others = [each for each in contexts if each not in (own, engine.draft.context)]  # type: ignore[union-attr]
    last = len(contexts) - 1 - contexts[::-1].index(own)
    assert len({*others}) == 1 and contexts.index(others[0], 0, last) < last - drafted.stats.rounds


def test_ctrl_c_in_a_plain_pass_ends_both(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = engine.encode_text(PROMPT)
    loaded = engine.target.context, engine.draft.context  # type: ignore[union-attr]
    decode, passes = llama_library.library().llama_decode, itertools.count()

    def pressed(context: Any, batch: Any) -> int:
        if context not in loaded and next(passes) == 8:  # some of them show that it works
            raise KeyboardInterrupt
        return int(decode(context, batch))

    monkeypatch.setattr(llama_library.library(), "llama_decode", pressed)
    with engine.stream_with_plain(prompt, FIXED, print) as (shown, plain):
        drafted = collect(shown)
    assert drafted.finish_reason == "cancelled" and 0 < len(drafted.tokens) < 40
    with engine.stream_with_plain(prompt, FIXED, print) as streams:
        drafted, other = map(collect, streams)
    assert drafted.tokens == other.tokens and len(other.tokens) == 40


def test_without_room_for_its_context_the_plain_answer_comes_afterwards(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.engine.engine.free_memory", lambda *_: FreeMemory(2**10))
    notes, prompt = list[str](), engine.encode_text(PROMPT)
    with engine.stream_with_plain(prompt, FIXED, notes.append) as streams:
        drafted, plain = map(collect, streams)
    assert drafted.tokens == plain.tokens and len(plain.tokens) == 40 and len(notes) == 1
    assert drafted.stats.drafted > 0 == plain.stats.drafted


@pytest.mark.parametrize("exact", [False, True])
def test_a_second_context_of_any_memory(tiny: TinyFiles, exact: bool) -> None:
    for path in (tiny.target, tiny.recurrent):
        with Engine.load(options(path, exact=exact), None) as loaded:
            prompt = loaded.encode_text(PROMPT)
            once = replace(FIXED, draft_tokens=0)
            expected = collect(loaded.stream(prompt, once)).tokens
            with loaded.plain(print) as second:
                assert second is not loaded
                assert collect(second.stream(prompt, once)).tokens == expected
            assert collect(loaded.stream(prompt, once)).tokens == expected


# -- notes ---------------------------------------------------------------------------------


def test_a_stretched_context_is_told(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target, ctx_size=2048)) as engine:
        assert any("longer than the 1024" in note for note in engine.notes)
    with Engine.load(options(tiny.target)) as engine:
        assert engine.target.n_ctx == 1024
        assert engine.notes == []


def test_settings_tell_what_an_answer_depends_on(engine: Engine, tiny: TinyFiles) -> None:
    found = engine.target.settings()
    assert found["file"] == str(tiny.target)
    assert (found["quantization"], found["ctx_size"], found["threads"]) == ("F16", 1024, 1)
    assert found["llama_cpp_python"] == llama_library.build().bindings
