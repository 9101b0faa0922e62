"""`meshflow profile`: profiles from the command line."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from meshflow.cli import page_server, profile_model
from meshflow.core.runtime.errors import OpError
from meshflow.files.paths import parent
from meshflow.profiler import client, folders, terminal
from meshflow.profiler.page import link
from meshflow.profiler.verdicts import verdicts

app = typer.Typer(
    help="Take profiles of running programs and of deployed models, and see where their time goes.",
    no_args_is_help=True,
)
app.command(name="model")(profile_model.model)
_Logdir = Annotated[
    str, typer.Argument(help="A log folder, or a profile in it; here or in a store.")
]


def _said(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose errors are said in a line."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (OpError, ImportError, OSError) as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None

    return run


def _show(table: terminal.Table) -> None:
    heads, rows = table
    drawn = Table(*heads, box=None, pad_edge=False)
    for column in drawn.columns[1:]:
        column.justify = "right"
    for row in rows:
        drawn.add_row(*row, style="bold" if row[0] == "step" else None)
    Console().print(drawn)


def _say(text: str) -> None:
    # A sentence that is broken into lines cannot be searched for.
    Console().print(text.replace("`", ""), markup=False, soft_wrap=True, highlight=False)


@app.command()
@_said
def record(
    addresses: Annotated[
        str, typer.Argument(help="Where the workers' profiler servers listen: HOST:PORT,HOST:PORT")
    ],
    logdir: Annotated[str, typer.Option(help="Where to write, here or in a store.")] = "logs",
    ms: Annotated[int, typer.Option(help="For how many milliseconds to record.")] = 2000,
    every: Annotated[
        float, typer.Option(help="Record again every so many seconds, until interrupted.")
    ] = 0.0,
    count: Annotated[int, typer.Option(help="With --every: how often; 0 for no end.")] = 0,
) -> None:
    """Record all workers of a job at once, each of which called tf.profiler.experimental.server.start(port)."""
    done = 0
    while True:
        began = time.monotonic()
        path = client.take(addresses, logdir, ms)
        report = folders.read([parent(path)])
        _say(f"{report.name}: {terminal.one_line(report)}")
        _say(path)
        done += 1
        if not every or done == count:
            return
        try:
            time.sleep(max(every - (time.monotonic() - began), 0.0))
        except KeyboardInterrupt:
            return


@app.command()
@_said
def summary(logdir: _Logdir) -> None:
    """Print the newest profile: verdicts, and the mean step of each worker."""
    report = folders.load(logdir)
    _say(f"{report.name}, {len(report.rows)} steps")
    for verdict in verdicts(report):
        _say(str(verdict))
        _say(f"  {verdict.advice}")
    for name, why in report.missing.items():
        _say(f"{name} is missing: {why}")
    _show(terminal.summary(report))


@app.command()
@_said
def diff(
    before: Annotated[str, typer.Argument(help="A profile, or a log folder: its newest.")],
    after: Annotated[str, typer.Argument(help="Another.")],
) -> None:
    """Print what became slower between two profiles, and why."""
    text, table = terminal.difference(folders.load(before), folders.load(after))
    _say(text)
    _show(table)


@app.command()
@_said
def view(
    logdir: _Logdir,
    out: Annotated[str, typer.Option(help="Folder to write to; default the profile's.")] = "",
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page to this machine.")] = False,
    port: Annotated[int, typer.Option(help="With --serve: where; 0 for a free port.")] = 0,
) -> None:
    """Write the page of the newest profile: one HTML file that needs no network."""
    folder, report = out or folders.profiles(logdir)[-1], folders.load(logdir)
    path = folders.write_page(folder, report)
    _say(path)
    if serve:
        links = {link(w.trace, folder): w.trace for w in report.workers if w.trace}
        traces = {name: trace for name, trace in links.items() if name}
        page_server.serve(path, port, _say, traces)
