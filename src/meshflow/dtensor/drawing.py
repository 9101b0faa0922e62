"""`visualize`: which device holds what, as text, with rich in a terminal, or as HTML."""

from __future__ import annotations

import html
import itertools
import sys
import zlib
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.devices import type_of
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.placement.layout import layout_of
from meshflow.placement.mesh import device_name

__all__ = ["Drawing", "visualize"]

# Backgrounds that black text can be read on.
_COLOURS = (
    *("#8dd3c7", "#ffffb3", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5"),
    *("#d9d9d9", "#ccebc5", "#ffed6f", "#a6cee3", "#fb9a99", "#fdbf6f", "#cab2d6", "#b2df8a"),
)


@dataclass(frozen=True)
class Grid:
    """A table: a caption, headings, and rows; in a coloured one equal cells have equal colours."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    coloured: bool

    def colour(self, column: int, cell: str) -> str | None:
        """The background of a cell."""
        if not self.coloured or not column:
            return None
        cells = list(dict.fromkeys(c for row in self.rows for c in row[1:]))
        place = cells.index(cell) if len(cells) <= len(_COLOURS) else zlib.crc32(cell.encode())
        return _COLOURS[place % len(_COLOURS)]


@dataclass(frozen=True)
class Drawing:
    """What `visualize` has drawn.

    Attributes:
      grids: the tables.
    """

    grids: tuple[Grid, ...]

    @property
    def text(self) -> str:
        """As plain text."""
        return "\n\n".join(_plain(grid) for grid in self.grids)

    @property
    def html(self) -> str:
        """As HTML."""
        return "\n".join(_html(grid) for grid in self.grids)

    def print(self) -> None:
        """Shows it: HTML in a notebook, else with rich, else as plain text."""
        if _in_notebook():
            from IPython.display import HTML, display  # noqa: PLC0415 - optional: notebooks have it

            display(HTML(self.html))
            return
        try:
            from rich.console import Console  # noqa: PLC0415 - optional, without it plain text
        except ImportError:
            print(self.text)
            return
        console = Console()
        for grid in self.grids:
            console.print(_rich(grid))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Drawing of {len(self.grids)} tables; see .text and .html>"


def visualize(value: Any) -> Drawing:
    """Draws which device holds which part of a tensor, or of each weight of a model.

    Args:
      value: a tensor, a variable, or a built Keras model (or anything with `weights`).

    Returns:
      The `Drawing`, which has been shown: as HTML in a notebook, in colours where rich is installed.

    Raises:
      ValueError: for anything else, or a model without weights.

    Example:
      >>> import meshflow as tf
      >>> dtensor = tf.experimental.dtensor
      >>> mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
      >>> x = dtensor.copy_to_mesh(tf.ones([4, 2]), dtensor.Layout(["x", "unsharded"], mesh))
      >>> drawing = dtensor.visualize(x)  # doctest: +SKIP
      >>> from meshflow.dtensor.drawing import draw
      >>> print(draw(x).text)
      float32 (4, 2) layout ['x', 'unsharded']
      +--+-------+
      |  | CPU:0 |
      +--+-------+
    """
    drawing = draw(value)
    drawing.print()
    return drawing


def draw(value: Any) -> Drawing:
    """The drawing of a value; see `visualize`."""
    weights = getattr(value, "weights", None)
    if weights is not None:
        if not list(weights):
            raise InvalidValueError(
                "visualize: the model has no weights yet. Build it, or call it on a batch."
            )
        return Drawing((_of_weights(list(weights)),))
    array = getattr(value, "_value", value)
    if isinstance(array, np.ndarray):
        array = jax.device_put(array)
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        raise InvalidValueError(
            f"visualize: expected a tensor, a variable or a model, got {type(value).__name__}."
        )
    return Drawing(_of_array(array, getattr(value, "name", "").removesuffix(":0")))


def _short(device: Any) -> str:
    tail = device_name(device).split("/device:")[1]
    return tail if jax.process_count() == 1 else f"{device.process_index}/{tail}"


def _names(devices: list[Any]) -> str:
    """Names of devices, runs of numbers shortened."""
    names = sorted((_short(d).rsplit(":", 1) for d in devices), key=lambda p: (p[0], int(p[1])))
    runs: list[list[Any]] = []
    for kind, number in names:
        if runs and runs[-1][0] == kind and runs[-1][2] + 1 == int(number):
            runs[-1][2] = int(number)
        else:
            runs.append([kind, int(number), int(number)])
    return ", ".join(f"{k}:{a}" if a == b else f"{k}:{a}-{b}" for k, a, b in runs)


def _of_array(array: Any, name: str) -> tuple[Grid, ...]:
    shape = array.shape
    holders: dict[tuple[tuple[int, int], ...], list[Any]] = {}
    for device, index in array.sharding.devices_indices_map(shape).items():
        spans = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
        holders.setdefault(spans, []).append(device)
    spans_of = [sorted({spans[axis] for spans in holders}) for axis in range(len(shape))]
    split = [axis for axis, spans in enumerate(spans_of) if len(spans) > 1]
    layout = layout_of(_Holder(array))
    title = " ".join(
        filter(
            None,
            [
                name,
                f"{array.dtype} {tuple(shape)}",
                f"layout {layout.sharding_specs}" if layout is not None else "",
            ],
        )
    )
    # Two split axes make rows and columns; others give a table for each of their parts.
    outer, inner = split[:-2], split[-2:]
    down = inner[0] if len(inner) == 2 else None
    across = inner[-1] if inner else None
    grids = []
    for fixed in itertools.product(*[spans_of[axis] for axis in outer]):
        place = dict(zip(outer, fixed, strict=True))
        rows = []
        for row in spans_of[down] if down is not None else [None]:
            cells = []
            for column in spans_of[across] if across is not None else [None]:
                here = {**place, **({down: row} if down is not None else {})}
                here |= {across: column} if across is not None else {}
                spans = tuple(here.get(axis, spans_of[axis][0]) for axis in range(len(shape)))
                cells.append(_names(holders[spans]))
            rows.append((_span(down, row), *cells))
        head = (
            "",
            *[_span(across, c) for c in (spans_of[across] if across is not None else [None])],
        )
        where = " ".join(_span(axis, span) for axis, span in place.items())
        grids.append(Grid(" ".join(filter(None, [title, where])), head, tuple(rows), True))
    return tuple(grids)


class _Holder:
    def __init__(self, value: Any) -> None:
        self._value = value


def _span(axis: int | None, span: tuple[int, int] | None) -> str:
    return "" if axis is None or span is None else f"axis {axis} [{span[0]}:{span[1]}]"


def _specs(layout: Any) -> str:
    if layout is None:
        return ""
    return "replicated" if layout.is_fully_replicated() else ", ".join(layout.sharding_specs)


def _of_weights(weights: list[Any]) -> Grid:
    rows, here, everywhere = [], 0, 0
    for weight in weights:
        array = weight._value
        layout = layout_of(weight)
        part = array.sharding.shard_shape(array.shape)
        own = int(np.prod(part, dtype=np.int64)) * array.dtype.itemsize
        here, everywhere = here + own, everywhere + array.nbytes
        rows.append(
            (
                weight.name.removesuffix(":0"),
                str(tuple(array.shape)),
                _specs(layout),
                str(tuple(part)),
                f"{own:,}",
                _names(list(array.sharding.device_set)),
            )
        )
    rows.append(("all", "", "", "", f"{here:,} of {everywhere:,}", ""))
    head = ("weight", "shape", "layout", "on each device", "bytes", "devices")
    kinds = {type_of(d) for w in weights for d in w._value.sharding.device_set}
    count = len({d for w in weights for d in w._value.sharding.device_set})
    return Grid(f"{len(weights)} weights on {count} {'/'.join(kinds)}", head, tuple(rows), False)


# ---- showing -------------------------------------------------------------------------------


def _plain(grid: Grid) -> str:
    lines = [grid.head, *grid.rows]
    if not any(grid.head):
        lines = lines[1:]
    widths = [max(len(line[i]) for line in lines) for i in range(len(grid.head))]
    rule = "+" + "+".join("-" * (w + 2) for w in widths) + "+"
    text = [grid.caption, rule]
    for line in lines:
        cells = (cell.ljust(w) for cell, w in zip(line, widths, strict=True))
        text += ["| " + " | ".join(cells) + " |", rule]
    return "\n".join(text)


def _rich(grid: Grid) -> Any:
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=grid.caption, title_justify="left", show_lines=grid.coloured)
    for name in grid.head:
        table.add_column(name)
    for row in grid.rows:
        cells = []
        for i, cell in enumerate(row):
            colour = grid.colour(i, cell)
            cells.append(Text(cell, style=f"black on {colour}" if colour else ""))
        table.add_row(*cells)
    return table


def _html(grid: Grid) -> str:
    def cell(i: int, text: str) -> str:
        colour = grid.colour(i, text)
        style = f' style="background:{colour};color:#000"' if colour else ""
        return f"<td{style}>{html.escape(text)}</td>"

    head = "".join(f"<th>{html.escape(h)}</th>" for h in grid.head)
    rows = "".join(
        "<tr>" + "".join(cell(i, c) for i, c in enumerate(row)) + "</tr>" for row in grid.rows
    )
    return f"<table><caption>{html.escape(grid.caption)}</caption><tr>{head}</tr>{rows}</table>"


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
