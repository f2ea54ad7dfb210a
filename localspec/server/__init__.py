"""An OpenAI-compatible HTTP server over one engine."""

from localspec import __version__

BUILD = f"localspec-{__version__}"  # in replies
