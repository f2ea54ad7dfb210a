"""What a context holds of a text: rolled back, copied, branched, kept in files."""
