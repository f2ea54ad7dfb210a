"""Fuzz grammars: each of a hostile kind is answered or refused, within the bound of a step.

python -m tests.fuzz.grammars --seed 1 --count 1000
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from localspec.core.errors import GrammarError
from localspec.engine.grammar import process
from localspec.engine.grammar.constraint import GrammarConstraint, GrammarVocabulary
from localspec.engine.grammar.source import read_grammar, read_regex, read_schema

RUNS = [b"a" * n for n in range(2, 64)] + [bytes([a, b]) for a in b'ab "({' for b in b'ab "})']
TOKENS = [*(bytes([i]) for i in range(256)), *RUNS]
FUZZED = GrammarVocabulary([*TOKENS, b"<stop>"], [len(TOKENS)], lambda text: list(text.encode()))
ORDINARY = 'root ::= "yes" | "no, " [a-z]{3,5}'
SIZES = (1, 2, 3, 20, 60, 400, 3000, 30_000)


@dataclass(slots=True)
class Figures:
    """What became of the cases: counts by outcome, seconds of the slowest one, and which it was."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")


def answer(grammar: str, rng: Random, tokens: int = 40) -> bytes:
    """An answer of random allowed tokens."""
    constraint, history = GrammarConstraint(grammar, FUZZED, 1), [0]
    for _ in range(tokens):
        position = len(history)
        constraint.forced(position, history)
        allowed = constraint.mask(position, history).nonzero()[0].tolist()
        if not allowed or (picked := rng.choice(allowed)) == len(TOKENS):
            break
        assert constraint.allows(picked, position, history)
        history.append(picked)
    return b"".join(TOKENS[token] for token in history[1:])


