"""What a process says of itself beside its trace: who it is, its devices, programs and memory.

A trace of XLA names instructions of programs; what they are for (layers, bytes, collectives) only the process
knows that compiled them. It writes that into a file beside the trace.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from meshflow._version import __version__
from meshflow.core.runtime.devices import backend_started
from meshflow.environment import processor
from meshflow.environment.protobuf_wire import fields
from meshflow.profiler.programs import instructions

__all__ = ["FORMAT", "SUFFIX", "MemorySamples", "describe", "worker_name"]

# Of the files that are written here, which another version may not know how to read.
FORMAT = 1
SUFFIX = ".meshflow.json"
# Floating-point operations per second and device that makers promise: (bfloat16 or float16, float32 or TF32).
_PEAKS = {
    "TPU v2": (23e12, 23e12),
    "TPU v3": (61e12, 61e12),
    "TPU v4": (275e12, 275e12),
    "TPU v5 lite": (197e12, 197e12),
    "TPU v5p": (459e12, 459e12),
    "TPU v5": (459e12, 459e12),
    "TPU v6 lite": (918e12, 918e12),
    "H200": (989e12, 495e12),
    "H100": (989e12, 495e12),
    "A100": (312e12, 156e12),
    "L40": (181e12, 90e12),
    "L4": (121e12, 60e12),
    "A10": (125e12, 62e12),
    "V100": (125e12, 15.7e12),
    "T4": (65e12, 8.1e12),
}


# The task of a process that has no TF_CONFIG.
given_name = ""
# Tables of numbers that parts of this process tell of themselves, by title: each gives names and values.
tables: dict[str, Callable[[], Mapping[str, float]]] = {}
# What tells what a training step sends by theory: "exchanges", fields of `Exchange`s, or "why" there are none.
theory: Callable[[], Mapping[str, Any]] | None = None


def worker_name() -> str:
    """This process's task in its cluster, such as 'worker 1'; '' when it is alone."""
    if given_name:
        return given_name
    try:
        task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
    except ValueError:
        task = {}
    if task:
        return f"{task.get('type', 'worker')} {task.get('index', 0)}"
    # A process that never asked for devices, as a server of parameters, is not to begin with it here.
    return f"worker {jax.process_index()}" if backend_started() and jax.process_count() > 1 else ""


def describe(memory: MemorySamples | None = None) -> dict[str, Any]:
    """This process, for its file beside a trace.

    Args:
      memory: what was sampled while the trace was taken.
    """
    programs: dict[str, dict[str, Any]] = {}
    mesh: dict[str, int] = {}
    devices: list[dict[str, Any]] = []
    if backend_started():
        mesh = _mesh()
        devices = [_device(d) for d in jax.local_devices()]
        sizes = mesh or {"devices": jax.device_count()}
        for executable in jax.local_devices()[0].client.live_executables():
            # Some devices do not tell what they run.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                for module in executable.hlo_modules():
                    programs[_named(module)] = instructions(module.to_string(), sizes)
    return {
        "format": FORMAT,
        "version": __version__,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "worker": worker_name(),
        "devices": devices,
        "mesh": mesh,
        "programs": programs,
        "memory": memory.taken if memory is not None else [],
        "theory": dict(theory()) if theory is not None else {},
        "tables": {title: dict(tell()) for title, tell in tables.items()},
    }


def _named(module: Any) -> str:
    """A program's name with the number by which traces tell programs of one name apart."""
    # The fifth field of XLA's message; left out when it is 0.
    numbers = (
        value
        for field, value in fields(module.as_serialized_hlo_module_proto())
        if field == 5 and isinstance(value, int)
    )
    return f"{module.name}({next(numbers, 0)})"


def _mesh() -> dict[str, int]:
    """Dimensions of the mesh that arrays lie on, the largest one."""
    shardings = (a.sharding for a in jax.live_arrays())
    meshes = [s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    largest = max(meshes, key=lambda m: m.size, default=None)
    return {str(n): int(s) for n, s in largest.shape.items()} if largest is not None else {}


def _device(device: Any) -> dict[str, Any]:
    stats = device.memory_stats() if device.platform != "cpu" else None
    peak = (
        cpu_peak() / max(len(jax.local_devices()), 1) if device.platform == "cpu" else _peak(device)
    )
    return {
        "id": int(device.id),
        "kind": _processor() if device.platform == "cpu" else str(device.device_kind),
        "platform": str(device.platform),
        "peak": peak,
        "memory": int((stats or {}).get("bytes_limit", 0)),
    }


def _peak(device: Any) -> float:
    """Operations per second in 16 bits that the maker promises; 0 when that is not known."""
    return next((p[0] for name, p in _PEAKS.items() if name in device.device_kind), 0.0)


def _processor() -> str:
    return processor.described().get("model name", "CPU")


def cpu_peak() -> float:
    """Operations in float32 per second of this process's cores, by clock and vector length."""
    flags = processor.flags()
    # Two units multiply and add a vector of float32 in each cycle.
    per_cycle = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    return float(processor.described().get("cpu MHz", 0)) * 1e6 * per_cycle * _cores()


def _cores() -> int:
    known = getattr(os, "sched_getaffinity", None)
    return len(known(0)) if known is not None else os.cpu_count() or 1


class MemorySamples:
    """Samples of memory in use while a trace is taken, in a thread of its own.

    Args:
      every: seconds between samples; they become rarer when there are many.

    Attributes:
      taken: tuples (nanoseconds since 1970, bytes of this process, bytes of its devices).
    """

    _MOST = 1000

    def __init__(self, every: float = 0.02) -> None:
        self.taken: list[tuple[int, int, int]] = []
        self._every, self._done = every, threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory samples", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.taken.append((time.time_ns(), _resident(), _on_devices()))
            if len(self.taken) > self._MOST:
                self.taken, self._every = self.taken[::2], 2 * self._every
            if self._done.wait(self._every):
                return

    def stop(self) -> None:
        """Ends the thread."""
        self._done.set()
        self._thread.join()


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _on_devices() -> int:
    if not backend_started() or jax.default_backend() == "cpu":
        return 0
    return sum((d.memory_stats() or {}).get("bytes_in_use", 0) for d in jax.local_devices())
