"""A draft's file written out of its target: layers, types, output rows."""
