"""Findings of a profile: the reasons why steps take long, with numbers and advice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshflow.profiler.breakdown import HOST_PARTS, SERVERS
from meshflow.profiler.report import Report

# Names of the parts of a step for people.
PART_NAMES = {
    "compute": "computing",
    "input": "waiting for input",
    "python": "Python on the host",
    "callback": "callbacks",
    "checkpoint": "checkpoints",
    "compile": "compiling",
    "idle": "idle",
    "waiting": "waiting for other workers",
}
# Fraction of step time from which a part is reported.
_INPUT_THRESHOLD = _HOST_THRESHOLD = 0.15
_COMMUNICATION_THRESHOLD, _COMPILE_THRESHOLD, _IDLE_THRESHOLD = 0.2, 0.1, 0.2
_STRAGGLER_ADVICE = {
    "compute": "Give each worker the same amount of work: equal batches, equal devices; check for other programs on its machine.",
    "input": "Use as many cores for its input as on other workers: shard by file, `prefetch`, a faster disk.",
    "python": "Check its Python code between steps: only the chief should write logs and files.",
    "callback": "Check its callbacks: only the chief should write logs and files.",
    "checkpoint": "Write checkpoints less often, or on a faster disk.",
    "compile": "Give all workers batches of one shape: `drop_remainder=True`.",
    "idle": "Check whether other programs use its cores.",
    f"comm:{SERVERS}": "Check its network: the servers' values take longer to reach it than the other workers.",
}
_ADVICE = {
    "input": "End the pipeline with `prefetch(tf.data.AUTOTUNE)`, `cache()` data that is read again, use `map(..., num_parallel_calls=tf.data.AUTOTUNE)`; `tf.data.experimental.explain` shows the slow part.",
    "communication": "Use larger batches on each device, `mixed_precision` for smaller gradients, or another sharding; dtensor.explain shows what is sent.",
    "recompiling": "Use batches of one shape (`drop_remainder=True`, `padded_batch` with bucket boundaries), and tensors instead of Python numbers as arguments.",
    "host": "Use `compile(steps_per_execution=16)`, or put the loop in a `tf.function`; read losses once an epoch; call fewer callbacks for each batch.",
    "idle": "Devices are idle for no known reason: inspect the trace.",
    "compute": "The devices are busy: smaller types (`mixed_precision`), larger batches, or faster operations; the table names those that take longest.",
}


@dataclass
class Finding:
    """One finding.

    Attributes:
      kind: 'straggler', 'input', 'communication', 'recompiling', 'host', 'idle', 'compute', or
        'none'.
      title: A few words.
      text: A sentence with numbers.
      advice: Suggested change.
      share: Fraction of step time, 0 to 1.
    """

    kind: str
    title: str
    text: str
    advice: str
    share: float

    def __str__(self) -> str:
        return f"{self.title}: {self.text}"


def get_part_name(part: str) -> str:
    """Return the name of a part for people."""
    return part.removeprefix("comm:") if part.startswith("comm:") else PART_NAMES.get(part, part)


def format_duration(nanoseconds: float) -> str:
    """Format a time for people, as '12.3 ms'."""
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1e3:.3g} µs" if nanoseconds >= 1e3 else "0"


def select_rows(report: Report) -> np.ndarray:
    """Return a mask of all rows except the first, which compiles, if there are more than two."""
    return np.arange(len(report.rows)) >= (1 if len(report.rows) > 2 else 0)


def compute_shares(report: Report) -> dict[str, float]:
    """Return each part's fraction of step time, over all workers.

    All collectives are 'comm', which includes 'waiting'. The first step is skipped if there are
    more than two.
    """
    mask = select_rows(report)
    total = float(np.nansum(report.walls[mask]))
    if not total:
        return {}
    names = [p for p in report.parts if not p.startswith("comm:")]
    fractions = {name: float(np.nansum(report.get_part(name)[mask])) / total for name in names}
    fractions["comm"] = float(np.nansum(report.get_part("comm")[mask])) / total
    fractions["waiting"] = float(np.nansum(report.waiting_times[mask])) / total
    return fractions


def list_findings(report: Report) -> list[Finding]:
    """Return the reasons why steps take long, the worst first; at least one."""
    if not len(report.rows):
        text = "no step was recorded: call `fit`, or annotate steps with tf.profiler.experimental.Trace(name, step_num=n, _r=1)."
        return [
            Finding("none", "No steps", text, "Record for longer, while the program trains.", 0.0)
        ]
    share = compute_shares(report)
    findings = [
        *_find_straggler(report),
        *_find_recompilations(report, share),
        *_check_share(
            "input",
            "Input-bound",
            share.get("input", 0.0),
            _INPUT_THRESHOLD,
            _describe_input(report, share),
        ),
        *_check_share(
            "communication",
            "Communication-bound",
            share.get("comm", 0.0) - share.get("waiting", 0.0),
            _COMMUNICATION_THRESHOLD,
            _describe_communication(report, share),
        ),
        *_check_share(
            "host",
            "Host-bound",
            _sum_host_shares(share),
            _HOST_THRESHOLD,
            _describe_host(report, share),
        ),
        *_check_share(
            "idle",
            "Idle devices",
            share.get("idle", 0.0),
            _IDLE_THRESHOLD,
            "of step time is idle time of the devices",
        ),
    ]
    findings.sort(key=lambda v: -v.share)
    return findings or _check_share(
        "compute", "Compute-bound", share.get("compute", 0.0), 0.0, _describe_compute(report)
    )


def _check_share(kind: str, title: str, share: float, threshold: float, text: str) -> list[Finding]:
    if share < threshold:
        return []
    return [Finding(kind, title, f"{share:.0%} {text}.", _ADVICE[kind], share)]


def _sum_host_shares(share: dict[str, float]) -> float:
    return sum(share.get(part, 0.0) for part in HOST_PARTS)


def _format_mean(report: Report, part: str) -> str:
    return format_duration(float(np.nanmean(report.get_part(part)[select_rows(report)])))


def _describe_input(report: Report, share: dict[str, float]) -> str:
    times = np.ma.masked_invalid(report.get_part("input")[select_rows(report)])
    # A worker may have no step in the profile.
    by_worker = times.mean(0).filled(0.0)
    worst = int(by_worker.argmax())
    text = f"of step time is spent waiting for input, {_format_mean(report, 'input')} per step"
    if len(report.workers) > 1:
        text += f"; the longest wait is on {report.workers[worst].name}, {format_duration(by_worker[worst])}"
    return text


def _describe_communication(report: Report, share: dict[str, float]) -> str:
    longest = max(
        (t for w in report.workers for t in w.traffic), key=lambda t: t.time, default=None
    )
    waiting = f", and {share['waiting']:.0%} waiting for others" if share["waiting"] >= 0.01 else ""
    text = (
        f"of step time is communication{waiting}, {_format_mean(report, 'comm')} per step in total"
    )
    if longest is not None:
        axes = f" over {', '.join(longest.axes)}" if longest.axes else ""
        text += f"; mostly {longest.kind}{axes}"
        if longest.bytes:
            rate = 1e9 * longest.sent / max(longest.time, 1.0)
            text += f" of {format_bytes(longest.bytes / max(longest.count, 1))}, at {format_bytes(rate)}/s"
    return text


def _describe_host(report: Report, share: dict[str, float]) -> str:
    parts = [f"{PART_NAMES[p]} {share[p]:.0%}" for p in HOST_PARTS if share.get(p, 0.0) >= 0.01]
    seconds: dict[str, float] = {}
    for worker in report.workers:
        for name, nanoseconds in worker.details.get("callback", {}).items():
            seconds[name] = seconds.get(name, 0.0) + nanoseconds
    text = f"of step time is spent waiting for the host ({', '.join(parts)})"
    if seconds and share.get("callback", 0.0) >= 0.05:
        text += f"; the slowest callback is {max(seconds, key=lambda n: seconds[n])}"
    return text


def _describe_compute(report: Report) -> str:
    first = next((o for w in report.workers for o in w.operations if not o.kind), None)
    text = "of step time is computation"
    return text + (
        f"; the longest operation is {first.what}{f' of {first.layer}' if first.layer else ''}"
        if first
        else ""
    )


def _find_straggler(report: Report) -> list[Finding]:
    straggler = report.find_straggler()
    if straggler is None:
        return []
    name = report.workers[straggler.worker].name
    mean = float(np.nanmean(report.walls[select_rows(report)]))
    comparison = (
        f"it is the last one in {straggler.share:.0%} of the steps"
        if report.is_synchronous
        else f"{straggler.share:.0%} of its steps are longer than the others'"
    )
    text = (
        f"{name} takes {format_duration(straggler.excess)} longer per step than the others, {format_duration(straggler.part_excess)} "
        f"of it for {get_part_name(straggler.part)}; {comparison}."
    )
    state = "delays" if report.is_synchronous else "is slower than"
    advice = _STRAGGLER_ADVICE.get(straggler.part, "")
    return [
        Finding(
            "straggler",
            f"{name[:1].upper()}{name[1:]} {state} the others",
            text,
            advice,
            min(straggler.excess / mean, 1.0),
        )
    ]


def _find_recompilations(report: Report, share: dict[str, float]) -> list[Finding]:
    mask = select_rows(report)
    compiling = report.get_part("compile")[mask] if "compile" in report.parts else np.zeros((0, 0))
    # Shorter times are cache look-ups instead of compilations.
    count = int((np.nan_to_num(compiling) > 1e6).any(1).sum()) if compiling.size else 0
    fraction = share.get("compile", 0.0)
    if count < 2 or (fraction < _COMPILE_THRESHOLD and count < 3):
        return []
    text = f"{count} of {int(mask.sum())} steps after the first compile, which takes {fraction:.0%} of their time"
    names = _list_compiled_functions(report)
    text += f": {', '.join(names)}." if names else "."
    return [Finding("recompiling", "Repeated compilation", text, _ADVICE["recompiling"], fraction)]


def _list_compiled_functions(report: Report) -> list[str]:
    """Return up to 3 functions that were compiled after the first step, the most frequent first."""
    counts: dict[str, int] = {}
    for worker in report.workers:
        ends = worker.breakdown.starts[1:2]
        for time, name in worker.compilations:
            if len(ends) and time > ends[0]:
                counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda n: -counts[n])[:3]


def format_bytes(count: float) -> str:
    """Format bytes for people, as '1.5 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
