"""`meshflow plan`: find a sharding plan for the model of a training script."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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
from meshflow.core.runtime.devices import create_virtual_cpus, is_backend_started
from meshflow.core.runtime.errors import FailedPreconditionError, InvalidValueError, OpError
from meshflow.core.values import nest
from meshflow.core.variables.variable_creation import shapes_only
from meshflow.distribute.parallel.planner.hardware import (
    Hardware,
    format_seconds,
    measure_hardware,
)
from meshflow.distribute.parallel.planner.plans import Plan, check_objective
from meshflow.distribute.parallel.planner.plans import plan as find_plan
from meshflow.environment.types import PyTree

# Arguments after the script's name belong to the script.
SCRIPT_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": True}


class _TrainingReached(BaseException):
    """Signal that training is about to start; a script's `except Exception` does not catch it.

    Args:
      model: Compiled model to train.
      batch: First batch, as tensors or arrays with `shape` and `dtype`.
    """

    def __init__(self, model: Any, batch: PyTree) -> None:
        super().__init__("training is about to start")
        self.model, self.batch = model, batch


def plan(
    script: Annotated[str, typer.Argument(help="Python script that calls fit.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script.", metavar="ARGS")
    ] = None,
    devices: Annotated[int, typer.Option(help="Number of devices.", min=1)] = 8,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory of each device, such as 80GB. Default: that of --kind, or 16GB."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Type of the devices: h100, h200 or v5p.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Global batch size. Default: the batch size of the script.", min=1),
    ] = None,
    top: Annotated[int, typer.Option(help="Number of candidates to print.", min=1)] = 5,
    compiled: Annotated[
        int,
        typer.Option(
            "--compile",
            help="Number of the best candidates to compile for virtual devices and compare.",
            min=0,
        ),
    ] = 0,
    objective: Annotated[
        str, typer.Option(help="Quantity to minimize: time, bytes or memory.")
    ] = "time",
    margin: Annotated[
        str, typer.Option(help="Part of the memory that plans leave free, such as 10%.")
    ] = "10%",
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to consider, such as mixed_bfloat16; repeat for several. Default: the script's."
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="Measure the speeds of this machine's devices and links.")
    ] = False,
    products: Annotated[
        float | None, typer.Option(help="Floating-point operations per second of each device.")
    ] = None,
    bfloat16_products: Annotated[
        float | None, typer.Option(help="The same for bfloat16 values.")
    ] = None,
    link: Annotated[float | None, typer.Option(help="Bytes/s that each device sends.")] = None,
    host: Annotated[
        float | None, typer.Option(help="Bytes per second between a device and its host.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Run a script until it calls fit, then print the best sharding plans for its model.

    Nothing is trained and no weights are allocated: the plan depends on shapes only.
    """
    try:
        check_objective(objective)
        speeds = dict(products=products, bfloat16_products=bfloat16_products, link=link, host=host)
        explicit: dict[str, Any] = {
            name: speed for name, speed in speeds.items() if speed is not None
        }
        if memory is not None or kind is None:
            explicit["memory"] = memory or "16GB"
        make = Hardware if kind is None else functools.partial(Hardware.from_kind, kind)
        hardware = make(devices, margin=margin, **explicit)
    except InvalidValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not Path(script).is_file():
        raise typer.BadParameter(f"there is no script {script!r}.")
    _create_virtual_devices(devices, compiled)
    if measure:
        measured = measure_hardware(devices, hardware.memory, margin)
        hardware = dataclasses.replace(measured, **explicit)
        _print_speeds(hardware)
    try:
        options = {"objective": objective, "compiled": compiled, "precisions": precision}
        result = _plan_script(script, arguments or [], hardware, batch, options)
    except (OpError, ValueError, NotImplementedError) as error:
        sys.exit(str(error))
    if as_json:
        typer.echo(json.dumps(result.described(), indent=2))
    else:
        _print_plan(result, top)


