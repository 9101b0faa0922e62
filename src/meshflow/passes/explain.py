"""What runs in which precision, and why: a table of a function's equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex_core

from meshflow.passes.jaxprs import flattened, inner_jaxprs
from meshflow.passes.mixed_precision import check_dtype
from meshflow.passes.precision_colours import colour, wide
from meshflow.passes.precision_lists import PrecisionLists, default_lists


class Row(NamedTuple):
    """One equation: its place, what it is, what was decided."""

    depth: int
    primitive: str
    result: str
    list: str
    precision: str
    reason: str
    source: str


@dataclass(frozen=True)
class Explanation:
    """The equations of a function with their precisions; `str` gives a table.

    Attributes:
      rows: one `Row` per equation on float32, inner ones after the one that holds them.
      dtype: the low precision.
    """

    rows: tuple[Row, ...]
    dtype: str

    def count(self, precision: str) -> int:
        """How many equations run in a precision.

        Args:
          precision: a dtype name.
        """
        return sum(row.precision == precision for row in self.rows)

    def __str__(self) -> str:
        head = ("primitive", "result", "list", "precision", "why", "where")
        lines = [head] + [
            ("  " * r.depth + r.primitive, r.result, r.list, r.precision, r.reason, r.source)
            for r in self.rows
        ]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = [
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        summary = f"{self.count(self.dtype)} of {len(self.rows)} equations in {self.dtype}"
        return "\n".join([*table, summary])

    __repr__ = __str__


def explain(
    fn: Callable[..., Any],
    *args: Any,
    dtype: Any = "bfloat16",
    lists: PrecisionLists | None = None,
    **kwargs: Any,
) -> Explanation:
    """Shows what `mixed_precision` would make of a function.

    Args:
      fn: a JAX function.
      *args: arguments, or `jax.ShapeDtypeStruct`s.
      dtype: the low precision.
      lists: what may be computed in it; default `default_lists()`.
      **kwargs: further arguments.

    Example:
      >>> import jax.numpy as jnp
      >>> from meshflow import passes
      >>> x = jnp.ones((2, 2), "float32")
      >>> passes.explain(lambda x: jnp.exp(x @ x), x).count("bfloat16")
      1
    """
    return explain_jaxpr(jax.make_jaxpr(fn)(*args, **kwargs), dtype, lists)


def explain_jaxpr(
    closed: jex_core.ClosedJaxpr, dtype: Any = "bfloat16", lists: PrecisionLists | None = None
) -> Explanation:
    """The explanation of a jaxpr.

    Args:
      closed: the jaxpr.
      dtype: the low precision.
      lists: what may be computed in it; default `default_lists()`.
    """
    low = check_dtype(dtype).name
    chosen = default_lists() if lists is None else lists
    rows: list[Row] = []

    def visit(jaxpr: Any, depth: int) -> None:
        equations, _, _ = flattened(jaxpr)
        for equation, decided in zip(equations, colour(equations, chosen), strict=True):
            if not any(map(wide, (*equation.invars, *equation.outvars))):
                continue
            shape = ", ".join(str(v.aval.str_short()) for v in equation.outvars)
            rows.append(
                Row(
                    depth,
                    equation.primitive.name,
                    shape,
                    decided.kind,
                    low if decided.low else "float32",
                    decided.reason,
                    _where(equation),
                )
            )
            for inner in inner_jaxprs(equation):
                if not equation.primitive.name.startswith("custom_"):
                    visit(inner, depth + 1)

    visit(closed, 0)
    return Explanation(tuple(rows), low)


def _where(equation: Any) -> str:
    """File and line of the user's code."""
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    for frame in frames:
        if "/jax/" not in frame.file_name and "/meshflow/" not in frame.file_name:
            return f"{frame.file_name.rsplit('/', 1)[-1]}:{frame.line_num}"
    return ""
