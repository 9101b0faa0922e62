"""HTML tables and curves that notebooks show for objects; all text is escaped, nothing is loaded."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

# Text, or text and its CSS.
Cell: TypeAlias = str | tuple[str, str]

_WIDTH, _HEIGHT, _MARGIN = 240, 90, 6
_STROKES = ('stroke="#1f77b4"', 'stroke="#ff7f0e" stroke-dasharray="5 3"')


def _format_cell(cell: Cell) -> str:
    text, style = (cell, "") if isinstance(cell, str) else cell
    attribute = f' style="{html.escape(style)}"' if style else ""
    return f"<td{attribute}>{html.escape(text)}</td>"


def format_table(
    head: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    caption: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Format a table.

    Args:
      head: Headings of the columns.
      rows: Cells of each row.
      caption: Title above the table.
      notes: Lines below the table.

    Example:
      >>> format_table(["name"], [["<b>"]], notes=["1 row"])
      '<table><tr><th>name</th></tr><tr><td>&lt;b&gt;</td></tr></table><p>1 row</p>'
    """
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    headings = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(map(_format_cell, row))}</tr>" for row in rows)
    text = f"<p>{'<br>'.join(map(html.escape, notes))}</p>" if notes else ""
    return f"<table>{title}<tr>{headings}</tr>{body}</table>{text}"


def format_curves(title: str, curves: Mapping[str, Sequence[float]]) -> str:
    """Draw at most two curves over their index as a small SVG; values that are not finite leave gaps.

    Args:
      title: Text above the plot.
      curves: Values by name; the second curve is dashed.
    """
    finite = [v for values in curves.values() for v in values if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    steps = max((len(values) for values in curves.values()), default=1) - 1
    marks = []
    for stroke, (name, values) in zip(_STROKES, curves.items(), strict=False):
        pieces: list[list[str]] = [[]]
        for i, value in enumerate(values):
            if not math.isfinite(value):
                pieces.append([])
                continue
            x = _MARGIN + (_WIDTH - 2 * _MARGIN) * (i / steps if steps else 0.5)
            y = _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * _scale(value, low, high)
            pieces[-1].append(f"{x:.1f},{y:.1f}")
        for points in pieces:
            # A line of one point is a dot, because of its round ends.
            line = " ".join(points * 2 if len(points) == 1 else points)
            width = 5 if len(points) == 1 else 2
            marks.append(
                f'<polyline points="{line}" fill="none" stroke-width="{width}" stroke-linecap="round" {stroke}>'
                f"<title>{html.escape(name)}</title></polyline>"
            )
    dashed = "".join(f"; dashed: {html.escape(name)}" for name in list(curves)[1:])
    return (
        f'<figure style="display:inline-block;margin:4px 12px"><figcaption>{html.escape(title)} '
        f"<small>{low:.4g} to {high:.4g}{dashed}</small></figcaption>"
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'style="background:#fff;border:1px solid #ccc">{"".join(marks)}</svg></figure>'
    )


def _scale(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
