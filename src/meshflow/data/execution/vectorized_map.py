"""Programs of a traced function for many elements at once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.core.tracing.trace import TracedFunction
from meshflow.core.values import nest
from meshflow.data.execution.chunks import ProgramSizes
from meshflow.data.execution.cpu_programs import compile_for_cpu
from meshflow.environment.types import PyTree


class VectorizedMap:
    """The execution of a traced function that writes no variables, for many elements.

    Args:
      traced: The function.

    Attributes:
      traced: See above.
    """

    def __init__(self, traced: TracedFunction) -> None:
        self.traced = traced
        self._sizes = ProgramSizes()
        self._program = compile_for_cpu(jax.vmap(traced.run_row, in_axes=(0, None)))
        self._scan = compile_for_cpu(self._run_scan)

    def compute(self, leaves: list[Any]) -> list[Any]:
        """Compute the stacked results for stacked elements.

        Args:
          leaves: Stacked leaves of the elements.
        """
        padded = self._sizes.pad_chunk(leaves)
        results = self._program(padded, self.traced.get_captured_arrays())
        return [np.asarray(r)[: len(leaves[0])] for r in results]

    def scan(self, state: list[Any], leaves: list[Any]) -> tuple[list[Any], list[Any]]:
        """Compute the stacked results of a function of a state and an element, for consecutive elements.

        Args:
          state: Leaves of the state before the first element.
          leaves: Stacked leaves of the elements.

        Returns:
          The leaves of the state after the last element, and the stacked results.
        """
        padded = self._sizes.pad_chunk(leaves)
        results = self._scan(state, padded, self.traced.get_captured_arrays())
        arrays = [np.asarray(r)[: len(leaves[0])] for r in results]
        return [a[-1] for a in arrays[: len(state)]], arrays[len(state) :]

    def _run_scan(self, state: list[Any], leaves: list[Any], captures: list[Any]) -> PyTree:
        traced = self.traced

        def step(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            arrays = traced.run_on_arrays([*carry, *row], captures)
            found = nest.flatten(traced.rebuild_result(arrays[: traced.num_results]))
            return found[: len(carry)], found

        return jax.lax.scan(step, state, leaves)[1]
