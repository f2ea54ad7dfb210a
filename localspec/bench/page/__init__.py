"""Benchmark page: the document of a benchmark as one HTML file with figures and tables."""
