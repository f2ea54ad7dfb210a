"""The commands: parse flags, call the packages, show the result."""
