"""Which models ``serve`` finds."""

from pathlib import Path

from localspec.commands.flags.serving import ServingFlags
from localspec.commands.serve.models import _models
from localspec.core import paths
from tests.support.command import Command
from tests.support.library.hub_pair import PAIR


def test_without_a_name_pairs_and_single_models_are_served(
    fetched: list[Path], localspec: Command
) -> None:
    localspec("pair", "add", "mine", "-m", PAIR[0], "-md", PAIR[1])
    alone = paths.models_folder() / "alone.gguf"
    alone.write_bytes(fetched[0].read_bytes()[:-1] + b"\x01")  # another content
    for bundled in paths.bundled_folder().glob("*.gguf"):  # as in a checkout
        (paths.models_folder() / bundled.name).symlink_to(bundled)
    served = _models([], {}, ServingFlags())
    assert [model.name for model in served] == ["mine", "demo", "alone"]
    assert served[-1].source == str(alone)
    assert [model.name for model in _models(["mine"], {}, ServingFlags())] == ["mine"]
