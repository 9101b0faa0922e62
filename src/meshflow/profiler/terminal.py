"""Profiles as text: a summary, and a comparison of two profiles."""

from __future__ import annotations

import numpy as np

from meshflow.profiler.findings import format_duration, get_part_name, list_findings, select_rows
from meshflow.profiler.report import Report

Table = tuple[list[str], list[list[str]]]


def _compute_means(report: Report) -> dict[str, np.ndarray]:
    """Return the mean nanoseconds per step and worker, by part; '' is the complete step."""
    counted_rows = select_rows(report)
    tables = {"": report.walls, **{name: report.get_part(name) for name in report.parts}}
    means = {}
    for name, table in tables.items():
        selected = table[counted_rows]
        counts = np.maximum((~np.isnan(selected)).sum(0), 1)
        means[name] = np.nansum(selected, 0) / counts
    return means


def summarize(report: Report) -> Table:
    """Return headings and rows of a table with the mean step of each worker by part."""
    heads = ["part", *(w.name for w in report.workers)]
    means = _compute_means(report)
    walls = means.pop("")
    rows = []
    for name in sorted(means, key=lambda n: -float(means[n].sum())):
        if means[name].any():
            cells = [
                f"{format_duration(t)}  {t / wall:4.0%}" if wall else "-"
                for t, wall in zip(means[name], walls, strict=True)
            ]
            rows.append([get_part_name(name), *cells])
    return heads, [*rows, ["step", *(format_duration(w) if w else "-" for w in walls)]]


def format_line(report: Report) -> str:
    """Return the worst finding in one line, with the mean step."""
    finding = list_findings(report)[0]
    if finding.kind == "none":
        return str(finding)
    wall = float(np.nanmean(report.walls[select_rows(report)]))
    return f"{finding} The mean step is {format_duration(wall)}. {finding.advice}".replace("`", "")


def compare(before: Report, after: Report) -> tuple[str, Table]:
    """Compare two profiles.

    Returns:
      A sentence with the largest change, and a table of the mean step by part.
    """
    old, new = _compute_overall_means(before), _compute_overall_means(after)
    names = [n for n in dict.fromkeys([*old, *new]) if n]
    change = {n: new.get(n, 0.0) - old.get(n, 0.0) for n in names}
    rows = [
        [get_part_name(n), *_format_change(old.get(n, 0.0), new.get(n, 0.0))]
        for n in sorted(names, key=lambda n: -abs(change[n]))
        if old.get(n) or new.get(n)
    ]
    rows.append(["step", *_format_change(old[""], new[""])])
    total = new[""] - old[""]
    heads = ["part", before.name, after.name, "change"]
    if abs(total) < 0.02 * max(old[""], 1.0):
        return "Steps take as long as before.", (heads, rows)
    word, sign = ("slower", 1) if total > 0 else ("faster", -1)
    causes = [n for n in names if n != "waiting"]
    largest = max(causes, key=lambda n: sign * change[n], default="")
    text = f"Steps are {format_duration(abs(total))} {word} ({abs(total) / max(old[''], 1.0):.0%}): {format_duration(abs(change[largest]))} of it is {get_part_name(largest)}"
    if largest == "compute":
        text += _describe_operations(before, after, sign)
    return f"{text}.", (heads, rows)


def _compute_overall_means(report: Report) -> dict[str, float]:
    means = {
        n: float(values.mean()) if values.size else 0.0
        for n, values in _compute_means(report).items()
    }
    # Time spent waiting for other workers is caused by their work, so it is a separate part.
    comm = sum(values for name, values in means.items() if name.startswith("comm:"))
    waiting_times = report.waiting_times[select_rows(report)]
    waiting = float(waiting_times.mean()) if waiting_times.size else 0.0
    if comm:
        for name in means:
            if name.startswith("comm:"):
                means[name] *= 1 - waiting / comm
        means["waiting"] = waiting
    return means


def _format_change(old: float, new: float) -> list[str]:
    sign = "+" if new >= old else "-"
    share = f" ({(new - old) / old:+.0%})" if old else ""
    return [
        format_duration(old),
        format_duration(new),
        f"{sign}{format_duration(abs(new - old))}{share}",
    ]


def _describe_operations(before: Report, after: Report, sign: int) -> str:
    """Return a clause with the layer that changed most."""

    def sum_by_layer(report: Report) -> dict[str, float]:
        times: dict[str, float] = {}
        steps = max(sum(len(w.breakdown.steps) for w in report.workers), 1)
        for worker in report.workers:
            for operation in worker.operations:
                if not operation.kind:
                    key = operation.layer or operation.what
                    times[key] = times.get(key, 0.0) + operation.time / steps
        return times

    old, new = sum_by_layer(before), sum_by_layer(after)
    names = {*old, *new}
    if not names:
        return ""
    largest = max(names, key=lambda n: sign * (new.get(n, 0.0) - old.get(n, 0.0)))
    change = new.get(largest, 0.0) - old.get(largest, 0.0)
    return f", most in {largest} ({format_duration(abs(change))} {'more' if sign > 0 else 'less'})"
