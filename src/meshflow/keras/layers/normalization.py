"""Batch, layer, group and unit normalization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable, VariableAggregation, VariableSynchronization
from meshflow.distribute.replicas.context import get_spanning_context
from meshflow.distribute.replicas.shares import BatchShares, current_shares
from meshflow.environment.types import Config, PyTree
from meshflow.keras import initializers, settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.engine.layer.sharded_layer_products import read_for_positions
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.keyword_arguments import (
    NORMALIZATION_ORDER,
    BatchNormalizationArguments,
    NormalizationArguments,
    accept_positional,
)
from meshflow.keras.layers.weight_options import (
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.ops import array, math, nn
from meshflow.ops.control_flow import cond
from meshflow.ops.ragged import RaggedTensor

__all__ = ["BatchNormalization", "GroupNormalization", "LayerNormalization", "UnitNormalization"]


class _ScaleAndShiftLayer(Layer):
    """Layer with the weights gamma (scale) and beta (shift)."""

    _weights_with_layouts: tuple[str, ...] = ("gamma", "beta")

    def _set_arguments(self, center: bool, scale: bool, arguments: Mapping[str, Any]) -> None:
        self.center, self.scale = center, scale
        self.supports_masking = True
        for name, default in (("beta", "zeros"), ("gamma", "ones")):
            set_weight_options(self, {f"{name}_initializer": default, **arguments}, name)

    def _add_parameter(self, name: str, shape: Sequence[int]) -> Variable:
        options: Config = {"dtype": self._get_scale_dtype(), "experimental_autocast": False}
        return add_weight(self, name, shape, **options)

    def _get_scale_dtype(self) -> dtypes.DType:
        """Return the dtype of gamma and beta."""
        return dtypes.as_dtype(self.variable_dtype)

    def _get_statistics_dtype(self) -> dtypes.DType:
        """Return the dtype of means and variances: that of the variables, but at least float32."""
        dtype = dtypes.as_dtype(self.variable_dtype)
        return dtypes.float32 if dtype.size == 2 else dtype

    def _widen(self, inputs: Tensor) -> Tensor:
        return math.cast(inputs, self._get_statistics_dtype()) if inputs.dtype.size == 2 else inputs

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)


_SCALE_ARGUMENTS = {
    f"{name}_{part}"
    for name in ("beta", "gamma")
    for part in ("initializer", "regularizer", "constraint")
}


def _split_arguments(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the arguments of gamma and beta from those of `Layer`."""
    scale_arguments = {k: v for k, v in kwargs.items() if k in _SCALE_ARGUMENTS}
    return scale_arguments, {k: v for k, v in kwargs.items() if k not in _SCALE_ARGUMENTS}


