"""The commands about models and pairs on this disk."""
