"""Several answers at once: sequences of one context, whose passes are shared."""