class BatchNormalization(_ScaleAndShiftLayer):
    """Normalization by the mean and variance of the batch (arXiv:1502.03167).

    In training, the statistics of the batch are used, and moving averages of them are updated.
    Otherwise, and if `trainable` is False, the moving averages are used. As in the fused kernel of
    TensorFlow, the moving variance of 4-D inputs averages unbiased estimates.

    Args:
      axis: Axis or axes of the features.
      momentum: Momentum of the moving averages.
      epsilon: Added to the variance.
      center: Whether to add beta.
      scale: Whether to multiply by gamma.
      beta_initializer: Initializer of beta.
      gamma_initializer: Initializer of gamma.
      moving_mean_initializer: Initializer of the moving mean.
      moving_variance_initializer: Initializer of the moving variance.
      beta_regularizer: Regularizer of beta.
      gamma_regularizer: Regularizer of gamma.
      beta_constraint: Constraint on beta.
      gamma_constraint: Constraint on gamma.
      synchronized: Whether to compute the statistics over all replicas.
      **kwargs: `fused`, arguments of `Layer`, and layouts of the weights such as `gamma_layout`.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape.

    Raises:
      NotImplementedError: If `renorm` or `virtual_batch_size` is set.

    Example:
      >>> layer = tf.keras.layers.BatchNormalization(epsilon=0.0)
      >>> layer(tf.constant([[1.0], [3.0]]), training=True).numpy().tolist()
      [[-1.0], [1.0]]
      >>> layer.moving_mean.numpy().round(2)
      array([0.02], dtype=float32)
    """

    _weights_with_layouts: tuple[str, ...] = ("gamma", "beta", "moving_mean", "moving_variance")

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Identifier = "zeros",
        gamma_initializer: Identifier = "ones",
        moving_mean_initializer: Identifier = "zeros",
        moving_variance_initializer: Identifier = "ones",
        beta_regularizer: Identifier = None,
        gamma_regularizer: Identifier = None,
        beta_constraint: Identifier = None,
        gamma_constraint: Identifier = None,
        synchronized: bool = False,
        **kwargs: Unpack[BatchNormalizationArguments],
    ) -> None:
        options: dict[str, Any] = {**kwargs}
        for name in ("renorm", "virtual_batch_size", "adjustment", "renorm_clipping"):
            if options.pop(name, None):
                raise NotImplementedError(f"BatchNormalization({name}=...) is not supported.")
        options.pop("renorm_momentum", None)
        # As in TensorFlow, only the fused kernel makes the moving variance unbiased.
        fused = options.pop("fused", None)
        self._fused = False if synchronized else fused
        super().__init__(**options)
        self._set_arguments(center, scale, locals())
        self.axis = _parse_axis(axis)
        self.momentum, self.epsilon, self.synchronized = momentum, epsilon, synchronized
        self.moving_mean_initializer = initializers.get(moving_mean_initializer)
        self.moving_variance_initializer = initializers.get(moving_variance_initializer)

    def build(self, input_shape: ShapeLike) -> None:
        """Create gamma, beta and the moving averages."""
        shape = TensorShape(input_shape)
        rank = shape.rank or 0
        axes = self.axis if isinstance(self.axis, list) else [self.axis]
        self._axes = [a % rank for a in axes]
        if any(not -rank <= a < rank for a in axes):
            raise ValueError(
                f"Invalid value for `axis` argument. Expected 0 <= axis < inputs.rank (with inputs.rank={rank}). Received: layer.axis={self.axis}"
            )
        if any(shape[a] is None for a in self._axes):
            raise ValueError(
                f"Input has undefined `axis` dimension. Received input with shape {tuple(shape)} and axis={self.axis}"
            )
        self.input_spec = InputSpec(ndim=rank, axes={a: shape[a] for a in self._axes})
        self.axis = list(self._axes)
        size = tuple(shape[a] for a in self._axes)
        param_shape = (
            size
            if len(size) == 1
            else tuple(shape[i] if i in self._axes else 1 for i in range(rank))
        )
        self.gamma = self._add_parameter("gamma", param_shape) if self.scale else None
        self.beta = self._add_parameter("beta", param_shape) if self.center else None
        self.moving_mean = self._add_moving_average("moving_mean", param_shape)
        self.moving_variance = self._add_moving_average("moving_variance", param_shape)
        self.built = True

    def _get_scale_dtype(self) -> dtypes.DType:
        return self._get_statistics_dtype()

    def _add_moving_average(self, name: str, shape: Sequence[int]) -> Variable:
        return self.add_weight(
            name,
            shape,
            dtype=self._get_statistics_dtype(),
            initializer=getattr(self, f"{name}_initializer"),
            trainable=False,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.MEAN,
            experimental_autocast=False,
        )

    def call(
        self, inputs: TensorLike, training: bool | Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Normalize the inputs."""
        if isinstance(training, Tensor):
            return cond(
                training,
                lambda: self._normalize(inputs, True, mask),
                lambda: self._normalize(inputs, False, mask),
            )
        return self._normalize(inputs, bool(training), mask)

    def _normalize(self, inputs: Tensor, training: bool, mask: Tensor | None) -> Tensor:
        inputs = math.cast(inputs, self.compute_dtype)
        x = self._widen(inputs)
        rank = len(x.shape)
        reduced = [i for i in range(rank) if i not in self._axes]
        if training and self.trainable:
            mean, variance, count = self._compute_batch_statistics(x, reduced, mask)
            self._update_moving_averages(x, mean, variance, count, reduced)
        else:
            mean, variance = self.moving_mean.value(), self.moving_variance.value()
        mean, variance, beta, gamma = (
            self._broadcast_parameter(v, x.shape) for v in (mean, variance, self.beta, self.gamma)
        )
        outputs = nn.batch_normalization(x, mean, variance, beta, gamma, self.epsilon)
        return math.cast(outputs, inputs.dtype)

    def _count_reduced(self, x: Tensor, reduced: list[int]) -> float | Tensor:
        """Count the elements of each mean; a tensor if a program is traced for any size."""
        sizes = [x.shape[i] for i in reduced]
        if has_symbolic_size(sizes):
            return math.cast(array.size(x), x.dtype) / int(
                np.prod([x.shape[i] for i in self._axes])
            )
        return float(np.prod(sizes))

    def _compute_batch_statistics(
        self, x: Tensor, reduced: list[int], mask: Tensor | None
    ) -> tuple[Tensor, Tensor, TensorLike]:
        """Return the mean, the variance, and the number of elements of this device."""
        keepdims = len(self._axes) > 1
        if mask is None:
            count: Any = self._count_reduced(x, reduced)
        else:
            weights = _expand_mask(mask, x)
            count = math.reduce_sum(weights * array.ones_like(x), reduced, keepdims=keepdims)
        mean, variance = self._moments(x, reduced, keepdims, mask)
        shares = current_shares()
        if shares is not None:
            shares.batch_normalization = shares.batch_normalization or self.name
            return (*_combine_devices(shares, mean, variance, count), count)
        replica = get_spanning_context() if self.synchronized else None
        if replica is None:
            return mean, variance, count
        # The mean of a replica without examples is NaN; its weight is 0.
        sums = [
            math.multiply_no_nan(m, count * array.ones_like(m))
            for m in (mean, variance + mean * mean)
        ]
        total, squares, all_count = replica.all_reduce(
            "sum", [*sums, count * array.ones_like(mean)]
        )
        mean = total / all_count
        return mean, squares / all_count - mean * mean, count

    # Libraries override or call the following methods of Keras.

    def _moments(
        self,
        inputs: Tensor,
        reduction_axes: Sequence[int],
        keep_dims: bool,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return self._calculate_mean_and_var(inputs, reduction_axes, keep_dims, mask)

    def _calculate_mean_and_var(
        self,
        inputs: Tensor,
        reduction_axes: Sequence[int],
        keep_dims: bool,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the mean and the variance of the rows of this device."""
        if mask is None:
            return nn.moments(inputs, reduction_axes, keepdims=keep_dims)
        weights = _expand_mask(mask, inputs)
        return nn.weighted_moments(inputs, reduction_axes, weights, keepdims=keep_dims)

    def _get_training_value(self, training: bool | Tensor | None = None) -> bool | Tensor:
        """Return whether batch statistics normalize the inputs."""
        if training is None:
            training = bool(settings.get_explicit_learning_phase())
        if not self.trainable:
            return False
        return training if isinstance(training, Tensor) else bool(training)

    @property
    def _param_dtype(self) -> dtypes.DType:
        return self._get_statistics_dtype()

    @property
    def fused(self) -> bool:
        """Return whether the inputs are normalized as TensorFlow's fused kernel does it."""
        return self._fused is not False

    renorm = False
    virtual_batch_size = adjustment = None

    def _support_zero_size_input(self) -> bool:
        return False

    def _assign_moving_average(
        self, variable: Variable, value: Tensor, momentum: float, inputs_size: Tensor | None = None
    ) -> Variable:
        """Move a variable towards a value, unless the batch is empty."""
        change = (variable.value() - math.cast(value, variable.dtype)) * (1.0 - momentum)
        if inputs_size is not None:
            change = array.where(inputs_size > 0, change, array.zeros_like(change))
        return variable.assign_sub(change)

    def _update_moving_averages(
        self, x: Tensor, mean: Tensor, variance: Tensor, count: TensorLike, reduced: list[int]
    ) -> None:
        mean, variance = array.stop_gradient(mean), array.stop_gradient(variance)
        shares = current_shares()
        is_corrected = len(x.shape) == 4 and self._fused is not False and len(self._axes) == 1
        if shares is not None and shares.defers_statistics:
            self._defer_update(shares, mean, variance, count, is_corrected)
            return
        if is_corrected:
            variance = _correct_variance(
                variance,
                self._count_reduced(x, reduced)
                * (shares.num_row_parts if shares is not None else 1),
            )
        self._move_averages(mean, variance)

    def _defer_update(
        self,
        shares: BatchShares,
        mean: Tensor,
        variance: Tensor,
        count: TensorLike,
        is_corrected: bool,
    ) -> None:
        """Update the moving averages with the statistics of all shares of a batch."""
        # Squares of differences from a value near the mean cancel less than squares of the elements.
        center = self.moving_mean.value()
        weight = count * array.ones_like(mean)
        values = {
            "count": weight,
            "mean": math.multiply_no_nan(mean, weight),
            "squares": math.multiply_no_nan(variance + math.square(mean - center), weight),
        }

        def finish(sums: dict[str, Tensor]) -> None:
            count = sums["count"]
            mean = sums["mean"] / count
            variance = sums["squares"] / count - math.square(mean - self.moving_mean)
            self._move_averages(
                mean, _correct_variance(variance, count) if is_corrected else variance
            )

        shares.sum_over_batch(values, finish)

    def _move_averages(self, mean: Tensor, variance: Tensor) -> None:
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            self._assign_moving_average(moving, value, self.momentum)

    def _broadcast_parameter(self, value: TensorLike, shape: TensorShape) -> TensorLike:
        if value is None:
            return None
        value = value.value() if hasattr(value, "assign") and hasattr(value, "value") else value
        if len(self._axes) > 1 or self._axes == [len(shape) - 1]:
            return value
        return array.reshape(value, [shape[i] if i in self._axes else 1 for i in range(len(shape))])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "axis": self.axis,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            **make_weight_config(
                self, "beta", "gamma", initialized=("moving_mean", "moving_variance")
            ),
            **({"synchronized": True} if self.synchronized else {}),
        }


