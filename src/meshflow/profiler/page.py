"""The page that shows a profile: one HTML file that needs no network."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

import numpy as np

from meshflow._version import __version__
from meshflow.files.paths import is_remote, parent
from meshflow.profiler.breakdown import HOST_PARTS
from meshflow.profiler.description import FORMAT
from meshflow.profiler.filling import filled
from meshflow.profiler.report import Operation, Report, Worker
from meshflow.profiler.verdicts import part_name, verdicts

__all__ = ["PAGE", "link", "page"]

# The page's file beside the traces.
PAGE = "meshflow.html"
# How many columns and operations a page has at most, so that it opens at once.
_COLUMNS, _OPERATIONS = 2000, 200
_GROUPS = {
    "compute": "compute",
    "input": "input",
    "compile": "compile",
    "idle": "idle",
    **dict.fromkeys(HOST_PARTS, "host"),
}
_ORDER = ("compute", "comm", "waiting", "input", "compile", *HOST_PARTS, "idle")


def page(report: Report, folder: str = "") -> str:
    """The page as HTML.

    Args:
      report: the profile.
      folder: where the page will lie; '' for beside the traces.
    """
    return filled("page", _title(report.name), _data(report, folder))


def link(trace: str, folder: str) -> str:
    """How a page in a folder refers to a trace; '' where it cannot.

    Example:
      >>> link("/logs/now/a.trace.json.gz", "/logs/now"), link("/logs/now/a.trace.json.gz", "/out")
      ('a.trace.json.gz', '../logs/now/a.trace.json.gz')
    """
    if not folder or parent(trace) == folder.rstrip("/"):
        return trace.rpartition("/")[2]
    if is_remote(trace) or is_remote(folder):
        return ""
    return os.path.relpath(trace, folder)


def _data(report: Report, folder: str) -> dict[str, Any]:
    each = max(1, -(-len(report.rows) // _COLUMNS))
    straggler = report.straggler()
    leader = next((w for w in report.workers if w.peak), None)
    return {
        "format": FORMAT,
        "version": __version__,
        "name": _title(report.name),
        "steps": len(report.rows),
        "bin": each,
        "rows": _labels(report, each),
        "workers": [_worker(w, _begin(report), folder) for w in report.workers],
        "walls": _numbers(report.walls, each),
        "parts": _parts(report, each),
        "together": report.together,
        "straggler": None if straggler is None else {"worker": straggler.worker},
        "verdicts": [vars(v) for v in verdicts(report)],
        "missing": report.missing,
        "compiled": _compiled(report, each),
        "operations": _operations(report),
        "peak": leader.peak if leader else 0,
        "peakOf": str(leader.devices[0].get("kind", "")) if leader else "",
        "traffic": _traffic(report),
        "theory": [{**vars(row), "counted": round(row.counted, 1)} for row in report.theory()],
        "noTheory": next((w.no_theory for w in report.workers if w.no_theory), ""),
        "tables": [
            {"title": title, "worker": w.name, "rows": list(numbers.items())}
            for w in report.workers
            for title, numbers in w.tables.items()
            if numbers
        ],
    }


def _title(name: str) -> str:
    """The name of a profile's folder, as a date where it is one."""
    try:
        when = datetime.strptime(name, "%Y_%m_%d_%H_%M_%S")
    except ValueError:
        return name
    return f"{when.day} {when:%B %Y, %H:%M:%S}"


def _labels(report: Report, each: int) -> list[str]:
    labels = [report.label(row) for row in range(0, len(report.rows), each)]
    if each == 1:
        return labels
    last = [min(row + each, len(report.rows)) - 1 for row in range(0, len(report.rows), each)]
    return [f"{a} to {report.label(row)}" for a, row in zip(labels, last, strict=True)]


def _binned(table: np.ndarray, each: int) -> np.ndarray:
    """Means of every `each` rows; NaN where there is nothing."""
    if each == 1 or not len(table):
        return table
    missing = -len(table) % each
    padded = np.concatenate([table, np.full((missing, table.shape[1]), np.nan)])
    grouped = padded.reshape(-1, each, table.shape[1])
    counts = (~np.isnan(grouped)).sum(1)
    return np.where(counts > 0, np.nansum(grouped, 1) / np.maximum(counts, 1), np.nan)


def _numbers(table: np.ndarray, each: int) -> list[float | None]:
    """Microseconds, rounded to tenths; None for NaN."""
    flat = np.round(_binned(table, each).ravel() / 1e3, 1).tolist()
    return [
        None if value != value else int(value) if value == int(value) else value for value in flat
    ]


