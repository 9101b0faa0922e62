"""Description of a process in a profile: its name, devices, programs and memory.

XLA's traces contain only names of instructions. Their layers, bytes and collectives are known only
to the process that compiled the programs, which writes them to a file next to the trace.
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
from meshflow.core.runtime.devices import is_backend_started
from meshflow.environment import cpu_info
from meshflow.environment.protobuf_wire import iterate_fields
from meshflow.profiler.programs import parse_instructions

# Version of the format of these files; other versions of Meshflow may not be able to read it.
FORMAT = 1
SUFFIX = ".meshflow.json"
# Peak floating-point operations per second and device according to the vendor: (bfloat16 or
# float16, float32 or TF32).
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


# Name of this process if it has no TF_CONFIG.
default_name = ""
# Tables of metrics that parts of this process report, by title; each function returns names and
# values.
tables: dict[str, Callable[[], Mapping[str, float]]] = {}
# Returns the expected traffic of a training step: "exchanges", fields of `ExpectedTraffic`s, or "why"
# there are none.
theory: Callable[[], Mapping[str, Any]] | None = None


def get_worker_name() -> str:
    """Return the name of this process in its cluster, such as 'worker 1'; '' for a single process."""
    if default_name:
        return default_name
    try:
        task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
    except ValueError:
        task = {}
    if task:
        return f"{task.get('type', 'worker')} {task.get('index', 0)}"
    # A process that has not used devices, such as a parameter server, should not initialize them
    # here.
    return (
        f"worker {jax.process_index()}" if is_backend_started() and jax.process_count() > 1 else ""
    )


def describe_process(memory: MemorySamples | None = None) -> dict[str, Any]:
    """Return the description of this process for the file next to its trace."""
    programs: dict[str, dict[str, Any]] = {}
    mesh: dict[str, int] = {}
    devices: list[dict[str, Any]] = []
    if is_backend_started():
        mesh = _find_mesh()
        devices = [_describe_device(d) for d in jax.local_devices()]
        sizes = mesh or {"devices": jax.device_count()}
        for executable in jax.local_devices()[0].client.live_executables():
            # Some devices do not provide the text of their programs.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                for module in executable.hlo_modules():
                    programs[_format_program_name(module)] = parse_instructions(
                        module.to_string(), sizes
                    )
    return {
        "format": FORMAT,
        "version": __version__,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "worker": get_worker_name(),
        "devices": devices,
        "mesh": mesh,
        "programs": programs,
        "memory": memory.samples if memory is not None else [],
        "theory": dict(theory()) if theory is not None else {},
        "tables": {title: dict(tell()) for title, tell in tables.items()},
    }


def _format_program_name(module: Any) -> str:
    """Return a program's name with the id that distinguishes programs of the same name in traces."""
    # The id is the fifth field of XLA's message, omitted if it is 0.
    ids = (
        value
        for field, value in iterate_fields(module.as_serialized_hlo_module_proto())
        if field == 5 and isinstance(value, int)
    )
    return f"{module.name}({next(ids, 0)})"


def _find_mesh() -> dict[str, int]:
    """Return the dimensions of the largest mesh on which arrays are placed."""
    shardings = (a.sharding for a in jax.live_arrays())
    meshes = [s.mesh for s in shardings if isinstance(s, jax.sharding.NamedSharding)]
    largest = max(meshes, key=lambda m: m.size, default=None)
    return {str(n): int(s) for n, s in largest.shape.items()} if largest is not None else {}


def _describe_device(device: jax.Device) -> dict[str, Any]:
    stats = device.memory_stats() if device.platform != "cpu" else None
    peak = (
        estimate_cpu_peak() / max(len(jax.local_devices()), 1)
        if device.platform == "cpu"
        else _get_peak(device)
    )
    return {
        "id": int(device.id),
        "kind": _get_processor_name() if device.platform == "cpu" else str(device.device_kind),
        "platform": str(device.platform),
        "peak": peak,
        "memory": int((stats or {}).get("bytes_limit", 0)),
    }


def _get_peak(device: jax.Device) -> float:
    """Return the vendor's peak of 16-bit operations per second, 0 if unknown."""
    return next((p[0] for name, p in _PEAKS.items() if name in device.device_kind), 0.0)


def _get_processor_name() -> str:
    return cpu_info.read_cpu_info().get("model name", "CPU")


def estimate_cpu_peak() -> float:
    """Estimate the peak float32 operations per second of this process's cores."""
    flags = cpu_info.read_cpu_flags()
    # Each core has two units that compute a fused multiply-add of a float32 vector per cycle.
    per_cycle = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    hertz = float(cpu_info.read_cpu_info().get("cpu MHz", 0)) * 1e6
    return hertz * per_cycle * cpu_info.count_processors()


class MemorySamples:
    """Samples of memory use while a trace is recorded, taken by a thread.

    Args:
      every: Seconds between samples; doubled when there are many.

    Attributes:
      samples: Tuples (nanoseconds since 1970, bytes of this process, bytes of its devices).
    """

    _MAX_SAMPLES = 1000

    def __init__(self, every: float = 0.02) -> None:
        self.samples: list[tuple[int, int, int]] = []
        self._every, self._done = every, threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory samples", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.samples.append((time.time_ns(), _read_resident_bytes(), _read_device_bytes()))
            if len(self.samples) > self._MAX_SAMPLES:
                self.samples, self._every = self.samples[::2], 2 * self._every
            if self._done.wait(self._every):
                return

    def stop(self) -> None:
        """Stop the thread."""
        self._done.set()
        self._thread.join()


def _read_resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _read_device_bytes() -> int:
    if not is_backend_started() or jax.default_backend() == "cpu":
        return 0
    return sum((d.memory_stats() or {}).get("bytes_in_use", 0) for d in jax.local_devices())