def _expand_mask(mask: Tensor, x: Tensor) -> Tensor:
    weights = math.cast(mask, x.dtype)
    while len(weights.shape) < len(x.shape):
        weights = array.expand_dims(weights, -1)
    return weights


def _correct_variance(variance: Tensor, count: float | Tensor) -> Tensor:
    """Return the unbiased variance of a number of elements."""
    rest = max(count - 1, 1) if isinstance(count, float) else math.maximum(count - 1, 1.0)
    return variance * (count / rest)


def _combine_devices(
    shares: BatchShares, mean: Tensor, variance: Tensor, count: TensorLike
) -> tuple[Tensor, Tensor]:
    """Combine the means, variances and element counts of all devices."""

    def average(value: Tensor) -> Tensor:
        # The mean of a device without unmasked elements is NaN; its weight is 0.
        weighted = math.multiply_no_nan(value, count * array.ones_like(value))
        return shares.mean(weighted) / mean_count

    mean_count = shares.mean(count * array.ones_like(mean))
    overall = average(mean)
    return overall, average(variance + math.square(mean - overall))


class LayerNormalization(_ScaleAndShiftLayer):
    """Normalization of each example by its own mean and variance (arXiv:1607.06450).

    Args:
      axis: Axis or axes of the features.
      epsilon: Added to the variance.
      center: Whether to add beta.
      scale: Whether to multiply by gamma.
      **kwargs: Initializers, regularizers, constraints and layouts of beta and gamma, such as
        `beta_initializer` and `gamma_layout`; arguments of `Layer`.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape.

    Example:
      >>> tf.keras.layers.LayerNormalization()(tf.constant([[1.0, 3.0], [2.0, 6.0]])).numpy().round(2).tolist()
      [[-1.0, 1.0], [-1.0, 1.0]]
    """

    @accept_positional(NORMALIZATION_ORDER)
    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 0.001,
        center: bool = True,
        scale: bool = True,
        **kwargs: Unpack[NormalizationArguments],
    ) -> None:
        scale_arguments, layer_arguments = _split_arguments(kwargs)
        super().__init__(**layer_arguments)
        self._set_arguments(center, scale, scale_arguments)
        self.axis = _parse_axis(axis)
        self.epsilon = epsilon

    def build(self, input_shape: ShapeLike) -> None:
        """Create gamma and beta."""
        shape = TensorShape(input_shape)
        rank = shape.rank or 1
        axes = self.axis if isinstance(self.axis, list) else [self.axis]
        if any(not -rank <= a < rank for a in axes):
            raise ValueError(
                f"Invalid value for `axis` argument. Expected 0 <= axis < inputs.rank (with inputs.rank={rank}). "
                f"Received: layer.axis={self.axis}"
            )
        self._axes = sorted(a % rank for a in axes)
        if len(set(self._axes)) != len(axes):
            raise ValueError(f"Duplicate axis: {self.axis}")
        self.axis = list(self._axes)
        size = tuple(shape[a] for a in self._axes)
        self.gamma = self._add_parameter("gamma", size) if self.scale else None
        self.beta = self._add_parameter("beta", size) if self.center else None
        self.built = True

    def call(self, inputs: TensorLike) -> PyTree:
        """Normalize the inputs; those of a ragged tensor along uniform axes."""
        if not isinstance(inputs, RaggedTensor):
            return self._normalize(inputs, self._axes)
        axes = [axis - inputs.ragged_rank for axis in self._axes]
        if min(axes) < 1:
            raise ValueError(
                f"LayerNormalization {self.name!r} cannot normalize along a ragged axis: axis={self.axis}, "
                f"inputs of shape {inputs.shape} with {inputs.ragged_rank} ragged axes."
            )
        return inputs.with_flat_values(self._normalize(inputs.flat_values, axes))

    def _normalize(self, inputs: TensorLike, axes: Sequence[int]) -> Tensor:
        inputs = math.cast(inputs, self.compute_dtype)
        x = self._widen(inputs)
        mean, variance = nn.moments(x, list(axes), keepdims=True)
        broadcast = [x.shape[i] if i in axes else 1 for i in range(len(x.shape))]
        is_last = list(axes) == list(range(2, len(x.shape)))

        def read(weight: Variable | None) -> Tensor | None:
            if weight is None:
                return None
            by_position = read_for_positions(weight, x) if is_last else None
            if by_position is not None:
                return by_position
            return math.cast(array.reshape(weight, broadcast), x.dtype)

        beta, gamma = read(self.beta), read(self.gamma)
        return math.cast(
            nn.batch_normalization(x, mean, variance, beta, gamma, self.epsilon), inputs.dtype
        )

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "axis": self.axis,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            **make_weight_config(self, "beta", "gamma"),
        }


