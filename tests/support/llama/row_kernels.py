"""Row kernels for tests: the functions of a library that has them, and the real ones."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.llama import llama_library, row_kernels
from localspec.llama.row_kernels import RowKernels


@dataclass
class FakeLibrary:
    """What a build with row kernels answers; ``calls`` are those that change something."""

    form: str = "AVX2"
    version: int = 1
    taken: Sequence[int] = (8, 12)
    wrong: int = -1
    left: Sequence[tuple[int, int]] = ()
    calls: list[str] = field(default_factory=list)

    @property
    def functions(self) -> Any:
        """The functions by their names in C."""
        made = {
            "version": lambda: self.version,
            "form": lambda: self.form.encode(),
            "enable": lambda on: self.calls.append(f"enable {int(on)}"),
            "takes": lambda number: int(number in self.taken),
            "check": lambda: self.wrong,
            "left": partial(self._left),  # which takes attributes, as ctypes sets them
            "reset": lambda: self.calls.append("reset"),
        }
        return SimpleNamespace(**{f"row_kernels_{name}": each for name, each in made.items()})

    def _left(self, pairs: Any, room: int) -> int:
        for i, (operation, weights) in enumerate(self.left[:room]):
            pairs[2 * i], pairs[2 * i + 1] = operation, weights
        return len(self.left)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let localspec find these functions in place of those of the build."""
        found = RowKernels(self.functions)
        patch.delenv("ROW_KERNELS", raising=False)
        patch.setattr(row_kernels, "_built_in", lambda: found)
        patch.setattr(row_kernels, "refusal", row_kernels.refusal.__wrapped__)


def number_of(operation: str) -> int:
    """ggml's number of an operation."""
    name = llama_library.ggml().ggml_op_name
    return next(each for each in itertools.count() if name(each).decode() == operation)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build without row kernels."""
    monkeypatch.setattr(row_kernels, "_built_in", lambda: None)
    monkeypatch.setattr(row_kernels, "refusal", lambda: None)


@pytest.fixture
def kernels() -> RowKernels:
    """Those of this build, switched on; the test is skipped, with a note, where it has none."""
    found = row_kernels.find()
    if found is None or row_kernels.refusal() is not None:
        pytest.skip("this build of llama.cpp has no row kernels")
    found.enable(True)  # a test of this process may have loaded a model without them
    return found
