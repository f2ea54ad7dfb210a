"""Starts the program: ``python -m localspec`` and the ``localspec`` command."""

from typing import NoReturn

from localspec.core.interrupt import leaving_at_interrupt


def main() -> NoReturn:
    """Import the program, which takes a moment that Ctrl-C may end, and run it."""
    with leaving_at_interrupt():
        from localspec import cli
        from localspec.core.compute import COMPUTE
    with COMPUTE.adopted():
        cli.main()


if __name__ == "__main__":
    main()
