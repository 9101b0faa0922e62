"""Draw the chart of step times in the README from benchmarks/RESULTS.md.

    python docs/step_times_chart.py        # writes docs/step_times.svg

The chart shows the newest table "Step time by precision" that has peers, the newest table of a GPU, and the fastest peer
for each type of model in the tables of steady steps.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
TARGET = ROOT / "docs" / "step_times.svg"
COLORS = {
    "Meshflow": "#2f6fde",
    "TensorFlow": "#f28e2b",
    "Keras on JAX": "#8c6bb1",
    "PyTorch": "#e15759",
    "torch.compile": "#b07a7b",
}
# Columns of the tables of steady steps.
PEERS = {
    "tensorflow": "TensorFlow",
    "tensorflow jit": "TensorFlow",
    "torch": "PyTorch",
    "torch compile": "torch.compile",
    "keras jax": "Keras on JAX",
}
MODELS = {"cnn": "CNN", "lm": "language model"}

# A group is a title and pairs of (program, time relative to Meshflow's).
Group = tuple[str, list[tuple[str, float]]]


def read_sections(text: str) -> list[tuple[str, str]]:
    """Split the page into pairs of (heading, body)."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def read_rows(body: str) -> list[list[str]]:
    """Return the cells of all table rows of a section."""
    rows = [line.strip("| ").split("|") for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


def read_cpu_groups(sections: list[tuple[str, str]]) -> tuple[str, list[Group]]:
    """Return the heading and groups of the newest comparison by precision on a CPU."""
    heading, body = [s for s in sections if s[0].startswith("Step time by") and "PyTorch" in s[0]][
        -1
    ]
    groups: dict[str, dict[str, float]] = {}
    for row in read_rows(body):
        if len(row) == 5 and row[3].isdigit():
            model, precision, program, milliseconds, _ = row
            name = program.replace("Keras on TensorFlow", "TensorFlow")
            groups.setdefault(f"{MODELS[model]}, {precision}", {})[name] = float(milliseconds)
    return heading, [
        (title, [(name, ms / times["Meshflow"]) for name, ms in times.items()])
        for title, times in groups.items()
    ]


def read_gpu_groups(sections: list[tuple[str, str]]) -> tuple[str, list[Group]]:
    """Return the heading and groups of the newest comparison with PyTorch on a GPU."""
    heading, body = [s for s in sections if "H100" in s[0] or "H200" in s[0]][-1]
    groups: list[Group] = []
    for row in read_rows(body):
        rates = [cell.replace(",", "") for cell in row[1:4]]
        if len(row) == 5 and rates[0].isdigit():
            names = ("Meshflow", "PyTorch", "torch.compile")
            found = [(n, float(r)) for n, r in zip(names, rates, strict=True) if r.isdigit()]
            title = row[0].split(",")[0]
            groups.append((title, [(n, found[0][1] / rate) for n, rate in found]))
    return heading, groups


def read_kind_groups(sections: list[tuple[str, str]]) -> tuple[str, list[Group]]:
    """Return the last heading of steady steps, and the newest group of each case in float32 on two cores."""
    sections = [s for s in sections if s[0].startswith("Steady steps of model types")]
    groups: dict[str, Group] = {}
    for _, body in sections:
        head, _, *rows = read_rows(body.split("Prediction, ms:")[0])
        for row in rows:
            cells = dict(zip(head, row, strict=True))
            peer = cells["to"]
            if (cells["precision"], cells["cores"]) == ("float32", "2") and peer in PEERS:
                own, other = (float(cells[name].replace(",", "")) for name in ("meshflow", peer))
                groups[cells["case"]] = cells["case"], [(PEERS[peer], other / own)]
    return sections[-1][0], list(groups.values())


def draw_panel(title: str, groups: list[Group], top: int) -> tuple[list[str], int]:
    """Return the SVG elements of a panel and the vertical position below it."""
    parts = [f'<text x="20" y="{top}" class="title">{title}</text>']
    y = top + 16
    limit = 5.0
    for name, bars in groups:
        parts.append(f'<text x="20" y="{y + 13}">{name}</text>')
        for program, ratio in sorted(bars, key=lambda bar: bar[0] != "Meshflow"):
            width = 84 * min(ratio, limit)
            parts.append(
                f'<rect x="196" y="{y}" width="{width:.0f}" height="14" rx="2" fill="{COLORS[program]}"/>'
            )
            suffix = " →" if ratio > limit else ""
            parts.append(
                f'<text x="{202 + width:.0f}" y="{y + 12}" class="small">{program} {ratio:.2f}{suffix}</text>'
            )
            y += 18
        y += 10 if len(bars) > 1 else 2
    return parts, y


def draw(text: str) -> str:
    """Return the chart as SVG.

    Args:
      text: The content of RESULTS.md.
    """
    sections = read_sections(text)
    cpu_heading, cpu = read_cpu_groups(sections)
    gpu_heading, gpu = read_gpu_groups(sections)
    kind_heading, kinds = read_kind_groups(sections)
    headings = (cpu_heading, gpu_heading, kind_heading)
    dates = [re.search(r"\d{4}-\d\d-\d\d", heading) for heading in headings]
    cpu_date, gpu_date, kind_date = [match[0] if match else "" for match in dates]
    cpu_parts, y = draw_panel(f"CPU, 2 cores with AMX ({cpu_date})", cpu, 52)
    gpu_parts, y = draw_panel(f"NVIDIA H100, bfloat16 ({gpu_date})", gpu, y + 22)
    kind_title = f"The fastest peer, CPU, 2 cores with AVX512-BF16, float32 ({kind_date})"
    kind_parts, y = draw_panel(kind_title, kinds, y + 22)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{y + 10}" viewBox="0 0 760 {y + 10}">',
            "<style>text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.small{font-size:12px;fill:#57606a}</style>",
            f'<rect width="760" height="{y + 10}" fill="#ffffff"/>',
            '<text x="20" y="24" class="title">Time of a training step, relative to Meshflow (shorter is faster)</text>',
            *cpu_parts,
            *gpu_parts,
            *kind_parts,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    TARGET.write_text(draw(RESULTS.read_text(encoding="utf8")), encoding="utf8")
    print(TARGET.relative_to(ROOT))
