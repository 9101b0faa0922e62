"""Plans that run a jaxpr op by op on host arrays.

A `SlotProgram` has the parts of a jaxpr that serve any sizes: its equations with calls inlined, a slot for each
value, the last use of each value, and the arrays that results overwrite. `SlotProgram.bind` makes a
closure of each equation for given sizes of the symbolic dimensions; closures that do not depend on
them are made once. A run calls the closures in order on a list of values.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence

import numpy as np

from meshflow.environment.garbage_collection import suspend_collector
from meshflow.environment.types import ClosedJaxpr
from meshflow.interpreter.blas_threads import single_thread_blas
from meshflow.interpreter.program import MAX_BINDINGS, Allocate, BoundProgram, SlotProgram
from meshflow.interpreter.symbolic_sizes import InputSizes

# Primitives that use BLAS or LAPACK.
_PRODUCTS = frozenset(
    ["dot_general", "conv_general_dilated", "ragged_dot_general", "triangular_solve", "lu", "qr"]
    + ["cholesky", "eigh", "eig", "svd"]
)

# Options of `mallopt` in <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


class Plan:
    """A program that runs on host arrays.

    Args:
      closed: The jaxpr; its dimensions may be symbolic.
      donated: Indices of the inputs that a run may overwrite. A run that fails, for example in a
        check or a callback, leaves them in an undefined state.
      allocate: Makes arrays for results, given a shape and a dtype; by default NumPy.

    Raises:
      UnsupportedPrimitive: If a primitive has no rule.
    """

    def __init__(
        self,
        closed: ClosedJaxpr,
        donated: Sequence[int] = (),
        allocate: Allocate | None = None,
    ) -> None:
        self._sizes = InputSizes([aval.shape for aval in closed.in_avals])
        _keep_memory()
        with suspend_collector:
            self._program = SlotProgram(closed, donated, allocate=allocate)
        self._donated = tuple(donated)
        has_products = not _PRODUCTS.isdisjoint(self._program.names)
        self._blas_scope = single_thread_blas if has_products else None
        self._bindings: dict[tuple[int, ...], BoundProgram] = {}

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the program.

        Args:
          arrays: The inputs. Symbolic dimensions have the sizes of their axes.

        Returns:
          New arrays, which share no memory with each other, or with inputs that are not donated.

        Raises:
          UnsupportedPrimitive: If a rule rejects the parameters of an equation with symbolic sizes.
          ValueError: If the shapes of the inputs contradict each other.
        """
        if self._donated:
            arrays = list(arrays)
            for i in self._donated:
                if not arrays[i].flags.writeable:
                    arrays[i] = arrays[i].copy()
        return self.run_bound(self.bind([a.shape for a in arrays]), arrays)

    def run_bound(self, bound: BoundProgram, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run the result of `bind` for the shapes of the inputs; see `run`."""
        with np.errstate(all="ignore"):
            if self._blas_scope is None:
                results = bound.run(arrays)
            else:
                with self._blas_scope:
                    results = bound.run(arrays)
        is_copied = self._program.is_copied
        return [
            r
            if type(r) is np.ndarray and not copies and r.flags.c_contiguous
            else np.array(r, order="C", copy=copies or None)
            for r, copies in zip(results, is_copied, strict=True)
        ]

    def bind(self, shapes: Sequence[Sequence[int]]) -> BoundProgram:
        """Return the functions of all equations for inputs of these shapes.

        Raises:
          UnsupportedPrimitive: If a rule rejects the parameters of an equation.
        """
        key = () if self._sizes.is_static else self._sizes.read(shapes)
        bound = self._bindings.get(key)
        if bound is None:
            dims = self._sizes.solve(key)
            with suspend_collector:
                bound = self._program.bind(dims)
            if len(self._bindings) >= MAX_BINDINGS:
                self._bindings.clear()
            self._bindings[key] = bound
        return bound


@functools.cache
def _keep_memory() -> None:
    """Let the C library keep freed memory for the next run, where it can: the system clears new memory.

    `library.trim_heap` returns it, for example before a compilation.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    is_configured = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys()
    if set_option is not None and not is_configured:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        set_option(_MMAP_THRESHOLD, 32 << 20)
        set_option(_TRIM_THRESHOLD, min(512 << 20, physical // 16))


def build_plan(
    closed: ClosedJaxpr, donated: Sequence[int] = (), allocate: Allocate | None = None
) -> Plan:
    """Plan the execution of a jaxpr op by op; the arguments are those of `Plan`.

    Raises:
      UnsupportedPrimitive: If a primitive has no rule.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> plan = build_plan(jax.make_jaxpr(lambda x: jnp.tanh(x) * 2)(np.zeros(2, "float32")))
      >>> plan.run([np.array([0.0, 1.0], "float32")])
      [array([0.       , 1.5231884], dtype=float32)]
    """
    return Plan(closed, donated, allocate)
