"""Heads: drafts that read the target's hidden states instead of the text alone."""