def _print_speeds(hardware: Hardware) -> None:
    """Print measured speeds to the standard error, in the form of the options."""
    local = jax.local_devices()
    text = (
        f"{len(local)} {local[0].device_kind}: --products {hardware.products:.3g} --bfloat16-products "
        f"{hardware.bfloat16_products:.3g} --link {hardware.link:.3g} --host {hardware.host:.3g}, latency "
        f"{format_seconds(hardware.wait)}"
    )
    if len(local) == 1:
        text += ". A link needs two devices, so its speed and latency are not measured"
    typer.echo(text, err=True)


def _create_virtual_devices(count: int, compiled: int) -> None:
    """Create virtual CPU devices for scripts that build meshes and for compiled candidates."""
    needed = compiled or jax.config.jax_platforms == "cpu"  # type: ignore[attr-defined]
    if needed and count > 1 and not is_backend_started():
        create_virtual_cpus(count)


def _plan_script(
    script: str,
    arguments: list[str],
    hardware: Hardware,
    batch: int | None,
    options: dict[str, Any],
) -> Plan:
    console = Console(stderr=True)
    with shapes_only():
        if console.is_terminal:
            # The output of the script follows this line.
            console.print(f"Running {escape(script)} up to fit")
        training = _run_until_training(script, arguments)
        rows = training.batch if isinstance(training.batch, tuple) else (training.batch,)
        specs = nest.map_structure(lambda v: _resize_batch(v, batch), rows)
        with _show_progress(console) as progress:
            return find_plan(
                training.model,
                *specs,
                hardware=hardware,
                progress=progress,
                **options,
            )


@contextlib.contextmanager
def _show_progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Show the current action and its duration on a terminal; print nothing otherwise."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("")
        yield lambda text: bar.update(task, description=escape(text))


def _resize_batch(value: Any, batch: int | None) -> Any:
    if value is None or not len(value.shape):
        return value
    sizes = tuple(int(n) for n in value.shape)
    dtype = getattr(value.dtype, "dtype", value.dtype)
    return jax.ShapeDtypeStruct((batch or sizes[0], *sizes[1:]), dtype)


def _run_until_training(script: str, arguments: list[str]) -> _TrainingReached:
    """Run a script until training is about to start.

    Raises:
      ValueError: The script fails, or ends without training.
    """
    saved = sys.argv, list(sys.path), context.on_first_batch

    def stop(model: Any, rows: Any) -> None:
        raise _TrainingReached(model, rows)

    sys.argv, context.on_first_batch = [script, *arguments], stop
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except _TrainingReached as signal:
        return signal
    except SystemExit as exit_error:
        if exit_error.code not in (None, 0):
            raise InvalidValueError(
                f"{script} exited with {exit_error.code!r} before it called fit."
            ) from None
    except FailedPreconditionError as error:
        _print_script_frames(error)
        raise InvalidValueError(
            f"{script} used the values of weights before it called fit: {error} Custom training loops cannot be planned "
            "from a script: pass the compiled model and the specs of a batch to tf.distribute.plan, or train with fit."
        ) from None
    except Exception as error:
        _print_script_frames(error)
        kind = type(error).__name__
        raise InvalidValueError(f"{script} failed before it called fit: {kind}: {error}") from None
    finally:
        sys.argv, sys.path[:], context.on_first_batch = saved
    raise InvalidValueError(
        f"{script} ended without calling fit or train_on_batch of a compiled Keras model, so there is nothing to plan. If "
        "an argument enables training, add it after the name of the script."
    )


def _print_script_frames(error: Exception) -> None:
    """Print the traceback of an error without the frames of this package and of `runpy`."""
    inside = str(Path(__file__).parents[1]), "<frozen runpy>"
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(inside)
    ]
    print("".join(traceback.format_list(frames)), end="", file=sys.stderr)


def _print_plan(result: Plan, top: int) -> None:
    console = Console()
    write = lambda text: console.print(text, markup=False, soft_wrap=True, highlight=False)
    write(result.title())
    heads, *rows = result.rows(top)
    table = Table(*heads, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console.print(table)
    slower = len(result.candidates) - len(rows)
    if slower:
        write(f"{slower:,} other plans fit, but are no better by {result.objective}.")
    if result.dropped:
        write("Dropped:")
        for line in result.reasons():
            write(f"  {line}")
    write("Paste:")
    for line in result.lines:
        write(f"  {line}")
