"""The choice between running a program op by op and compiling it.

Compiling a program with XLA takes as long as many runs with the interpreter
(`meshflow.interpreter`). So a program runs op by op until the estimated time of these runs reaches
the estimated time of its compilation, and is compiled then. A program that runs rarely, for example
for one of many text lengths, is never compiled.

Both estimates depend only on the equations and shapes of the program, never on measured time. The
number of runs is also known without a measurement, so that a training that is repeated, or stopped
and resumed, computes the same bits although the two tiers round differently:

* `fit` knows the number of steps until its end, from its arguments and `optimizer.iterations`.
* Another function that reads `optimizer.iterations` is compiled from that step on. With symbolic
  sizes, it is compiled for exact sizes if compiling takes less than `RARE_RUNS` runs.
* Any other function counts its runs.

`MESHFLOW_TIER` selects one tier for all programs: "compile" or "interpret"; the default is "auto".
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.runtime import (
    philox_host,  # noqa: F401  # registers the interpreter's rules of random numbers
    transfers,
)
from meshflow.core.runtime.context import context
from meshflow.core.runtime.devices import get_default_device
from meshflow.core.values.trace_families import vary_unknown_sizes
from meshflow.environment.jax_internals import DeviceArray
from meshflow.environment.types import ClosedJaxpr
from meshflow.interpreter import CostEstimate, Plan, UnsupportedPrimitive, build_plan

_log = logging.getLogger("meshflow")

# Number of runs that is expected for a shape among many.
RARE_RUNS = 20
# An interpreted program must be expected to run at least this often before its compilation pays off.
_MIN_RUNS = 2


class TierSettings:
    """Settings of the process.

    Attributes:
      tier: "auto", "compile" or "interpret".
      is_profiling: Whether a profile is recorded, which shows the layers of compiled programs.
    """

    tier = os.environ.get("MESHFLOW_TIER", "auto")
    is_profiling = False


def is_interpreter_enabled() -> bool:
    """Check whether programs may run op by op now."""
    if TierSettings.tier == "compile" or TierSettings.is_profiling:
        return False
    if context.place_output is not None:
        return False
    return jax.default_backend() == "cpu"


def can_run_plan(plan: Plan, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Check whether a plan supports inputs of these shapes, and prepare it for them."""
    try:
        plan.bind(shapes)
    except UnsupportedPrimitive as error:
        _log.debug("The program is compiled: %s", error)
        return False
    return True


