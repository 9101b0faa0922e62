"""What the system says of this machine's processor."""

from __future__ import annotations

import functools
from pathlib import Path

__all__ = ["described", "flags"]


def described() -> dict[str, str]:
    """What Linux says of the first core, by its names; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


@functools.cache
def flags() -> tuple[str, ...]:
    """Names of the instructions that the processor has, as Linux calls them; none on other systems."""
    known = described()
    return tuple(known.get("flags", known.get("Features", "")).split())
