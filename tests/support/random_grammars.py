"""Random grammars, good and bad, walked through on llama.cpp: run as a process that may die.

``python -m tests.support.random_grammars MODEL FIRST LAST`` prints how many grammars were walked,
were refused by our own checks, and were refused by llama.cpp.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np

PARTS = (
    *('"a"', '"b"', '"ab"', '""', '"é"', '"\\n"', '"<|im_end|>"', '"\\x00"'),
    *("[a-c]", "[^a]", "[b]", "[^b]", "[]", ".", "[\\x00-\\x7f]", "[€]", "[a\\-\\]]"),
)
REPEATS = ("",) * 20 + ("*", "+", "?", "{2}", "{0,3}", "{1,}", "{0}", "{3,1}", "**", "{2}{3}")
NOISE = '()[]{}"\\|*:=\n#<!.,5\r\t'
STEPS = 8


def random_grammar(rng: random.Random) -> str:
    """A few rules that mention each other; now and then a character that breaks the syntax."""
    names = ["root", *(f"r{i}" for i in range(rng.randint(0, 3)))]

    def item(rule: int, depth: int) -> str:
        kind = rng.random()
        if kind < 0.6:
            return rng.choice(PARTS)
        if kind < 0.8:
            others = names[rule + 1 :] or ['"c"']  # rarely itself: that is mostly left recursion
            return rng.choice(names if rng.random() < 0.2 else others)
        return f"( {alternatives(rule, depth + 1)} )" if depth < 3 else '"c"'

    def alternatives(rule: int, depth: int) -> str:
        return " | ".join(
            " ".join(item(rule, depth) + rng.choice(REPEATS) for _ in range(rng.randint(0, 3)))
            for _ in range(rng.randint(1, 3))
        )

    text = "\n".join(f"{name} ::= {alternatives(i, 0)}" for i, name in enumerate(names))
    if rng.random() < 0.2:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(NOISE) + text[at:]
    return text


def walk(model: Path, seeds: range) -> Counter[str]:
    """Compile a grammar for each seed, and take some allowed steps at random."""
    from localspec.core.errors import GrammarError
    from localspec.engine.llama.grammar import GrammarState
    from tests.support.real_pair import load_model

    loaded = load_model(model)
    ids = np.arange(loaded.n_vocab)
    counts = Counter[str]()
    for seed in seeds:
        rng = random.Random(seed)
        grammar = random_grammar(rng)
        print(seed, repr(grammar), file=sys.stderr, flush=True)
        try:
            state = GrammarState.beginning(grammar, loaded.vocab)
        except GrammarError as error:
            counts["llama.cpp" if "llama.cpp refuses" in error.message else "ours"] += 1
            continue
        for _ in range(STEPS):
            allowed = [i for i in np.flatnonzero(state.allowed(ids)) if not loaded.is_stop(int(i))]
            if not allowed:
                break
            state = state.after(int(rng.choice(allowed)))
        counts["walked"] += 1
    return counts


if __name__ == "__main__":
    print(dict(walk(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3])))))
