"""Commands of the `meshflow` program."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from meshflow._version import __version__
from meshflow.cli import doctor as diagnosis
from meshflow.cli import journal, profile
from meshflow.cli.convert import convert
from meshflow.cli.launch import Job
from meshflow.cli.plan import SCRIPT_SETTINGS, plan
from meshflow.cli.run import run_program
from meshflow.cli.serve import serve
from meshflow.cli.show import predict, show

app = typer.Typer(
    help="Meshflow: the TensorFlow 2 training stack on JAX/XLA.", no_args_is_help=True
)
app.add_typer(journal.app, name="journal")
app.add_typer(profile.app, name="profile")


app.command()(serve)
app.command()(convert)
app.command()(show)
app.command()(predict)
app.command(name="plan", context_settings=SCRIPT_SETTINGS)(plan)


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Handle the options that precede a command."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def doctor() -> None:
    """Show devices, CPU kernels, versions and precisions, and suggest improvements."""
    console = Console()
    try:
        findings = diagnosis.collect_findings()
    except ValueError as error:
        sys.exit(str(error))
    for title, rows in findings.items():
        table = Table(title=title, title_justify="left", show_header=False, min_width=60)
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
    for line in diagnosis.list_advice() or ["No improvements found."]:
        # Wrapped lines would break commands that the user copies.
        console.print(f"- {line}", markup=False, soft_wrap=True)


@app.command(
    name="run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run_command(
    program: Annotated[
        list[str],
        typer.Argument(help="script.py, -m MODULE or -c CODE, and the arguments of the program."),
    ],
) -> None:
    """Run a TensorFlow program, in which tensorflow, keras and tf_keras are Meshflow, like `python`."""
    raise typer.Exit(run_program(program))


@app.command(context_settings=SCRIPT_SETTINGS)
def launch(
    script: Annotated[str, typer.Argument(help="Python script that every worker runs.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script.", metavar="ARGS")
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 1,
    hosts: Annotated[
        str,
        typer.Option(help="Hosts to start workers on over ssh, as a,b. Default: this machine."),
    ] = "",
    max_restarts: Annotated[
        int, typer.Option(help="How often to restart the job after a worker failed.")
    ] = 0,
    watchdog: Annotated[
        float,
        typer.Option(help="Seconds without a heartbeat or step after which a worker has failed."),
    ] = 600.0,
    devices_per_worker: Annotated[
        int | None, typer.Option(help="Virtual CPU devices of each worker.")
    ] = None,
    gpus_per_worker: Annotated[
        int | None,
        typer.Option(help="GPUs of each worker. Default: an equal share of the machine's GPUs."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of this machine for workers on other hosts.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="First worker port in TF_CONFIG. Default: free ports.")
    ] = None,
) -> None:
    """Run a script on several workers as one job, which restarts when a worker fails.

    Each worker gets its TF_CONFIG for tf.distribute.MultiWorkerMirroredStrategy.
    """
    try:
        job = Job(
            script,
            arguments or [],
            workers=workers,
            hosts=[h.strip() for h in hosts.split(",") if h.strip()],
            max_restarts=max_restarts,
            watchdog=watchdog,
            devices=devices_per_worker,
            address=address,
            port=port,
            gpus=gpus_per_worker,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(job.run())
