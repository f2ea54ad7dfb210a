"""The document of a benchmark: as JSON, as a page (HTML), and compared with an earlier one."""
