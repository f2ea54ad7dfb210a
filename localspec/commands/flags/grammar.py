"""Flags for a grammar or a JSON schema that the answer obeys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from localspec.core.errors import UsageError
from localspec.core.files import read_text
from localspec.display import console

_PANEL = "Grammar"
_MOST_WARNINGS = 9


@dataclass(frozen=True, slots=True)
class GrammarFlags:
    """A grammar or a JSON schema that the answer obeys."""

    grammar: Annotated[
        str | None,
        typer.Option(
            "--grammar",
            help="A grammar that the answer obeys: GBNF or Lark.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    grammar_file: Annotated[
        Path | None,
        typer.Option(
            "--grammar-file", help="Read the grammar from this file.", rich_help_panel=_PANEL
        ),
    ] = None
    json_schema: Annotated[
        str | None,
        typer.Option(
            "--json-schema",
            "-j",
            help="A JSON schema that the answer obeys.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    json_schema_file: Annotated[
        Path | None,
        typer.Option(
            "--json-schema-file",
            "-jf",
            help="Read the JSON schema from this file.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    regex: Annotated[
        str | None,
        typer.Option(
            "--regex",
            help="A regular expression that the whole answer matches.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def read(self) -> str | None:
        """Return the grammar given, validated; print a note for schema keywords not enforced.

        Raises UsageError for more than one, FileProblem for an unreadable file, GrammarError for
        what is none.
        """
        from localspec.engine.grammar.source import read_grammar, read_regex, read_schema

        grammar = _given("--grammar", self.grammar, self.grammar_file)
        schema = _given("--json-schema", self.json_schema, self.json_schema_file)
        if sum(each is not None for each in (grammar, schema, self.regex)) > 1:
            raise UsageError(
                "More than one of grammar, JSON schema and regex was given.", "Give one."
            )
        if schema is not None:
            read = read_schema(schema)
            for warning in read.warnings[:_MOST_WARNINGS]:
                console.note(f"Not enforced: {warning}")
            return read.grammar
        if self.regex is not None:
            return read_regex(self.regex)
        if grammar is not None:
            read_grammar(grammar)
        return grammar


def _given(flag: str, text: str | None, path: Path | None) -> str | None:
    """The value of a flag, or what is in the file that its sibling names."""
    from localspec.engine.grammar.source import MAX_CHARACTERS

    if path is None:
        return text
    if text is not None:
        raise UsageError(f"{flag} and {flag}-file were given.", "Give one.")
    return read_text(path, 4 * MAX_CHARACTERS)
