"""From two GGUF files to a pair that is loaded, each model where it fits."""
