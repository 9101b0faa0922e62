"""Profiles as text: a summary, and what became slower between two."""

from __future__ import annotations

import numpy as np

from meshflow.profiler.report import Report
from meshflow.profiler.verdicts import counted, duration, part_name, verdicts

__all__ = ["difference", "one_line", "summary"]

Table = tuple[list[str], list[list[str]]]


def _means(report: Report) -> dict[str, np.ndarray]:
    """Nanoseconds a step by part, one for each worker; the steps themselves are '' ."""
    chosen = counted(report)
    tables = {"": report.walls, **{name: report.part(name) for name in report.parts}}
    means = {}
    for name, table in tables.items():
        own = table[chosen]
        counts = np.maximum((~np.isnan(own)).sum(0), 1)
        means[name] = np.nansum(own, 0) / counts
    return means


def summary(report: Report) -> Table:
    """The mean step of each worker: headings, and a row for each part."""
    heads = ["part", *(w.name for w in report.workers)]
    means = _means(report)
    walls = means.pop("")
    rows = []
    for name in sorted(means, key=lambda n: -float(means[n].sum())):
        if means[name].any():
            cells = [
                f"{duration(t)}  {t / wall:4.0%}" if wall else "-"
                for t, wall in zip(means[name], walls, strict=True)
            ]
            rows.append([part_name(name), *cells])
    return heads, [*rows, ["step", *(duration(w) if w else "-" for w in walls)]]


def one_line(report: Report) -> str:
    """The worst verdict in a line, with the mean step."""
    found = verdicts(report)[0]
    if found.kind == "none":
        return str(found)
    wall = float(np.nanmean(report.walls[counted(report)]))
    return f"{found} The mean step is {duration(wall)}. {found.advice}".replace("`", "")


def difference(before: Report, after: Report) -> tuple[str, Table]:
    """What changed between two profiles.

    Args:
      before: the first.
      after: the second.

    Returns:
      A sentence that names what changed most, and a table of parts: mean of all workers' steps.
    """
    old, new = _overall(before), _overall(after)
    names = [n for n in dict.fromkeys([*old, *new]) if n]
    change = {n: new.get(n, 0.0) - old.get(n, 0.0) for n in names}
    rows = [
        [part_name(n), *_compared(old.get(n, 0.0), new.get(n, 0.0))]
        for n in sorted(names, key=lambda n: -abs(change[n]))
        if old.get(n) or new.get(n)
    ]
    rows.append(["step", *_compared(old[""], new[""])])
    total = new[""] - old[""]
    heads = ["part", before.name, after.name, "change"]
    if abs(total) < 0.02 * max(old[""], 1.0):
        return "Steps take as long as before.", (heads, rows)
    word, sign = ("slower", 1) if total > 0 else ("faster", -1)
    causes = [n for n in names if n != "waiting"]
    most = max(causes, key=lambda n: sign * change[n], default="")
    text = f"Steps are {duration(abs(total))} {word} ({abs(total) / max(old[''], 1.0):.0%}): {duration(abs(change[most]))} of it is {part_name(most)}"
    if most == "compute":
        text += _slower_operations(before, after, sign)
    return f"{text}.", (heads, rows)


def _overall(report: Report) -> dict[str, float]:
    means = {n: float(own.mean()) if own.size else 0.0 for n, own in _means(report).items()}
    # Who waits for others is slow by what they do.
    comm = sum(own for name, own in means.items() if name.startswith("comm:"))
    chosen = report.waiting[counted(report)]
    waiting = float(chosen.mean()) if chosen.size else 0.0
    if comm:
        for name in means:
            if name.startswith("comm:"):
                means[name] *= 1 - waiting / comm
        means["waiting"] = waiting
    return means


def _compared(old: float, new: float) -> list[str]:
    sign = "+" if new >= old else "-"
    share = f" ({(new - old) / old:+.0%})" if old else ""
    return [duration(old), duration(new), f"{sign}{duration(abs(new - old))}{share}"]


def _slower_operations(before: Report, after: Report, sign: int) -> str:
    """The layer whose operations changed most, a step."""

    def by_layer(report: Report) -> dict[str, float]:
        times: dict[str, float] = {}
        steps = max(sum(len(w.breakdown.steps) for w in report.workers), 1)
        for worker in report.workers:
            for one in worker.operations:
                if not one.kind:
                    key = one.layer or one.what
                    times[key] = times.get(key, 0.0) + one.time / steps
        return times

    old, new = by_layer(before), by_layer(after)
    names = {*old, *new}
    if not names:
        return ""
    most = max(names, key=lambda n: sign * (new.get(n, 0.0) - old.get(n, 0.0)))
    change = new.get(most, 0.0) - old.get(most, 0.0)
    return f", most in {most} ({duration(abs(change))} {'more' if sign > 0 else 'less'})"
