"""Starts the program: ``python -m localspec`` and the ``localspec`` command."""

import sys
from typing import NoReturn

from localspec.core.interrupt import leaving_at_interrupt
from localspec.core.limits import REFUSALS, refusal


def main() -> NoReturn:
    """Import the program, which takes a moment that Ctrl-C may end, and run it."""
    try:
        with leaving_at_interrupt():
            from localspec.display.terminal import console
        with leaving_at_interrupt(console.end_start):
            console.sign_of_life()
            from localspec import cli
            from localspec.core.compute import COMPUTE
    except REFUSALS as problem:
        refused = refusal(problem)
        if refused is None:
            raise
        sys.exit(f"Error: {refused.message}\n{refused.hint}")
    with COMPUTE.adopted():
        cli.main()


if __name__ == "__main__":
    main()
