"""Finds the settings with which a pair answers fastest on this machine, by measuring."""
