"""Flags for a grammar or a JSON schema that the answer obeys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from localspec.core.errors import UsageError
from localspec.core.files import read_text
from localspec.display import console

_PANEL = "Grammar"


@dataclass(frozen=True, slots=True)
class GrammarFlags:
    """A grammar or a JSON schema that the answer obeys."""

    grammar: Annotated[
        str | None,
        typer.Option(
            "--grammar", help="A GBNF grammar that the answer obeys.", rich_help_panel=_PANEL
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

    def read(self) -> str | None:
        """The grammar that was given, as GBNF, checked; what it leaves out of a schema is noted.

        Raises UsageError for more than one, FileProblem for an unreadable file, GrammarError for
        what is none.
        """
        from localspec.engine.grammar.bounds import check_grammar
        from localspec.engine.grammar.json_schema import schema_grammar

        grammar = _given("--grammar", self.grammar, self.grammar_file)
        schema = _given("--json-schema", self.json_schema, self.json_schema_file)
        if grammar is not None and schema is not None:
            raise UsageError("A grammar and a JSON schema were given.", "Give one.")
        if schema is not None:
            grammar, unenforced = schema_grammar(schema)
            if unenforced:
                console.note(f"The answer need not obey these of the schema: {_named(unenforced)}.")
        if grammar is not None:
            check_grammar(grammar)
        return grammar


def _given(flag: str, text: str | None, path: Path | None) -> str | None:
    """The value of a flag, or what is in the file that its sibling names."""
    from localspec.engine.grammar.bounds import MAX_CHARACTERS

    if path is None:
        return text
    if text is not None:
        raise UsageError(f"{flag} and {flag}-file were given.", "Give one.")
    return read_text(path, 4 * MAX_CHARACTERS)


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(names[:9]) + ", ..." * (len(names) > 9)
