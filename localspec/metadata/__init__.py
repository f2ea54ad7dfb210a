"""What a GGUF header says, read with bounds, and whether one file alone is sound."""
