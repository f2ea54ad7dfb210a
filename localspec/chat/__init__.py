"""Chat: templates, the conversation, its slash commands."""
