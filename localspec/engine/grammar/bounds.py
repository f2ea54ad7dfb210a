"""Checks a grammar before llama.cpp reads it: some bad ones would end or hang the process."""

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from localspec.core.errors import GrammarError
from localspec.engine.grammar.gbnf import SYNTAX, Item, Rules, mentioned, read_rules

MAX_CHARACTERS = 2**20
MAX_ELEMENTS = 100_000  # characters and rules when all repetitions are written out
MAX_PATHS = 10_000  # from a rule to what it may begin with: calls of llama.cpp's own check


def check_grammar(text: str) -> None:
    """Raise GrammarError for a grammar that llama.cpp refuses, or that would harm the process.

    Found out by reading llama.cpp's llama-grammar.cpp: recursion of its parser and of
    `llama_grammar_detect_left_recursion`, which visits a rule once for each way to it; left
    recursion through rules that may be empty, which that function misses and at which
    `llama_grammar_advance_stack` never ends; and what `gbnf.read_rules` refuses.
    """
    if len(text) > MAX_CHARACTERS:
        raise GrammarError(f"The grammar is longer than {MAX_CHARACTERS} characters.", SYNTAX)
    if "\0" in text or not _is_unicode(text):
        raise GrammarError("The grammar holds bytes that are no text.", "Give UTF-8 text.")
    rules = read_rules(text)
    if "root" not in rules:
        raise GrammarError(
            "The grammar has no rule named root, where an answer begins.", "Add: root ::= ..."
        )
    _require_defined(rules)
    if sum(map(_written, rules.values())) > MAX_ELEMENTS:
        raise GrammarError(
            f"The grammar has more than {MAX_ELEMENTS} characters and rules, repetitions counted.",
            "Repeat less, or use * for any number of times.",
        )
    _require_beginnings(rules)


def _is_unicode(text: str) -> bool:
    """Whether there is no half of a surrogate pair, which stands for a byte that is no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_defined(rules: Rules) -> None:
    for name, alternatives in rules.items():
        for other in mentioned(alternatives):
            if other not in rules:
                raise GrammarError(
                    f"The rule {name} of the grammar mentions {other}, which is not defined.",
                    f"Add: {other} ::= ...",
                )


def _written(alternatives: Sequence[Sequence[Item]]) -> int:
    """Elements that llama.cpp makes of this, or more."""
    total = 0
    for item in (item for sequence in alternatives for item in sequence):
        times = max(1, item.least if item.most is None else item.most)
        total += (item.size + 3 + _written(item.group)) * times
    return total


def _require_beginnings(rules: Rules) -> None:
    """Raise GrammarError where a rule begins with itself, or begins in too many ways."""
    empty = _may_be_empty(rules)
    graph = {name: set(mentioned(_beginnings(rules[name], empty))) for name in rules}
    try:
        order = tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise GrammarError(
            f"A rule of the grammar begins with itself: {' begins '.join(error.args[1])}.",
            "Put what is repeated behind something else, or use * for any number of times.",
        ) from error
    paths: dict[str, int] = {}
    for name in order:
        paths[name] = _paths(rules[name], paths, empty)
        if paths[name] > MAX_PATHS:
            raise GrammarError(
                f"The rule {name} of the grammar begins in more than {MAX_PATHS} ways.",
                "Use fewer rules that begin with rules.",
            )


def _may_be_empty(rules: Rules) -> set[str]:
    """Names of the rules that match no text at all, too."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name in rules:
        for other in mentioned(rules[name]):
            users[other].append(name)
    empty: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in empty and _any_empty(rules[name], empty):
            empty.add(name)
            waiting += users[name]
    return empty


def _any_empty(alternatives: Sequence[Sequence[Item]], empty: set[str]) -> bool:
    return any(all(_is_empty(item, empty) for item in sequence) for sequence in alternatives)


def _is_empty(item: Item, empty: set[str]) -> bool:
    return item.least == 0 or _base_is_empty(item, empty)


def _base_is_empty(item: Item, empty: set[str]) -> bool:
    """Whether one of what is repeated may be empty."""
    if item.rule:
        return item.rule in empty
    return _any_empty(item.group, empty) if item.group else item.size == 0


def _beginnings(
    alternatives: Sequence[Sequence[Item]], empty: set[str]
) -> tuple[Sequence[Item], ...]:
    """The alternatives up to the first item that is never empty, in groups too."""
    return tuple(
        [item._replace(group=_beginnings(item.group, empty)) for item in _first(sequence, empty)]
        for sequence in alternatives
    )


def _first(sequence: Sequence[Item], empty: set[str]) -> Iterator[Item]:
    for item in sequence:
        yield item
        if not _is_empty(item, empty):
            return


def _paths(
    alternatives: Sequence[Sequence[Item]], paths: Mapping[str, int], empty: set[str]
) -> int:
    """In how many ways a rule leads to what it begins with."""
    total = 1
    for item in (item for each in _beginnings(alternatives, empty) for item in each):
        inside = paths[item.rule] if item.rule else _paths(item.group, paths, empty)
        again = (item.most or 1) if _base_is_empty(item, empty) else 1
        total += (1 + inside) * again if item.rule or item.group else 0
    return total