class GroupNormalization(_ScaleAndShiftLayer):
    """Normalization of groups of channels of each example (arXiv:1803.08494).

    Args:
      groups: Number of groups; -1 for one per channel.
      axis: Axis of the channels.
      epsilon: Added to the variance.
      center: Whether to add beta.
      scale: Whether to multiply by gamma.
      **kwargs: Initializers, regularizers, constraints and layouts of beta and gamma, such as
        `beta_initializer` and `gamma_layout`; arguments of `Layer`.

    Input shape:
      (batch, ..., channels), or the channels at `axis`.

    Output shape:
      The same as the input shape.

    Example:
      >>> x = tf.constant([[1.0, 3.0, 10.0, 30.0]])
      >>> tf.keras.layers.GroupNormalization(groups=2, epsilon=0.0)(x).numpy().round(2).tolist()
      [[-1.0, 1.0, -1.0, 1.0]]
    """

    @accept_positional(NORMALIZATION_ORDER)
    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        **kwargs: Unpack[NormalizationArguments],
    ) -> None:
        scale_arguments, layer_arguments = _split_arguments(kwargs)
        super().__init__(**layer_arguments)
        self._set_arguments(center, scale, scale_arguments)
        self.groups, self.axis, self.epsilon = groups, axis, epsilon

    def build(self, input_shape: ShapeLike) -> None:
        """Create gamma and beta."""
        channels = TensorShape(input_shape)[self.axis]
        self.input_spec = InputSpec(ndim=TensorShape(input_shape).rank, axes={self.axis: channels})
        if self.groups == -1:
            self.groups = channels
        if channels % self.groups:
            raise ValueError(
                f"Number of groups ({self.groups}) must divide the number of channels ({channels})."
            )
        self.gamma = self._add_parameter("gamma", (channels,)) if self.scale else None
        self.beta = self._add_parameter("beta", (channels,)) if self.center else None
        self.built = True

    def call(self, inputs: TensorLike) -> Tensor:
        """Normalize the inputs."""
        inputs = math.cast(inputs, self.compute_dtype)
        x = self._widen(inputs)
        shape = x.shape.as_list()
        axis = self.axis % len(shape)
        split = [
            *shape[:axis],
            self.groups,
            shape[axis] // self.groups,
            *shape[axis + 1 :],
        ]
        grouped = array.reshape(x, split)
        reduced = [i for i in range(1, len(split)) if i != axis]
        mean, variance = nn.moments(grouped, reduced, keepdims=True)
        x = array.reshape(
            nn.batch_normalization(grouped, mean, variance, None, None, self.epsilon), shape
        )
        broadcast = [shape[axis] if i == axis else 1 for i in range(len(shape))]
        if self.gamma is not None:
            x = x * math.cast(array.reshape(self.gamma, broadcast), x.dtype)
        if self.beta is not None:
            x = x + math.cast(array.reshape(self.beta, broadcast), x.dtype)
        return math.cast(x, inputs.dtype)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "groups": self.groups,
            "axis": self.axis,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            **make_weight_config(self, "beta", "gamma"),
        }


