"""A prompt that was read once: the same text, with what the files hold and whatever they hold."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.chat.answer import Answer, collect
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.caches import prompt_cache
from localspec.engine.caches.prompt_cache import PromptCache
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.llama.cache import state_file
from localspec.llama.cache.rollback import STRATEGIES
from localspec.llama.heads.opening import open_head
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import (
    GREEDY,
    TinyFiles,
    fresh,
    generate,
    interrupt,
    options,
    random_ids,
)

pytestmark = pytest.mark.llama

PROMPT = random_ids(300)


def start(
    engine: Engine,
    path: Path,
    prompt: Sequence[int] = PROMPT,
    params: SamplingParams = GREEDY,
    length: DraftTokens = 0,
    *,
    read_only: bool = False,
    answers: bool = False,
    on_start: list[int] | None = None,
) -> tuple[Answer, list[str]]:
    """One answer as a new process would give it, and what was said."""
    engine.target.truncate(0)
    if engine.draft is not None:
        engine.draft.truncate(0)
    said: list[str] = []
    with PromptCache(path, engine, said.append, read_only=read_only, answers=answers) as cache:
        if on_start is not None:
            on_start += [len(model.tokens) for model in (engine.target, engine.draft) if model]
        responses = stream_generate(
            engine,
            prompt,
            GenerateOptions(params, length, max_tokens=24),
            on_prompt=cache.save_prompt,
        )
        return collect(responses), said


@pytest.mark.parametrize("length", [0, 4, "auto"])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0.8, seed=3)])
def test_the_same_text_and_nothing_read_twice(
    engine: Engine, tmp_path: Path, params: SamplingParams, length: DraftTokens
) -> None:
    expected = fresh(engine, PROMPT, params, length).tokens
    first, said = start(engine, tmp_path / "cache", PROMPT, params, length)
    assert first.tokens == expected and first.stats.cached_tokens == 0
    assert said[0].startswith(f"Prompt cache: 299 tokens in {tmp_path / 'cache'} (")
    again, said = start(engine, tmp_path / "cache", PROMPT, params, length)
    assert again.tokens == expected
    assert not any("cache (" in sentence for sentence in said)  # auto may have drafted only now
    assert (again.stats.read_tokens, again.stats.cached_tokens) == (1, 299)


def test_the_draft_reads_nothing_twice_either(engine: Engine, tmp_path: Path) -> None:
    assert engine.draft is not None
    _, said = start(engine, tmp_path / "cache", length=4)
    assert len(said) == 2 and "cache.draft (" in said[1]
    held = list[int]()
    again, said = start(engine, tmp_path / "cache", length=4, on_start=held)
    assert held[0] == 299 and held[1] >= 299 and said == []
    assert again.tokens == fresh(engine, PROMPT, length=4).tokens


def test_a_draft_that_read_hardly_anything_is_not_kept(engine: Engine, tmp_path: Path) -> None:
    assert engine.draft is not None
    with PromptCache(tmp_path / "cache", engine, lambda sentence: None) as cache:
        engine.target.decode(PROMPT, 0)
        cache.save_prompt()
        engine.draft.decode(PROMPT[:20], 0)
    assert [path.name for path in tmp_path.glob("cache*")] == ["cache"]


def test_a_file_for_another_draft_serves_the_target(
    engine: Engine, tiny: TinyFiles, tmp_path: Path
) -> None:
    start(engine, tmp_path / "cache", length=4)
    with Engine.load(options(tiny.target), options(tiny.target)) as other:
        answer, said = start(other, tmp_path / "cache", length=4)
    assert answer.stats.cached_tokens == 299
    assert "cache.draft cannot be used: it belongs to another model, Tiny; it will" in said[0]
    assert len(said) == 2 and said[1].startswith("Prompt cache: ")


@pytest.mark.parametrize(
    ("prompt", "cached"),
    [(PROMPT[:200], 199), (PROMPT + random_ids(50, seed=2), 299),
     (PROMPT[:100] + random_ids(300, seed=2), 100), (random_ids(50, seed=2), 0)],
)  # fmt: skip
def test_what_another_prompt_shares_is_used(
    engine: Engine, tmp_path: Path, prompt: list[int], cached: int
) -> None:
    start(engine, tmp_path / "cache", length=4)
    answer, said = start(engine, tmp_path / "cache", prompt, length=4)
    assert answer.stats.cached_tokens == cached
    assert answer.tokens == fresh(engine, prompt, length=4).tokens
    # Written again where there is more, and not where a part of it was asked for.
    assert bool(said) == (prompt != PROMPT[:200])


@pytest.mark.parametrize("damage", ["cut", "flipped", "hole", "empty"])
def test_a_damaged_file_is_told_and_written_anew(
    engine: Engine, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "cache"
    start(engine, path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1 if damage == "flipped" else 0
    if damage == "hole":
        data[-5000:-1000] = bytes(4000)
    path.write_bytes(data[: {"cut": -7, "empty": 0}.get(damage)])
    answer, said = start(engine, path)
    assert answer.stats.cached_tokens == 0
    assert answer.tokens == fresh(engine, PROMPT).tokens
    assert said[0].startswith(f"The prompt cache {path} cannot be used: it is ")
    assert said[0].endswith("; it will be overwritten.")
    assert start(engine, path)[0].stats.cached_tokens == 299


@pytest.mark.parametrize("kind", ["trim", "sliding", "recurrent", "qwen35"])
@pytest.mark.parametrize("number", [np.float16(np.nan), np.float32(np.nan)])
@pytest.mark.parametrize("tried", [False, True])
def test_a_state_that_gives_no_numbers_is_dropped_and_named(
    tiny: TinyFiles,
    architecture: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    number: "np.floating[Any]",
    tried: bool,
) -> None:
    """Where it shows in the first tokens, and where, as without a try, only in later ones."""
    if not tried:
        monkeypatch.setattr(state_file, "_require_numbers", lambda holder: None)
    model = {"trim": tiny.target, "recurrent": tiny.recurrent}.get(kind) or (
        write_tiny_model(tmp_path / "m.gguf", seed=2, layers=4, window=16, context_length=1024)
        if kind == "sliding"
        else architecture(kind)
    )
    path = tmp_path / "cache"
    with Engine.load(options(model), trial=False) as engine:
        expected, _ = start(engine, path)
        spoil(path, number)
        again, said = start(engine, path)
        if not said:  # in a state of F32 these are large numbers: another text, and no error
            assert number.itemsize == 2 and kind in ("recurrent", "qwen35")
            return
        assert again.tokens == expected.tokens
        assert "not numbers" in said[0] and str(path) in said[0]
        assert start(engine, path)[0].tokens == expected.tokens
        last, said = start(engine, path)
        assert (last.tokens, said) == (expected.tokens, [])
        assert last.stats.cached_tokens == len(PROMPT) - 1


def spoil(path: Path, number: "np.floating[Any]") -> None:
    """Write a number at the end of the state in a cache's file, whose checksum stays right."""
    data = path.read_bytes()
    begin = 20 + int.from_bytes(data[16:20], "little")
    header, body = json.loads(data[20:begin]), bytearray(data[begin:])
    end = 4 * header["tokens"] + header["state"]
    body[end - 512 : end] = number.tobytes() * (512 // number.itemsize)
    header["sha256"] = hashlib.sha256(body).hexdigest()
    text = json.dumps(header).encode()
    path.write_bytes(data[:16] + len(text).to_bytes(4, "little") + text + body)


def test_read_only(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    _, said = start(engine, path, read_only=True)
    assert said == [f"There is no prompt cache {path}: the prompt is read."]
    start(engine, path)
    before = path.read_bytes()
    longer = PROMPT + random_ids(20, seed=5)
    answer, said = start(engine, path, longer, read_only=True)
    assert answer.stats.cached_tokens == 299 and said == []
    path.write_bytes(before[:-1])
    _, said = start(engine, path, read_only=True)
    assert said[0].endswith("; the prompt is read.") and path.read_bytes() == before[:-1]


def test_ctrl_c_while_the_prompt_is_read_keeps_what_was(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_ids(900)
    with monkeypatch.context() as patch:
        interrupt(patch, 2)
        answer, said = start(engine, tmp_path / "cache", prompt, length=4)
    assert answer.finish_reason == "cancelled" and not answer.tokens
    assert said[0].startswith("Prompt cache: 64 tokens in ")
    answer, _ = start(engine, tmp_path / "cache", prompt, length=4)
    assert answer.stats.cached_tokens == 64
    assert answer.tokens == fresh(engine, prompt, length=4).tokens


def test_ctrl_c_in_the_answer_keeps_the_prompt(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, 5 + 3)  # the prompt is read in five passes
        answer, said = start(engine, tmp_path / "cache")
    assert answer.finish_reason == "cancelled" and len(answer.tokens) == 2 and len(said) == 1
    assert start(engine, tmp_path / "cache")[0].stats.cached_tokens == 299


def test_the_answer_is_kept_where_it_is_wanted(engine: Engine, tmp_path: Path) -> None:
    answer, said = start(engine, tmp_path / "cache", length=4, answers=True)
    assert said[0].startswith("Prompt cache: 323 tokens in ") and len(said) == 2
    conversation = [*PROMPT, *answer.tokens, *random_ids(10, seed=9)]
    again, _ = start(engine, tmp_path / "cache", conversation, length=4, answers=True)
    assert again.stats.cached_tokens == 323
    assert again.tokens == fresh(engine, conversation, length=4).tokens


def test_a_file_that_cannot_be_written_is_told(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prompt_cache, "write_state", full)
    answer, said = start(engine, tmp_path / "cache")
    assert len(answer.tokens) == 24
    assert said == [
        f"The prompt cache {tmp_path / 'cache'} cannot be written: No space left on device. Make "
        "room on the disk, or name another file: --prompt-cache FILE."
    ]


@pytest.mark.parametrize(
    ("prompt", "saved"),
    [(PROMPT, True), (PROMPT + random_ids(50, seed=2), True),
     (PROMPT[:200], False), (PROMPT[:100] + random_ids(300, seed=2), False)],
)  # fmt: skip
def test_models_that_cannot_go_back(
    forgetful: Engine, tmp_path: Path, prompt: list[int], saved: bool
) -> None:
    start(forgetful, tmp_path / "cache")
    answer, _ = start(forgetful, tmp_path / "cache", prompt)
    assert answer.tokens == fresh(forgetful, prompt).tokens
    assert (answer.stats.cached_tokens == 299) == saved


# -- models whose state has no past ---------------------------------------------------------


@contextmanager
def recurrent(architecture: Callable[[str], Path], way: str, *, heads: bool) -> Iterator[Engine]:
    """A hybrid target that rolls back in one way, with its heads or without a draft."""
    path = architecture("qwen35-mtp")
    given = options(path, ctx_size=512, cache_type_k="f32", cache_type_v="f32", load_heads=heads)
    target = LlamaModel(read_header(path), given, strategies=(way,))
    with Engine(target, open_head(target, None, given) if heads else None) as engine:
        assert target.rollback.name == way
        yield engine


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize(("wrote", "reads"), [(a, b) for a in STRATEGIES for b in STRATEGIES])
def test_a_recurrent_state_comes_back_in_any_way_of_rolling_back(
    architecture: Callable[[str], Path], tmp_path: Path, wrote: str, reads: str, heads: bool
) -> None:
    path, params = tmp_path / "cache", SamplingParams(temperature=0.8, seed=3)
    with recurrent(architecture, wrote, heads=heads) as engine:
        prompt = engine.encode_text("the thing that is said " * 8)
        expected = fresh(engine, prompt, params, 0)
        start(engine, path, prompt, params, 3 if heads else 0)
    with recurrent(architecture, reads, heads=heads) as engine:
        for length in (0, 3) if heads else (0,):
            again, said = start(engine, path, prompt, params, length)
            assert (again.stats.read_tokens, again.stats.cached_tokens) == (1, len(prompt) - 1)
            assert again.tokens == expected.tokens and said == []
            once_more = generate(engine, prompt, params, length)  # as /regen does
            assert (once_more.stats.read_tokens, once_more.tokens) == (1, expected.tokens)
        longer = [*prompt, *again.tokens, *prompt[-9:]]
        grown = generate(engine, longer, params, length)
        assert grown.stats.read_tokens <= 10 + 1
        assert grown.tokens == fresh(engine, longer, params, 0).tokens
        if heads:
            assert again.stats.drafted > 0


def test_a_file_of_a_target_serves_it_with_its_heads_and_without(
    architecture: Callable[[str], Path], tmp_path: Path
) -> None:
    for wrote, path in ((False, tmp_path / "plain"), (True, tmp_path / "heads")):
        with recurrent(architecture, STRATEGIES[0], heads=wrote) as engine:
            prompt = engine.encode_text("the thing that is said " * 8)
            expected = start(engine, path, prompt)[0].tokens
        with recurrent(architecture, STRATEGIES[0], heads=not wrote) as engine:
            again, said = start(engine, path, prompt)
            assert again.tokens == expected and said == []
            assert again.stats.read_tokens == 1
