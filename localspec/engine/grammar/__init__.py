"""Grammars of answers: GBNF, read with bounds, and JSON schemas turned into it."""
