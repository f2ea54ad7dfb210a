"""The hybrid target: a gated delta net with an MTP head, taught by the pair's target."""
