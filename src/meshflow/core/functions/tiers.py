"""The choice between running a program op by op and compiling it.

Compiling a program with XLA takes as long as many runs with the interpreter
(`meshflow.interpreter`). So a program runs op by op until the estimated time of these runs reaches
the estimated time of its compilation, and is compiled then. A program that runs rarely, for example
for one of many text lengths, is never compiled.

Both estimates depend only on the equations and shapes of the program and never on measured time, so
a script computes the same bits whenever it runs. The counts of runs are part of the training state
(`RunCounts`), because the two tiers round differently.

`MESHFLOW_TIER` selects one tier for all programs: "compile" or "interpret"; the default is "auto".
With op determinism (`tf.config.experimental.enable_op_determinism`), all programs are compiled.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime import determinism, transfers
from meshflow.core.runtime.context import context
from meshflow.environment.types import ClosedJaxpr
from meshflow.interpreter import Plan, UnsupportedPrimitive, build_plan, estimate_costs

__all__ = ["OpByOpProgram", "TierSettings"]

# An interpreted program must be expected to run at least this often before its compilation pays off.
_MIN_RUNS = 2


class TierSettings:
    """Settings of the process.

    Attributes:
      tier: "auto", "compile" or "interpret".
    """

    tier = os.environ.get("MESHFLOW_TIER", "auto")


def is_interpreter_enabled() -> bool:
    """Check whether programs may run op by op now."""
    if TierSettings.tier == "compile" or context.place_output is not None:
        return False
    if determinism.is_enabled() and TierSettings.tier == "auto":
        return False
    # JAX defines its options at run time.
    debugs_nans: bool = jax.config.jax_debug_nans  # type: ignore[attr-defined]
    return jax.default_backend() == "cpu" and not debugs_nans


class OpByOpProgram:
    """A program that runs op by op until compiling it pays off.

    Args:
      closed: The program. Its inputs may have symbolic sizes.

    Example:
      >>> import jax.numpy as jnp
      >>> program = OpByOpProgram(jax.make_jaxpr(lambda x: x + 1)(jnp.zeros(3)))
      >>> program.should_run([np.arange(3.0)]), [a.tolist() for a in program.run([np.arange(3.0)])]
      (True, [[1.0, 2.0, 3.0]])
    """

    def __init__(self, closed: ClosedJaxpr) -> None:
        self._closed = closed
        self._plan: Plan | None = None
        self._is_supported = True
        # The number of runs so far, and the number from which on the program is compiled, by shapes.
        self._runs: dict[Hashable, int] = {}
        self._limits: dict[Hashable, float] = {}

    def should_run(self, operands: Sequence[Any]) -> bool:
        """Check whether the next run with these operands is op by op, and count it.

        Args:
          operands: Arrays.
        """
        if not self._is_supported or not all(map(_is_local, operands)):
            return False
        key = tuple([o.shape for o in operands])
        runs = self._runs[key] = self._runs.get(key, 0) + 1
        if TierSettings.tier == "interpret":
            return self._make_plan()
        limit = self._limits.get(key)
        if limit is None:
            limit = self._limits[key] = self._estimate_limit(operands)
        return runs <= limit and self._make_plan()

    def _estimate_limit(self, operands: Sequence[Any]) -> float:
        estimate = estimate_costs(self._closed).bind([o.shape for o in operands])
        limit = estimate.compile_seconds / max(estimate.run_seconds, 1e-9)
        return limit if limit >= _MIN_RUNS else 0

    def _make_plan(self) -> bool:
        if self._plan is None and self._is_supported:
            try:
                self._plan = build_plan(self._closed)
            except UnsupportedPrimitive:
                self._is_supported = False
        return self._is_supported

    def run(self, operands: Sequence[Any]) -> list[jax.Array]:
        """Run the program after `should_run` returned True.

        Args:
          operands: Arrays.
        """
        assert self._plan is not None
        outputs = self._plan.run([np.asarray(o) for o in operands])
        return [transfers.to_device(o) for o in outputs]


def _is_local(operand: object) -> bool:
    """Check whether an operand is on the host or on the only device."""
    if isinstance(operand, np.ndarray):
        return operand.dtype != object
    return (
        isinstance(operand, jax.Array)
        and not jax.dtypes.issubdtype(operand.dtype, jax.dtypes.extended)
        and type(operand.sharding) is jax.sharding.SingleDeviceSharding
        and operand.devices() == {_get_default_device()}
    )


def _get_default_device() -> Any:
    # JAX defines its options at run time.
    return jax.config.jax_default_device or jax.local_devices()[0]  # type: ignore[attr-defined]
