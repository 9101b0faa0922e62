"""Draw the figures of the pages about distributed training.

python docs/distributed_figures.py        # writes the files in FIGURES
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from meshflow.distribute.parallel.tables import schedule_of

DOCS = Path(__file__).resolve().parent
BLUE, ORANGE, GREEN, GRAY, LINE = "#2f6fde", "#f28e2b", "#59a14f", "#eef0f3", "#8b949e"
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}"
    ".small{font-size:12px;fill:#57606a}.white{fill:#ffffff;font-size:11px}</style>"
)
DEVICES = 4
MICRO_BATCHES = 8
# Time of a pass, in multiples of a forward pass: a backward pass computes gradients of inputs and of weights.
PASS_TIMES = {"F": 1, "B": 2, "W": 1}
PASS_COLORS = {"F": BLUE, "B": ORANGE, "W": GREEN}


def text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{content}</text>'


def rectangle(
    x: float, y: float, width: float, height: float, fill: str, stroke: str = "none"
) -> str:
    """Return a rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line with an arrowhead at its end."""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{LINE}" '
        'stroke-width="1.5" marker-end="url(#head)"/>'
    )


def make_svg(width: int, height: int, parts: list[str]) -> str:
    """Return a figure with a white background."""
    marker = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{LINE}"/>'
        "</marker></defs>"
    )
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">'
    )
    background = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([opening, STYLE, marker, background, *parts, "</svg>", ""])


def draw_parallelism() -> str:
    """Return the figure of the weights and rows that each of four devices holds."""

    def is_column(_layer: int, part: int, device: int) -> bool:
        return part == device

    # Title, remark, whether a device has only its rows of the batch, and the parts of weights that it holds.
    panels: list[tuple[str, str, bool, Callable[[int, int, int], bool]]] = [
        (
            "Data parallelism",
            "Sums gradients.",
            True,
            lambda _layer, _part, _device: True,
        ),
        (
            "ZeRO 3",
            "Gathers the weights of a layer, computes with its rows, scatters gradients.",
            True,
            is_column,
        ),
        (
            "Tensor parallelism",
            "Computes with its part of the weights, sums activations.",
            False,
            is_column,
        ),
        (
            "Pipeline",
            "Computes its layers for one micro-batch after the other, sends activations on.",
            False,
            lambda layer, _part, device: layer == device,
        ),
    ]
    parts = [
        text(20, 24, "Weights and rows on each of four devices", "title"),
        rectangle(420, 14, 12, 12, BLUE),
        text(438, 24, "weights", "small"),
        rectangle(506, 14, 12, 12, ORANGE),
        text(524, 24, "rows of the batch", "small"),
        rectangle(646, 14, 12, 12, GRAY, LINE),
        text(664, 24, "not held", "small"),
    ]
    y = 52
    for title, remark, splits_rows, is_held in panels:
        parts += [text(20, y + 12, title, "title"), text(170, y + 12, remark, "small")]
        for device in range(DEVICES):
            x = 20 + 182 * device
            parts.append(rectangle(x, y + 22, 170, 76, "#ffffff", LINE))
            for layer in range(4):
                for part in range(4):
                    fill = BLUE if is_held(layer, part, device) else GRAY
                    parts.append(rectangle(x + 10 + 26 * part, y + 30 + 16 * layer, 24, 13, fill))
            for row in range(4):
                fill = ORANGE if not splits_rows or row == device else GRAY
                parts.append(rectangle(x + 128, y + 30 + 16 * row, 32, 13, fill))
        y += 122
    parts.append(
        text(20, y + 6, "Rows of blue boxes are layers; columns are parts of a weight.", "small")
    )
    return make_svg(760, y + 22, parts)


def draw_schedules() -> str:
    """Return the figure of three pipeline schedules, in units of a forward pass."""
    names = [("gpipe", "gpipe"), ("1f1b", "1f1b (default)"), ("zero_bubble", "zero_bubble")]
    schedules = [schedule_of(name, DEVICES, MICRO_BATCHES) for name, _ in names]
    title = f"Passes of {DEVICES} devices for {MICRO_BATCHES} micro-batches"
    parts = [text(20, 24, title, "title")]
    legend = [("F", "forward"), ("B", "backward"), ("W", "weights only")]
    for index, (kind, label) in enumerate(legend):
        x = 340 + 90 * index
        parts += [
            rectangle(x, 14, 12, 12, PASS_COLORS[kind]),
            text(x + 18, 24, label, "small"),
        ]
    parts += [rectangle(634, 14, 12, 12, GRAY), text(652, 24, "idle", "small")]
    y, unit = 48, 19.0
    for (_, label), schedule in zip(names, schedules, strict=True):
        times = dict(PASS_TIMES)
        times["B"] -= schedule.splits_backward
        actions = sorted(
            schedule.when().items(), key=lambda entry: (entry[1], entry[0].kind != "F")
        )
        busy = [[0] * DEVICES for _ in range(schedule.ticks)]
        for action, tick in actions:
            busy[tick][action.stage] += times[action.kind]
        starts = [sum(max(row) for row in busy[:tick]) for tick in range(schedule.ticks + 1)]
        idle = 100 * schedule.bubble()
        held = schedule.held()
        parts.append(text(20, y + 12, label, "title"))
        remark = f"{idle:.0f} % idle, a device keeps the inputs of at most {held} micro-batches"
        parts.append(text(150, y + 12, remark, "small"))
        for device in range(DEVICES):
            row_y = y + 22 + 20 * device
            parts.append(text(20, row_y + 13, f"device {device}", "small"))
            parts.append(rectangle(82, row_y, unit * starts[-1], 17, GRAY))
        offsets = [[0] * DEVICES for _ in range(schedule.ticks)]
        for action, tick in actions:
            device, width = action.stage, unit * times[action.kind]
            left = 82 + unit * (starts[tick] + offsets[tick][device])
            row_y = y + 22 + 20 * device
            offsets[tick][device] += times[action.kind]
            parts.append(rectangle(left + 0.5, row_y, width - 1, 17, PASS_COLORS[action.kind]))
            parts.append(
                text(left + width / 2, row_y + 12.5, str(action.micro_batch), "white", "middle")
            )
        y += 124
    parts.append(
        text(20, y + 2, "A backward pass takes as long as two forward passes; zero_bubble splits it into two halves.", "small")
    )  # fmt: skip
    return make_svg(760, y + 18, parts)


def draw_topology() -> str:
    """Return the figure of the processes of a job with parameter servers."""

    def box(x: float, y: float, width: float, title: str, *lines: str) -> list[str]:
        found = [
            rectangle(x, y, width, 24 + 18 * len(lines), GRAY, LINE),
            text(x + 12, y + 18, title, "title"),
        ]
        return found + [
            text(x + 12, y + 36 + 18 * n, line, "small") for n, line in enumerate(lines)
        ]

    parts = [text(20, 24, "Processes of a job with parameter servers", "title")]
    parts += box(20, 110, 170, "Coordinator", "your program", "queue of closures")
    for index in range(3):
        y = 44 + 80 * index
        parts += box(300, y, 150, f"Worker {index}", "own dataset", "computes gradients")
        parts.append(arrow(192, 130 + 12 * index, 296, y + 30))
    for index in range(2):
        y = 64 + 100 * index
        parts += box(570, y, 170, f"Server {index}", "variables, slots", "write-ahead log")
        for worker in range(3):
            parts.append(
                arrow(454, 66 + 80 * worker, 566, y + 22 + 8 * worker).replace(
                    "marker-end", 'marker-start="url(#head)" marker-end'
                )
            )
    parts += [
        text(196, 60, "closures,", "small"),
        text(196, 76, "one at a time", "small"),
        text(460, 34, "pull variables,", "small"),
        text(460, 50, "push gradients", "small"),
    ]
    return make_svg(760, 288, parts)


FIGURES: dict[str, Callable[[], str]] = {
    "large_models/parallelism.svg": draw_parallelism,
    "large_models/schedules.svg": draw_schedules,
    "parameter_servers/topology.svg": draw_topology,
}


if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (DOCS / name).write_text(draw(), encoding="utf8")
        print(f"docs/{name}")
