"""Fixed prompts with and without a draft: measurement, equality of text, reports, the demo."""
