"""Ops that find the k largest elements, exactly or approximately, or test for membership in them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.autograph.runtime.logical_operators import assert_
from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import are_different
from meshflow.core.values.symbolic_sizes import has_symbolic_size, make_sizes_tensor, pad_empty
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.casting import cast

__all__ = ["approx_max_k", "approx_min_k", "in_top_k", "top_k"]


@op(kinds="if", name="top_k")
def _top_k(input: TensorLike, k: int) -> tuple[Tensor, Tensor]:
    if k < 0:
        raise InvalidValueError(f"Need k >= 0, got {k}: it must be non-negative. [Op:TopKV2]")
    if not input.ndim:
        raise InvalidValueError("input must be >= 1-D, got a scalar. [Op:TopKV2]")
    is_floating = jnp.issubdtype(input.dtype, jnp.floating)
    # The additional columns follow all others, also equal ones; other runtimes do not check that there are k others.
    x = pad_empty(input, -1, -jnp.inf if is_floating else jnp.iinfo(input.dtype).min, k)
    if k > x.shape[-1]:
        raise ValueError(f"input must have at least k columns. Had {x.shape[-1]}, needed {k}")
    for axis in range(x.ndim - 1):
        x = pad_empty(x, axis)
    if is_floating:
        # XLA orders -0 after 0, but TensorFlow orders equal values by their indices.
        ranked = jax.lax.stop_gradient(jnp.where(x == 0, jnp.zeros((), x.dtype), x))
        indices = jax.lax.top_k(ranked, k)[1]
        results = jnp.take_along_axis(x, indices, axis=-1), indices
    else:
        values, indices = jax.lax.top_k(x, k)
        results = values, indices
    if x is input:
        return results
    return tuple(jax.lax.slice(y, [0] * y.ndim, (*input.shape[:-1], k)) for y in results)


@op(same=(), differentiable=False, name="greater_equal")
def _has_columns(count: TensorLike, k: int) -> Tensor:
    return jnp.all(count >= k)


@dispatch_composites
def top_k(
    input: TensorLike,
    k: int = 1,
    sorted: bool = True,
    index_type: DTypeLike | None = None,
    name: str | None = None,
) -> TopKV2:
    """Find the k largest elements of the last dimension and their indices.

    Args:
      input: Tensor of shape [..., n], n at least k.
      k: Number of elements.
      sorted: Ignored; the result is always in descending order.
      index_type: Dtype of the indices; default int32.
      name: Ignored.

    Returns:
      A named tuple (values, indices), each of shape [..., k].

    Example:
      >>> tf.math.top_k([1, 9, 4], k=2).indices.numpy()
      array([1, 2], dtype=int32)
    """
    input = convert_to_tensor(input)
    if context.exporting and input.ndim and has_symbolic_size(input.shape[-1:]):
        count = make_sizes_tensor(tuple(input.shape[-1:]), np.dtype(np.int64))
        text = f"input must have at least k columns, k={k}"
        assert_(_has_columns(count, k), lambda: text, text)
    values, indices = _top_k(input, k)
    return TopKV2(values, indices if index_type is None else cast(indices, index_type))


class TopKV2(tuple):
    """Result of `top_k`: `values` and `indices`."""

    __slots__ = ()
    _fields = ("values", "indices")

    def __new__(cls, values: Tensor, indices: Tensor) -> TopKV2:
        return super().__new__(cls, (values, indices))

    @property
    def values(self) -> Tensor:
        """Return the elements."""
        return self[0]

    @property
    def indices(self) -> Tensor:
        """Return the indices of the elements."""
        return self[1]


@op(same=(), differentiable=False)
def in_top_k(
    targets: TensorLike, predictions: TensorLike, k: int, name: str | None = None
) -> Tensor:
    """Check whether the prediction for the target class is one of the k largest.

    Args:
      targets: Class indices, shape [batch].
      predictions: Scores, shape [batch, classes].
      k: Number of largest predictions.
      name: Ignored.

    Returns:
      Booleans of shape [batch]; False if a target is out of range or a prediction is not finite.

    Example:
      >>> print(tf.math.in_top_k([0, 0], [[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]], k=2).numpy())
      [ True False]
    """
    for argument, x, rank in (("predictions", predictions, 2), ("targets", targets, 1)):
        if x.ndim != rank:
            raise InvalidArgumentError(
                f"{argument} must be {rank}-dimensional, got shape {x.shape}"
            )
    if are_different(targets.shape[0], predictions.shape[0]):
        raise InvalidValueError(
            f"First dimension of predictions {predictions.shape[0]} must match length of targets "
            f"{targets.shape[0]}"
        )
    classes = predictions.shape[-1]
    targets = jnp.asarray(targets)
    valid = (targets >= 0) & (targets < classes)
    index = jnp.clip(targets, 0, classes - 1).astype(jnp.int32)
    target_scores = jnp.take_along_axis(pad_empty(predictions, -1), index[:, None], axis=-1)
    num_larger = jnp.sum(predictions > target_scores, axis=-1)
    return valid & jnp.all(jnp.isfinite(predictions), axis=-1) & (num_larger < k)


@op(kinds="f", name="approx_top_k")
def _approx_top_k(
    operand: TensorLike,
    k: int,
    dimension: int,
    recall: float,
    size: int,
    whole: bool,
    largest: bool,
) -> tuple[Tensor, Tensor]:
    function = jax.lax.approx_max_k if largest else jax.lax.approx_min_k
    values, indices = function(
        operand,
        k,
        reduction_dimension=dimension,
        recall_target=recall,
        reduction_input_size_override=size,
        aggregate_to_topk=whole,
    )
    return values, indices


def approx_max_k(
    operand: TensorLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Find approximately the k largest elements of a dimension, faster than `top_k` on TPUs.

    Other devices find them exactly.

    Args:
      operand: A floating tensor.
      k: Number of elements.
      reduction_dimension: The dimension to search.
      recall_target: Expected fraction of the true elements in the result.
      reduction_input_size_override: Size that determines the accuracy; -1 for that of the
        dimension.
      aggregate_to_topk: Whether to return exactly k elements, sorted.
      name: Ignored.

    Returns:
      A pair (values, indices), with size k in `reduction_dimension`.

    Example:
      >>> values, indices = tf.math.approx_max_k([3.0, 9.0, 5.0, 7.0], k=2)
      >>> print(values.numpy(), indices.numpy())
      [9. 7.] [1 3]
    """
    return _approx_top_k(
        operand,
        k,
        reduction_dimension,
        recall_target,
        reduction_input_size_override,
        aggregate_to_topk,
        True,
    )


def approx_min_k(
    operand: TensorLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Find about the k smallest elements of a dimension; the arguments are those of `approx_max_k`.

    Example:
      >>> values, indices = tf.math.approx_min_k([3.0, 9.0, 5.0, 7.0], k=2)
      >>> print(values.numpy(), indices.numpy())
      [3. 5.] [0 2]
    """
    return _approx_top_k(
        operand,
        k,
        reduction_dimension,
        recall_target,
        reduction_input_size_override,
        aggregate_to_topk,
        False,
    )
