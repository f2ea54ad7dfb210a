"""What both models of a pair have read, kept in files from one start to the next."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from localspec.core.formatting import size
from localspec.core.interrupt import held_interrupt
from localspec.engine.engine import Engine
from localspec.llama.cache.state_file import read_state, require_state_file, write_state
from localspec.llama.model import LlamaModel


class PromptCache:
    """Takes up what files hold when it is entered, and writes what the models hold when it is left.

    The target's is ``path``, the draft's beside it with `.draft` behind its name. Without
    ``answers`` only the prompt counts: `save_prompt` writes it before the answer begins. What a
    file holds already is not written again, and nothing is where it is ``read_only``. A file that
    must not be used is told to ``say``, as is what is written.
    """

    def __init__(
        self,
        path: Path,
        engine: Engine,
        say: Callable[[str], None],
        *,
        read_only: bool = False,
        answers: bool = False,
    ) -> None:
        self._say = say
        self._read_only = read_only
        self._answers = answers
        self._target = engine.target
        # Heads keep nothing: they begin behind what was taken up.
        self._draft = engine.draft if isinstance(engine.draft, LlamaModel) else None
        self._paths = _files(path)
        self._held: dict[Path, list[int]] = {}
        self._prompt_length: int | None = None

    def save_prompt(self) -> None:
        """Write what the target has read; to be called when that is the prompt."""
        self._prompt_length = len(self._target.tokens)
        if not self._answers:
            self._keep(self._target, self._paths[0])

    def __enter__(self) -> "PromptCache":
        self._target.keeps_prompts = True
        for model, path in self._models():
            self._take_up(model, path)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._target.keeps_prompts = False
        length = None if self._answers else self._prompt_length
        for model, path in self._models():
            if model is self._draft or length is None:  # else written before the answer
                self._keep(model, path, length)

    def _models(self) -> list[tuple[LlamaModel, Path]]:
        both = zip((self._target, self._draft), self._paths, strict=True)
        return [(model, path) for model, path in both if model is not None]

    def _take_up(self, model: LlamaModel, path: Path) -> None:
        try:
            read_state(path, model)
        except FileNotFoundError:
            if self._read_only and model is self._target:
                self._say(f"There is no prompt cache {path}: the prompt is read.")
        except (OSError, ValueError) as error:
            then = "the prompt is read" if self._read_only else "it is written anew"
            self._say(f"The prompt cache {path} cannot be used: {_reason(error)}; {then}.")
        else:
            self._held[path] = list(model.tokens)

    def _keep(self, model: LlamaModel, path: Path, length: int | None = None) -> None:
        """Write what the model holds, unless the file has its first ``length`` tokens, or all."""
        tokens = model.tokens[:length]
        if 10 * len(tokens) < (length or 10):
            return  # nothing, or a draft that only glanced at the end of the prompt
        if self._read_only or self._held.get(path, [])[: len(tokens)] == tokens:
            return
        try:
            with held_interrupt():
                n_bytes = write_state(path, model)
        except OSError as error:
            self._say(f"The prompt cache {path} cannot be written: {_reason(error)}.")
            return
        self._held[path] = list(model.tokens)
        self._say(f"Prompt cache: {len(model.tokens)} tokens in {path} ({size(n_bytes)}).")


def require_prompt_cache(path: Path) -> None:
    """Raise FileProblem, before any model is loaded, for what cannot become a prompt cache."""
    for file in _files(path):
        require_state_file(file)


def _files(path: Path) -> tuple[Path, Path]:
    return path, Path(f"{path}.draft")  # with_name knows no name for the root


def _reason(error: OSError | ValueError) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error)
