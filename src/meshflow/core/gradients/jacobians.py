"""Jacobians of what a tape recorded: rows of gradients, computed together."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.gradients.gradient_targets import UnconnectedGradients, as_target, as_unconnected
from meshflow.core.gradients.nodes import whole
from meshflow.core.gradients.vectorized_map import rows_of_gradient
from meshflow.core.runtime.context import context
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor


class Jacobians:
    """The methods of `GradientTape` that give more than one gradient for each target."""

    _persistent: bool

    def _use(self) -> None:
        raise NotImplementedError

    def _gradient(self, target: Any, sources: Any, output_gradients: Any, unconnected: Any) -> Any:
        raise NotImplementedError

    def jacobian(
        self,
        target: Any,
        sources: Any,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """All partial derivatives of `target` with respect to `sources`.

        Args:
          target: one tensor.
          sources: tensors or variables, in any nested structure.
          unconnected_gradients: as in `gradient`.
          parallel_iterations: ignored; rows are computed together with `jax.vmap`.
          experimental_use_pfor: ignored, except that False needs a persistent tape in eager mode.

        Returns:
          For each source a tensor of shape `target.shape + source.shape`.

        Raises:
          RuntimeError: when a tape that is not persistent is used twice.

        Example:
          >>> import meshflow as tf
          >>> x = tf.constant([1.0, 2.0])
          >>> with tf.GradientTape() as tape:
          ...     tape.watch(x)
          ...     y = x * x
          >>> tape.jacobian(y, x).numpy()
          array([[2., 0.],
                 [0., 4.]], dtype=float32)
        """
        del parallel_iterations
        self._check_row_by_row("jacobian", experimental_use_pfor)
        target = as_target(target)
        shape = tuple(target._value.shape)
        basis = np.eye(int(np.prod(shape)), dtype=target.dtype.dtype).reshape((-1, *shape))
        rows = self._rows(target, sources, basis, unconnected_gradients)
        return nest.map_structure(
            lambda row: None if row is None else _reshape(row, (*shape, *row._value.shape[1:])),
            rows,
        )

    def batch_jacobian(
        self,
        target: Tensor,
        source: Any,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Jacobian of each example: `target[i]` with respect to `source[i]` only.

        Args:
          target: tensor of shape [b, ...].
          source: tensor of shape [b, ...].
          unconnected_gradients: as in `gradient`.
          parallel_iterations: ignored.
          experimental_use_pfor: as in `jacobian`.

        Returns:
          A tensor of shape [b, *target.shape[1:], *source.shape[1:]]; zeros when `target` does not
          depend on `source`.

        Raises:
          ValueError: when the batch dimensions differ, or a tensor has no other dimension.
          RuntimeError: when a tape that is not persistent is used twice.
        """
        del parallel_iterations
        self._check_row_by_row("batch_jacobian", experimental_use_pfor)
        target = as_target(target)
        for role, shape in (("target", target.shape), ("source", source.shape)):
            if len(shape) < 2:
                raise ValueError(f"{role} must have rank at least 2, got shape {shape}.")
        if target.shape[0] != source.shape[0]:
            raise ValueError(
                "Need first dimension of target shape "
                f"{target.shape} and source shape {source.shape} to match."
            )
        batch, *inner = target._value.shape
        size = int(np.prod(inner))
        # Row k has a one at inner position k of every example, as examples do not interact.
        basis = np.broadcast_to(
            np.eye(size, dtype=target.dtype.dtype).reshape((size, 1, *inner)), (size, batch, *inner)
        )
        as_unconnected(unconnected_gradients)
        rows = self._rows(target, source, basis, UnconnectedGradients.ZERO)
        moved = _move_first_to_second(rows)
        return _reshape(moved, (batch, *inner, *source.shape[1:]))

    def _check_row_by_row(self, method: str, together: bool) -> None:
        if not together and not self._persistent and context.trace is None:
            raise RuntimeError(
                f"GradientTape must be created with persistent=True to compute the {method} with eager "
                "execution enabled and with experimental_use_pfor set to False."
            )

    def _rows(self, target: Tensor, sources: Any, basis: Any, unconnected: Any) -> Any:
        self._use()
        kind = as_unconnected(unconnected)
        return rows_of_gradient(
            lambda seed: nest.map_structure(whole, self._gradient(target, sources, seed, kind)),
            Tensor(basis),
        )


_reshape_op = Op("reshape", lambda operands, static: jax.numpy.reshape(operands[0], static))


_move_op = Op("transpose", lambda operands, _: jax.numpy.moveaxis(operands[0], 0, 1))


def _reshape(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return apply(_reshape_op, (tensor,), shape)


def _move_first_to_second(tensor: Tensor) -> Tensor:
    return apply(_move_op, (tensor,))
