"""Cases that are like others, which only --thorough runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def alike(*values: Any) -> Any:
    """Such a case of `parametrize`."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def some_of(cases: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """These cases, ``others`` among them only with --thorough."""
    found = list(others)
    return [alike(case) if case in found else case for case in cases]
