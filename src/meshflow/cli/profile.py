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
from meshflow.files.paths import get_parent
from meshflow.profiler import client, folders, terminal
from meshflow.profiler.findings import list_findings
from meshflow.profiler.page import make_trace_link

app = typer.Typer(
    help="Record profiles of running programs and of deployed models, and show where time is spent.",
    no_args_is_help=True,
)
app.command(name="model")(profile_model.print_operators)
_Logdir = Annotated[
    str, typer.Argument(help="Log folder, or a profile in it; a local path or a remote store.")
]


def _report_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that an error prints one line and exits with code 1."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (OpError, ImportError, OSError) as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None

    return run


def _print_table(table: terminal.Table) -> None:
    heads, rows = table
    printed = Table(*heads, box=None, pad_edge=False)
    for column in printed.columns[1:]:
        column.justify = "right"
    for row in rows:
        printed.add_row(*row, style="bold" if row[0] == "step" else None)
    Console().print(printed)


def _print_line(text: str) -> None:
    # Wrapped lines could not be searched for.
    Console().print(text.replace("`", ""), markup=False, soft_wrap=True, highlight=False)


@app.command()
@_report_errors
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
        path = client.take_profile(addresses, logdir, ms)
        report = folders.read_report([get_parent(path)])
        _print_line(f"{report.name}: {terminal.format_line(report)}")
        _print_line(path)
        done += 1
        if not every or done == count:
            return
        try:
            time.sleep(max(every - (time.monotonic() - start), 0.0))
        except KeyboardInterrupt:
            return


@app.command()
@_report_errors
def summary(logdir: _Logdir) -> None:
    """Print the newest profile: verdicts and the mean step time of each worker."""
    report = folders.load_report(logdir)
    _print_line(f"{report.name}, {len(report.rows)} steps")
    for verdict in list_findings(report):
        _print_line(str(verdict))
        _print_line(f"  {verdict.advice}")
    for name, reason in report.missing.items():
        _print_line(f"{name} is missing: {reason}")
    _print_table(terminal.summarize(report))


@app.command()
@_report_errors
def diff(
    before: Annotated[str, typer.Argument(help="Profile, or log folder with profiles (newest).")],
    after: Annotated[str, typer.Argument(help="Profile or log folder to compare with it.")],
) -> None:
    """Print which parts of a step became slower between two profiles, and why."""
    text, table = terminal.compare(folders.load_report(before), folders.load_report(after))
    _print_line(text)
    _print_table(table)


@app.command()
@_report_errors
def view(
    logdir: _Logdir,
    out: Annotated[str, typer.Option(help="Folder to write to. Default: the profile's.")] = "",
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page to this machine.")] = False,
    port: Annotated[int, typer.Option(help="With --serve: port; 0 selects a free port.")] = 0,
) -> None:
    """Write the page of the newest profile as one self-contained HTML file."""
    folder, report = out or folders.find_profiles(logdir)[-1], folders.load_report(logdir)
    path = folders.write_page(folder, report)
    _print_line(path)
    if serve:
        links = {make_trace_link(w.trace, folder): w.trace for w in report.workers if w.trace}
        traces = {name: trace for name, trace in links.items() if name}
        page_server.serve_page(path, port, _print_line, traces)
