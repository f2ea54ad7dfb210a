"""OpenAI's API: its requests read, its replies written."""
