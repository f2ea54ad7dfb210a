"""Long text through llama.cpp's tokenizers: no overflow of the stack, and a bound before it."""

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from localspec.core.errors import EngineError, PromptTooLong
from localspec.llama.vocabulary import tokenizer
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles, load_model

ROWS = {"DNA": "ACGT", "digits": "1234567890", "dashes": "-", "blanks": " ", "CJK": "一"}
# In a process of its own: what overflows its stack is killed.
COUNT = """
import sys
from pathlib import Path
from localspec.core.options.load_options import LoadOptions
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
path, *rows = sys.argv[1:]
path = Path(path)
model = LlamaModel(read_header(path), LoadOptions(path, ctx_size=100_000, threads=1))
for row in rows:
    text = row * (60_000 // len(row))
    print(len(model.tokenize(text, add_special=False, parse_special=True)), len(text.encode()))
"""


@pytest.mark.llama
@pytest.mark.parametrize(
    "pre", ["deepseek-llm", "deepseek-coder", "default", "tekken", "gpt-4o", "bloom", "gpt-2"]
)
def test_sixty_thousand_characters_of_one_kind(tmp_path: Path, pre: str) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", seed=1, layers=1, pre=pre)
    command = [sys.executable, "-c", COUNT, str(path), *ROWS.values()]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        tokens, n_bytes = line.split()
        assert tokens == n_bytes  # the tiny vocabulary has a token for each byte
    assert len(done.stdout.splitlines()) == len(ROWS)


@pytest.mark.llama
def test_long_text_has_the_tokens_of_its_parts(tiny: TinyFiles) -> None:
    model = load_model(tiny.target, ctx_size=8192)
    sentence = "The other thing that the teller sang. "
    for text in (sentence, sentence * 200):
        assert (len(text) > tokenizer.SHORT) == (text is not sentence)
        ids = model.tokenize(text, add_special=False, parse_special=False)
        assert b"".join(map(model.piece, ids)).decode() == text
    assert model.tokenize(text, add_special=True, parse_special=False)[1:] == ids
    model.close()


@pytest.mark.llama
def test_text_that_no_context_could_hold_is_not_tokenized(tiny: TinyFiles) -> None:
    model = load_model(tiny.target, ctx_size=512)
    longest = len("<|endoftext|>")
    text = "a" * (512 * longest)
    assert len(model.tokenize(text, add_special=False, parse_special=False)) == len(text)
    with pytest.raises(PromptTooLong, match="6,657 characters; no more than 6,656"):
        model.tokenize(text + "a", add_special=False, parse_special=False)
    model.close()


def test_the_bound_is_finite_for_any_context() -> None:
    tokenizer.require_text_fits("a" * tokenizer.MAX_CHARACTERS, 10**6, 10**6)
    with pytest.raises(PromptTooLong):
        tokenizer.require_text_fits("a" * (tokenizer.MAX_CHARACTERS + 1), 10**6, 10**6)


def test_a_stack_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = threading.stack_size()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(EngineError, match="room for a stack of 4 MB"):
        tokenizer._on_stack(list, 4 * 2**20)
    assert threading.stack_size() == before


def test_two_threads_each_get_the_stack_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is set for the whole process: another's, set in between, may be too small."""
    got, sizes, at_once = list[int](), (4 * 2**20, 8 * 2**20), threading.Barrier(2, timeout=0.2)
    start = threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if threading.current_thread() is not threading.main_thread():
            with contextlib.suppress(threading.BrokenBarrierError):
                at_once.wait()  # both have set the size, if both may
            got.append(threading.stack_size())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    callers = [threading.Thread(target=tokenizer._on_stack, args=(list, size)) for size in sizes]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(got) == sorted(sizes) and threading.stack_size() == 0
