"""Speculative decoding on token ids: the loop, who drafts, and how far."""
