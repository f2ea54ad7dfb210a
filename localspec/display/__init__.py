"""Everything drawn on the terminal."""