def regex(rng: Random, depth: int = 4) -> str:
    """A regular expression with nested and counted repetitions."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(["a", "b", ".", "[a-z]", "\\w", "\\p{L}", "[^b]", "(?i:q)", "é", ""])
    inner = [regex(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    n = rng.choice(SIZES)
    count = rng.choice(["?", "*", "+", f"{{{n}}}", f"{{0,{n}}}", f"{{{n},}}"])
    return rng.choice(
        ["({})".format("|".join(inner)), "".join(inner), f"({''.join(inner)}){count}"]
    )


def optional(rng: Random) -> str:
    """Many optional parts, as a pattern."""
    return "a?" * rng.choice(SIZES) + rng.choice(["b", "a" * rng.choice(SIZES[:5])])


def rules(rng: Random) -> str:
    """GBNF of a few rules that mention each other in any way."""
    names = ["root", *(f"r{i}" for i in range(rng.randint(0, 6)))]

    def part() -> str:
        one = rng.choice([*names, '"a"', '"b"', "[a-c]", '""', f'({rng.choice(names)} | "a")'])
        n = rng.choice(SIZES)
        return one + rng.choice(["", "", "?", "*", "+", f"{{{n}}}", f"{{0,{n}}}"])

    def body() -> str:
        return " | ".join(
            " ".join(part() for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 3))
        )

    return "\n".join(f'{name} ::= {body()} | "a"' for name in names)


def chain(rng: Random) -> str:
    """A rule that leads to another, and so on."""
    n, twice = rng.choice(SIZES), rng.choice(["", " r{}", " | r{}"])
    lines = [f"r{i} ::= r{i + 1}{twice.format(i + 1)}" for i in range(n)]
    return "\n".join(["root ::= r0", *lines, f'r{n} ::= "a"?'])


def nested(rng: Random) -> str:
    """Brackets in brackets."""
    n, (opening, closing) = rng.choice(SIZES), rng.choice(["()", ("(", ")?"), ("(", ")*"), "[]"])
    return rng.choice(["root ::= ", "start: "]) + opening * n + '"a"' + closing * n


def lark(rng: Random) -> str:
    """Lark with intersected, negated and embedded parts."""
    n = rng.choice(SIZES)
    terms = [f"/{regex(rng, 2) or 'a'}/" for _ in range(min(n, 300))]
    return rng.choice(
        [
            f"start: A\nA: {' & '.join(terms)}",
            f"start: A\nA: ~({' | '.join(terms)})",
            f"start: %json {schema(rng)}",
            f"start: {'a? ' * n}a\na: /a/",
            f'start: %regex {{"substring_chars": "{"ab" * n}"}}',
        ]
    )


def schema(rng: Random) -> str:
    """A JSON schema with large, deep, combined or contradictory parts."""
    return json.dumps(_schema(rng, 3))


def _schema(rng: Random, depth: int) -> object:
    n, small = rng.choice(SIZES), rng.choice(SIZES[:5])

    def below() -> object:
        return _schema(rng, depth - 1) if depth else rng.choice([{}, True, {"type": "integer"}])

    deep: object = {}
    for _ in range(min(n, 400)):
        deep = {rng.choice(["items", "not", "additionalProperties"]): deep}
    kinds: list[Callable[[], object]] = [
        lambda: {"type": "string", "pattern": f"^{optional(rng)}$"},
        lambda: {"type": "string", "pattern": regex(rng, 3)},
        lambda: {"allOf": [{"type": "string", "pattern": f"a.*{i}"} for i in range(small)]},
        lambda: {rng.choice(["anyOf", "oneOf", "allOf"]): [below() for _ in range(min(small, 6))]},
        lambda: {"properties": {f"p{i}": {"type": "null"} for i in range(n)}, "required": ["p0"]},
        lambda: {"type": "array", "minItems": n, "maxItems": n * 10, "items": below()},
        lambda: {"type": "string", "minLength": n, "maxLength": n * 1000},
        lambda: {"type": "number", "multipleOf": rng.random(), "minimum": -1e300 / n},
        lambda: {"enum": [f"{i}{'a' * small}" for i in range(n)]},
        lambda: {"const": "a" * n},
        lambda: {"$ref": "#/$defs/d0", "$defs": _references(rng, small)},
        lambda: deep,
    ]
    return rng.choice(kinds)()


def _references(rng: Random, n: int) -> dict[str, object]:
    key = rng.choice(["anyOf", "allOf", "oneOf", "prefixItems"])
    made: dict[str, object] = {
        f"d{i}": {key: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(n)
    }
    return made | {f"d{n}": rng.choice([{"type": "string"}, {"$ref": "#/$defs/d0"}])}


KINDS: dict[str, Callable[[Random], str]] = {
    "regex": lambda rng: read_regex(regex(rng)),
    "optional": lambda rng: read_regex(optional(rng)),
    "schema": lambda rng: read_schema(schema(rng)).grammar,
    **{
        kind.__name__: lambda rng, kind=kind: read_grammar(kind(rng))  # type: ignore[misc]
        for kind in (rules, chain, nested, lark)
    },
}


def fuzz(seed: int, count: int) -> Figures:
    """Try ``count`` grammars; raises AssertionError where an ordinary one is no longer obeyed."""
    figures = Figures()
    expected = answer(ORDINARY, Random(0))
    for i in range(count):
        rng = Random(f"{seed}/{i}")
        name = rng.choice(list(KINDS))
        began = time.monotonic()
        figures.outcomes[f"{name}: {_outcome(KINDS[name], rng)}"] += 1
        figures.slowest = max(figures.slowest, (time.monotonic() - began, f"{name}, case {i}"))
        if i % 20 == 0:
            assert answer(ORDINARY, Random(0)) == expected
    return figures


def _outcome(kind: Callable[[Random], str], rng: Random) -> str:
    try:
        answer(kind(rng), rng)
    except GrammarError as error:
        assert error.message and error.hint is not None and "\n" not in error.message
        return "child ended" if "cannot be enforced" in error.message else "refused"
    return "answered"


def main() -> None:
    """Print what became of the grammars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--step-seconds", type=float, default=process.LIMITS.seconds)
    given = parser.parse_args()
    process.LIMITS = process.LIMITS._replace(seconds=given.step_seconds)
    figures = fuzz(given.seed, given.count)
    for outcome, times in sorted(figures.outcomes.items()):
        print(f"{outcome:32} {times:6}")
    print(f"slowest: {figures.slowest[0]:.1f} s, {figures.slowest[1]}")


if __name__ == "__main__":
    main()
