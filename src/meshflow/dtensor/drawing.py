"""`visualize`: drawings of the shards on each device, as text, with rich in a terminal, or as HTML."""

from __future__ import annotations

import itertools
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from meshflow.core.runtime.devices import get_device_type
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.environment.html_tables import Cell, format_table
from meshflow.placement.layout import Layout, find_array_layout, find_layout
from meshflow.placement.mesh import get_device_name

if TYPE_CHECKING:
    from rich.table import Table

    from meshflow.core.variables.variable import Variable

__all__ = ["Drawing", "visualize"]

# Background colours on which black text is readable.
_COLOURS = (
    *("#8dd3c7", "#ffffb3", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5"),
    *("#d9d9d9", "#ccebc5", "#ffed6f", "#a6cee3", "#fb9a99", "#fdbf6f", "#cab2d6", "#b2df8a"),
)


@dataclass(frozen=True)
class TableGrid:
    """Table with a caption, headings and rows; if coloured, equal cells have equal colours."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    coloured: bool

    def get_colour(self, column: int, cell: str) -> str | None:
        """Return the background colour of a cell, or None."""
        if not self.coloured or not column:
            return None
        cells = list(dict.fromkeys(c for row in self.rows for c in row[1:]))
        index = cells.index(cell) if len(cells) <= len(_COLOURS) else zlib.crc32(cell.encode())
        return _COLOURS[index % len(_COLOURS)]


@dataclass(frozen=True)
class Drawing:
    """Result of `visualize`.

    Attributes:
      grids: Tables of the drawing.
    """

    grids: tuple[TableGrid, ...]

    @property
    def text(self) -> str:
        """Return the tables as plain text."""
        return "\n\n".join(_format_text(grid) for grid in self.grids)

    @property
    def html(self) -> str:
        """Return the tables as HTML."""
        return "\n".join(_format_html(grid) for grid in self.grids)

    def print(self) -> None:
        """Print the tables: as HTML in a notebook, else with rich if available, else as text."""
        if _is_in_notebook():
            from IPython.display import HTML, display  # noqa: PLC0415 - available in notebooks

            display(HTML(self.html))
            return
        try:
            from rich.console import Console  # noqa: PLC0415 - optional dependency
        except ImportError:
            print(self.text)
            return
        console = Console()
        for grid in self.grids:
            console.print(_build_rich_table(grid))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Drawing of {len(self.grids)} tables; see .text and .html>"


def visualize(value: object) -> Drawing:
    """Draw which device holds which part of a tensor, or of each weight of a model.

    Args:
      value: Tensor, variable, or built Keras model (or another object with `weights`).

    Returns:
      The `Drawing`, after it was printed: as HTML in a notebook, or in colours if rich is
      installed.

    Raises:
      ValueError: If the value has another type, or if the model has no weights.

    Example:
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


def draw(value: object) -> Drawing:
    """Draw a value without printing it; see `visualize`."""
    weights = getattr(value, "weights", None)
    if weights is not None:
        if not list(weights):
            raise InvalidValueError(
                "visualize: the model has no weights yet. Build it, or call it on a batch."
            )
        return Drawing((_draw_weights(list(weights)),))
    array = getattr(value, "_value", value)
    if isinstance(array, np.ndarray):
        array = jax.device_put(array)
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        raise InvalidValueError(
            f"visualize: expected a tensor, a variable or a model, got {type(value).__name__}."
        )
    return Drawing(_draw_array(array, getattr(value, "name", "").removesuffix(":0")))


def _format_device(device: jax.Device) -> str:
    tail = get_device_name(device).split("/device:")[1]
    return tail if jax.process_count() == 1 else f"{device.process_index}/{tail}"


def _format_devices(devices: list[jax.Device]) -> str:
    """Format device names, with consecutive indices as ranges."""
    names = sorted(
        (_format_device(d).rsplit(":", 1) for d in devices), key=lambda p: (p[0], int(p[1]))
    )
    runs: list[tuple[str, int, int]] = []
    for kind, text in names:
        index = int(text)
        if runs and runs[-1][0] == kind and runs[-1][2] + 1 == index:
            runs[-1] = (kind, runs[-1][1], index)
        else:
            runs.append((kind, index, index))
    return ", ".join(f"{k}:{a}" if a == b else f"{k}:{a}-{b}" for k, a, b in runs)


def _draw_array(array: jax.Array, name: str) -> tuple[TableGrid, ...]:
    shape = array.shape
    holders: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in array.sharding.devices_indices_map(shape).items():
        spans = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
        holders.setdefault(spans, []).append(device)
    axis_spans = [sorted({spans[axis] for spans in holders}) for axis in range(len(shape))]
    split = [axis for axis, spans in enumerate(axis_spans) if len(spans) > 1]
    layout = find_array_layout(array)
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
    # The last two split axes become rows and columns; every index of the other split axes has its
    # own table.
    outer, inner = split[:-2], split[-2:]
    down = inner[0] if len(inner) == 2 else None
    across = inner[-1] if inner else None
    grids = []
    for fixed in itertools.product(*[axis_spans[axis] for axis in outer]):
        location = dict(zip(outer, fixed, strict=True))
        rows = []
        for row in axis_spans[down] if down is not None else [None]:
            cells = []
            for column in axis_spans[across] if across is not None else [None]:
                selected: dict[int, Any] = {**location, **({down: row} if down is not None else {})}
                selected |= {across: column} if across is not None else {}
                spans = tuple(selected.get(axis, axis_spans[axis][0]) for axis in range(len(shape)))
                cells.append(_format_devices(holders[spans]))
            rows.append((_format_span(down, row), *cells))
        head = (
            "",
            *[
                _format_span(across, c)
                for c in (axis_spans[across] if across is not None else [None])
            ],
        )
        position = " ".join(_format_span(axis, span) for axis, span in location.items())
        grids.append(TableGrid(" ".join(filter(None, [title, position])), head, tuple(rows), True))
    return tuple(grids)


def _format_span(axis: int | None, span: tuple[int, int] | None) -> str:
    return "" if axis is None or span is None else f"axis {axis} [{span[0]}:{span[1]}]"


def _format_layout(layout: Layout | None) -> str:
    if layout is None:
        return ""
    return "replicated" if layout.is_fully_replicated() else ", ".join(layout.sharding_specs)


def _draw_weights(weights: list[Variable]) -> TableGrid:
    rows, local_bytes, total_bytes = [], 0, 0
    for weight in weights:
        array = weight._value
        layout = find_layout(weight)
        shard_shape = array.sharding.shard_shape(array.shape)
        shard_bytes = int(np.prod(shard_shape, dtype=np.int64)) * array.dtype.itemsize
        local_bytes, total_bytes = local_bytes + shard_bytes, total_bytes + array.nbytes
        rows.append(
            (
                weight.name.removesuffix(":0"),
                str(tuple(array.shape)),
                _format_layout(layout),
                str(tuple(shard_shape)),
                f"{shard_bytes:,}",
                _format_devices(list(array.sharding.device_set)),
            )
        )
    rows.append(("all", "", "", "", f"{local_bytes:,} of {total_bytes:,}", ""))
    head = ("weight", "shape", "layout", "on each device", "bytes", "devices")
    types = {get_device_type(d) for w in weights for d in w._value.sharding.device_set}
    count = len({d for w in weights for d in w._value.sharding.device_set})
    return TableGrid(
        f"{len(weights)} weights on {count} {'/'.join(types)}", head, tuple(rows), False
    )


# ---- output formats ------------------------------------------------------------------------


def _format_text(grid: TableGrid) -> str:
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


def _build_rich_table(grid: TableGrid) -> Table:
    from rich.table import Table  # noqa: PLC0415 - optional dependency
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=grid.caption, title_justify="left", show_lines=grid.coloured)
    for name in grid.head:
        table.add_column(name)
    for row in grid.rows:
        cells = []
        for i, cell in enumerate(row):
            colour = grid.get_colour(i, cell)
            cells.append(Text(cell, style=f"black on {colour}" if colour else ""))
        table.add_row(*cells)
    return table


def _format_html(grid: TableGrid) -> str:
    def format_cell(i: int, text: str) -> Cell:
        colour = grid.get_colour(i, text)
        return text, f"background:{colour};color:#000" if colour else ""

    rows = [[format_cell(i, cell) for i, cell in enumerate(row)] for row in grid.rows]
    return format_table(grid.head, rows, grid.caption)


def _is_in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
