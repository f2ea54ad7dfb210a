"""Small models made as large and slow as real ones, computing the same function."""