class UnitNormalization(Layer):
    """Scaling of vectors to L2 norm 1.

    Args:
      axis: Axis or axes of a vector.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape.

    Example:
      >>> tf.keras.layers.UnitNormalization()(tf.constant([[3.0, 4.0]])).numpy().round(2)
      array([[0.6, 0.8]], dtype=float32)
    """

    def __init__(
        self, axis: int | Sequence[int] = -1, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(axis, (int, list, tuple)):
            raise TypeError(
                f"Invalid value for `axis` argument: expected an integer or a list of integers, got {axis!r}."
            )
        self.axis = axis
        self.supports_masking = True

    def call(self, inputs: TensorLike) -> Tensor:
        """Scale the inputs."""
        return math.l2_normalize(
            math.cast(inputs, self.compute_dtype), axis=self.axis, epsilon=1e-12
        )

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "axis": self.axis}


def _parse_axis(axis: Any) -> int | list[int]:
    """Return an axis, or a list of axes.

    Raises:
      TypeError: If the argument is neither an integer nor a list or tuple of integers.
    """
    axes = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    if any(isinstance(a, bool) or not isinstance(a, (int, np.integer)) for a in axes):
        raise TypeError(
            f"Expected an int or a list/tuple of ints for the argument 'axis', but received: {axis!r}"
        )
    return axes if isinstance(axis, (list, tuple)) else axis
