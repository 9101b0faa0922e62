"""The demo's table, plot and HTML page."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADINGS = ("precision", "seconds per epoch", "ms per step", "images/s", "accuracy", "speed-up")


@dataclass
class Row:
    """Store the measurements of one precision."""

    precision: str
    seconds_per_epoch: float
    ms_per_step: float
    images_per_second: float
    accuracy: float
    history: dict[str, list[float]]

    def cells(self, reference: Row) -> tuple[str, ...]:
        """The row as text; the speed-up is against the first row."""
        return (
            self.precision,
            f"{self.seconds_per_epoch:.2f}",
            f"{self.ms_per_step:.1f}",
            f"{self.images_per_second:,.0f}",
            f"{self.accuracy:.2%}",
            f"{reference.seconds_per_epoch / self.seconds_per_epoch:.2f}x",
        )


def print_table(rows: list[Row]) -> None:
    """Print the table, with rich where it is installed."""
    cells = [row.cells(rows[0]) for row in rows]
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for line in (HEADINGS, *cells):
            print("  ".join(text.rjust(17) for text in line))
        return
    table = Table(*HEADINGS)
    for line in cells:
        table.add_row(*line)
    Console(width=100).print(table)


def write_report(rows: list[Row], dataset: str, folder: Path) -> list[Path]:
    """Write the plot and the page; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    plot = folder / "training.png"
    draw(rows, dataset, plot)
    page = folder / "report.html"
    page.write_text(render(rows, dataset, plot))
    return [plot, page]


def draw(rows: list[Row], dataset: str, path: Path) -> None:
    """Loss and accuracy over the epochs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for row, colour in zip(rows, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False):
        epochs = range(1, len(row.history["loss"]) + 1)
        for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
            axis.plot(
                epochs,
                row.history[name],
                color=colour,
                linestyle="--",
                label=f"{row.precision}, training",
            )
            axis.plot(
                epochs,
                row.history[f"val_{name}"],
                color=colour,
                marker="o",
                markersize=3,
                label=f"{row.precision}, held out",
            )
    for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
        axis.set(xlabel="epoch", ylabel=name)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.suptitle(f"CNN on {dataset}")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def render(rows: list[Row], dataset: str, plot: Path) -> str:
    """A page that needs no other file."""
    image = base64.b64encode(plot.read_bytes()).decode()
    head = "".join(f"<th>{html.escape(h)}</th>" for h in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row.cells(rows[0])) + "</tr>"
        for row in rows
    )
    style: Any = (
        "body{font:16px system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.4rem .9rem;border-bottom:1px solid #ddd;text-align:right}"
        "th:first-child,td:first-child{text-align:left}img{max-width:100%}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Meshflow demo</title><style>{style}</style>"
        f"<h1>CNN on {html.escape(dataset)}</h1><p>Accuracy is on held-out images after the last epoch; the speed is the median epoch "
        f"after the first, which compiles.</p><table><tr>{head}</tr>{body}</table>"
        f'<img alt="Loss and accuracy over the epochs" src="data:image/png;base64,{image}"></html>\n'
    )
