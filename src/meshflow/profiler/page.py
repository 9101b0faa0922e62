"""HTML page of a profile, in one file that needs no network."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

import numpy as np

from meshflow._version import __version__
from meshflow.files.paths import get_parent, is_remote
from meshflow.profiler.breakdown import HOST_PARTS
from meshflow.profiler.description import FORMAT
from meshflow.profiler.findings import get_part_name, list_findings
from meshflow.profiler.page_template import fill_template
from meshflow.profiler.report import Instruction, Report, WorkerProfile

# Name of the page's file, next to the traces.
PAGE_FILE = "meshflow.html"
# Maximum numbers of columns and operations of a page, so that it opens quickly.
_MAX_COLUMNS, _MAX_OPERATIONS = 2000, 200
_GROUPS = {
    "compute": "compute",
    "input": "input",
    "compile": "compile",
    "idle": "idle",
    **dict.fromkeys(HOST_PARTS, "host"),
}
_ORDER = ("compute", "comm", "waiting", "input", "compile", *HOST_PARTS, "idle")


def format_page(report: Report, folder: str = "") -> str:
    """Return the page as HTML.

    `folder` is the folder of the page; '' is the folder of the traces.
    """
    return fill_template("page", _format_title(report.name), _make_data(report, folder))


def make_trace_link(trace: str, folder: str) -> str:
    """Return the relative link from a page in a folder to a trace; '' if there is none.

    Example:
      >>> trace = "/logs/now/a.trace.json.gz"
      >>> make_trace_link(trace, "/logs/now"), make_trace_link(trace, "/out")
      ('a.trace.json.gz', '../logs/now/a.trace.json.gz')
    """
    if not folder or get_parent(trace) == folder.rstrip("/"):
        return trace.rpartition("/")[2]
    if is_remote(trace) or is_remote(folder):
        return ""
    return os.path.relpath(trace, folder)


def _make_data(report: Report, folder: str) -> dict[str, Any]:
    bin_size = max(1, -(-len(report.rows) // _MAX_COLUMNS))
    straggler = report.find_straggler()
    leader = next((w for w in report.workers if w.peak), None)
    return {
        "format": FORMAT,
        "version": __version__,
        "name": _format_title(report.name),
        "steps": len(report.rows),
        "bin": bin_size,
        "rows": _format_labels(report, bin_size),
        "workers": [_format_worker(w, _find_start(report), folder) for w in report.workers],
        "walls": _to_microseconds(report.walls, bin_size),
        "parts": _format_parts(report, bin_size),
        "together": report.is_synchronous,
        "straggler": None if straggler is None else {"worker": straggler.worker},
        "verdicts": [vars(v) for v in list_findings(report)],
        "missing": report.missing,
        "compiled": _list_compilations(report, bin_size),
        "operations": _format_operations(report),
        "peak": leader.peak if leader else 0,
        "peakOf": str(leader.devices[0].get("kind", "")) if leader else "",
        "traffic": _format_traffic(report),
        "theory": [
            {**vars(row), "counted": round(row.counted, 1)} for row in report.compare_theory()
        ],
        "noTheory": next((w.no_theory for w in report.workers if w.no_theory), ""),
        "tables": [
            {"title": title, "worker": w.name, "rows": list(metrics.items())}
            for w in report.workers
            for title, metrics in w.tables.items()
            if metrics
        ],
    }


def _format_title(name: str) -> str:
    """Return the name of a profile's folder, formatted as a date if it is one."""
    try:
        when = datetime.strptime(name, "%Y_%m_%d_%H_%M_%S")
    except ValueError:
        return name
    return f"{when.day} {when:%B %Y, %H:%M:%S}"


def _format_labels(report: Report, bin_size: int) -> list[str]:
    labels = [report.format_label(row) for row in range(0, len(report.rows), bin_size)]
    if bin_size == 1:
        return labels
    last = [
        min(row + bin_size, len(report.rows)) - 1 for row in range(0, len(report.rows), bin_size)
    ]
    return [f"{a} to {report.format_label(row)}" for a, row in zip(labels, last, strict=True)]


def _average_bins(table: np.ndarray, bin_size: int) -> np.ndarray:
    """Return the means of every `bin_size` rows; NaN for rows without values."""
    if bin_size == 1 or not len(table):
        return table
    missing = -len(table) % bin_size
    padded = np.concatenate([table, np.full((missing, table.shape[1]), np.nan)])
    grouped = padded.reshape(-1, bin_size, table.shape[1])
    counts = (~np.isnan(grouped)).sum(1)
    return np.where(counts > 0, np.nansum(grouped, 1) / np.maximum(counts, 1), np.nan)


def _to_microseconds(table: np.ndarray, bin_size: int) -> list[float | None]:
    """Return means in microseconds, rounded to tenths; None for NaN."""
    flat = np.round(_average_bins(table, bin_size).ravel() / 1e3, 1).tolist()
    return [
        None if value != value else int(value) if value == int(value) else value for value in flat
    ]


