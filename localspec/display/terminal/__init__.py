"""The terminal itself: streams, prompt line, growing text, progress, clipboard."""
