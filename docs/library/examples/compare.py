"""Compares the speed of a model without a draft, with a fixed draft length, and with auto.

compare.py MODEL PROMPT ...
"""

import statistics
import sys
from typing import Literal

import localspec

SETTINGS: tuple[Literal["off", "auto"] | int, ...] = ("off", 4, "auto")
PROMPTS = ["What does json.dumps do?", "Show me a class with a lock.", "What is a queue?"]
MAX_TOKENS = 96


def compare(model: localspec.Model, prompts: list[str]) -> None:
    """The settings take turns, so that a machine that slows down slows all of them."""
    speeds: dict[object, list[float]] = {setting: [] for setting in SETTINGS}
    rates: dict[object, list[float]] = {setting: [] for setting in SETTINGS}
    for prompt in prompts:
        texts = set[str]()
        for setting in SETTINGS:
            model.forget()  # else an answer is drafted from the one before, which has its text
            answer = model.generate(
                prompt, draft_tokens=setting, temperature=0, max_tokens=MAX_TOKENS
            )
            texts.add(answer.text)
            speeds[setting].append(answer.stats.generation_tps or 0.0)
            rates[setting].append(answer.stats.acceptance_rate or 0.0)
        if len(texts) > 1:
            print(f"The texts differ, by rounding: {prompt}")
    for setting in SETTINGS:
        speed, rate = statistics.median(speeds[setting]), statistics.mean(rates[setting])
        print(f"draft {setting!s:>4}: {speed:6.1f} tokens/s, {rate:4.0%} of the draft accepted")


if __name__ == "__main__":
    target, *prompts = sys.argv[1:] or ["demo"]
    with localspec.load(target) as model:
        model.generate(PROMPTS[0], max_tokens=16)  # the first passes are slow
        compare(model, prompts or PROMPTS)
