"""A checked pair as a command or configuration of other engines."""
