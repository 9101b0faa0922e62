"""Jacobians of recorded computations: their rows are gradients, computed together."""

from __future__ import annotations

from typing import overload

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.gradient_targets import (
    UnconnectedGradients,
    convert_target,
    parse_unconnected,
)
from meshflow.core.gradients.row_mapping import map_rows
from meshflow.core.gradients.tape_nodes import to_dense
from meshflow.core.runtime.context import context
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree


@hide_frames_of_methods
class JacobianMethods:
    """The methods of `GradientTape` that compute several gradients of each target."""

    _persistent: bool

    def _mark_used(self) -> None:
        raise NotImplementedError

    def _compute_gradient(
        self,
        target: PyTree,
        sources: PyTree,
        output_gradients: PyTree,
        unconnected: UnconnectedGradients,
    ) -> PyTree:
        raise NotImplementedError

    @overload
    def jacobian(
        self,
        target: TensorLike,
        sources: Tensor | Variable,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Tensor: ...
    @overload
    def jacobian(
        self,
        target: TensorLike,
        sources: PyTree,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> PyTree: ...
    def jacobian(
        self,
        target: TensorLike,
        sources: PyTree,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> PyTree:
        """Compute all partial derivatives of `target` with respect to `sources`.

        Args:
          target: One tensor.
          sources: Tensors or variables, in any nested structure.
          unconnected_gradients: See `gradient`.
          parallel_iterations: Ignored; `jax.vmap` computes all rows together.
          experimental_use_pfor: Ignored, but in eager mode, False requires a persistent tape.

        Returns:
          For each source, a tensor of shape `target.shape + source.shape`.

        Raises:
          RuntimeError: If a tape that is not persistent is used twice.

        Example:
          >>> x = tf.constant([1.0, 2.0])
          >>> with tf.GradientTape() as tape:
          ...     tape.watch(x)
          ...     y = x * x
          >>> tape.jacobian(y, x).numpy()
          array([[2., 0.],
                 [0., 4.]], dtype=float32)
        """
        del parallel_iterations
        self._begin("jacobian", experimental_use_pfor)
        if context.graph is not None and context.trace is None:
            return context.graph.compute_jacobian(target, sources, unconnected_gradients)
        target = convert_target(target)
        shape = tuple(target.array.shape)
        size = int(np.prod(shape))
        basis = np.eye(size, dtype=target.dtype.dtype).reshape((size, *shape))
        rows = self._compute_rows(target, sources, basis, unconnected_gradients)
        return nest.map_structure(
            lambda r: None if r is None else apply(_reshape, (r,), (*shape, *r.array.shape[1:])),
            rows,
        )

    def batch_jacobian(
        self,
        target: Tensor,
        source: Tensor | Variable,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Tensor:
        """Compute the Jacobian of each example: `target[i]` with respect to `source[i]` only.

        Args:
          target: Tensor of shape [b, ...].
          source: Tensor of shape [b, ...].
          unconnected_gradients: See `gradient`.
          parallel_iterations: Ignored.
          experimental_use_pfor: See `jacobian`.

        Returns:
          A tensor of shape [b, *target.shape[1:], *source.shape[1:]]; zeros if independent.

        Raises:
          ValueError: If the batch dimensions differ, or if a tensor has no other dimension.
          RuntimeError: If a tape that is not persistent is used twice.
        """
        del parallel_iterations
        self._begin("batch_jacobian", experimental_use_pfor)
        target = convert_target(target)
        for role, shape in (("target", target.shape), ("source", source.shape)):
            if len(shape) < 2:
                raise ValueError(f"{role} must have rank at least 2, got shape {shape}.")
        if target.shape[0] != source.shape[0]:
            raise ValueError(
                "Need first dimension of target shape "
                f"{target.shape} and source shape {source.shape} to match."
            )
        parse_unconnected(unconnected_gradients)
        if context.graph is not None and context.trace is None:
            zero = UnconnectedGradients.ZERO
            return context.graph.compute_jacobian(target, source, zero, is_batch=True)
        batch, *inner = target.array.shape
        size = int(np.prod(inner))
        # Row k is 1 at inner position k of every example, because examples are independent.
        basis = np.broadcast_to(
            np.eye(size, dtype=target.dtype.dtype).reshape((size, 1, *inner)), (size, batch, *inner)
        )
        rows = self._compute_rows(target, source, basis, UnconnectedGradients.ZERO)
        transposed = apply(_swap_first_axes, (rows,))
        return apply(_reshape, (transposed,), (batch, *inner, *source.shape[1:]))

    def _begin(self, method: str, use_pfor: bool) -> None:
        """Check that the tape may compute a Jacobian, and record that it does."""
        if not use_pfor and not self._persistent and context.trace is None:
            raise RuntimeError(
                f"GradientTape must be created with persistent=True to compute the {method} with eager "
                "execution enabled and with experimental_use_pfor set to False."
            )
        self._mark_used()

    def _compute_rows(
        self,
        target: Tensor,
        sources: PyTree,
        basis: np.ndarray,
        unconnected: UnconnectedGradients | str,
    ) -> PyTree:
        kind = parse_unconnected(unconnected)
        return map_rows(
            lambda seed: nest.map_structure(
                to_dense, self._compute_gradient(target, sources, seed, kind)
            ),
            Tensor(basis),
        )


_reshape = Op("reshape", lambda operands, static: jax.numpy.reshape(operands[0], static))
_swap_first_axes = Op("transpose", lambda operands, _: jax.numpy.moveaxis(operands[0], 0, 1))