def _format_parts(report: Report, bin_size: int) -> list[dict[str, Any]]:
    """Return the parts in drawing order; communication excludes waiting for other workers."""
    waiting, comm = report.waiting_times, report.get_part("comm")
    moving_fraction = np.divide(comm - waiting, comm, out=np.ones(comm.shape), where=comm > 0)
    tables: dict[str, tuple[str, str, np.ndarray]] = {}
    num_collectives = 0
    for name in report.parts:
        table = report.get_part(name)
        if name.startswith("comm:"):
            tables[name] = ("communication", f"comm{num_collectives % 4}", table * moving_fraction)
            num_collectives += 1
        else:
            tables[name] = (_GROUPS[name], name, table)
    if np.nansum(waiting) > 0:
        tables["waiting"] = ("communication", "waiting", np.where(np.isnan(comm), np.nan, waiting))
    ordered = sorted(tables, key=lambda n: _ORDER.index(n.partition(":")[0]))
    return [
        {
            "key": name,
            "name": get_part_name(name),
            "group": tables[name][0],
            "color": tables[name][1],
            "values": _to_microseconds(tables[name][2], bin_size),
        }
        for name in ordered
    ]


def _find_start(report: Report) -> float:
    """Return the nanoseconds since 1970 at which memory samples start."""
    return min((w.memory[0][0] for w in report.workers if w.memory), default=0)


def _format_worker(worker: WorkerProfile, start: float, folder: str) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    for device in worker.devices:
        kind = str(device.get("kind", ""))
        kinds[kind] = kinds.get(kind, 0) + 1
    return {
        "name": worker.name,
        "trace": make_trace_link(worker.trace, folder) if worker.trace else "",
        "devices": ", ".join(f"{n} × {kind}" if n > 1 else kind for kind, n in kinds.items()),
        "memory": [[round((t - start) / 1e3), host, device] for t, host, device in worker.memory],
    }


def _list_compilations(report: Report, bin_size: int) -> dict[str, str]:
    """Return the names of the functions that were compiled in each row."""
    names_by_row: dict[str, list[str]] = {}
    for worker_index, worker in enumerate(report.workers):
        rows = {
            int(step): row for row, step in enumerate(report.rows[:, worker_index]) if step >= 0
        }
        ends = worker.breakdown.starts + worker.breakdown.walls
        for time, name in worker.compilations:
            row = rows.get(int(np.searchsorted(ends, time)))
            if row is not None and name not in names_by_row.setdefault(str(row // bin_size), []):
                names_by_row[str(row // bin_size)].append(name)
    return {row: ", ".join(names[:12]) for row, names in names_by_row.items()}


def _format_operations(report: Report) -> list[dict[str, Any]]:
    merged: dict[tuple[str, str, str], Instruction] = {}
    for worker in report.workers:
        for operation in worker.operations:
            key = operation.program, operation.name, operation.layer
            known = merged.get(key)
            if known is None:
                merged[key] = Instruction(**vars(operation))
            else:
                known.count, known.time = known.count + operation.count, known.time + operation.time
    total = sum(o.time for o in merged.values()) or 1.0
    peak = max((w.peak for w in report.workers), default=0.0)
    rows = []
    for operation in sorted(merged.values(), key=lambda o: -o.time)[:_MAX_OPERATIONS]:
        rate = operation.flops * operation.count / operation.time * 1e9 if operation.time else 0.0
        rows.append(
            {
                "name": operation.name,
                "what": operation.what,
                "program": operation.program,
                "layer": operation.layer,
                "backward": operation.backward,
                "kind": operation.kind,
                "time": round(operation.time / 1e3, 1),
                "share": round(operation.time / total, 5),
                "count": operation.count,
                "mean": round(operation.time / operation.count / 1e3, 2) if operation.count else 0,
                "flops": operation.flops,
                "work": operation.flops * operation.count,
                "rate": round(rate),
                "peak": round(rate / peak, 4) if peak else 0,
            }
        )
    return rows


def _format_traffic(report: Report) -> list[dict[str, Any]]:
    """Return the traffic of a device per step, averaged over the workers."""
    rows: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for worker in report.workers:
        steps = max(len(worker.breakdown.steps), 1) * len(report.workers)
        for traffic in worker.traffic:
            empty = {"count": 0.0, "bytes": 0.0, "sent": 0.0, "time": 0.0}
            row = rows.setdefault(
                (traffic.kind, traffic.axes),
                {"kind": traffic.kind, "axes": list(traffic.axes), "group": traffic.group, **empty},
            )
            row["count"] += traffic.count / steps
            row["bytes"] += traffic.bytes / steps
            row["sent"] += traffic.sent / steps
            row["time"] += traffic.time / steps / 1e3
    return [
        {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}
        for row in sorted(rows.values(), key=lambda r: -r["time"])
    ]
