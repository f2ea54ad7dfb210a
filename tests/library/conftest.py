"""Our models folder, a Hub, and the places that other tools have on Linux."""

from tests.support.fake_hub import hub  # noqa: F401  a fixture
from tests.support.library.model_folders import on_linux, ours  # noqa: F401  fixtures
