"""Options: types, bounds, defaults and help texts."""
