"""The commands bench and demo."""
