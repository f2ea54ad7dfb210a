"""--prompt-cache: the states of both models, saved in files between starts."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from localspec.core.files import reason_of
from localspec.core.formatting import size
from localspec.core.interrupt import held_interrupt
from localspec.engine.engine import Engine
from localspec.llama.cache.state_file import read_state, require_state_file, write_state
from localspec.llama.model import LlamaModel


class PromptCache:
    """Loads states from files when it is entered, and saves them when it is left.

    The target's file is ``path``, the draft's has `.draft` after its name. Without ``answers``
    only the prompt is saved, by `save_prompt` before the answer begins. A state that a file holds
    already is not written again. ``say`` gets notes on saved files, and on unusable ones.
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
        # Heads have no state to save: they begin after the target's.
        self._draft = engine.draft if isinstance(engine.draft, LlamaModel) else None
        self._paths = _files(path)
        self._held: dict[Path, list[int]] = {}
        self._prompt_length: int | None = None

    def save_prompt(self) -> None:
        """Save the target's state; to be called when it has read just the prompt."""
        self._prompt_length = len(self._target.tokens)
        if not self._answers:
            self._save(self._target, self._paths[0])

    def __enter__(self) -> "PromptCache":
        self._target.keeps_prompts = True
        for model, path in self._models():
            self._load(model, path)
        return self

    def __exit__(self, *_: object) -> None:
        self._target.keeps_prompts = False
        length = None if self._answers else self._prompt_length
        for model, path in self._models():
            if model is self._draft or length is None:  # else written before the answer
                self._save(model, path, length)

    def _models(self) -> list[tuple[LlamaModel, Path]]:
        both = zip((self._target, self._draft), self._paths, strict=True)
        return [(model, path) for model, path in both if model is not None]

    def _load(self, model: LlamaModel, path: Path) -> None:
        try:
            read_state(path, model, report=lambda: self._drop(path))
        except FileNotFoundError:
            if self._read_only and model is self._target:
                self._say(f"There is no prompt cache {path}: the prompt is read.")
        except (OSError, ValueError) as error:
            then = "the prompt is read" if self._read_only else "it will be overwritten"
            self._say(f"The prompt cache {path} cannot be used: {reason_of(error)}; {then}.")
        else:
            self._held[path] = list(model.tokens)

    def _drop(self, path: Path) -> None:
        """Remove a file whose state turned out to be bad, perhaps after the prompt was saved."""
        self._held.pop(path, None)
        then = "remove it"
        if not self._read_only:
            with suppress(OSError):
                path.unlink()
                then = "it is removed"
        self._say(
            f"The prompt cache {path} is damaged: its state gave logits that are not numbers, and "
            f"the text was read again; {then}."
        )

    def _save(self, model: LlamaModel, path: Path, length: int | None = None) -> None:
        """Save the model's state, unless the file has its first ``length`` tokens, or all."""
        tokens = model.tokens[:length]
        if 10 * len(tokens) < (length or 10):
            return  # nothing, or a draft that has only reviewed the end of the prompt
        if self._read_only or self._held.get(path, [])[: len(tokens)] == tokens:
            return
        try:
            with held_interrupt():
                n_bytes = write_state(path, model)
        except OSError as error:
            self._say(
                f"The prompt cache {path} cannot be written: {reason_of(error)}. Make room on the "
                "disk, or name another file: --prompt-cache FILE."
            )
            return
        self._held[path] = list(model.tokens)
        self._say(f"Prompt cache: {len(model.tokens)} tokens in {path} ({size(n_bytes)}).")


def require_prompt_cache(path: Path) -> None:
    """Raise FileProblem, before any model is loaded, for a path that cannot be a prompt cache."""
    for file in _files(path):
        require_state_file(file)


def _files(path: Path) -> tuple[Path, Path]:
    return path, Path(f"{path}.draft")  # with_name fails for the root
