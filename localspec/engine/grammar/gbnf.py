"""Converts GBNF, llama.cpp's grammar notation, to llguidance's Lark."""

import json
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    GbnfToLarkError,
    GrammarParser,
    LiteralNode,
    Position,
    RegexNode,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
)

from localspec.core.errors import GrammarError

_SYNTAX = "The syntax is that of llama.cpp's grammars/README.md."
_SIMPLE = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_NOTHING = '""'


def gbnf_as_lark(text: str) -> str:
    """Convert GBNF to llguidance's Lark; raises GrammarError for invalid GBNF.

    llguidance's own converter makes lexemes of whole rules. Its lexer takes the longest lexeme,
    while GBNF tries all: an identifier before ``"x"`` would swallow the x. Here a grammar without
    recursion becomes one regular expression, and any other has lexemes of one character.
    """
    try:
        rules = _Parser().parse(text)
        recursive = _is_recursive(rules)
    except GbnfToLarkError as error:
        raise GrammarError(f"The grammar cannot be read: {error}.", _SYNTAX) from error
    except RecursionError as error:
        raise GrammarError("The grammar is nested too deeply.", _SYNTAX) from error
    lines = [f"{_name(name, recursive)}: {_lark(rule, recursive)}" for name, rule in rules.items()]
    return "\n".join([f"start: {_name('root', recursive)}", *lines])


class _Parser(GrammarParser):
    """llguidance's parser, extended to resolve escapes."""

    def _parse_char(self, pos: Position) -> tuple[str, Position]:
        """One character, which may be written as an escape."""
        if not pos.current():
            raise GbnfToLarkError(pos, "unexpected end")
        if pos.current() != "\\":
            return pos.current(), pos.advance()
        kind = pos.advance().current()
        if kind in _SIMPLE and kind:
            return _SIMPLE[kind], pos.advance(2)
        digits = _HEX_DIGITS.get(kind, 0)
        try:
            code = int(pos.advance(2).peek(digits), 16)
            return chr(code), pos.advance(2 + digits)
        except (ValueError, OverflowError) as error:
            raise GbnfToLarkError(pos, "no such escape") from error

    def _parse_literal(self, pos: Position) -> tuple[ASTNode, Position]:
        pos, found = pos.advance(), ""
        while pos.current() != '"':
            character, pos = self._parse_char(pos)
            found += character
        return LiteralNode(found), pos.advance()

    def _parse_char_class(self, pos: Position) -> tuple[ASTNode, Position]:
        pos = pos.advance()
        negated = pos.current() == "^"
        pos, members = pos.advance(int(negated)), ""
        while pos.current() != "]":
            first, pos = self._parse_char(pos)
            last = first
            if pos.current() == "-" and pos.advance().current() != "]":
                last, pos = self._parse_char(pos.advance())
            if last < first:
                raise GbnfToLarkError(pos, "the range is reversed")
            members += f"{_escaped(first)}-{_escaped(last)}"
        if not members:
            raise GbnfToLarkError(pos, "no character between [ and ]")
        return RegexNode(f"[{'^' * negated}{members}]"), pos.advance()


def _escaped(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"


def _name(name: str, recursive: bool) -> str:
    """The name of a rule, or in capitals of a part of a regular expression."""
    plain = "".join(c if c.islower() or c.isdigit() else f"_{ord(c)}_" for c in name)
    return f"r_{plain}" if recursive else f"R_{plain.upper()}"


def _is_recursive(rules: Mapping[str, RuleNode]) -> bool:
    """Whether a rule contains itself; raises GrammarError if one is missing."""
    if "root" not in rules:
        raise GrammarError(
            "The grammar has no rule named root, with which an answer begins.", "Add: root ::= ..."
        )
    graph = {name: _mentioned(rule) for name, rule in rules.items()}
    for name, others in graph.items():
        if missing := [other for other in others if other not in rules]:
            raise GrammarError(
                f"The rule {name} of the grammar mentions {missing[0]}, which is not defined.",
                f"Add: {missing[0]} ::= ...",
            )
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


def _mentioned(node: ASTNode) -> list[str]:
    if isinstance(node, RuleRefNode):
        return [node.name]
    return [name for child in node.children() for name in _mentioned(child)]


def _lark(node: ASTNode, recursive: bool) -> str:
    """A part of a rule in Lark; each character is a lexeme if rules are recursive."""
    match node:
        case RuleNode():
            return _lark(node.alternatives, recursive)
        case RuleRefNode():
            return _name(node.name, recursive)
        case RegexNode():
            return "/(?s:.)/" if node.rx == "." else f"/{node.rx}/"
        case LiteralNode():
            parts = list(node.value) if recursive else [node.value]
            return f"( {' '.join(map(json.dumps, parts)) or _NOTHING} )"
        case RepetitionNode(max_times=0):
            return _NOTHING
        case RepetitionNode():
            most = "" if node.max_times is None else node.max_times
            return f"( {_lark(node.node, recursive)} ){{{node.min_times},{most}}}"
        case SequenceNode():
            return " ".join(_lark(each, recursive) for each in node.nodes) or _NOTHING
        case AlternativeNode():
            return f"( {' | '.join(_lark(each, recursive) for each in node.alternatives)} )"
        case _:
            raise TypeError(node)
