"""Losses of the user for shares of a batch: a sum over rows is scaled, a mean over rows is not.

The loss of a batch is the mean of the losses of its shares (`BatchShares`). For a function that
returns a scalar, only its values show whether it computes a mean or a sum over rows, or the sum of
both, such as a sum with a penalty on weights: they are compared for rows that are repeated.
"""

from __future__ import annotations

import copy
import enum
import math as python_math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.tracing.trace import TracedFunction, run_outside_of_traces, trace
from meshflow.core.values import nest
from meshflow.core.values.dtypes import float32, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.distribute.replicas.shares import BatchShares, shares_scope
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import PyTree
from meshflow.ops import array
from meshflow.passes.jaxprs import extract_program, select_needed_equations

# Number of rows of random values for which a loss is computed, and the largest number of their elements.
_NUM_ROWS = 2
_MAX_ELEMENTS = 1 << 24
_TOLERANCE = 1e-4
# Scales of the values. A loss with a margin may be zero for small ones.
_SCALES = (1.0, 10.0, 100.0)


class RowDependence(enum.Enum):
    """Dependence of a loss on the number of times that each row is repeated."""

    MEAN = enum.auto()  # None, as for a mean over rows.
    SUM = enum.auto()  # The loss is proportional to it.
    BOTH = enum.auto()  # The loss is a constant and a multiple of it.
    OTHER = enum.auto()  # The loss combines rows in another way, or is random.
    UNKNOWN = enum.auto()  # The loss cannot be computed for random values, or is not finite.
    FAILED = enum.auto()  # The loss raised an error, such as that of an assertion.


class _TrialShares(BatchShares):
    """Shares of a loss that one device computes for random values, outside of the program of a step."""

    def mean_over_all_shares(self, value: Tensor) -> Tensor:
        return value

    def sum_over_batch(self, values: object, finish: object) -> None:
        """Ignore the values, because no program is run for the shares."""


def is_defined_by_user(function: Callable[..., object]) -> bool:
    """Check whether a function or class is defined outside of Meshflow, which knows its own reductions."""
    return not str(getattr(function, "__module__", "")).startswith("meshflow.")


def scale_user_loss(
    compute: Callable[..., TensorLike],
    arguments: tuple[PyTree, ...],
    loss: Tensor,
    shares: BatchShares,
    name: str,
) -> Tensor:
    """Scale the scalar loss of a share so that the mean over all shares is the loss of the batch.

    Args:
      compute: The function that computed the loss.
      arguments: Its arguments; the first axis of each tensor has the rows of the share.
      loss: Its result, a scalar.
      shares: The shares of the batch.
      name: Name of the loss for a warning.

    Returns:
      The scaled loss. It is the loss itself if this is a mean over rows or if its dependence is not known; a warning names
      a loss that raises an error or combines rows in another way.
    """
    if shares.sum_factor == 1:
        return loss
    dependence = _find_dependence(compute, arguments, shares)
    if dependence is RowDependence.SUM:
        return loss * shares.sum_factor
    if dependence is RowDependence.BOTH:
        repeated = nest.map_structure(lambda v: _repeat_rows(v, 2), arguments)
        double_shares = copy.copy(shares)
        double_shares.repetitions, double_shares.metric_values, double_shares.finishers = 2, [], []
        with shares_scope(double_shares):
            traced = trace(compute, repeated)
        tensors = [v for v in nest.flatten(repeated) if is_tensor(v)]
        # The new values of variables, such as those of metrics, are those without repetition.
        outputs = apply(traced.op, (tensors, traced.get_captured_tensors()))
        row_sum = outputs[0] - loss
        return loss + row_sum * (shares.sum_factor - 1.0)
    if dependence is RowDependence.FAILED:
        warnings.warn(
            f"MeshStrategy: {name} raised an error for values on which it was tried, so that it counts as a mean over the "
            f"rows of a batch. If it is a sum, multiply it by the number of shares, {shares.sum_factor:.0f}.",
            stacklevel=2,
        )
    if dependence is RowDependence.OTHER:
        warnings.warn(
            f"MeshStrategy: {name} is neither a mean nor a sum over the rows of a batch. Each of the "
            f"{shares.sum_factor:.0f} shares of a batch computes it for its own rows, and training minimizes the mean "
            "of the shares. Use rules without zero, micro_batches and pipeline to compute it for all rows together.",
            stacklevel=2,
        )
    return loss


