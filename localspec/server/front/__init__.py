"""One server in front of several models, each in a process of its own."""
