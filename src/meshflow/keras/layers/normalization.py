"""Batch, layer and group normalization."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.symbolic_sizes import any_symbolic
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import VariableAggregation, VariableSynchronization
from meshflow.distribute.replicas.context import spanning
from meshflow.distribute.replicas.shares import current_shares
from meshflow.keras import constraints, initializers, regularizers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.core import weight_config
from meshflow.ops import array, math, nn
from meshflow.ops.control_flow import cond

__all__ = ["BatchNormalization", "GroupNormalization", "LayerNormalization", "UnitNormalization"]


class _Scaled(Layer):
    """A layer with gamma and beta."""

    _weights_with_layouts: tuple[str, ...] = ("gamma", "beta")

    def _settings(self, center: bool, scale: bool, kwargs: dict[str, Any]) -> dict[str, Any]:
        self.center, self.scale = center, scale
        self.supports_masking = True
        for name, start in (("beta", "zeros"), ("gamma", "ones")):
            setattr(
                self,
                f"{name}_initializer",
                initializers.get(kwargs.pop(f"{name}_initializer", start)),
            )
            setattr(
                self,
                f"{name}_regularizer",
                regularizers.get(kwargs.pop(f"{name}_regularizer", None)),
            )
            setattr(
                self, f"{name}_constraint", constraints.get(kwargs.pop(f"{name}_constraint", None))
            )
        return kwargs

    def _add(self, name: str, shape: Any) -> Any:
        return self.add_weight(
            name,
            shape,
            dtype=self._scale_dtype(),
            initializer=getattr(self, f"{name}_initializer"),
            regularizer=getattr(self, f"{name}_regularizer", None),
            constraint=getattr(self, f"{name}_constraint", None),
            experimental_autocast=False,
        )

    def _scale_dtype(self) -> Any:
        """Dtype of gamma and beta: that of the layer's variables."""
        return dtypes.as_dtype(self.variable_dtype)

    def _statistics_dtype(self) -> Any:
        """Statistics are kept and computed in at least float32."""
        own = dtypes.as_dtype(self.variable_dtype)
        return dtypes.float32 if own.size == 2 else own

    def _widened(self, inputs: Any) -> Any:
        return math.cast(inputs, self._statistics_dtype()) if inputs.dtype.size == 2 else inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return TensorShape(input_shape)


_SCALE_ARGUMENTS = {
    f"{name}_{part}"
    for name in ("beta", "gamma")
    for part in ("initializer", "regularizer", "constraint")
}


def _swap_names(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k in _SCALE_ARGUMENTS}


