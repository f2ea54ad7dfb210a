"""Fill-in-the-middle prompts of a model whose FIM tokens are named by --override-kv."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import UsageError
from localspec.core.options.load_options import KeyValue, LoadOptions
from localspec.engine.engine import Engine
from localspec.engine.infill import Infill, infill_prompt

pytestmark = pytest.mark.llama
PRE, SUF, MID, REP, SEP = 5, 6, 7, 8, 9
NAMES = {"pre": PRE, "suf": SUF, "mid": MID, "rep": REP, "sep": SEP}
N_CTX = 128


def load(demo_files: tuple[Path, Path], *names: str) -> Engine:
    ids = tuple(KeyValue(f"tokenizer.ggml.fim_{name}_token_id", NAMES[name]) for name in names)
    options = LoadOptions(demo_files[0], threads=1, override_kv=ids, ctx_size=N_CTX)
    return Engine.load(options, None)


@pytest.fixture(scope="module")
def engine(demo_files: tuple[Path, Path]) -> Iterator[Engine]:
    with load(demo_files, *NAMES) as engine:
        yield engine


def marked(engine: Engine, prompt: list[int]) -> str:
    """The prompt with the names of the marks in brackets."""
    names = {token: f"[{name}]" for name, token in NAMES.items()}
    return "".join(names.get(token) or engine.piece(token).decode() for token in prompt)


def test_files_come_before_prefix_suffix_and_middle(engine: Engine) -> None:
    around = Infill("def f(x):\n", "f(3)\n", "    return", [("a.py", "import os\n")])
    assert marked(engine, infill_prompt(engine, around, 20)) == (
        "[rep]myproject\n[sep]a.py\nimport os\n[sep]filename\n"
        "[pre]def f(x):\n    return[suf]f(3)\n[mid]"
    )


def test_without_marks_of_files_a_line_divides_them(demo_files: tuple[Path, Path]) -> None:
    with load(demo_files, "pre", "suf", "mid") as engine:
        prompt = infill_prompt(engine, Infill("a", "b", files=[("x", "one"), ("y", "two")]), 1)
        divided = "\n\n--- snippet ---\n\n"
        assert marked(engine, prompt) == f"{divided}one{divided}two[pre]a[suf]b[mid]"


def test_a_model_without_the_tokens_is_refused_by_name(demo_files: tuple[Path, Path]) -> None:
    with (
        load(demo_files, "pre") as engine,
        pytest.raises(UsageError, match=r"no token for fim_suf, fim_mid"),
    ):
        infill_prompt(engine, Infill("", ""), None)


@given(
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 300),
    st.none() | st.integers(-1, N_CTX // 2),
)
def test_what_is_next_to_the_cursor_stays(
    engine: Engine, prefix: int, suffix: int, others: int, answer: int | None
) -> None:
    texts = "1 " * prefix, " 2" * suffix, " 3" * others
    prompt = infill_prompt(engine, Infill(texts[0], texts[1], "", [("f", texts[2])]), answer)
    room = N_CTX // 4 if answer in (None, -1) else answer or 0
    assert len(prompt) <= N_CTX - room
    at = prompt.index(PRE), prompt.index(SUF), prompt.index(MID)
    assert at[0] < at[1] < at[2] == len(prompt) - 1
    before, behind = (
        engine.target.tokenize(text, add_special=False, parse_special=False) for text in texts[:2]
    )
    assert before[len(before) - (at[1] - at[0] - 1) :] == prompt[at[0] + 1 : at[1]]
    assert behind[: at[2] - at[1] - 1] == prompt[at[1] + 1 : at[2]]
    if len(prompt) < N_CTX - room - 1:  # nothing is left out where there is room
        assert at[1] - at[0] - 1 == len(before) and at[2] - at[1] - 1 == len(behind)
