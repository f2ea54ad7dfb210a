"""GBNF, llama.cpp's notation of grammars: read into rules, and texts written in it."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

from localspec.core.errors import GrammarError

MAX_REPEATS = 2000  # llama.cpp drops a larger upper bound without a word
MAX_NESTING = 50  # of parentheses: llama.cpp's parser calls itself, and so do we

_ESCAPE = r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]-])'
_CHARACTER = re.compile(rf"{_ESCAPE}|[^\\]", re.DOTALL)
_LITERAL = re.compile(rf'"((?:{_ESCAPE}|[^"\\])*)"')
_CLASS = re.compile(rf"\[\^?((?:{_ESCAPE}|[^\]\\])*)\]")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_REPEAT = re.compile(r"\{\s*(\d{1,9})\s*(,\s*(\d{1,9})?\s*)?\}")
_BLANK = re.compile(r"(?:[ \t]+|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
SYNTAX = "The syntax is that of llama.cpp's grammars/README.md."


class Item(NamedTuple):
    """Part of a sequence: ``size`` characters, a rule or a group, repeated; ``most`` None: open."""

    size: int = 0
    rule: str = ""
    group: tuple[Sequence["Item"], ...] = ()
    least: int = 1
    most: int | None = 1


Rules = dict[str, tuple[Sequence[Item], ...]]


def read_rules(text: str) -> Rules:
    """Every rule, as llama.cpp's `llama_grammar_parser` reads them; of two of a name the last.

    Raises GrammarError with the line for what it cannot read, or not safely: parentheses in many
    others, repetitions that end before they begin or after MAX_REPEATS, references to tokens, which
    `llama_grammar_apply_impl` can allow where `llama_grammar_accept_impl` throws.
    """
    return _Reader(text).read()


def mentioned(alternatives: Sequence[Sequence[Item]]) -> Iterator[str]:
    """Names of the rules in these alternatives."""
    for item in (item for sequence in alternatives for item in sequence):
        if item.rule:
            yield item.rule
        yield from mentioned(item.group)


def quoted(text: str) -> str:
    """A text as GBNF: between quotes, what is not printable escaped."""
    return f'"{escaped(text)}"'


def escaped(text: str) -> str:
    """A text as it stands between quotes or brackets."""
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character in '"\\[]-':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\U{ord(character):08X}"


class _Reader:
    """A text, and the place up to which it was read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Rules:
        """Every rule."""
        rules: Rules = {}
        self._skip(lines=True)
        while self._at < len(self._text):
            name = self._expect(_NAME, "the name of a rule").group()
            self._skip(lines=False)
            self._expect(re.compile("::="), "::=")
            self._skip(lines=True)
            rules[name] = self._alternatives(0)
            if self._next not in "\r\n":
                self._fail("the end of the rule")
            self._skip(lines=True)
        return rules

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self, depth: int) -> tuple[Sequence[Item], ...]:
        found = [self._sequence(depth)]
        while self._next == "|":
            self._at += 1
            self._skip(lines=True)
            found.append(self._sequence(depth))
        return tuple(found)

    def _sequence(self, depth: int) -> list[Item]:
        items: list[Item] = []
        while self._next and self._next not in "|)\r\n":
            if self._next in "*+?{":
                if not items:
                    self._fail("something to repeat")
                items[-1] = self._repeated(items[-1])
            else:
                items.append(self._item(depth))
            self._skip(lines=depth > 0)
        return items

    def _item(self, depth: int) -> Item:
        if self._next == '"':
            text = self._expect(_LITERAL, 'a text between quotes, with escapes such as \\n or \\"')
            return Item(size=len(_CHARACTER.findall(text.group(1))))
        if self._next == "[":
            text = self._expect(_CLASS, "characters between [ and ], with escapes such as \\]")
            return Item(size=len(_CHARACTER.findall(text.group(1))))
        if self._next == ".":
            self._at += 1
            return Item(size=1)
        if self._next == "(":
            return self._group(depth)
        if self._next in "<!":
            raise GrammarError(
                f"Line {self._line} of the grammar refers to a token: llama.cpp can abort there.",
                "Write its text between quotes.",
            )
        return Item(rule=self._expect(_NAME, "a rule, a text or the end of the rule").group())

    def _group(self, depth: int) -> Item:
        if depth == MAX_NESTING:
            raise GrammarError(
                f"Line {self._line} of the grammar nests more than {MAX_NESTING} parentheses.",
                "Give what is inside a rule of its own.",
            )
        self._at += 1
        self._skip(lines=True)
        group = self._alternatives(depth + 1)
        self._expect(re.compile(r"\)"), "a closing parenthesis")
        return Item(group=group)

    def _repeated(self, item: Item) -> Item:
        least, most = self._times()
        if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
            raise GrammarError(
                f"Line {self._line} of the grammar repeats from {least} to {most} times.",
                f"Expected rising numbers up to {MAX_REPEATS}, or * for any number of times.",
            )
        whole = item if (item.least, item.most) == (1, 1) else Item(group=([item],))
        return whole._replace(least=least, most=most)

    def _times(self) -> tuple[int, int | None]:
        if self._next != "{":
            sign = self._next
            self._at += 1
            return (1 if sign == "+" else 0), (1 if sign == "?" else None)
        found = self._expect(_REPEAT, "a repetition such as {2}, {2,} or {2,5}")
        least = int(found.group(1))
        if found.group(2) is None:
            return least, least
        return least, int(found.group(3)) if found.group(3) else None

    def _skip(self, lines: bool) -> None:
        blank = (_BLANK_LINES if lines else _BLANK).match(self._text, self._at)
        assert blank is not None  # it matches nothing too
        self._at = blank.end()

    def _expect(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            self._fail(what)
        self._at = found.end()
        return found

    @property
    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _fail(self, what: str) -> NoReturn:
        there = self._text[self._at : self._at + 20].split("\n")[0]
        found = repr(there) if there else "the end of the line"
        raise GrammarError(
            f"Line {self._line} of the grammar: expected {what}, not {found}.", SYNTAX
        )
