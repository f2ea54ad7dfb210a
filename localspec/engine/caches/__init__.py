"""Caches of prompts and of earlier answers."""
