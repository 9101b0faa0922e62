"""`meshflow profile`: profiles from the command line."""

from __future__ import annotations

import typer

from meshflow.cli import profile_model

app = typer.Typer(
    help="See where the time of programs and of deployed models goes.", no_args_is_help=True
)
app.command(name="model")(profile_model.model)


@app.callback()
def group() -> None:
    """See where the time of programs and of deployed models goes."""