def _parts(report: Report, each: int) -> list[dict[str, Any]]:
    """The parts in the order in which they are drawn; of communication what is waiting is taken off."""
    waiting, comm = report.waiting, report.part("comm")
    moving = np.divide(comm - waiting, comm, out=np.ones(comm.shape), where=comm > 0)
    tables: dict[str, tuple[str, str, np.ndarray]] = {}
    collectives = 0
    for name in report.parts:
        table = report.part(name)
        if name.startswith("comm:"):
            tables[name] = ("communication", f"comm{collectives % 4}", table * moving)
            collectives += 1
        else:
            tables[name] = (_GROUPS[name], name, table)
    if np.nansum(waiting) > 0:
        tables["waiting"] = ("communication", "waiting", np.where(np.isnan(comm), np.nan, waiting))
    ordered = sorted(tables, key=lambda n: _ORDER.index(n.partition(":")[0]))
    return [
        {
            "key": name,
            "name": part_name(name),
            "group": tables[name][0],
            "color": tables[name][1],
            "values": _numbers(tables[name][2], each),
        }
        for name in ordered
    ]


def _begin(report: Report) -> float:
    """Nanoseconds since 1970 from which times of samples count."""
    return min((w.memory[0][0] for w in report.workers if w.memory), default=0)


def _worker(worker: Worker, begin: float, folder: str) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    for device in worker.devices:
        kind = str(device.get("kind", ""))
        kinds[kind] = kinds.get(kind, 0) + 1
    return {
        "name": worker.name,
        "trace": link(worker.trace, folder) if worker.trace else "",
        "devices": ", ".join(f"{n} × {kind}" if n > 1 else kind for kind, n in kinds.items()),
        "memory": [[round((t - begin) / 1e3), host, device] for t, host, device in worker.memory],
    }


def _compiled(report: Report, each: int) -> dict[str, str]:
    """Which functions were compiled in which row."""
    found: dict[str, list[str]] = {}
    for number, worker in enumerate(report.workers):
        rows = {int(place): row for row, place in enumerate(report.rows[:, number]) if place >= 0}
        ends = worker.breakdown.starts + worker.breakdown.walls
        for when, name in worker.compiled:
            row = rows.get(int(np.searchsorted(ends, when)))
            if row is not None and name not in found.setdefault(str(row // each), []):
                found[str(row // each)].append(name)
    return {row: ", ".join(names[:12]) for row, names in found.items()}


def _operations(report: Report) -> list[dict[str, Any]]:
    same: dict[tuple[str, str, str], Operation] = {}
    for worker in report.workers:
        for one in worker.operations:
            key = one.program, one.name, one.layer
            known = same.get(key)
            if known is None:
                same[key] = Operation(**vars(one))
            else:
                known.count, known.time = known.count + one.count, known.time + one.time
    total = sum(o.time for o in same.values()) or 1.0
    peak = max((w.peak for w in report.workers), default=0.0)
    rows = []
    for one in sorted(same.values(), key=lambda o: -o.time)[:_OPERATIONS]:
        rate = one.flops * one.count / one.time * 1e9 if one.time else 0.0
        rows.append(
            {
                "name": one.name,
                "what": one.what,
                "program": one.program,
                "layer": one.layer,
                "backward": one.backward,
                "kind": one.kind,
                "time": round(one.time / 1e3, 1),
                "share": round(one.time / total, 5),
                "count": one.count,
                "mean": round(one.time / one.count / 1e3, 2) if one.count else 0,
                "flops": one.flops,
                "work": one.flops * one.count,
                "rate": round(rate),
                "peak": round(rate / peak, 4) if peak else 0,
            }
        )
    return rows


def _traffic(report: Report) -> list[dict[str, Any]]:
    """What a device moves in a step, the mean of the workers."""
    rows: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for worker in report.workers:
        steps = max(len(worker.breakdown.steps), 1) * len(report.workers)
        for one in worker.traffic:
            empty = {"count": 0.0, "bytes": 0.0, "sent": 0.0, "time": 0.0}
            row = rows.setdefault(
                (one.kind, one.axes),
                {"kind": one.kind, "axes": list(one.axes), "group": one.group, **empty},
            )
            row["count"] += one.count / steps
            row["bytes"] += one.bytes / steps
            row["sent"] += one.sent / steps
            row["time"] += one.time / steps / 1e3
    return [
        {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}
        for row in sorted(rows.values(), key=lambda r: -r["time"])
    ]
