"""Table of a function's equations with their precision and the reason for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.typing import DTypeLike

from meshflow.environment.html_tables import Cell, format_table
from meshflow.environment.jax_internals import source_info_util
from meshflow.environment.types import ClosedJaxpr
from meshflow.passes.jaxprs import get_aval
from meshflow.passes.mixed_precision import to_low_precision_dtype, trace_function
from meshflow.passes.precision_lists import PrecisionLists, check_lists
from meshflow.passes.precision_propagation import PrecisionNode, propagate_precision

_LIBRARY_PREFIXES = (
    str(Path(jax.__file__).parent) + "/",
    str(Path(__file__).parent.parent) + "/",
    "<frozen",
)
_HEADINGS = ("primitive", "result", "list", "precision", "why", "where")


class Row(NamedTuple):
    """One equation that reads or computes float32 values.

    Attributes:
      depth: Number of loops, branches and functions with custom derivatives around it.
      primitive: Name of the primitive.
      result: Dtype and shape of the (first) result in the original program.
      list: 'allow', 'infer', 'deny', 'clear' or 'other'.
      precision: Dtype in which it runs.
      reason: Why it runs in this precision.
      source: File and line of the code that created it.
    """

    depth: int
    primitive: str
    result: str
    list: str
    precision: str
    reason: str
    source: str


@dataclass(frozen=True)
class Explanation:
    """The equations of a function with their precisions; `str` formats a table.

    Attributes:
      rows: A `Row` for each equation on float32 values, in program order.
      dtype: Name of the low precision.
    """

    rows: tuple[Row, ...]
    dtype: str

    def count(self, precision: str) -> int:
        """Return the number of equations that run in a precision.

        Args:
          precision: A dtype name.
        """
        return sum(row.precision == precision for row in self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return "No equation reads or makes float32 values."
        cells = [
            _HEADINGS,
            *(("  " * row.depth + row.primitive, *row[2:]) for row in self.rows),
        ]
        widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADINGS))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
        lines.insert(1, "  ".join("-" * w for w in widths))
        lines.append(f"{self.count(self.dtype)} of {len(self.rows)} equations in {self.dtype}")
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Format the table for notebooks; equations in low precision are bold."""
        if not self.rows:
            return f"<p>{self}</p>"
        rows: list[list[Cell]] = []
        for row in self.rows:
            bold = "font-weight:bold" if row.precision == self.dtype else ""
            cells: list[Cell] = [*row[1:]]
            cells[0] = row[1], f"padding-left:{row.depth + 0.5}em"
            cells[3] = row[4], bold
            rows.append(cells)
        return format_table(_HEADINGS, rows, notes=[str(self).splitlines()[-1]])


def explain(
    fn: Callable[..., Any],
    *args: Any,
    dtype: DTypeLike = "bfloat16",
    lists: PrecisionLists | None = None,
    **kwargs: Any,
) -> Explanation:
    """Show the effect of `mixed_precision` on a function, without running it.

    Args:
      fn: A JAX function.
      *args: Its arguments, or `jax.ShapeDtypeStruct`s.
      dtype: The low precision, 'bfloat16' or 'float16'.
      lists: Precision of each primitive; default: the lists of this process, `passes.lists`.
      **kwargs: Keyword arguments of `fn`.

    Returns:
      An `Explanation`; `str` formats it as a table, `rows` are its lines.

    Raises:
      ValueError: If `dtype` is not 'bfloat16' or 'float16'.

    Example:
      >>> import jax.numpy as jnp
      >>> from meshflow import passes
      >>> x = jnp.ones((4, 4), "float32")
      >>> for row in passes.explain(lambda x: jnp.exp(jnp.tanh(x @ x) @ x), x).rows:
      ...     print(row.primitive, row.precision, "-", row.reason)
      dot_general bfloat16 - always in low precision
      tanh bfloat16 - between dot_general and dot_general
      dot_general bfloat16 - always in low precision
      exp float32 - always in float32
    """
    return explain_jaxpr(trace_function(fn, args, kwargs)[0], dtype, lists)


def explain_jaxpr(
    closed: ClosedJaxpr, dtype: DTypeLike = "bfloat16", lists: PrecisionLists | None = None
) -> Explanation:
    """Explain a program that is traced already.

    Args:
      closed: The program.
      dtype: The low precision, 'bfloat16' or 'float16'.
      lists: Precision of each primitive; default: the lists of this process, `passes.lists`.

    Raises:
      ValueError: If `dtype` is not 'bfloat16' or 'float16'.
    """
    low = to_low_precision_dtype(dtype).name
    nodes = propagate_precision(closed.jaxpr, check_lists(lists)).nodes
    return Explanation(tuple(_make_row(node, low) for node in nodes), low)


def _make_row(node: PrecisionNode, low: str) -> Row:
    outs = [get_aval(v) for v in node.eqn.outvars]
    return Row(
        node.depth,
        node.name,
        f"{outs[0].dtype}{list(outs[0].shape)}" if outs else "",
        node.kind,
        low if node.low_precision else "float32",
        node.reason,
        next(filter(None, map(_find_source_line, node.sources)), ""),
    )


def _find_source_line(source_info: source_info_util.SourceInfo) -> str:
    """Return the innermost line outside of this package and JAX; empty if there is none."""
    for frame in getattr(source_info.traceback, "frames", ()):
        if not frame.file_name.startswith(_LIBRARY_PREFIXES):
            path = Path(frame.file_name)
            return f"{path.parent.name}/{path.name}:{frame.line_num}".lstrip("/")
    return ""
