"""Tools: how models write calls, and how templates show tools and calls."""
