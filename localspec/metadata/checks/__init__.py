"""Checks of one file by its header: tensors, values, vocabulary, prediction heads."""
