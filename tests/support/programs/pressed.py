"""Answers in two slots, ended by Ctrl-C at random moments, then another one.

    python -m tests.support.programs.pressed THREAD TARGET DRAFT PRESSES

THREAD is "own" for a compute thread of its own, or "adopted" for the main thread. Prints
"ready" before the first answer, which Ctrl-C may end from then on, and the last answer as JSON.
"""

import json
import sys
from contextlib import nullcontext
from typing import Any

import localspec
from localspec.core.compute import COMPUTE

_OPTIONS: dict[str, Any] = {"threads": 1, "ctx_size": 1024, "parallel": 2}
_SAMPLED: dict[str, Any] = {"temperature": 0, "raw": True, "ignore_eos": True}
LAST = "these are some other words"


def press_and_go_on(target: str, draft: str, presses: int) -> list[int]:
    """Two long answers under way until Ctrl-C, so many times; then the tokens of another."""
    with localspec.load(target, draft, **_OPTIONS) as model:
        for number in range(presses):
            prompts = [f"word {number} " * 20, f"some other words {number} " * 15]
            try:
                print("ready", flush=True)
                while True:
                    model.generate_many(prompts, **_SAMPLED, max_tokens=400)
            except KeyboardInterrupt:
                print("pressed", flush=True)
        answers = model.generate_many([LAST, LAST], **_SAMPLED, max_tokens=20)
        assert answers[0].tokens == answers[1].tokens
        return answers[0].tokens


if __name__ == "__main__":
    thread, target, draft, presses = sys.argv[1:]
    with COMPUTE.adopted() if thread == "adopted" else nullcontext():
        print(json.dumps(press_and_go_on(target, draft, int(presses))), flush=True)
