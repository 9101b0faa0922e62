"""`meshflow profile model`: the time of each operator of a deployed model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from meshflow.cli import page_server
from meshflow.core.runtime.errors import OpError
from meshflow.profiler.deployed_models import profile_model


def print_operators(
    file: Annotated[str, typer.Argument(help="A .tflite or .onnx file, or a SavedModel folder.")],
    runs: Annotated[int, typer.Option(help="Number of runs after the first call.")] = 50,
    batch: Annotated[int, typer.Option(help="Batch size of the inputs, which are zeros.")] = 1,
    kinds: Annotated[bool, typer.Option("--kinds", help="Group operators by type.")] = False,
    page: Annotated[
        str, typer.Option(help="Also write a self-contained HTML page to this file.")
    ] = "",
    serve: Annotated[
        bool, typer.Option("--serve", help="With --page: serve the page to this machine.")
    ] = False,
) -> None:
    """Show how much time each operator of a deployed model takes."""
    if serve and not page:
        raise typer.BadParameter("--serve requires --page FILE.html.")
    try:
        result = profile_model(file, runs=runs, batch=batch)
        written = result.write_page(page) if page else ""
    except (OpError, ImportError, OSError) as error:
        sys.exit(str(error))
    console = Console()
    head, *_ = str(result).splitlines()
    console.print(head, markup=False, soft_wrap=True, highlight=False)
    table = Table("operator", "name", "ms", "%", "calls", "first ms", "kB", box=None, pad_edge=False)  # fmt: skip
    for column in table.columns[2:]:
        column.justify = "right"
    operators = result.by_kind() if kinds else result.operators
    total = sum(o.seconds for o in operators) or 1.0
    for o in operators:
        first = "" if o.first_seconds is None else f"{o.first_seconds * 1e3:.4f}"
        memory = "" if o.bytes is None else f"{o.bytes / 1e3:.1f}"
        share = f"{o.seconds / total:.1%}"
        table.add_row(o.kind, o.name, f"{o.seconds * 1e3:.4f}", share, f"{o.calls:.0f}", first, memory)  # fmt: skip
    console.print(table)
    if result.note:
        console.print(result.note, markup=False, soft_wrap=True)
    if written:
        console.print(written, markup=False, soft_wrap=True, highlight=False)
        if serve:
            page_server.serve_page(written, 0, lambda text: console.print(text, markup=False))
