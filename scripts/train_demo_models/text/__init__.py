"""The text that the models learn, its tokens, and batches of it."""
