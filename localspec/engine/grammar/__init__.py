"""Grammars, JSON schemas and regular expressions that an answer obeys, by llguidance."""
