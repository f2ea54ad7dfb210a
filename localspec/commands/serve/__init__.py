"""The commands serve, ps and stop."""
