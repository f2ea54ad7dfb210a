"""Flags for a grammar or a JSON schema that the answer obeys."""

import os
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localspec.core.errors import UsageError
from localspec.core.files import read_text
from localspec.core.options.option import option
from localspec.display.terminal import console

_MOST_WARNINGS = 9

_grammar = partial(option, None, panel="Grammar")


@dataclass(frozen=True, slots=True)
class GrammarFlags:
    """A grammar or a JSON schema that the answer obeys."""

    grammar: str | None = _grammar("--grammar", "Grammar that the answer obeys: GBNF or Lark.")
    grammar_file: Path | None = _grammar("--grammar-file", "Read the grammar from this file.")
    json_schema: str | None = _grammar("--json-schema -j", "JSON schema that the answer obeys.")
    json_schema_file: Path | None = _grammar(
        "--json-schema-file -jf", "Read the JSON schema from this file."
    )
    regex: str | None = _grammar("--regex", "Regular expression that the whole answer matches.")

    def read(self) -> str | None:
        """The one grammar given, validated; raises UsageError, FileProblem, GrammarError."""
        from localspec.engine.grammar.source import read_grammar, read_regex, read_schema

        _require_no_path("--grammar", self.grammar)
        _require_no_path("--json-schema", self.json_schema)
        grammar = _given("--grammar", self.grammar or None, self.grammar_file)
        schema = _given("--json-schema", self.json_schema, self.json_schema_file)
        regex = self.regex or None
        if sum(each is not None for each in (grammar, schema, regex)) > 1:
            raise UsageError(
                "More than one of grammar, JSON schema and regex was given.", "Give one."
            )
        if schema is not None:
            read = read_schema(schema)
            for warning in read.warnings[:_MOST_WARNINGS]:
                console.note(f"Not enforced: {warning}")
            return read.grammar
        if regex is not None:
            return read_regex(regex)
        if grammar is not None:
            read_grammar(grammar)
        return grammar


def _require_no_path(flag: str, text: str | None) -> None:
    """Raise UsageError for the name of a file if its content is expected."""
    if text is not None and os.path.isfile(text):  # False for texts too long for a name
        raise UsageError(
            f"{flag} takes the text itself, and {text} is a file.",
            f"Type: {shlex.join([f'{flag}-file', text])}",
        )


def _given(flag: str, text: str | None, path: Path | None) -> str | None:
    """The value of a flag, or the text of the file that its sibling names."""
    from localspec.engine.grammar.source import MAX_CHARACTERS

    if path is None:
        return text
    if text is not None:
        raise UsageError(f"{flag} and {flag}-file were given.", "Give one.")
    return read_text(path, 4 * MAX_CHARACTERS)
