"""The `meshflow` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `meshflow` command."""
    try:
        from meshflow.cli.commands import app  # noqa: PLC0415 - a missing package is named
    except ModuleNotFoundError as error:
        sys.exit(f"The meshflow command needs {error.name}: pip install meshflow-tf")
    app()
