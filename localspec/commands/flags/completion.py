"""Names that the shell completes; nothing is loaded and no network is used."""

import os
import re
from typing import Any

from typer import _completion_classes

from localspec.chat.conversation_store import stored
from localspec.core.errors import LocalspecError
from localspec.library.local_models import find_models
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import load_catalog
from localspec.library.pairs.user_pairs import DRAFT_WORDS


class BashCompletion(_completion_classes.BashComplete):
    """Typer's completion for bash, of names with colons, at which bash splits words, and blanks."""

    _word = ""  # the word at the cursor, with quotes and escapes

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one at it."""
        words, at = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
        made = words[:1]
        for word in words[1 : at + 1]:
            if ":" in (word[:1], made[-1][-1:]):
                made[-1] += word
            else:
                made.append(word)
        if len(words) > at:
            self._word = made[-1]
            os.environ |= {"COMP_WORDS": "\n".join(made), "COMP_CWORD": str(len(made) - 1)}
        return super().get_completion_args()

    def format_completion(self, item: Any) -> str:
        """What bash puts in place of the last part of the word."""
        if self._word[:1] in ("'", '"'):
            return str(item.value)
        name = re.sub(r"([^\w@%+=:,./~-])", r"\\\1", item.value)
        return name.removeprefix(self._word[: self._word.rfind(":") + 1])


_completion_classes.BashComplete = BashCompletion  # type: ignore[misc]  # which Typer registers


def pairs() -> list[str]:
    return [user_pairs.BUNDLED, *user_pairs.names(), *(pair.name for pair in load_catalog())]


def models() -> list[str]:
    """Pairs, then the models on this disk and the repositories on the Hub that they came from."""
    try:
        files = find_models().files
    except LocalspecError:  # which the command itself will report
        files = ()
    local = [name for model in files for name in (model.name, model.repo) if name]
    return list(dict.fromkeys((*pairs(), *local)))


def drafts() -> list[str]:
    return [*DRAFT_WORDS, *models()]


def conversations() -> list[str]:
    return [saved.name for saved in stored(lambda problem: None)]
