"""Compares which JSON schemas are obeyed: localspec, llguidance alone, llama.cpp's converter.

    PYTHONPATH=. python benchmarks/schemas.py SUITE [--converter PROGRAM]

SUITE is a draft of the JSON Schema test suite, such as JSON-Schema-Test-Suite/tests/draft2020-12,
or `benchmarks/agent_schemas`: what agents use, in the same form.
Each schema is converted, and each instance of its tests, as `json.dumps` writes it, is accepted or
not. Printed is what became of the schemas, and of the tests of those that were taken; a * marks
those of schemas that were taken with a warning. PROGRAM reads a schema on each line and prints
"G" and what llama.cpp's `json_schema_to_grammar` makes of it, its line ends as \\x01, or "E" and
the reason; these grammars are read by localspec's own reader of GBNF.
"""

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Parser

from localspec.core.errors import GrammarError
from localspec.engine.grammar.matcher import CompiledGrammar
from localspec.engine.grammar.source import read_grammar, schema_grammar
from tests.support.toy.grammars import byte_tokenizer

Convert = Callable[[Any], tuple[str, bool]]  # the grammar, and whether all of the schema is in it


def ours(schema: Any) -> tuple[str, bool]:
    """localspec."""
    grammar, warnings = schema_grammar(schema)
    return grammar, not warnings


def library(schema: Any) -> tuple[str, bool]:
    """llguidance as it comes."""
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    if LLMatcher.validate_grammar(grammar):
        raise GrammarError("refused")
    return grammar, True


def converter(program: Path) -> Convert:
    """llama.cpp's own, in a program that answers line by line."""
    running = subprocess.Popen([program], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdin is not None and running.stdout is not None
    asked, told = running.stdin, running.stdout

    def convert(schema: Any) -> tuple[str, bool]:
        print(json.dumps(schema), file=asked, flush=True)
        answer = told.readline().rstrip("\n")
        if not answer.startswith("G"):
            raise GrammarError("refused")
        return read_grammar(answer[1:].replace("\x01", "\n")), True

    return convert


def judge(convert: Convert, suite: Path) -> Counter[str]:
    """What became of the schemas and tests of all files."""
    counts: Counter[str] = Counter()
    for file in sorted(suite.glob("*.json")):
        for case in json.loads(file.read_text(encoding="utf-8")):
            try:
                grammar, whole = convert(case["schema"])
                compiled = CompiledGrammar(grammar, byte_tokenizer())
            except GrammarError:
                counts["schemas refused"] += 1
                continue
            counts["taken whole" if whole else "taken with a warning"] += 1
            for test in case["tests"]:
                data = json.dumps(test["data"], ensure_ascii=False).encode("utf-8", "surrogatepass")
                matcher = compiled.matcher()
                fits = matcher.try_consume_tokens(list(data)) == len(data)
                accepted = fits and matcher.is_accepting()
                kind = "valid" if test["valid"] else "invalid"
                counts[
                    f"{kind}, {'accepted' if accepted else 'refused'}{'' if whole else ' *'}"
                ] += 1
    return counts


def main() -> None:
    """Print a line for each converter."""
    parser = Parser(__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--converter", type=Path)
    args: argparse.Namespace = parser.parse_args()
    variants: dict[str, Convert] = {"localspec": ours, "llguidance": library}
    if args.converter is not None:
        variants["llama.cpp"] = converter(args.converter)
    for name, convert in variants.items():
        found = judge(convert, args.suite)
        print(
            f"{name:11}", ", ".join(f"{what}: {n}" for what, n in sorted(found.items())), flush=True
        )


if __name__ == "__main__":
    main()
