"""llama.cpp: the library, one loaded model, what the build can do."""
