"""A target and its draft loaded on llama.cpp: memory, templates, generation, conversation."""
