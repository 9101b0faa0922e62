"""Properties of this machine's processor, from /proc/cpuinfo."""

from __future__ import annotations

import functools
import os
from pathlib import Path


def read_cpu_info() -> dict[str, str]:
    """Return Linux's properties of the first core by name; an empty dictionary on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


@functools.cache
def read_cpu_flags() -> tuple[str, ...]:
    """Return Linux's names of the processor's instruction-set extensions.

    The result is empty on other systems.
    """
    info = read_cpu_info()
    return tuple(info.get("flags", info.get("Features", "")).split())


def count_processors() -> int:
    """Return the number of processors on which this process may run."""
    get_affinity = getattr(os, "sched_getaffinity", None)
    return len(get_affinity(0)) if get_affinity is not None else os.cpu_count() or 1
