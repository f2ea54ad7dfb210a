"""Checks of one file by its header: names, vocabulary, prediction heads."""
