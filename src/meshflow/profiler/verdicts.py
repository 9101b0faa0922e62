"""What a profile means: what the steps wait for, by which numbers, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshflow.profiler.breakdown import HOST_PARTS, SERVERS
from meshflow.profiler.report import Report

__all__ = ["PARTS", "Verdict", "counted", "duration", "part_name", "shares", "verdicts"]

# Parts of a step in the words of people.
PARTS = {
    "compute": "computing",
    "input": "waiting for input",
    "python": "Python on the host",
    "callback": "callbacks",
    "checkpoint": "checkpoints",
    "compile": "compiling",
    "idle": "idle",
    "waiting": "waiting for other workers",
}
# From which share of the steps' time on something is called the reason.
_INPUT = _HOST = 0.15
_COMMUNICATION, _COMPILE, _IDLE = 0.2, 0.1, 0.2
_STRAGGLER = {
    "compute": "Give each worker the same amount of work: equal batches, equal devices; look for other programs on its machine.",
    "input": "Give its input the cores that others have: shard by file, `prefetch`, a faster disk.",
    "python": "See what its Python does between steps: only the chief should write logs and files.",
    "callback": "See what its callbacks do: only the chief should write logs and files.",
    "checkpoint": "Write checkpoints less often, or on a faster disk.",
    "compile": "Give all workers batches of one shape: `drop_remainder=True`.",
    "idle": "See whether other programs take its cores.",
    f"comm:{SERVERS}": "Look at its network: the servers' values take longer to reach it than the others.",
}
_ADVICE = {
    "input": "End the pipeline with `prefetch(tf.data.AUTOTUNE)`, `cache()` what is read again, `map(..., num_parallel_calls=tf.data.AUTOTUNE)`; `tf.data.experimental.explain` says which part is slow.",
    "communication": "Larger batches on each device, `mixed_precision` for smaller gradients, or another split of the mesh: dtensor.explain says what is sent.",
    "recompiling": "Batches of one shape (`drop_remainder=True`, `padded_batch` with bucket boundaries), and tensors instead of Python numbers as arguments.",
    "host": "`compile(steps_per_execution=16)`, the loop in a `tf.function`; read losses once an epoch; fewer callbacks for each batch.",
    "idle": "Devices wait though nothing is known to hold them up: look at the trace.",
    "compute": "The devices are busy: smaller types (`mixed_precision`), larger batches, or faster operations; the table names those that take longest.",
}


@dataclass
class Verdict:
    """One finding.

    Attributes:
      kind: 'straggler', 'input', 'communication', 'recompiling', 'host', 'idle', 'compute', or 'none'.
      title: a few words.
      text: a sentence with the numbers.
      advice: what to do.
      share: of the steps' time, 0 to 1.
    """

    kind: str
    title: str
    text: str
    advice: str
    share: float

    def __str__(self) -> str:
        return f"{self.title}: {self.text}"


def part_name(part: str) -> str:
    """A part in words."""
    return part.removeprefix("comm:") if part.startswith("comm:") else PARTS.get(part, part)


def duration(nanoseconds: float) -> str:
    """A time for people: '12.3 ms'."""
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1e3:.3g} µs" if nanoseconds >= 1e3 else "0"


def counted(report: Report) -> np.ndarray:
    """The steps that count: without the first, in which programs are compiled, when there are others."""
    return np.arange(len(report.rows)) >= (1 if len(report.rows) > 2 else 0)


def shares(report: Report) -> dict[str, float]:
    """Each part's share of the steps' time, over all workers; all collectives are 'comm', of which 'waiting'.

    The first step is left out where there are more than two.
    """
    chosen = counted(report)
    total = float(np.nansum(report.walls[chosen]))
    if not total:
        return {}
    names = [p for p in report.parts if not p.startswith("comm:")]
    found = {name: float(np.nansum(report.part(name)[chosen])) / total for name in names}
    found["comm"] = float(np.nansum(report.part("comm")[chosen])) / total
    found["waiting"] = float(np.nansum(report.waiting[chosen])) / total
    return found


def verdicts(report: Report) -> list[Verdict]:
    """What holds a training up, the worst first; at least one."""
    if not len(report.rows):
        text = "no step was recorded: call `fit`, or name steps with tf.profiler.experimental.Trace(name, step_num=n, _r=1)."
        return [
            Verdict("none", "No steps", text, "Record for longer, while the program trains.", 0.0)
        ]
    share = shares(report)
    found = [
        *_straggler(report),
        *_recompiling(report, share),
        *_shared(
            "input", "Input-bound", share.get("input", 0.0), _INPUT, _input_text(report, share)
        ),
        *_shared(
            "communication",
            "Communication-bound",
            share.get("comm", 0.0) - share.get("waiting", 0.0),
            _COMMUNICATION,
            _communication_text(report, share),
        ),
        *_shared("host", "Host-bound", _host(share), _HOST, _host_text(report, share)),
        *_shared(
            "idle",
            "Idle devices",
            share.get("idle", 0.0),
            _IDLE,
            "of the steps' time nothing is done",
        ),
    ]
    found.sort(key=lambda v: -v.share)
    return found or _shared(
        "compute", "Compute-bound", share.get("compute", 0.0), 0.0, _compute_text(report)
    )


def _shared(kind: str, title: str, share: float, least: float, text: str) -> list[Verdict]:
    if share < least:
        return []
    return [Verdict(kind, title, f"{share:.0%} {text}.", _ADVICE[kind], share)]


def _host(share: dict[str, float]) -> float:
    return sum(share.get(part, 0.0) for part in HOST_PARTS)


def _mean(report: Report, part: str) -> str:
    return duration(float(np.nanmean(report.part(part)[counted(report)])))


def _input_text(report: Report, share: dict[str, float]) -> str:
    by_worker = np.nanmean(report.part("input")[counted(report)], 0)
    worst = int(np.nanargmax(by_worker))
    text = f"of the steps' time is waiting for input, {_mean(report, 'input')} a step"
    if len(report.workers) > 1:
        text += f"; most on {report.workers[worst].name}, {duration(by_worker[worst])}"
    return text


def _communication_text(report: Report, share: dict[str, float]) -> str:
    longest = max(
        (t for w in report.workers for t in w.traffic), key=lambda t: t.time, default=None
    )
    waiting = f", and {share['waiting']:.0%} waiting for others" if share["waiting"] >= 0.01 else ""
    text = f"of the steps' time is communication{waiting}, together {_mean(report, 'comm')} a step"
    if longest is not None:
        axes = f" over {', '.join(longest.axes)}" if longest.axes else ""
        text += f"; mostly {longest.kind}{axes}"
        if longest.bytes:
            rate = 1e9 * longest.sent / max(longest.time, 1.0)
            text += f" of {size(longest.bytes / max(longest.count, 1))}, at {size(rate)}/s"
    return text


def _host_text(report: Report, share: dict[str, float]) -> str:
    parts = [f"{PARTS[p]} {share[p]:.0%}" for p in HOST_PARTS if share.get(p, 0.0) >= 0.01]
    slow: dict[str, float] = {}
    for worker in report.workers:
        for name, taken in worker.details.get("callback", {}).items():
            slow[name] = slow.get(name, 0.0) + taken
    text = f"of the steps' time devices wait for the host ({', '.join(parts)})"
    if slow and share.get("callback", 0.0) >= 0.05:
        text += f"; the slowest callback is {max(slow, key=lambda n: slow[n])}"
    return text


def _compute_text(report: Report) -> str:
    first = next((o for w in report.workers for o in w.operations if not o.kind), None)
    text = "of the steps' time devices compute"
    return text + (
        f"; longest: {first.what}{f' of {first.layer}' if first.layer else ''}" if first else ""
    )


def _straggler(report: Report) -> list[Verdict]:
    found = report.straggler()
    if found is None:
        return []
    name = report.workers[found.worker].name
    mean = float(np.nanmean(report.walls[counted(report)]))
    how = (
        f"it is the last in {found.share:.0%} of the steps"
        if report.together
        else f"{found.share:.0%} of its steps are longer than the others'"
    )
    text = (
        f"{name} needs {duration(found.excess)} a step more than the others, {duration(found.part_excess)} "
        f"of it for {part_name(found.part)}; {how}."
    )
    behind = "waited for" if report.together else "slower than the others"
    advice = _STRAGGLER.get(found.part, "")
    return [
        Verdict(
            "straggler",
            f"{name[:1].upper()}{name[1:]} is {behind}",
            text,
            advice,
            min(found.excess / mean, 1.0),
        )
    ]


def _recompiling(report: Report, share: dict[str, float]) -> list[Verdict]:
    chosen = counted(report)
    compiling = report.part("compile")[chosen] if "compile" in report.parts else np.zeros((0, 0))
    # Less than that is a look into a table, no compilation.
    times = int((np.nan_to_num(compiling) > 1e6).any(1).sum()) if compiling.size else 0
    taken = share.get("compile", 0.0)
    if times < 2 or (taken < _COMPILE and times < 3):
        return []
    text = f"{times} of {int(chosen.sum())} steps after the first compile, which takes {taken:.0%} of their time"
    names = _compiled_names(report)
    text += f": {', '.join(names)}." if names else "."
    return [
        Verdict("recompiling", "Compiling again and again", text, _ADVICE["recompiling"], taken)
    ]


def _compiled_names(report: Report) -> list[str]:
    """Functions that are compiled after the first step, the most often compiled first."""
    counts: dict[str, int] = {}
    for worker in report.workers:
        ends = worker.breakdown.starts[1:2]
        for when, name in worker.compiled:
            if len(ends) and when > ends[0]:
                counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda n: -counts[n])[:3]


def size(count: float) -> str:
    """Bytes for people: '1.5 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
