"""llama.cpp: the library, one loaded model, features of the build."""
