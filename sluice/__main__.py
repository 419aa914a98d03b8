"""The command ``sluice``, also as ``python -m sluice``."""

import sys

from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.extras import extras_named

__all__ = ["main"]


def main() -> None:
    """Run the command line; without its packages, exit with 1 and name the extra to install."""
    try:
        with extras_named():
            from sluice.runtime import cli
    except MissingRequirementError as error:
        sys.exit(f"Error: {error}")
    cli.main()


if __name__ == "__main__":
    main()
