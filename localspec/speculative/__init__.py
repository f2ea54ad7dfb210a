"""Speculative decoding on token ids and rows of logits."""
