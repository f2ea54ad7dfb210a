"""Pairs by name: the catalogue, the user's own, their options, and the files to load."""
