"""Placeholders for values and sizes while only the shape of a result is determined.

The result shape of some layers depends on values (`tf.boolean_mask`), and that of a Python function
on its code. Such a function is traced twice, with different placeholders. Sizes that differ between
the traces are unknown.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.operands import flatten_tensors
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array, PyTree

T = TypeVar("T")


class ShapeProbe:
    """A source of placeholder values for one trace.

    Args:
      trace_index: 0 for the first trace, 1 for the second.
      invents_sizes: Whether unknown sizes are replaced by numbers, for which assertions do not hold.

    Attributes:
      used: Whether a placeholder value was created.
      invented_size: The number that replaces unknown sizes, or 0.
      max_elements: Maximum number of elements of a placeholder value.
    """

    def __init__(self, trace_index: int, invents_sizes: bool = False) -> None:
        self.trace_index, self.invents_sizes = trace_index, invents_sizes
        self.used = False
        self.invented_size = 0
        self.max_elements = math.inf

    def check_size(self, shape: Sequence[int]) -> None:
        """Raise a `ValueNeededError` if a placeholder of a shape would be too large."""
        if math.prod(shape) > self.max_elements:
            raise ValueNeededError(f"A placeholder value of shape {tuple(shape)} is too large.")

    def make_value(self, tensor: Tensor) -> np.ndarray:
        """Return a placeholder value.

        Booleans are all True in the first trace and half True in the second. Numbers are 2 or 4,
        which divide most sizes, and one of several numbers is different in the second trace.
        """
        self.used = True
        shape, dtype = tensor.array.shape, tensor.dtype.as_numpy_dtype
        self.check_size(shape)
        if not tensor.dtype.is_bool:
            values: np.ndarray = np.full(shape, 2 * (self.trace_index + 1), dtype)
            if self.trace_index and values.size > 1:
                values.flat[0] = 1
            return values
        size = int(np.prod(shape))
        return (np.arange(size) < (size if self.trace_index == 0 else (size + 1) // 2)).reshape(
            shape
        )


@contextlib.contextmanager
def probe_shapes(probe: ShapeProbe) -> Iterator[None]:
    """Use placeholder values where a trace needs values that only a running program knows."""
    saved, context.value_probe = context.value_probe, probe
    try:
        yield
    finally:
        context.value_probe = saved


class SizeProbe:
    """Sizes for the unknown shapes of one trace.

    Args:
      size: The size that replaces unknown ones; None to only record the results of Python functions.
      results: Traced placeholders for the results of Python functions, None for strings.
      specs: Specs of these results in an earlier run, which determine the ranks.

    Attributes:
      specs: The specs that were passed, or were recorded.
    """

    def __init__(
        self,
        size: int | None = None,
        results: Sequence[Tensor | None] = (),
        specs: Sequence[TensorSpec] = (),
    ) -> None:
        self.size, self.specs = size, list(specs)
        self._results = iter(zip(results, specs, strict=True))

    def make_result(self, spec: TensorSpec) -> Tensor:
        """Return a placeholder for the next result of a Python function.

        Args:
          spec: The declared spec.

        Raises:
          ValueError: If the earlier run had no such result.
        """
        tensor, observed = next(self._results, (None, None))
        if observed is None or observed.dtype is not spec.dtype:
            raise ValueError("The results of Python functions differ between two runs.")
        if tensor is None:
            tensor = Tensor(np.full([self.size] * len(observed.shape), b"", object))
        tensor.set_shape(spec.shape)
        return tensor

    def refine_array(self, array: Array, shape: ShapeLike) -> Array:
        """Return the array, or one of the declared shape if the probe sizes contradict it."""
        declared = TensorShape(shape)
        if declared.rank is None or self.size is None or declared.is_compatible_with(array.shape):
            return array
        is_same_rank = declared.rank == len(array.shape)
        old = array.shape if is_same_rank else [self.size] * declared.rank
        sizes = [o if n is None else n for o, n in zip(old, declared.as_list(), strict=True)]
        if array.dtype == object:
            return np.full(sizes, b"", object)
        return jnp.zeros(sizes, array.dtype)

    def retry_op(
        self,
        name: str,
        run: Callable[[list[PyTree]], PyTree],
        operands: Sequence[PyTree],
        static: tuple[PyTree, ...],
    ) -> Tensor | None:
        """Determine the result of an op whose operands the probe sizes made incompatible.

        Probe sizes are replaced by 1, which is compatible with any size of another operand.

        Args:
          name: Name of the op.
          run: Runs the op.
          operands: Its operands, tensors or None.
          static: Its static arguments.

        Returns:
          A placeholder for the result, or None if the op fails.
        """
        if self.size is None:
            return None
        if name == "reshape":
            sizes = [self.size if n == -1 else n for n in static[0]]
            return Tensor(jnp.zeros(sizes, operands[0].array.dtype))
        rank = max((len(t.shape) for t in flatten_tensors(operands)), default=0)

        def shrink(operand: PyTree) -> PyTree:
            if not isinstance(operand, Tensor):
                return operand
            sizes = [1 if n == self.size else n for n in operand.shape.as_list()]
            return Tensor(jnp.zeros(sizes, operand.array.dtype))

        try:
            result = run([shrink(operand) for operand in operands])
        except (TypeError, ValueError, IndexError, ArithmeticError):
            return None
        if not isinstance(result, Tensor) or len(result.shape) != rank:
            return None
        sizes = [self.size if n == 1 else n for n in result.shape.as_list()]
        return Tensor(jnp.zeros(sizes, result.array.dtype))


def vary_sizes(array: np.ndarray, *axes: int) -> np.ndarray:
    """Return an array whose sizes on some axes depend on the contents of strings.

    While only shapes are determined, these sizes are replaced by the size of the probe, and the
    contents are repeated or cut.

    Args:
      array: The array.
      axes: The axes.
    """
    probe = context.size_probe
    if probe is None or not probe.size:
        return array
    for axis in axes:
        if array.shape[axis]:
            array = array.take(np.arange(probe.size) % array.shape[axis], axis)
        else:
            sizes = [*array.shape]
            sizes[axis] = probe.size
            array = np.full(sizes, b"" if array.dtype == object else 0, array.dtype)
    return array


def vary_length(items: list[T]) -> list[T]:
    """Return a list whose length depends on the contents of strings, as `vary_sizes` does for arrays."""
    probe = context.size_probe
    if probe is None or not probe.size or not items:
        return items
    return [items[i % len(items)] for i in range(probe.size)]


@contextlib.contextmanager
def probe_sizes(probe: SizeProbe) -> Iterator[SizeProbe]:
    """Use or record shapes that only a running Python function determines."""
    saved, context.size_probe = context.size_probe, probe
    try:
        yield probe
    finally:
        context.size_probe = saved
