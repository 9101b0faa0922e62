"""Plans for the devices of this process: at the first training step (`plan="auto"`), and after it ran out of memory."""

from __future__ import annotations

import logging
import os
from typing import Any

import jax

from meshflow.core.runtime.errors import OpError, ResourceExhaustedError
from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.planner.choices import PlanChoice
from meshflow.distribute.parallel.planner.costs import CostModel
from meshflow.distribute.parallel.planner.hardware import Hardware, format_bytes, measure_hardware
from meshflow.distribute.parallel.planner.plans import Plan, create_mesh, plan
from meshflow.distribute.parallel.planner.trial import adopt_model
from meshflow.distribute.parallel.strategy import MeshStrategy, planners
from meshflow.environment.types import PyTree

# Number of the best candidates that are compiled and compared.
_NUM_COMPILED = 3
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


def suggest_plan(model: Any, batch: PyTree) -> str:
    """Describe a plan for this process's devices with which a step needs less memory than now.

    Args:
      model: A compiled model that ran out of memory.
      batch: Its batch.

    Returns:
      Sentences for the message of an error: the lines of a plan, or the reason why there is none.
    """
    devices = jax.local_devices()
    hardware = Hardware(len(devices), _get_device_memory(devices))
    rows = batch if isinstance(batch, tuple) else (batch,)
    try:
        found = plan(model, *rows, hardware=hardware)
    except ResourceExhaustedError as error:
        return str(error)
    except (OpError, ValueError, NotImplementedError) as error:
        return f"No plan can be suggested: {error}"
    limit = _estimate_present_memory(found, model.__dict__.get("_strategy_at_compile"))
    best = next((c for c in found.candidates if limit is None or c.memory < limit), None)
    if best is None:
        return (
            f"No plan for {len(devices)} devices holds less than the current step, which should fit by the estimate of "
            f"{format_bytes(limit or 0)}. Free other memory of the devices, or take a smaller batch."
        )
    lines = "".join(f"\n  {line}" for line in best.choice.to_script_lines())
    return (
        f"A plan that should fit holds {format_bytes(best.memory)} of {format_bytes(float(hardware.memory))} on each of "
        f"{len(devices)} devices:{lines}"
    )


def _estimate_present_memory(found: Plan, strategy: Any) -> int | None:
    """Return the least estimated bytes of plans that a strategy corresponds to, or None if there is none.

    Names of mesh dimensions and options that the planner does not consider, such as compression, are ignored.
    """
    options = getattr(strategy, "options", None)
    if not isinstance(options, ParallelOptions):
        copies = 1 if strategy is None else strategy.num_replicas_in_sync
        return CostModel(found.profile, found.hardware).estimate(PlanChoice(copies)).memory
    names: dict[str | None, str] = dict.fromkeys(strategy.batch_dimensions, "data")
    names[getattr(options.pipeline, "over", None)] = "stage"
    sizes = {"stage": 1, "data": 1, "model": 1}
    for name, size in zip(strategy.mesh.dim_names, strategy.mesh.shape(), strict=True):
        sizes[names.get(name, "model")] *= size
    wanted = *sizes.values(), _get_compared_options(options)
    memory = (
        c.memory
        for c in (*found.candidates, *found.dropped)
        if c.estimate is not None
        and (c.choice.stage, c.choice.data, c.choice.model) == wanted[:3]
        and _get_compared_options(ParallelOptions(**c.choice.options)) == wanted[3]
    )
    return min(memory, default=None)


def _get_compared_options(options: ParallelOptions) -> tuple[object, ...]:
    kinds, keep = sorted(options.offload_patterns), getattr(options.pipeline, "keep", None)
    return options.zero, options.micro_batches, options.recompute, options.sequence, kinds, keep


def _get_device_memory(devices: list[jax.Device]) -> int:
    """Return the bytes that each device may hold; CPU devices share the machine's memory."""
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    if limit is None:
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(devices)
    return int(limit)


planners["auto"] = _apply_best_plan
