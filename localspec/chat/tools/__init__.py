"""Tools offered to a model: how they are told, how its calls are read, how a call is forced."""
