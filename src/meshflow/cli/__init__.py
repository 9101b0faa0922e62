"""The `meshflow` command."""

from __future__ import annotations

import sys

from meshflow.cli.run import run_program


def main() -> None:
    """Run the `meshflow` command."""
    if sys.argv[1:2] == ["run"] and sys.argv[2:] not in ([], ["--help"]):
        # A program starts without the packages of the other commands.
        sys.exit(run_program(sys.argv[2:]))
    try:
        from meshflow.cli.commands import app  # noqa: PLC0415 - a missing package is named
    except ModuleNotFoundError as error:
        sys.exit(f"The meshflow command needs {error.name}: pip install meshflow-tf")
    app()
