"""From two GGUF files to a loaded pair, each model on the devices that it fits."""