def run_plan(plan: Plan, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a plan on arrays, and check its results by `check_outputs`."""
    return check_outputs(plan.run(arrays))


def check_outputs(outputs: list[np.ndarray]) -> list[np.ndarray]:
    """Check results if JAX's options `jax_debug_nans` or `jax_debug_infs` are set, and return them.

    Raises:
      FloatingPointError: If a result is not finite and the options forbid that, like in JAX.
    """
    # JAX defines its options at run time.
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:  # type: ignore[attr-defined]
        for output in outputs:
            if jax.numpy.issubdtype(output.dtype, np.inexact):
                _check_values(output)
    return outputs


def _check_values(array: np.ndarray) -> None:
    if array.dtype.kind not in "fc":
        array = array.astype(np.float32)
    if jax.config.jax_debug_nans and np.isnan(array).any():  # type: ignore[attr-defined]
        raise FloatingPointError("invalid value (nan) encountered")
    if jax.config.jax_debug_infs and np.isinf(array).any():  # type: ignore[attr-defined]
        raise FloatingPointError("invalid value (inf) encountered")


class RunForecast(NamedTuple):
    """Numbers of runs of a step until the end of the training, including earlier ones, and shapes of batches.

    Attributes:
      runs: Number of all runs, or None if it is unknown.
      rare_runs: Number of runs with batches of a shape that occurs once per epoch, or None.
      has_variable_sizes: Whether all shapes are rare.
      batch_size: Number of rows of all batches but the last one of an epoch, or None if it is unknown.
      last_batch_size: Number of rows of the last batch of an epoch, or None if it is unknown.
      element_shapes: Shapes of the arrays of all batches, with None for unknown sizes; or None.

    Example:
      >>> forecast = RunForecast(320, 10, False, 64, 5, None)
      >>> forecast.expect_runs([(64, 3), (64,)]), forecast.expect_runs([(5, 3), (5,)])
      (320, 10)
      >>> forecast.expect_other_batch([(64, 3), (64,)])
      [(5, 3), (5,)]
    """

    runs: float | None
    rare_runs: float | None
    has_variable_sizes: bool
    batch_size: int | None
    last_batch_size: int | None
    element_shapes: Sequence[tuple[int | None, ...]] | None

    def expect_other_batch(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
        """Return shapes that a later batch is expected to have, given those of a batch; None if all are equal."""
        if self.has_variable_sizes and self.element_shapes is not None:
            if [len(s) for s in shapes] != [len(s) for s in self.element_shapes]:
                return None
            return vary_unknown_sizes(shapes, self.element_shapes)
        size = self.last_batch_size
        if size is None or size == self.batch_size:
            return None
        if any(not shape or shape[0] != self.batch_size for shape in shapes):
            return None
        return [(size, *shape[1:]) for shape in shapes]

    def expect_runs(self, shapes: Sequence[tuple[int, ...]]) -> float | None:
        """Return the expected number of runs with batches of these shapes, or None if it is unknown."""
        rows = shapes[0][0] if shapes and shapes[0] else None
        is_last = rows is not None and self.batch_size is not None and rows < self.batch_size
        return self.rare_runs if self.has_variable_sizes or is_last else self.runs


class InterpretedProgram:
    """A program that runs with the interpreter until compiling it pays off.

    Args:
      closed: The program. Its inputs may have symbolic sizes.
      has_unknown_sizes: Whether sizes depend on values. XLA cannot compile such a program.
      shares_results: Whether results are only moved to the device, which then shares their memory.

    Example:
      >>> import jax.numpy as jnp
      >>> program = InterpretedProgram(jax.make_jaxpr(lambda x: x + 1)(jnp.zeros(3)))
      >>> program.estimate_limit([np.arange(3.0)]) > 1, program.run([np.arange(3.0)])[0].tolist()
      (True, [1.0, 2.0, 3.0])
    """

    def __init__(
        self, closed: ClosedJaxpr, has_unknown_sizes: bool = False, shares_results: bool = False
    ) -> None:
        self._closed = closed
        self._allocate = transfers.allocate if shares_results else None
        self._has_unknown_sizes = has_unknown_sizes
        self._plan: Plan | None = None
        self._costs: CostEstimate | None = None
        self._is_supported = True
        # The number of runs so far, and the result of `estimate_limit`, by the shapes of operands.
        self._runs: dict[Hashable, int] = {}
        self._limits: dict[Hashable, float] = {}
        self._limits_by_magnitude: dict[Hashable, float] = {}

    def estimate_limit(self, operands: Sequence[Any]) -> float:
        """Return the number of runs that take as long as compiling the program; 0 if it must be compiled.

        Args:
          operands: Arrays.
        """
        if not self._is_supported or not are_local(operands):
            return 0.0
        key = tuple([o.shape for o in operands])
        limit = self._limits.get(key)
        if limit is None:
            plan = self._make_plan()
            is_supported = plan is not None and can_run_plan(plan, key)
            limit = self._limits[key] = self._estimate_limit(key) if is_supported else 0.0
        return limit

    def count_run(self, operands: Sequence[Any]) -> int:
        """Count a run, and return the number of runs with operands of these shapes.

        Args:
          operands: Arrays.
        """
        key = tuple([o.shape for o in operands])
        runs = self._runs[key] = self._runs.get(key, 0) + 1
        return runs

    def _estimate_limit(self, shapes: Sequence[tuple[int, ...]]) -> float:
        if TierSettings.tier == "interpret" or self._has_unknown_sizes:
            return math.inf
        # Sizes with the same number of bits have similar costs.
        magnitudes = tuple([tuple([n.bit_length() for n in shape]) for shape in shapes])
        limit = self._limits_by_magnitude.get(magnitudes)
        if limit is None:
            if self._costs is None:
                self._costs = CostEstimate(self._closed)
            estimate = self._costs.bind(shapes)
            limit = estimate.compile_seconds / max(estimate.run_seconds, 1e-9)
            self._limits_by_magnitude[magnitudes] = limit
        return limit if limit >= _MIN_RUNS else 0.0

    def release_memory(self) -> None:
        """Forget the plan and its arrays; a later run makes it again."""
        self._plan = None

    def _make_plan(self) -> Plan | None:
        plan = self._plan
        if plan is None and self._is_supported:
            try:
                plan = self._plan = build_plan(self._closed, (), self._allocate)
            except Exception as error:
                # XLA compiles every program, also one with an equation that the interpreter does not
                # know.
                _log.debug("The program is compiled: %r", error)
                self._is_supported = False
        return plan

    def run(self, operands: Sequence[Any]) -> list[jax.Array]:
        """Run the program, after `estimate_limit` returned a positive number.

        Args:
          operands: Arrays.
        """
        return [transfers.to_device(o) for o in self.run_on_host(operands)]

    def run_on_host(self, operands: Sequence[Any]) -> list[np.ndarray]:
        """Run the program like `run`, and return host arrays."""
        plan = self._make_plan()
        assert plan is not None
        return run_plan(plan, [np.asarray(o) for o in operands])


def are_local(operands: Sequence[Any]) -> bool:
    """Check whether all operands are on the host or on the only device."""
    # Shardings of arrays on that device. The check of a device takes microseconds.
    local_ids: set[int] = set()
    for operand in operands:
        if type(operand) is not DeviceArray:
            if not is_local(operand):
                return False
        elif id(operand.sharding) not in local_ids:
            if not is_local(operand):
                return False
            local_ids.add(id(operand.sharding))
    return True


def is_local(operand: object) -> bool:
    """Check whether an operand is on the host or on the only device."""
    if isinstance(operand, np.ndarray):
        return operand.dtype != object
    return (
        isinstance(operand, jax.Array)
        and not jax.dtypes.issubdtype(operand.dtype, jax.dtypes.extended)
        and type(operand.sharding) is jax.sharding.SingleDeviceSharding
        and operand.devices() == {get_default_device()}
    )
