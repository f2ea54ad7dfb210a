"""Chat templates, rendered in a sandboxed child process."""
