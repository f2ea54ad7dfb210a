"""First uses of pairs in tests: a child for each file, forked where it can be."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localspec.core import worker
from localspec.core.worker import Ended
from localspec.engine import profile_store
from localspec.engine.loading.first_use import CHILD
from localspec.engine.loading.pair_file import PairFile, path_of
from localspec.metadata.header import ModelHeader
from localspec.speculative.control.pair_profile import PairProfile
from tests.support.programs.forker import MODULES, Forker

# Options with which a file may end llama.cpp or be refused.
_MATTERS = (
    "path flash_attention cache_type_k cache_type_v loras override_kv rope load_heads".split()
)


class Remembered:
    """`worker.ask`, but a child that ended well with a file is not started for it again.

    Children are forked, unless a test chose their Python or their llama.cpp. ``real`` starts one.
    """

    def __init__(self, real: Callable[[str, Any, float | None], Ended]) -> None:
        self.real = real
        self.forker = Forker()
        self._usual = self._children()
        self._known = set[str]()

    def ask(self, module: str, question: Any, patience: float | None) -> Ended:
        """How the child ended; that of a first use measures nothing."""
        if module != CHILD:
            return self._ask(module, question, patience)
        stats = [Path(each["path"]).stat() for each in question["models"]]
        options = [[each[name] for name in _MATTERS] for each in question["models"]]
        key = str([[(stat.st_size, stat.st_mtime_ns) for stat in stats], options])
        if key in self._known:
            return Ended(0, "{}", "")
        ended = self._ask(module, question | {"measures": False, "answers": False}, patience)
        if ended.code == 0 and '", "' not in ended.output:  # it refused nothing
            self._known.add(key)
        return ended

    def _ask(self, module: str, question: Any, patience: float | None) -> Ended:
        if module in MODULES and self._children() == self._usual:
            return self.forker.ask(module, question)
        return self.real(module, question, patience)

    @staticmethod
    def _children() -> object:
        """What the process that forks has from the first test on."""
        return worker.command(""), os.environ.get("LLAMA_CPP_LIB_PATH")


def save_profile(headers: Sequence[ModelHeader], known: PairProfile) -> Path:
    """Keep a profile of these models, under some options; returns its file."""
    file = PairFile(path_of(headers, "0"))
    file.update(profile=profile_store.as_json(known))
    return file.path