def _repeat_rows(value: PyTree, times: int) -> PyTree:
    if not is_tensor(value) or not value.ndim:
        return value
    return array.tile(value, [times, *[1] * (value.ndim - 1)])


def _find_dependence(
    compute: Callable[..., TensorLike], arguments: tuple[PyTree, ...], shares: BatchShares
) -> RowDependence:
    """Compute a loss for two rows, and for these rows twice and three times."""
    tensors = [v for v in nest.flatten(arguments) if v is not None]
    if not all(map(_can_draw, tensors)):
        return RowDependence.UNKNOWN
    losses: list[float] = []
    for scale in _SCALES:
        try:
            result = _compute_losses(compute, arguments, tensors, shares, scale)
        except Exception:
            # Code of the user may raise any error for values that it does not expect.
            return RowDependence.FAILED
        if result is None:
            return RowDependence.UNKNOWN
        losses = result
        if any(losses):
            break
    first, second, third = losses
    tolerance = _TOLERANCE * max(map(abs, losses))
    if max(abs(second - first), abs(third - first)) <= tolerance:
        return RowDependence.MEAN
    if max(abs(second - 2 * first), abs(third - 3 * first)) <= tolerance:
        return RowDependence.SUM
    is_linear = abs(third - 2 * second + first) <= tolerance
    return RowDependence.BOTH if is_linear else RowDependence.OTHER


def _compute_losses(
    compute: Callable[..., TensorLike],
    arguments: tuple[PyTree, ...],
    tensors: list[Tensor],
    shares: BatchShares,
    scale: float,
) -> list[float] | None:
    """Return the losses of two rows, and of these rows twice and three times, or None if they are not finite."""
    # The rounding of narrower dtypes would hide how the losses are related.
    dtypes = [float32 if v.dtype.is_floating and v.dtype.size < 4 else v.dtype for v in tensors]
    shapes = [(_NUM_ROWS, *v.shape[1:]) if v.ndim else () for v in tensors]
    generator = np.random.default_rng(0)
    values = [_draw(generator, s, d.dtype, scale) for s, d in zip(shapes, dtypes, strict=True)]
    losses = []
    for times in (1, 2, 3):
        rows = [np.concatenate([v] * times) if v.ndim else v for v in values]
        specs = iter([TensorSpec(r.shape, d) for r, d in zip(rows, dtypes, strict=True)])
        structure = nest.map_structure(
            lambda v, specs=specs: None if v is None else next(specs), arguments
        )
        trial_shares = _TrialShares(shares.strategy, (), (), round(shares.sum_factor))
        # As if the batch had fewer shares, so that a sum that was scaled already does not change.
        trial_shares.repetitions = times
        with shares_scope(trial_shares):
            traced = trace(compute, structure, isolated=True)
        value = _evaluate(traced, rows)
        if value is None or not np.isfinite(value):
            return None
        losses.append(value)
    return losses


def _can_draw(value: Any) -> bool:
    """Check whether random values can replace an argument of a loss."""
    if not is_tensor(value) or value.dtype is string:
        return False
    # A tensor without the mask of the predictions would have another loss.
    has_mask = getattr(value, "_keras_mask", None) is not None
    num_elements = 3 * _NUM_ROWS * python_math.prod(value.shape[1:])
    return not has_mask and num_elements <= _MAX_ELEMENTS


def _draw(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], scale: float
) -> np.ndarray:
    """Draw values that are valid probabilities (for a scale of 1), labels of two classes, or weights."""
    if dtype == np.bool_ or np.issubdtype(dtype, np.integer):
        return generator.integers(0, 2, shape).astype(dtype)
    return (scale * generator.uniform(0.2, 0.8, shape)).astype(dtype)


def _evaluate(traced: TracedFunction, rows: list[np.ndarray]) -> float | None:
    """Run a traced loss on arrays, with ones for weights and other captured values."""
    # Effects such as those of `tf.print` do not belong to the loss.
    closed, outputs = traced.closed_jaxpr, traced.closed_jaxpr.jaxpr.outvars[:1]
    equations, _ = select_needed_equations(closed.jaxpr, outputs)
    closed = extract_program(closed, closed.jaxpr.invars, outputs, equations)
    avals = closed.in_avals[len(rows) :]
    if closed.effects or sum(python_math.prod(a.shape) for a in avals) > _MAX_ELEMENTS:
        return None
    ones = [np.ones(a.shape, a.dtype) for a in avals]
    run = jax.jit(jex_core.jaxpr_as_fun(closed))
    return float(run_outside_of_traces(lambda: run(*rows, *ones)[0]))