class BatchNormalization(_Scaled):
    """Normalizes by the mean and variance of the batch (arXiv:1502.03167).

    In training, statistics are the batch's, and moving averages of them are kept; otherwise, and when
    `trainable` is False, the moving averages are used. As in TensorFlow's fused kernel, the moving
    variance of 4-D input is the unbiased one.

    Args:
      axis: dimension (or dimensions) of the features.
      momentum: of the moving averages.
      epsilon: added to the variance.
      center: whether beta is added.
      scale: whether the result is multiplied by gamma.
      beta_initializer: initializer of beta.
      gamma_initializer: initializer of gamma.
      moving_mean_initializer: initializer of the moving mean.
      moving_variance_initializer: initializer of the moving variance.
      beta_regularizer: penalty on beta.
      gamma_regularizer: penalty on gamma.
      beta_constraint: projection of beta.
      gamma_constraint: projection of gamma.
      synchronized: whether statistics are taken over all replicas.
      **kwargs: `fused`, and arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Raises:
      NotImplementedError: for `renorm` and `virtual_batch_size`.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.BatchNormalization(epsilon=0.0)
      >>> layer(tf.constant([[1.0], [3.0]]), training=True).numpy().tolist()
      [[-1.0], [1.0]]
      >>> layer.moving_mean.numpy().round(2)
      array([0.02], dtype=float32)
    """

    _weights_with_layouts: tuple[str, ...] = ("gamma", "beta", "moving_mean", "moving_variance")

    def __init__(
        self,
        axis: Any = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        synchronized: bool = False,
        **kwargs: Any,
    ) -> None:
        for name in ("renorm", "virtual_batch_size", "adjustment", "renorm_clipping"):
            if kwargs.pop(name, None):
                raise NotImplementedError(f"BatchNormalization({name}=...) is not supported.")
        kwargs.pop("renorm_momentum", None)
        # As in TensorFlow, only the fused kernel corrects the moving variance for the batch's size.
        self._fused = False if synchronized else kwargs.get("fused")
        kwargs.pop("fused", None)
        super().__init__(**kwargs)
        self._settings(
            center,
            scale,
            {
                "beta_initializer": beta_initializer,
                "gamma_initializer": gamma_initializer,
                "beta_regularizer": beta_regularizer,
                "gamma_regularizer": gamma_regularizer,
                "beta_constraint": beta_constraint,
                "gamma_constraint": gamma_constraint,
            },
        )
        self.axis = _checked_axis(axis)
        self.momentum, self.epsilon, self.synchronized = momentum, epsilon, synchronized
        self.moving_mean_initializer = initializers.get(moving_mean_initializer)
        self.moving_variance_initializer = initializers.get(moving_variance_initializer)

    def build(self, input_shape: Any) -> None:
        """Creates gamma, beta and the moving averages."""
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
        self.gamma = self._add("gamma", param_shape) if self.scale else None
        self.beta = self._add("beta", param_shape) if self.center else None
        self.moving_mean = self._moving("moving_mean", param_shape)
        self.moving_variance = self._moving("moving_variance", param_shape)
        self.built = True

    def _scale_dtype(self) -> Any:
        return self._statistics_dtype()

    def _moving(self, name: str, shape: Any) -> Any:
        return self.add_weight(
            name,
            shape,
            dtype=self._statistics_dtype(),
            initializer=getattr(self, f"{name}_initializer"),
            trainable=False,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.MEAN,
            experimental_autocast=False,
        )

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The normalized tensor."""
        if isinstance(training, Tensor):
            return cond(
                training,
                lambda: self._normalize(inputs, True, mask),
                lambda: self._normalize(inputs, False, mask),
            )
        return self._normalize(inputs, bool(training), mask)

    def _normalize(self, inputs: Any, training: bool, mask: Any) -> Any:
        inputs = math.cast(inputs, self.compute_dtype)
        x = self._widened(inputs)
        rank = len(x.shape)
        reduced = [i for i in range(rank) if i not in self._axes]
        if training and self.trainable:
            mean, variance = self._batch_statistics(x, reduced, mask)
            self._move(x, mean, variance, reduced)
        else:
            mean, variance = self.moving_mean.value(), self.moving_variance.value()
        mean, variance, beta, gamma = (
            self._shaped(v, x.shape) for v in (mean, variance, self.beta, self.gamma)
        )
        outputs = nn.batch_normalization(x, mean, variance, beta, gamma, self.epsilon)
        return math.cast(outputs, inputs.dtype)

    def _count_of(self, x: Any, reduced: list[int]) -> Any:
        """How many numbers each mean is of: a tensor where the program is for any size."""
        sizes = [x.shape[i] for i in reduced]
        if any_symbolic(sizes):
            return math.cast(array.size(x), x.dtype) / int(
                np.prod([x.shape[i] for i in self._axes])
            )
        return float(np.prod(sizes))

    def _batch_statistics(self, x: Any, reduced: list[int], mask: Any) -> Any:
        keep = len(self._axes) > 1
        if mask is None:
            count: Any = self._count_of(x, reduced)
            mean, variance = nn.moments(x, reduced, keepdims=keep)
        else:
            weights = math.cast(mask, x.dtype)
            while len(weights.shape) < len(x.shape):
                weights = array.expand_dims(weights, -1)
            count = math.reduce_sum(weights * array.ones_like(x), reduced, keepdims=keep)
            mean, variance = nn.weighted_moments(x, reduced, weights, keepdims=keep)
        shares = current_shares()
        if shares is not None:
            return _over_devices(shares, mean, variance, count)
        replica = spanning() if self.synchronized else None
        if replica is None:
            return mean, variance
        # A replica without examples has no mean, and counts for nothing.
        sums = [
            math.multiply_no_nan(m, count * array.ones_like(m))
            for m in (mean, variance + mean * mean)
        ]
        total, squares, all_count = replica.all_reduce(
            "sum", [*sums, count * array.ones_like(mean)]
        )
        mean = total / all_count
        return mean, squares / all_count - mean * mean

    def _move(self, x: Any, mean: Any, variance: Any, reduced: list[int]) -> None:
        if len(x.shape) == 4 and self._fused is not False and len(self._axes) == 1:
            shares = current_shares()
            count = self._count_of(x, reduced) * (shares.row_parts if shares is not None else 1)
            others = max(count - 1, 1) if isinstance(count, float) else math.maximum(count - 1, 1.0)
            variance = variance * (count / others)
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            change = (moving.value() - math.cast(value, moving.dtype)) * (1.0 - self.momentum)
            moving.assign_sub(array.stop_gradient(change))

    def _shaped(self, value: Any, shape: TensorShape) -> Any:
        if value is None:
            return None
        value = value.value() if hasattr(value, "assign") and hasattr(value, "value") else value
        if len(self._axes) > 1 or self._axes == [len(shape) - 1]:
            return value
        return array.reshape(value, [shape[i] if i in self._axes else 1 for i in range(len(shape))])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "axis": self.axis,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            **weight_config(self, "beta", "gamma", initialized=("moving_mean", "moving_variance")),
            **({"synchronized": True} if self.synchronized else {}),
        }


def _over_devices(shares: Any, mean: Any, variance: Any, count: Any) -> tuple[Any, Any]:
    """Mean and variance of all devices' rows, of those of each and how many numbers each is of."""

    def averaged(value: Any) -> Any:
        # A device where all is masked has no mean, and counts for nothing.
        weighted = math.multiply_no_nan(value, count * array.ones_like(value))
        return shares.mean(weighted) / every

    every = shares.mean(count * array.ones_like(mean))
    overall = averaged(mean)
    return overall, averaged(variance + math.square(mean - overall))


