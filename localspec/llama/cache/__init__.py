"""The KV cache of a context: rolled back, copied, branched, stored in files."""
