"""Tokens of a vocabulary: text to ids, rules of sampling, trimmed output rows."""
