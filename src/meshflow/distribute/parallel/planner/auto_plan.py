"""Implementation of `MeshStrategy(plan="auto")`, which chooses a plan at the first training step."""

from __future__ import annotations

import logging
import os
from typing import Any

import jax

from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.planner.hardware import Hardware, measure_hardware
from meshflow.distribute.parallel.planner.plans import create_mesh, plan
from meshflow.distribute.parallel.planner.trial import adopt_model
from meshflow.distribute.parallel.strategy import MeshStrategy, planners
from meshflow.environment.types import PyTree

__all__: list[str] = []

# Number of the best candidates that are compiled and compared.
_NUM_COMPILED = 3
# Fraction of a device's memory that a program may use.
_MEMORY_FRACTION = 0.9
_log = logging.getLogger("meshflow")


def _apply_best_plan(
    strategy: MeshStrategy, model: Any, batch: PyTree, hardware: Hardware | None
) -> None:
    """Plan for a model, and configure the strategy as the best candidate."""
    rows = batch if isinstance(batch, tuple) else (batch,)
    if hardware is None:
        devices = jax.local_devices()
        hardware = measure_hardware(len(devices), _get_device_memory(devices))
    best_plan = plan(model, *rows, hardware=hardware, compiled=_NUM_COMPILED)
    choice = best_plan.best.choice
    _log.info("%s\n%s", best_plan.title(), "\n".join(best_plan.lines))
    strategy.configure(create_mesh(choice), choice.rules, ParallelOptions(**choice.options))
    strategy.plan = best_plan
    adopt_model(strategy, model)


def _get_device_memory(devices: list[jax.Device]) -> int:
    """Return the bytes that each device may hold; CPU devices share the machine's memory."""
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    if limit is None:
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(devices)
    return int(_MEMORY_FRACTION * limit)


planners["auto"] = _apply_best_plan
