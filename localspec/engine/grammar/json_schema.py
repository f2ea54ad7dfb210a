"""JSON schemas as GBNF grammars; what a grammar cannot enforce is named, and nothing is fetched."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote

from localspec.core.errors import GrammarError
from localspec.engine.grammar.bounds import MAX_CHARACTERS
from localspec.engine.grammar.gbnf import escaped, quoted
from localspec.engine.grammar.keywords import (
    BOUNDS,
    KEYWORDS,
    SILENT,
    combined,
    counts_of,
    list_of,
    number_of,
    shortened,
    types_of,
    value_of,
)
from localspec.engine.grammar.pattern import pattern_rule
from localspec.engine.grammar.ranges import integer_rule

_MAX_DEPTH = 60
_MAX_PARTS = 20_000
_LARGEST = 10**16 - 1  # numbers have so many digits at most, so that they end

# Between tokens stands a blank, or a new line and its indent, or nothing.
_BASE = {
    "space": r'( " " | "\n" [ \t]{0,20} )?',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" space ( pair ( "," space pair )* space )? "}"',
    "pair": 'string ":" space value',
    "array": '"[" space ( value ( "," space value )* space )? "]"',
    "string": r'"\"" char* "\""',
    "char": r'plain | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} )',
    "plain": r'[^"\\\x00-\x1F\x7F]',
    "number": '"-"? whole ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?',
    "integer": '"-"? whole',
    "whole": '"0" | [1-9] [0-9]{0,15}',
    "boolean": '"true" | "false"',
    "null": '"null"',
}
_DATE = '[0-9]{4} "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | [12] [0-9] | "3" [01] )'
_TIME = (
    '( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{1,9} )? '
    '( "Z" | [-+] ( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] )'
)
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": ' "-" '.join(f"[0-9a-fA-F]{{{n}}}" for n in (8, 4, 4, 4, 12)),
}


_Names = dict[str, "_Names"]  # by character what may follow; "" where a name ends


class SchemaGrammar(NamedTuple):
    """A grammar, and the keywords of the schema that it does not enforce."""

    grammar: str
    unenforced: tuple[str, ...]


def schema_grammar(text: str) -> SchemaGrammar:
    """GBNF for the answers that a JSON schema describes, as strict JSON.

    As in llama.cpp's converter properties come in the schema's order, with others only where
    ``additionalProperties`` says so, and a type that is not named is guessed from the keywords.
    References lead into the schema itself (``#/...``). Raises GrammarError for what is no schema,
    or more than a grammar can hold.
    """
    if len(text) > MAX_CHARACTERS:
        raise GrammarError(f"The JSON schema is longer than {MAX_CHARACTERS} characters.")
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise GrammarError(
            f"The JSON schema is not JSON: {error}.", 'Give one such as {"type": "object"}.'
        ) from error
    rules = SchemaRules()
    grammar = f"root ::= {rules.of(schema)}\n{rules.text}"
    return SchemaGrammar(grammar, tuple(sorted(rules.unenforced)))


class SchemaRules:
    """The rules of several schemas in one grammar, each behind a name."""

    def __init__(self) -> None:
        self._converter = _Converter()

    def of(self, schema: object, within: object = None) -> str:
        """The name of the rule for a schema; its references lead into ``within``, or itself."""
        self._converter.document = schema if within is None else within
        return self._converter.visit(schema, 0)

    @property
    def text(self) -> str:
        """The rules so far, as GBNF without a root."""
        rules = {**_BASE, **self._converter.rules}
        return "".join(f"{name} ::= {body}\n" for name, body in rules.items())

    @property
    def unenforced(self) -> set[str]:
        """Keywords that the rules do not enforce."""
        return self._converter.unenforced


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class _Converter:
    """The rules of schemas, made while their parts are visited."""

    def __init__(self) -> None:
        self.document: object = None  # which references lead into
        self.rules: dict[str, str] = {}
        self.unenforced: set[str] = set()
        self._visited: dict[int, tuple[object, str]] = {}  # kept, so that no id is used twice
        self._parts = 0

    def visit(self, schema: object, depth: int) -> str:
        """The name of the rule for a schema; each schema gets one, which it may refer to itself."""
        self._spend(depth)
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, dict):
            raise GrammarError(f"{shortened(schema)} is no JSON schema.", "Expected an object.")
        if id(schema) not in self._visited:
            name = f"v{len(self._visited)}"
            self._visited[id(schema)] = (schema, name)
            self.rules[name] = self._body(schema, depth + 1)
        return self._visited[id(schema)][1]

    def _spend(self, depth: int) -> None:
        """Bound what references and combinations make of a small schema."""
        self._parts += 1
        if depth > _MAX_DEPTH or self._parts > _MAX_PARTS:
            raise GrammarError(
                f"The JSON schema is more than {_MAX_DEPTH} deep, or has more than {_MAX_PARTS} "
                "parts.",
                "Make it smaller.",
            )

    def _rule(self, body: str) -> str:
        """A rule that belongs to no schema of its own."""
        name = f"w{len(self.rules)}"
        self.rules[name] = body
        return name

    def _body(self, schema: dict[str, Any], depth: int) -> str:
        if "$ref" in schema:
            self._note(schema, {"$ref"})
            return self.visit(self._target(schema["$ref"]), depth)
        if "allOf" in schema:
            return self.visit(self._merged(schema, depth), depth)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                self._note(schema, {union})
                return self._any(list_of(schema, union), depth)
        if "const" in schema or "enum" in schema:
            self._note(schema, {"const", "enum", "type"})
            values = [schema["const"]] if "const" in schema else list_of(schema, "enum")
            return " | ".join(_constant(value) for value in values)
        kinds = types_of(schema)
        if len(kinds) != 1:
            return self._any([{**schema, "type": kind} for kind in kinds], depth)
        return self._typed(kinds[0], schema, depth)

    def _any(self, schemas: Sequence[object], depth: int) -> str:
        return " | ".join(self.visit(each, depth) for each in schemas)

    def _typed(self, kind: str, schema: dict[str, Any], depth: int) -> str:
        # Keywords of another type say nothing about this one.
        others = (own for each, own in KEYWORDS.items() if (kind, each) != ("number", "integer"))
        self._note(schema, {"type"}.union(*others))
        build: dict[str, Callable[[dict[str, Any], int], str]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
        }
        return build[kind](schema, depth) if kind in build else kind

    def _note(self, schema: Mapping[str, Any], enforced: set[str]) -> None:
        self.unenforced |= {name[:60] for name in schema.keys() - enforced - SILENT}

    def _target(self, reference: object) -> object:
        """The part of the schema that a reference names (RFC 6901)."""
        steps = str(reference).split("/")
        found: Any = self.document
        if steps[0] != "#":
            raise GrammarError(
                f"The JSON schema refers to {shortened(reference)}, which is not fetched.",
                "Put it into the schema, below $defs, and refer to #/$defs/NAME.",
            )
        for step in (unquote(s).replace("~1", "/").replace("~0", "~") for s in steps[1:]):
            place = int(step) if re.fullmatch(r"[0-9]{1,9}", step) else -1
            if isinstance(found, list) and 0 <= place < len(found):
                found = found[place]
            elif isinstance(found, dict) and step in found:
                found = found[step]
            else:
                raise GrammarError(f"The JSON schema has no {shortened(reference)}.", "Define it.")
        return found

    def _merged(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """One schema of what ``allOf`` combines."""
        merged = {name: value for name, value in schema.items() if name != "allOf"}
        for part in list_of(schema, "allOf"):
            self._spend(depth)
            while isinstance(part, dict) and "$ref" in part:
                self._note(part, {"$ref"})
                self._spend(depth)
                part = self._target(part["$ref"])
            if not isinstance(part, dict):
                raise GrammarError(f"{shortened(part)} is no JSON schema.", "Expected an object.")
            if "allOf" in part:
                part = self._merged(part, depth + 1)
            for name, value in part.items():
                merged[name] = combined(name, merged[name], value) if name in merged else value
        return merged

    # -- types -----------------------------------------------------------------------------

    def _object(self, schema: dict[str, Any], depth: int) -> str:
        properties = value_of(schema, "properties", dict, {})
        required = {str(name) for name in value_of(schema, "required", list, [])}
        more = schema.get("additionalProperties", not properties)
        if not properties and more is True and not required:
            return "object"
        for name in sorted(required - properties.keys()):
            properties = {**properties, name: more}
        pairs = [
            (f'{_constant(name)} ":" space {self.visit(value, depth)}', name in required)
            for name, value in properties.items()
        ]
        extra = ""
        if more is not False:
            key = self._other_key(sorted(map(_json, properties)))
            extra = self._rule(f'"\\"" {key} ":" space {self.visit(more, depth)}')
        return f'"{{" space {self._members(pairs, extra)} "}}"'

    def _members(self, pairs: Sequence[tuple[str, bool]], extra: str) -> str:
        """Pairs in order, with commas between those that are there; then any number of extras."""
        rest = f'( "," space {extra} )*' if extra else '""'
        firsts = [f"{extra} {rest}"] if extra else []
        can_be_empty = True
        for pair, needed in reversed(pairs):
            pair, rest = self._rule(pair), self._rule(rest)
            firsts = [*([] if needed else firsts), f"{pair} {rest}"]
            can_be_empty = can_be_empty and not needed
            follow = f'"," space {pair}'
            rest = f"{follow} {rest}" if needed else f"( {follow} )? {rest}"
        if not firsts:
            return '""'
        return (
            f"( {' | '.join(reversed(firsts))} ) space"
            if not can_be_empty
            else (f"( ( {' | '.join(reversed(firsts))} ) space )?")
        )

    def _other_key(self, names: Sequence[str]) -> str:
        """A rule for the rest of a key, its quote included, that is none of these JSON strings.

        Such keys have no escapes: one could spell a name that is taken.
        """
        tree: _Names = {}
        for name in (name[1:-1] for name in names if "\\" not in name):
            node = tree
            for character in name:
                if character not in node:
                    self._spend(0)
                node = node.setdefault(character, {})
            node[""] = {}
        rule, waiting = f"k{len(self.rules)}", [tree]
        for i, node in enumerate(waiting):  # which grows meanwhile
            nexts = sorted(character for character in node if character)
            free = f'[^{escaped("".join(nexts))}"\\\\\\x00-\\x1F\\x7F] plain* "\\""'
            ways = [free, *([] if "" in node else ['"\\""'])]
            for character in nexts:
                ways.append(f"{quoted(character)} {rule}-{len(waiting)}")
                waiting.append(node[character])
            self.rules[f"{rule}-{i}"] = " | ".join(ways)
        return f"{rule}-0"

    def _array(self, schema: dict[str, Any], depth: int) -> str:
        least, most = counts_of(schema, "minItems", "maxItems")
        first, more = schema.get("prefixItems", []), schema.get("items")
        if isinstance(more, list):  # as schemas before 2020 write it
            first, more = more, schema.get("additionalItems")
        if not isinstance(first, list):
            raise GrammarError(
                f"{shortened(first)} is no list of JSON schemas.", "Expected a list."
            )
        if more is None:  # behind a tuple only what is asked for
            more = not first or least > len(first)
        items = [self.visit(each, depth) for each in first[:most]]
        item = "" if more is False else self.visit(more, depth)
        if not items and (most == 0 or not item):
            return '"[" space "]"'
        if items:
            least, most = max(0, least - len(items)), None if most is None else most - len(items)
            listed = ' "," space '.join(items)
            repeated = f' ( "," space {item} ){_times(least, most)}' if item else ""
            return f'"[" space {listed}{repeated} space "]"'
        others = _times(max(0, least - 1), None if most is None else most - 1)
        listed = f'{item} ( "," space {item} ){others} space'
        return f'"[" space {listed} "]"' if least else f'"[" space ( {listed} )? "]"'

    def _string(self, schema: dict[str, Any], depth: int) -> str:
        kind, lengths = schema.get("format"), {"minLength", "maxLength"} & schema.keys()
        if "pattern" in schema:
            rule = pattern_rule(value_of(schema, "pattern", str, ""))
            if rule is not None:
                self.unenforced |= lengths | ({"format"} & schema.keys())
                return f'"\\"" ( {rule} ) "\\""'
            self.unenforced.add(f"pattern {shortened(schema['pattern'])}")
        if isinstance(kind, str) and kind in _FORMATS:
            self.unenforced |= lengths
            return f'"\\"" {_FORMATS[kind]} "\\""'
        if kind is not None:
            self.unenforced.add(f"format {shortened(kind)}")
        if not lengths:
            return "string"
        least, most = counts_of(schema, "minLength", "maxLength")
        name = f"chars-{least}-{'' if most is None else most}"  # one, however often it is used
        self.rules[name] = f"char{_times(least, most)}"
        return f'"\\"" {name} "\\""'

    def _integer(self, schema: dict[str, Any], depth: int) -> str:
        if not BOUNDS & schema.keys():
            return "integer"
        low = max(
            -(-number_of(schema, "minimum", -_LARGEST) // 1),
            number_of(schema, "exclusiveMinimum", -_LARGEST - 1) // 1 + 1,
        )
        high = min(
            number_of(schema, "maximum", _LARGEST) // 1,
            -(-number_of(schema, "exclusiveMaximum", _LARGEST + 1) // 1) - 1,
        )
        if low > high:
            raise GrammarError(
                f"The JSON schema asks for whole numbers from {low:g} to {high:g}.",
                f"There must be one, of up to {len(str(_LARGEST))} digits.",
            )
        return integer_rule(int(low), int(high))


def _times(least: int, most: int | None) -> str:
    if most is None:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{max(most, least)}}}"


def _constant(value: object) -> str:
    return quoted(_json(value))


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
