"""The KV cache of a context: rolled back, copied, stored in files."""