class LayerNormalization(_Scaled):
    """Normalizes each example by its own mean and variance (arXiv:1607.06450).

    Args:
      axis: dimension or dimensions of the features.
      epsilon: added to the variance.
      center: whether beta is added.
      scale: whether the result is multiplied by gamma.
      **kwargs: initializers, regularizers and constraints of beta and gamma; arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.LayerNormalization()(tf.constant([[1.0, 3.0], [2.0, 6.0]])).numpy().round(2).tolist()
      [[-1.0, 1.0], [-1.0, 1.0]]
    """

    def __init__(
        self,
        axis: Any = -1,
        epsilon: float = 0.001,
        center: bool = True,
        scale: bool = True,
        **kwargs: Any,
    ) -> None:
        own = _swap_names(kwargs)
        super().__init__(**{k: v for k, v in kwargs.items() if k not in own})
        self._settings(center, scale, own)
        self.axis = _checked_axis(axis)
        self.epsilon = epsilon

    def build(self, input_shape: Any) -> None:
        """Creates gamma and beta."""
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
        self.gamma = self._add("gamma", size) if self.scale else None
        self.beta = self._add("beta", size) if self.center else None
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The normalized tensor."""
        inputs = math.cast(inputs, self.compute_dtype)
        x = self._widened(inputs)
        mean, variance = nn.moments(x, self._axes, keepdims=True)
        broadcast = [x.shape[i] if i in self._axes else 1 for i in range(len(x.shape))]
        beta, gamma = (
            None if v is None else math.cast(array.reshape(v, broadcast), x.dtype)
            for v in (self.beta, self.gamma)
        )
        return math.cast(
            nn.batch_normalization(x, mean, variance, beta, gamma, self.epsilon), inputs.dtype
        )

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "axis": self.axis,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            **weight_config(self, "beta", "gamma"),
        }


class GroupNormalization(_Scaled):
    """Normalizes groups of channels of each example (arXiv:1803.08494).

    Args:
      groups: number of groups; -1 for one per channel.
      axis: dimension of the channels.
      epsilon: added to the variance.
      center: whether beta is added.
      scale: whether the result is multiplied by gamma.
      **kwargs: initializers, regularizers and constraints of beta and gamma; arguments of `Layer`.

    Input shape:
      (batch, ..., channels), or the channels at `axis`.

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([[1.0, 3.0, 10.0, 30.0]])
      >>> tf.keras.layers.GroupNormalization(groups=2, epsilon=0.0)(x).numpy().round(2).tolist()
      [[-1.0, 1.0, -1.0, 1.0]]
    """

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        **kwargs: Any,
    ) -> None:
        own = _swap_names(kwargs)
        super().__init__(**{k: v for k, v in kwargs.items() if k not in own})
        self._settings(center, scale, own)
        self.groups, self.axis, self.epsilon = groups, axis, epsilon

    def build(self, input_shape: Any) -> None:
        """Creates gamma and beta."""
        channels = TensorShape(input_shape)[self.axis]
        self.input_spec = InputSpec(ndim=TensorShape(input_shape).rank, axes={self.axis: channels})
        self._count = channels if self.groups == -1 else self.groups
        if channels % self._count:
            raise ValueError(
                f"Number of groups ({self._count}) must divide the number of channels ({channels})."
            )
        self.gamma = self._add("gamma", (channels,)) if self.scale else None
        self.beta = self._add("beta", (channels,)) if self.center else None
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The normalized tensor."""
        inputs = math.cast(inputs, self.compute_dtype)
        x = self._widened(inputs)
        shape = x.shape.as_list()
        axis = self.axis % len(shape)
        split = [*shape[:axis], self._count, shape[axis] // self._count, *shape[axis + 1 :]]
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

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "groups": self.groups,
            "axis": self.axis,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            **weight_config(self, "beta", "gamma"),
        }


class UnitNormalization(Layer):
    """Scales to L2 norm 1.

    Args:
      axis: dimension or dimensions of a vector.
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.UnitNormalization()(tf.constant([[3.0, 4.0]])).numpy().round(2)
      array([[0.6, 0.8]], dtype=float32)
    """

    def __init__(self, axis: Any = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """The scaled tensor."""
        return math.l2_normalize(
            math.cast(inputs, self.compute_dtype), axis=self.axis, epsilon=1e-12
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return TensorShape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "axis": self.axis}


def _checked_axis(axis: Any) -> Any:
    """An axis, or a list of them.

    Raises:
      TypeError: for anything else.
    """
    axes = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    if any(isinstance(a, bool) or not isinstance(a, (int, np.integer)) for a in axes):
        raise TypeError(
            f"Expected an int or a list/tuple of ints for the argument 'axis', but received: {axis!r}"
        )
    return axes if isinstance(axis, (list, tuple)) else axis
