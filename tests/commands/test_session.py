"""What a command says of what was loaded, and of what it could not have."""

from collections.abc import Sequence

import pytest

from tests.support.command import HELLO, Command
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--branches", "2", "--exact"), "without branches: --exact"),
        (("--branches", "2"), "auto drafts one chain"),
        (("--branches", "2", "--draft", "4"), ""),
        (("--exact",), ""),
        (("--branches", "3", "--draft", "4", "--acceptance", "rejection"), "judges one chain"),
        (("--branches", "3", "--draft", "4", "--acceptance", "rejection", "--temp", "0"), ""),
    ],
)
def test_who_asked_for_branches_is_told_why_there_are_none(
    run: Command, tiny: TinyFiles, flags: Sequence[str], said: str
) -> None:
    done = run(HELLO, "-md", tiny.draft, *flags)
    assert said in done.sentences and ("branches" in done.sentences) == bool(said)


def test_branches_of_no_draft_are_answered(run: Command, tiny: TinyFiles) -> None:
    alone = (HELLO, "--prompt-lookup", "on")
    assert (
        "only a draft model proposes several candidates" in run(*alone, "--branches", "2").sentences
    )
    assert "branches" not in run(*alone).sentences
