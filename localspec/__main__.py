"""Lets ``python -m localspec`` do what the ``localspec`` command does."""

from localspec.cli import main

if __name__ == "__main__":
    main()
