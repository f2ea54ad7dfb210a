"""Models and pairs known here: on this disk, in the catalogue, the user's own."""
