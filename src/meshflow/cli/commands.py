"""What the `meshflow` command can do."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from meshflow._version import __version__
from meshflow.cli import doctor as examination

app = typer.Typer(
    help="Meshflow: the TensorFlow 2 training stack on JAX/XLA.", no_args_is_help=True
)


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    """Options that stand before a command."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def doctor() -> None:
    """Show devices, CPU kernels, versions and precisions, and what would make it faster."""
    console = Console()
    for title, rows in examination.report().items():
        table = Table(title=title, title_justify="left", show_header=False, min_width=60)
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
    advice = examination.advice()
    for line in advice or ["Nothing to improve was found."]:
        console.print(f"- {line}", markup=False)
