"""`meshflow plan`: how the model of a script is divided over devices."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from meshflow.core.runtime.context import context
from meshflow.core.runtime.devices import backend_started, make_virtual_cpus
from meshflow.core.runtime.errors import FailedPreconditionError, InvalidValueError, OpError
from meshflow.core.values import nest
from meshflow.core.variables.variable_creation import shapes_only
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.planning import Plan, check_objective
from meshflow.distribute.parallel.planner.planning import plan as find_plan

__all__ = ["SCRIPT", "plan"]

# What comes after a script's name is the script's.
SCRIPT = {"ignore_unknown_options": True, "allow_interspersed_args": True}


class _Reached(BaseException):
    """Training would begin: no `except Exception` of a script keeps it from ending here.

    Args:
      model: the model.
      batch: its first batch.
    """

    def __init__(self, model: Any, batch: Any) -> None:
        super().__init__("training begins")
        self.model, self.batch = model, batch


def plan(
    script: Annotated[str, typer.Argument(help="A Python script that calls fit.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script.", metavar="ARGS")
    ] = None,
    devices: Annotated[int, typer.Option(help="How many devices there are to be.", min=1)] = 8,
    memory: Annotated[str, typer.Option(help="Memory of each, such as 80GB.")] = "16GB",
    batch: Annotated[
        int | None,
        typer.Option(help="Examples of a step on all devices; default the script's.", min=1),
    ] = None,
    top: Annotated[int, typer.Option(help="How many candidates to print.", min=1)] = 5,
    compiled: Annotated[
        int,
        typer.Option(
            "--compile",
            help="Compile so many of the best for virtual devices, and compare them.",
            min=0,
        ),
    ] = 0,
    objective: Annotated[
        str, typer.Option(help="What is to be least: time, bytes or memory.")
    ] = "time",
    products: Annotated[
        float, typer.Option(help="Floating-point operations a second of each device.")
    ] = Hardware.products,
    link: Annotated[float, typer.Option(help="Bytes a second that each sends.")] = Hardware.link,
    host: Annotated[
        float, typer.Option(help="Bytes a second between a device and its host.")
    ] = Hardware.host,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Run a script up to fit, train nothing, and print how its model fits devices and is fastest.

    Weights are not made: of all that the model computes, only shapes are looked at.
    """
    try:
        check_objective(objective)
        hardware = Hardware(devices, memory, products=products, link=link, host=host)
    except InvalidValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not Path(script).is_file():
        raise typer.BadParameter(f"there is no script {script!r}.")
    _make_devices(devices, compiled)
    try:
        found = _planned(script, arguments or [], hardware, batch, objective, compiled)
    except (OpError, ValueError, NotImplementedError) as error:
        sys.exit(str(error))
    if as_json:
        typer.echo(json.dumps(found.described(), indent=2))
    else:
        _show(found, top)


def _make_devices(count: int, compiled: int) -> None:
    """Virtual CPU devices, for scripts that make meshes and for trials."""
    wanted = compiled or jax.config.jax_platforms == "cpu"  # type: ignore[attr-defined]
    if wanted and count > 1 and not backend_started():
        make_virtual_cpus(count)


def _planned(
    script: str,
    arguments: list[str],
    hardware: Hardware,
    batch: int | None,
    objective: str,
    compiled: int,
) -> Plan:
    console = Console(stderr=True)
    with shapes_only():
        if console.is_terminal:
            # What the script prints follows.
            console.print(f"Running {escape(script)} up to fit")
        reached = _run(script, arguments)
        rows = reached.batch if isinstance(reached.batch, tuple) else (reached.batch,)
        given = nest.map_structure(lambda v: _resized(v, batch), rows)
        with _shown(console) as progress:
            return find_plan(
                reached.model,
                *given,
                hardware=hardware,
                objective=objective,
                compiled=compiled,
                progress=progress,
            )


@contextlib.contextmanager
def _shown(console: Console) -> Iterator[Callable[[str], None]]:
    """What is being done and for how long, on a terminal; elsewhere nothing."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("")
        yield lambda text: bar.update(task, description=escape(text))


def _resized(value: Any, batch: int | None) -> Any:
    if value is None or not len(value.shape):
        return value
    sizes = tuple(int(n) for n in value.shape)
    dtype = getattr(value.dtype, "dtype", value.dtype)
    return jax.ShapeDtypeStruct((batch or sizes[0], *sizes[1:]), dtype)


def _run(script: str, arguments: list[str]) -> _Reached:
    """Runs a script until training would begin.

    Raises:
      ValueError: when that never happens.
    """
    saved = sys.argv, list(sys.path), context.reached

    def reached(model: Any, rows: Any) -> None:
        raise _Reached(model, rows)

    sys.argv, context.reached = [script, *arguments], reached
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except _Reached as found:
        return found
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise InvalidValueError(
                f"{script} ended with {ended.code!r} before it called fit."
            ) from None
    except FailedPreconditionError as error:
        _show_own_frames(error)
        raise InvalidValueError(
            f"{script} computed with weights before it called fit: {error} A training loop of your own is not planned: give "
            "tf.distribute.plan the compiled model and the specs of a batch, or have fit train it."
        ) from None
    except Exception as error:
        _show_own_frames(error)
        kind = type(error).__name__
        raise InvalidValueError(f"{script} failed before it called fit: {kind}: {error}") from None
    finally:
        sys.argv, sys.path[:], context.reached = saved
    raise InvalidValueError(
        f"{script} ended without calling fit or train_on_batch of a compiled Keras model: there is nothing to plan. Is "
        "training behind an argument? Arguments of the script follow its name."
    )


def _show_own_frames(error: Exception) -> None:
    """Prints where an error came from, without what is inside of this package and of what runs the script."""
    inside = str(Path(__file__).parents[1]), "<frozen runpy>"
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(inside)
    ]
    print("".join(traceback.format_list(frames)), end="", file=sys.stderr)


def _show(found: Plan, top: int) -> None:
    console = Console()
    say = lambda text: console.print(text, markup=False, soft_wrap=True, highlight=False)
    say(found.title())
    heads, *rows = found.rows(top)
    table = Table(*heads, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console.print(table)
    slower = len(found.candidates) - len(rows)
    if slower:
        say(f"{slower:,} others fit, and are no better by {found.objective}.")
    if found.dropped:
        say("Dropped:")
        for line in found.reasons():
            say(f"  {line}")
    say("Paste:")
    for line in found.lines:
        say(f"  {line}")
