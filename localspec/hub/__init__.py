"""The Hugging Face Hub: references, headers by range, partial files, provenance."""
