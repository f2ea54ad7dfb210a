"""Facts of pairs of every kind."""

from tests.support.library.exports import facts  # noqa: F401  a fixture
