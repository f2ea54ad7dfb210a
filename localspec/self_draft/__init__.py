"""Drafts made out of a target: some of its layers, a lower type, fewer output rows."""
