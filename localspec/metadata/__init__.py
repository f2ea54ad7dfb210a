"""GGUF metadata: file format, model header, vocabulary, and checks of one file alone."""
