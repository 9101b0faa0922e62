"""`MeshStrategy(plan="auto")`: the plan is found and taken when training begins."""

from __future__ import annotations

import logging
import os
from typing import Any

import jax

from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.planner.hardware import Hardware, measured
from meshflow.distribute.parallel.planner.planning import mesh_of, plan
from meshflow.distribute.parallel.planner.trial import adopt
from meshflow.distribute.parallel.strategy import MeshStrategy, planners

__all__: list[str] = []

# How many of the best are compiled and compared.
_TRIED = 3
# The share of a device's memory that a program may take.
_SHARE = 0.9
_log = logging.getLogger("meshflow")


def _decide(strategy: MeshStrategy, model: Any, batch: Any, hardware: Hardware | None) -> None:
    """Plans for a model, and makes the strategy that of the best candidate."""
    rows = batch if isinstance(batch, tuple) else (batch,)
    if hardware is None:
        devices = jax.local_devices()
        hardware = measured(len(devices), _memory(devices))
    found = plan(model, *rows, hardware=hardware, compiled=_TRIED)
    choice = found.best.choice
    _log.info("%s\n%s", found.title(), "\n".join(found.lines))
    strategy._begin(mesh_of(choice), choice.rules, ParallelOptions(**choice.options))
    strategy.plan = found
    adopt(strategy, model)


def _memory(devices: list[Any]) -> int:
    """Bytes that each device may hold; of CPUs their share of the machine's."""
    known = (devices[0].memory_stats() or {}).get("bytes_limit")
    if known is None:
        known = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(devices)
    return int(_SHARE * known)


planners["auto"] = _decide
