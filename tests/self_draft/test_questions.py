"""The built-in prompts for a search and for a verdict: every task, the short ones first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from localspec.core.errors import PromptTooLong
from localspec.engine.engine import Engine
from localspec.self_draft.questions import questions
from tests.support.real_pair import TinyFiles, options

pytestmark = pytest.mark.llama


def tasks(names: Iterable[str]) -> list[str]:
    return sorted(name.rpartition(" ")[0] for name in names)


def test_each_task_has_a_prompt_to_search_with_and_another_to_judge_by(
    demo_files: tuple[Path, Path],
) -> None:
    with Engine.load(options(demo_files[0])) as engine:
        quick, judged = questions(engine, 64)
        assert len(quick) == 7 and len(judged) == 14
        first = list(judged)[:7]
        assert not set(first) & set(quick) and tasks(first) == tasks(quick)
        for part in (list(quick), first):
            lengths = [len(judged[name]) for name in part]
            assert lengths == sorted(lengths)
        # Of each task the shorter one is for the search.
        for name in quick:
            task = name.rpartition(" ")[0]
            assert len(quick[name]) == min(
                len(ids) for other, ids in judged.items() if other.rpartition(" ")[0] == task
            )


def test_prompts_that_do_not_fit_are_left_out(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target, ctx_size=400)) as engine:
        quick, judged = questions(engine, 64)
        assert 0 < len(judged) < 14 and set(quick) <= set(judged)
        assert all(len(ids) + 64 <= 400 for ids in judged.values())
        with pytest.raises(PromptTooLong, match="400 tokens"):
            questions(engine, 390)
