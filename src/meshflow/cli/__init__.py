"""The `meshflow` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `meshflow` command."""
    try:
        from meshflow.cli.commands import app  # noqa: PLC0415 - the commands need optional packages
    except ModuleNotFoundError as error:
        sys.exit(
            f"The meshflow command needs the package {error.name}: pip install 'meshflow[cli]'"
        )
    app()
