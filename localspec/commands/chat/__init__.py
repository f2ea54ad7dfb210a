"""The command chat and its saved conversations."""
