"""localspec: speculative decoding for GGUF pairs on llama.cpp, in the terminal."""

__version__ = "0.1.0"
