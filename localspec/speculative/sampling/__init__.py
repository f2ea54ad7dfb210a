"""Sampling: truncation, penalties, noise, the pick, and the test of a drafted token."""
