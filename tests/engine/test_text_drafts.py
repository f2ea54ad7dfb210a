"""Drafts of another vocabulary on real llama.cpp: the text is the target's, and they are of use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.answer import Answer, collect
from localspec.core import paths
from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.llama.model import LlamaModel
from tests.support.command import Command
from tests.support.files.cycle_models import PAIRS, ROW, write_cycle_model
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import GREEDY, options

pytestmark = pytest.mark.llama

PROMPT = f"Go on: {ROW}{ROW[:5]}"
Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both recite the same row, the target by characters, the draft by pairs of them."""
    folder = tmp_path_factory.mktemp("cycles")
    target = write_cycle_model(folder / "target.gguf", (), layers=4)
    return target, write_cycle_model(folder / "draft.gguf", PAIRS)


@pytest.fixture(scope="module")
def by_text(pair: Pair) -> Iterator[Engine]:
    with Engine.load(*(options(path, ctx_size=512) for path in pair)) as engine:
        yield engine


def answer(
    engine: Engine, length: DraftTokens, params: SamplingParams = GREEDY, prompt: str = PROMPT
) -> Answer:
    engine.forget()
    asked = GenerateOptions(params, length, max_tokens=60, prompt_lookup=False)
    return collect(engine.stream(engine.encode_text(prompt), asked))


@pytest.mark.parametrize("length", [1, 4, 9, "auto"])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=2.0, seed=3)])
def test_the_text_is_that_of_plain_decoding(
    by_text: Engine, length: DraftTokens, params: SamplingParams
) -> None:
    assert by_text.vocabularies is not None
    for prompt in (PROMPT, PROMPT + "Größe 早", "<|im_start|>user\nAgain<|im_end|>\n01"):
        plain, drafted = (answer(by_text, n, params, prompt) for n in (0, length))
        assert drafted.tokens == plain.tokens and drafted.text == plain.text


def test_who_recites_the_same_is_accepted(by_text: Engine) -> None:
    found = answer(by_text, 4)
    assert found.text.startswith(ROW[5:])
    assert found.stats.drafted > 20 and found.stats.accepted == found.stats.drafted


def test_a_model_that_knows_nothing_changes_nothing(pair: Pair, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", seed=4, context_length=1024)
    with Engine.load(options(pair[0], ctx_size=512), options(other, ctx_size=64)) as engine:
        assert engine.vocabularies is not None
        plain = answer(engine, 0)
        for length in (3, "auto"):
            assert answer(engine, length).tokens == plain.tokens


@pytest.mark.parametrize("kv_unified", [False, True])
def test_several_slots_draft_by_text(pair: Pair, kv_unified: bool) -> None:
    given = {"parallel": 3, "kv_unified": kv_unified}
    with Engine.load(*(options(path, ctx_size=1024, **given) for path in pair)) as engine:
        assert isinstance(engine.draft, LlamaModel) and not engine.draft.options.kv_unified
        prompts = [engine.encode_text(f"Go on: {ROW[i:]}") for i in range(3)]
        plain = GenerateOptions(GREEDY, 0, max_tokens=40, prompt_lookup=False)
        drafted = GenerateOptions(GREEDY, 4, max_tokens=40, prompt_lookup=False)
        expected = [collect(engine.stream(prompt, plain)).text for prompt in prompts]
        streams = [engine.stream(prompt, drafted) for prompt in prompts]
        answers = [collect(stream) for stream in streams]
        assert [each.text for each in answers] == expected
        assert all(each.stats.accepted > 10 for each in answers)


def test_an_answer_that_is_left_leaves_nothing_behind(by_text: Engine) -> None:
    expected = answer(by_text, 0).tokens
    asked = GenerateOptions(GREEDY, 4, max_tokens=60, prompt_lookup=False)
    for rounds in (1, 2, 5):
        stream = by_text.stream(by_text.encode_text(PROMPT), asked)
        for _ in range(rounds):
            next(stream)
        stream.close()
        again = collect(by_text.stream(by_text.encode_text(PROMPT), asked))
        assert again.tokens == expected


def test_rejection_and_trees_are_refused_with_a_reason(pair: Pair, by_text: Engine) -> None:
    rejecting = SamplingParams(temperature=1.0, acceptance="rejection")
    with pytest.raises(UsageError, match="this one drafts by text"):
        by_text.stream(by_text.encode_text("01"), GenerateOptions(rejecting, 4)).close()
        answer(by_text, 4, rejecting)
    target = options(pair[0], ctx_size=256, branches=2)
    with Engine.load(target, options(pair[1], ctx_size=256)) as engine:
        assert engine.no_trees_reason is not None
        assert "a draft of another vocabulary drafts one text" in engine.no_trees_reason


def test_the_commands_say_what_it_is(localspec: Command, pair: Pair, tmp_path: Path) -> None:
    target, draft = pair
    checked = localspec("check", target, draft)
    assert (
        checked.code == 0 and "The draft has another vocabulary. It drafts by text" in checked.out
    )
    assert "compatible by text; llama.cpp's own rule refuses (bos-id) this pair" in checked.out
    flags = ("-n", "40", "--temp", "0", "--raw", PROMPT)
    plain = localspec("run", "-m", target, "--draft", "off", *flags)
    drafted = localspec("run", "-m", target, "-md", draft, "--draft", "4", *flags)
    assert drafted.code == 0 and drafted.out == plain.out
    assert "It drafts by text" in drafted.err and "accepted" in drafted.err
    exported = localspec("export", "--to", "llama-server", "-m", target, "-md", draft)
    assert exported.code == 1 and "other engines need a draft" in exported.err
    trimmed = localspec(
        "draft", "make", target, "--draft", draft, "--vocab", "64", "--output", tmp_path / "a.gguf"
    )
    assert trimmed.code == 1 and "has another vocabulary than" in trimmed.err


def test_it_is_found_where_no_model_has_the_targets_vocabulary(
    localspec: Command, pair: Pair, tmp_path: Path
) -> None:
    folder = paths.models_folder()
    folder.mkdir(parents=True)
    target = write_cycle_model(tmp_path / "big.gguf", (), layers=12)
    other = write_cycle_model(folder / "other.gguf", PAIRS)
    flags = ("-m", target, "--draft", "find", "-n", "8", "--temp", "0", "--raw", PROMPT)
    shown = localspec("suggest", target)
    assert shown.code == 1 and "of another vocabulary: drafts by text; " in shown.out
    found = localspec("run", *flags)
    assert found.code == 0 and f"Draft: {other} (of another vocabulary" in found.err
    same = write_cycle_model(folder / "same.gguf", (), layers=4)
    for _ in range(2):
        found = localspec("run", *flags)
        assert f"Draft: {other}" not in found.err
        same.unlink(missing_ok=True)
        write_cycle_model(folder / "same.gguf", ())
    assert f"Draft: {same} (" in found.err
