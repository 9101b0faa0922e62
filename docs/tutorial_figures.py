"""Run the examples of the tutorial and draw its figures.

    python docs/tutorial_figures.py                   # writes docs/tutorial_history.svg and docs/tutorial_regions.png
    python docs/tutorial_figures.py --output FOLDER   # writes them into another folder

The exit status is 1 if an example prints something else than the tutorial shows.
"""

from __future__ import annotations

import argparse
import doctest
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "tutorial.md"
COLORS = ["#2f6fde", "#f28e2b", "#59a14f"]


def run_examples(text: str, namespace: dict[str, Any]) -> int:
    """Run all doctests of a page in the working directory and return the number of failures."""
    # Doctest would compare closing fences with the output, so they are removed.
    lines = ["" if line.startswith("```") else line for line in text.splitlines()]
    test = doctest.DocTestParser().get_doctest("\n".join(lines), namespace, PAGE.name, str(PAGE), 0)
    failures, _ = doctest.DocTestRunner().run(test, clear_globs=False)
    namespace.update(test.globs)
    return failures


def draw_history(history: dict[str, list[float]], path: Path) -> None:
    """Draw the loss and accuracy of each epoch."""
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.subplots(1, 2)
    epochs = range(1, len(history["loss"]) + 1)
    for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
        axis.plot(epochs, history[name], color=COLORS[0], label="training")
        axis.plot(epochs, history[f"val_{name}"], color=COLORS[1], label="test")
        axis.set(xlabel="epoch", title=name)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def draw_regions(predict: Any, points: np.ndarray, labels: np.ndarray, path: Path) -> None:
    """Draw the predicted class of each position in the plane, and the test points."""
    ticks = np.linspace(-1.3, 1.3, 261, dtype="float32")
    grid = np.stack(np.meshgrid(ticks, ticks), axis=-1)
    classes = predict(grid.reshape(-1, 2), verbose=0).argmax(axis=1).reshape(grid.shape[:2])
    figure = Figure(figsize=(4, 4), layout="constrained")
    axis = figure.subplots()
    colors = ListedColormap(COLORS)
    axis.pcolormesh(ticks, ticks, classes, cmap=colors, alpha=0.3, rasterized=True)
    axis.scatter(*points.T, c=labels, cmap=colors, s=8, edgecolors="white", linewidths=0.3)
    axis.set(xticks=[], yticks=[], aspect="equal")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> int:
    """Run the examples, draw the figures and return the exit status."""
    parser = argparse.ArgumentParser(description="Run the tutorial and draw its figures.")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the figures")
    output = parser.parse_args().output.resolve()
    names: dict[str, Any] = {"__name__": "__main__"}
    # The seed of SVG ids is fixed, so that equal drawings are equal files.
    mpl.rcParams["svg.hashsalt"] = "tutorial"
    # The examples write files, which a temporary folder holds.
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        failures = run_examples(PAGE.read_text(encoding="utf8"), names)
        os.chdir(DOCS)
    draw_history(names["history"], output / "tutorial_history.svg")
    draw_regions(
        names["model"].predict,
        names["test_points"],
        names["test_labels"],
        output / "tutorial_regions.png",
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
