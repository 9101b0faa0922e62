"""`meshflow profile`: record and inspect profiles."""

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
    help="Record profiles of running programs and of deployed models, and show where time is spent.",
    no_args_is_help=True,
)
app.command(name="model")(profile_model.model)
_Logdir = Annotated[
    str, typer.Argument(help="Log folder, or a profile in it; a local path or a remote store.")
]


def _said(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that an error prints one line and exits with code 1."""

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
    printed = Table(*heads, box=None, pad_edge=False)
    for column in printed.columns[1:]:
        column.justify = "right"
    for row in rows:
        printed.add_row(*row, style="bold" if row[0] == "step" else None)
    Console().print(printed)


def _say(text: str) -> None:
    # Wrapped lines could not be searched for.
    Console().print(text.replace("`", ""), markup=False, soft_wrap=True, highlight=False)


@app.command()
@_said
def record(
    addresses: Annotated[
        str, typer.Argument(help="Profiler servers of the workers: HOST:PORT,HOST:PORT")
    ],
    logdir: Annotated[str, typer.Option(help="Folder to write to, local or remote.")] = "logs",
    ms: Annotated[int, typer.Option(help="Duration of a recording in milliseconds.")] = 2000,
    every: Annotated[
        float, typer.Option(help="Repeat the recording after this many seconds, until interrupted.")
    ] = 0.0,
    count: Annotated[
        int, typer.Option(help="With --every: number of recordings; 0: no limit.")
    ] = 0,
) -> None:
    """Record all workers of a job that called tf.profiler.experimental.server.start(port)."""
    done = 0
    while True:
        start = time.monotonic()
        path = client.take(addresses, logdir, ms)
        report = folders.read([parent(path)])
        _say(f"{report.name}: {terminal.one_line(report)}")
        _say(path)
        done += 1
        if not every or done == count:
            return
        try:
            time.sleep(max(every - (time.monotonic() - start), 0.0))
        except KeyboardInterrupt:
            return


@app.command()
@_said
def summary(logdir: _Logdir) -> None:
    """Print the newest profile: verdicts and the mean step time of each worker."""
    report = folders.load(logdir)
    _say(f"{report.name}, {len(report.rows)} steps")
    for verdict in verdicts(report):
        _say(str(verdict))
        _say(f"  {verdict.advice}")
    for name, reason in report.missing.items():
        _say(f"{name} is missing: {reason}")
    _show(terminal.summary(report))


@app.command()
@_said
def diff(
    before: Annotated[str, typer.Argument(help="Profile, or log folder with profiles (newest).")],
    after: Annotated[str, typer.Argument(help="Profile or log folder to compare with it.")],
) -> None:
    """Print which parts of a step became slower between two profiles, and why."""
    text, table = terminal.difference(folders.load(before), folders.load(after))
    _say(text)
    _show(table)


@app.command()
@_said
def view(
    logdir: _Logdir,
    out: Annotated[str, typer.Option(help="Folder to write to. Default: the profile's.")] = "",
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page to this machine.")] = False,
    port: Annotated[int, typer.Option(help="With --serve: port; 0 selects a free port.")] = 0,
) -> None:
    """Write the page of the newest profile as one self-contained HTML file."""
    folder, report = out or folders.profiles(logdir)[-1], folders.load(logdir)
    path = folders.write_page(folder, report)
    _say(path)
    if serve:
        links = {link(w.trace, folder): w.trace for w in report.workers if w.trace}
        traces = {name: trace for name, trace in links.items() if name}
        page_server.serve(path, port, _say, traces)
