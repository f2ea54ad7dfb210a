"""Memory of a pair: estimated, planned, asked of llama.cpp."""
