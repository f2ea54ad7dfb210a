"""Prompts of fill-in-the-middle models: text before and after the cursor, and other files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.core.errors import UsageError
from localspec.engine.text_stream import OutputFormat, Prompt

if TYPE_CHECKING:
    from localspec.engine.engine import Engine

_PROJECT, _FILE = "myproject\n", "filename\n"  # llama-server's names for files without one
_SNIPPET = "\n\n--- snippet ---\n\n"  # between files if the model has no mark for that


@dataclass(frozen=True, slots=True)
class Infill:
    """The text around the one to write, which begins with ``middle``.

    ``files`` are names and texts, the most important last.
    """

    prefix: str
    suffix: str
    middle: str = ""
    files: Sequence[tuple[str, str]] = ()


def infill_prompt(engine: "Engine", infill: Infill, answer_tokens: int | None) -> Prompt:
    """The prompt in the order that models were trained with: files, prefix, suffix, middle.

    As `format_prompt_infill` of llama-server, but its limits follow the context, not the batch:
    too long a prompt loses the beginning of the files, then of the prefix, and the end of the
    suffix; the prefix gets three quarters of the room. ``answer_tokens`` stay free (None: a
    quarter of the context). Raises UsageError for a model without FIM tokens.
    """
    marks = engine.target.fim_tokens()
    names = [f"fim_{name}" for name in ("pre", "suf", "mid") if name not in marks]
    if names:
        raise UsageError(
            f"{engine.target.header.path.name} has no token for {', '.join(names)}: "
            "it was not trained to fill in the middle.",
            "Use a model such as Qwen2.5-Coder, or /completion with the text before the cursor.",
        )
    prefix, suffix = _tokens(engine, infill.prefix), _tokens(engine, infill.suffix)
    middle, files = _tokens(engine, infill.middle), _files(engine, infill.files, marks)
    vocab = engine.target.header.vocab
    added = engine.target.tokenize("", add_special=True, parse_special=False)
    bos = [token for token in added if vocab is not None and token == vocab.bos_id]
    n_ctx = engine.target.n_ctx
    answer = n_ctx // 4 if answer_tokens is None or answer_tokens < 0 else answer_tokens
    room = max(0, n_ctx - answer - len(middle) - len(bos) - 4)
    taken_suffix = suffix[: max(room // 4, room - len(prefix))]
    taken_prefix = _last(prefix, room - len(taken_suffix))
    taken_files = _last(files, room - len(taken_suffix) - len(taken_prefix))
    tokens = [*taken_files, *bos, marks["pre"], *taken_prefix, *middle]
    return Prompt([*tokens, marks["suf"], *taken_suffix, marks["mid"]], OutputFormat(engine.piece))


def _files(engine: "Engine", files: Sequence[tuple[str, str]], marks: dict[str, int]) -> list[int]:
    tokens: list[int] = []
    if "rep" in marks:
        tokens += [marks["rep"], *_tokens(engine, _PROJECT)]
    for name, text in files:
        before = [marks["sep"], *_tokens(engine, f"{name}\n")] if "sep" in marks else None
        tokens += (before or _tokens(engine, _SNIPPET)) + _tokens(engine, text)
    if "sep" in marks:
        tokens += [marks["sep"], *_tokens(engine, _FILE)]
    return tokens


def _tokens(engine: "Engine", text: str) -> list[int]:
    return engine.target.tokenize(text, add_special=False, parse_special=False)


def _last(tokens: list[int], count: int) -> list[int]:
    return tokens[max(0, len(tokens) - max(0, count)) :]
