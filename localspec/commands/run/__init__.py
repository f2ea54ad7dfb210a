"""The command run, for one prompt or a file of prompts."""
