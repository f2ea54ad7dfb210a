"""Hugging Face Hub: references, headers by range request, partial files, provenance."""
