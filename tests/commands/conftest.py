"""A pair of tiny models and a Hub that has it, for the tests of commands."""

from tests.support.fake_hub import hub  # noqa: F401  a fixture
from tests.support.library.hub_pair import (  # noqa: F401  fixtures
    fetched,
    lonely,
    pair,
    reads,
    stocked,
)
