"""`tf.keras.initializers`: initial values of weights.

Values are drawn on the host with NumPy, so they do not depend on the device or the layout of the
weight, and nothing is compiled. They equal TensorFlow's values for the seed of the initializer.
Like Keras, an initializer without a seed draws one from the seed of the program on its first call,
so that its later calls return the same values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.runtime.philox_host import StatelessRandom
from meshflow.core.runtime.tracebacks import hide_frames_of_errors, hide_frames_of_methods
from meshflow.core.values.convert import convert_python_value, convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, string
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import draw_weight_seed
from meshflow.environment.types import Config, Json, PyTree, overridable
from meshflow.keras import registry, serialization, settings
from meshflow.keras.registry import CustomObjects, KerasObject

__all__ = [
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "constant",
    "deserialize",
    "get",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "lecun_normal",
    "lecun_uniform",
    "ones",
    "orthogonal",
    "random_normal",
    "random_uniform",
    "serialize",
    "truncated_normal",
    "variance_scaling",
    "zeros",
]


_KEYWORDS = ("partition_shape", "partition_offset", "layout")


@hide_frames_of_methods
class Initializer:
    """Base class of initializers: callables that map a shape to a tensor.

    Example:
      >>> class Counting(tf.keras.initializers.Initializer):
      ...     def __call__(self, shape, dtype=None, **kwargs):
      ...         return tf.reshape(tf.range(shape[0] * shape[1], dtype=dtype), shape)
      >>> tf.keras.layers.Dense(2, kernel_initializer=Counting())(tf.constant([[1.0, 1.0]])).numpy().tolist()
      [[2.0, 4.0]]
    """

    _needs_floating_dtype = False
    _has_partitions = True

    @overridable
    def __call__(self, shape: PyTree, dtype: DTypeLike | None = None, **kwargs: Any) -> Tensor:
        """Return initial values.

        Args:
          shape: Shape of the weight.
          dtype: Its dtype; `floatx()` by default.
          **kwargs: `layout`, a `tf.experimental.dtensor.Layout` for values on a mesh;
            `partition_shape` and `partition_offset`, for a part of the values.

        Raises:
          TypeError: If there is another argument.
          ValueError: If the dtype is an integer and the values are fractions, or a string, or if parts of the
            values are not defined.
        """
        unknown = [name for name in kwargs if name not in _KEYWORDS]
        if unknown:
            raise TypeError(
                f"Unknown keyword arguments: {unknown}. Allowed keyword arguments: {[*_KEYWORDS]}."
            )
        size, offset = kwargs.get("partition_shape"), kwargs.get("partition_offset")
        if size is not None and not self._has_partitions:
            raise ValueError(
                f"{type(self).__name__} initializer doesn't support partition-related arguments."
            )
        dtype = as_dtype(dtype or settings.floatx())
        if dtype is string:
            raise ValueError(
                f"{type(self).__name__}: Expected numeric or boolean dtype, got {dtype}."
            )
        if self._needs_floating_dtype and not dtype.is_floating:
            raise ValueError(f"{type(self).__name__}: Expected floating point type, got {dtype}.")
        sizes = (shape,) if isinstance(shape, int) else shape
        values = self.values(tuple(int(s) for s in sizes))
        if size is not None:
            starts = offset or [0] * len(size)
            values = values[tuple(slice(o, o + n) for o, n in zip(starts, size, strict=True))]
        tensor = convert_python_value(_convert(np.asarray(values), dtype.dtype), dtype)
        layout = kwargs.get("layout")
        return tensor if layout is None else layout.constrain(tensor)

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the values as a NumPy array; subclasses define this method or `__call__`."""
        raise NotImplementedError("Initializer subclasses must implement the `__call__()` method.")

    def get_config(self) -> Config:
        """Return the configuration."""
        return {}

    @classmethod
    def from_config(cls, config: Config) -> Initializer:
        """Create an initializer from its configuration."""
        config = dict(config)
        config.pop("dtype", None)
        return cls(**config)


class Zeros(Initializer):
    """Initializer with zeros.

    Example:
      >>> tf.keras.initializers.Zeros()([2, 3]).numpy().tolist()
      [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return zeros."""
        return np.broadcast_to(0.0, shape)


class Ones(Initializer):
    """Initializer with ones.

    Example:
      >>> tf.keras.initializers.Ones()([3], dtype="int32").numpy().tolist()
      [1, 1, 1]
    """

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return ones."""
        return np.broadcast_to(1.0, shape)


class Constant(Initializer):
    """Initializer with one value, or with a value for each element of the weight.

    Args:
      value: A scalar, or an array with as many elements as the weight.

    Example:
      >>> tf.keras.initializers.Constant(7)([2, 2]).numpy().tolist()
      [[7.0, 7.0], [7.0, 7.0]]
      >>> tf.keras.initializers.Constant([1, 2, 3, 4])([2, 2]).numpy().tolist()
      [[1.0, 2.0], [3.0, 4.0]]
    """

    def __init__(self, value: TensorLike = 0) -> None:
        self.value = value

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the value, reshaped or broadcast to the shape."""
        value = convert_to_tensor(self.value).require_value("the value of Constant")
        if value.size == math.prod(shape):
            return value.reshape(shape)
        if value.size != 1:
            raise InvalidValueError(
                f"Constant: a value of shape {value.shape} cannot fill a weight of shape {shape}."
            )
        return np.broadcast_to(value.reshape(()), shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"value": self.value.tolist() if hasattr(self.value, "tolist") else self.value}


class _RandomInitializer(Initializer):
    _needs_floating_dtype = True

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._drawn_seed: int | None = None

    def _create_generator(self) -> StatelessRandom:
        if self.seed is not None:
            return StatelessRandom(int(self.seed))
        if self._drawn_seed is None:
            self._drawn_seed = draw_weight_seed()
        else:
            warnings.warn(
                f"The initializer {type(self).__name__} is unseeded and being called multiple times, which will "
                "return identical values each time (even if the initializer is unseeded). Please update your code "
                "to provide a seed to the initializer, or avoid using the same initializer instance more than once.",
                stacklevel=4,
            )
        return StatelessRandom(self._drawn_seed)


def _convert(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert values to a dtype, in memory that a tensor can use without a copy."""
    if dtype.kind == "O":
        return values
    array = transfers.allocate(values.shape, dtype)
    array[...] = values
    return array


def _draw_truncated_normal(
    rng: StatelessRandom, shape: tuple[int, ...], mean: float, stddev: float
) -> np.ndarray:
    """Draw normal values within two standard deviations of the mean."""
    return rng.truncated_normal(shape) * stddev + mean


class RandomNormal(_RandomInitializer):
    """Initializer with a normal distribution.

    Args:
      mean: Mean.
      stddev: Standard deviation.
      seed: Integer seed.

    Example:
      >>> w = tf.keras.initializers.RandomNormal(mean=5.0, stddev=0.1, seed=1)([100, 100])
      >>> round(float(tf.reduce_mean(w)), 1), round(float(tf.math.reduce_std(w)), 1)
      (5.0, 0.1)
    """

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None) -> None:
        super().__init__(seed)
        self.mean, self.stddev = mean, stddev

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return normally distributed values."""
        return self._create_generator().standard_normal(shape) * self.stddev + self.mean

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"mean": self.mean, "stddev": self.stddev, "seed": self.seed}


class TruncatedNormal(RandomNormal):
    """Initializer with a normal distribution within two standard deviations; see `RandomNormal`.

    Example:
      >>> w = tf.keras.initializers.TruncatedNormal(stddev=1.0, seed=1)([1000])
      >>> float(tf.reduce_max(tf.abs(w))) <= 2.0
      True
    """

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return truncated normal values."""
        return _draw_truncated_normal(self._create_generator(), shape, self.mean, self.stddev)


class RandomUniform(_RandomInitializer):
    """Initializer with a uniform distribution.

    Args:
      minval: Lower bound, inclusive.
      maxval: Upper bound, exclusive.
      seed: Integer seed.

    Example:
      >>> w = tf.keras.initializers.RandomUniform(2, 3, seed=1)([100])
      >>> bool(tf.reduce_all((w >= 2.0) & (w < 3.0)))
      True
    """

    def __init__(
        self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None
    ) -> None:
        super().__init__(seed)
        self.minval, self.maxval = minval, maxval

    def __call__(
        self, shape: Iterable[int], dtype: DTypeLike | None = None, **kwargs: Any
    ) -> Tensor:
        """Return initial values; integer dtypes need integer bounds.

        Args:
          shape: Shape of the weight.
          dtype: Its dtype; `floatx()` by default.
          **kwargs: `layout`, for a floating dtype.

        Raises:
          TypeError: If the dtype is an integer and a bound is a fraction.
        """
        dtype = as_dtype(dtype or settings.floatx())
        if not dtype.is_integer:
            return super().__call__(shape, dtype, **kwargs)
        if int(self.minval) != self.minval or int(self.maxval) != self.maxval:
            raise TypeError(
                f"RandomUniform: dtype {dtype.name} needs integer limits, got {self.minval} and {self.maxval}."
            )
        sizes = tuple(int(s) for s in shape)
        values = self._create_generator().integers(int(self.minval), int(self.maxval), sizes)
        return convert_python_value(np.asarray(values).astype(dtype.dtype), dtype)

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return uniformly distributed values."""
        return self._create_generator().uniform(self.minval, self.maxval, shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"minval": self.minval, "maxval": self.maxval, "seed": self.seed}


class VarianceScaling(_RandomInitializer):
    """Initializer with variance `scale / n`; n is the number of inputs or outputs, or their mean.

    Args:
      scale: Positive factor.
      mode: 'fan_in', 'fan_out' or 'fan_avg'.
      distribution: 'truncated_normal', 'untruncated_normal' or 'uniform'.
      seed: Integer seed.

    Raises:
      ValueError: If the scale, mode or distribution is invalid.

    Example:
      >>> init = tf.keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="uniform", seed=1)
      >>> round(float(tf.math.reduce_variance(init([200, 400])) * 400), 1)
      2.0
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in",
        distribution: Literal[
            "normal", "uniform", "truncated_normal", "untruncated_normal"
        ] = "truncated_normal",
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        if scale <= 0:
            raise ValueError(f"`scale` must be positive float. Received: scale={scale}.")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(
                f"Invalid `mode` argument: {mode}. Please use one of 'fan_in', 'fan_out', 'fan_avg'"
            )
        lower_case = str(distribution).lower()
        self.scale, self.mode = scale, mode
        self.distribution = "truncated_normal" if lower_case == "normal" else lower_case
        if self.distribution not in ("uniform", "truncated_normal", "untruncated_normal"):
            raise ValueError(f"Invalid `distribution` argument: {self.distribution}.")

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return random values with the scaled variance."""
        fan_in, fan_out = compute_fans(shape)
        n = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, n)
        rng = self._create_generator()
        if self.distribution == "uniform":
            limit = math.sqrt(3 * variance)
            return rng.uniform(-limit, limit, shape)
        if self.distribution == "untruncated_normal":
            return rng.standard_normal(shape) * math.sqrt(variance)
        # Truncation at two standard deviations reduces the standard deviation by this factor.
        return _draw_truncated_normal(rng, shape, 0.0, math.sqrt(variance) / 0.87962566103423978)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            "scale": self.scale,
            "mode": self.mode,
            "distribution": self.distribution,
            "seed": self.seed,
        }


def compute_fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a weight; kernels have shape [*window, in, out]."""
    if not shape:
        return 1, 1
    if len(shape) == 1:
        return shape[0], shape[0]
    window = math.prod(shape[:-2])
    return shape[-2] * window, shape[-1] * window


class VarianceScalingPreset(VarianceScaling):
    """`VarianceScaling` with a fixed scale, mode and distribution."""

    if TYPE_CHECKING:

        def __init__(self, seed: int | None = None) -> None: ...


def _define_preset(
    name: str,
    scale: float,
    mode: Literal["fan_in", "fan_out", "fan_avg"],
    distribution: Literal["normal", "uniform", "truncated_normal", "untruncated_normal"],
    doc: str,
) -> type[VarianceScalingPreset]:
    def __init__(self: VarianceScaling, seed: int | None = None) -> None:
        VarianceScaling.__init__(self, scale, mode, distribution, seed)

    def get_config(self: VarianceScaling) -> Config:
        """Return the configuration."""
        return {"seed": self.seed}

    size = 200 if mode == "fan_in" else 300
    text = (
        f"{doc}\n\nArgs:\n  seed: Integer seed.\n\n"
        "Example:\n  >>> import meshflow as tf\n"
        f"  >>> weights = tf.keras.initializers.{name}(seed=1)([200, 400])\n"
        f"  >>> round(float(tf.math.reduce_variance(weights)) * {size}, 1)\n  {scale}\n"
    )
    body = {"__init__": __init__, "get_config": get_config, "__doc__": text, "__module__": __name__}
    return type(name, (VarianceScalingPreset,), body)


GlorotUniform = _define_preset(
    "GlorotUniform",
    1.0,
    "fan_avg",
    "uniform",
    "Uniform initializer with variance 2 / (in + out) (Glorot and Bengio 2010).",
)
GlorotNormal = _define_preset(
    "GlorotNormal",
    1.0,
    "fan_avg",
    "truncated_normal",
    "Truncated normal initializer with variance 2 / (in + out).",
)
HeUniform = _define_preset(
    "HeUniform",
    2.0,
    "fan_in",
    "uniform",
    "Uniform initializer with variance 2 / in (He et al. 2015).",
)
HeNormal = _define_preset(
    "HeNormal",
    2.0,
    "fan_in",
    "truncated_normal",
    "Truncated normal initializer with variance 2 / in (He et al. 2015).",
)
LecunUniform = _define_preset(
    "LecunUniform", 1.0, "fan_in", "uniform", "Uniform initializer with variance 1 / in."
)
LecunNormal = _define_preset(
    "LecunNormal",
    1.0,
    "fan_in",
    "truncated_normal",
    "Truncated normal initializer with variance 1 / in.",
)


class Orthogonal(_RandomInitializer):
    """Initializer with orthonormal rows or columns.

    Args:
      gain: Factor of the matrix.
      seed: Integer seed.

    Example:
      >>> w = tf.keras.initializers.Orthogonal(seed=1)([3, 2])
      >>> bool(tf.reduce_all(tf.abs(tf.transpose(w) @ w - tf.eye(2)) < 1e-5))
      True
    """

    _has_partitions = False

    def __init__(self, gain: float = 1.0, seed: int | None = None) -> None:
        super().__init__(seed)
        self.gain = gain

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an orthogonal matrix, reshaped."""
        if len(shape) < 2:
            raise ValueError(
                f"The tensor to initialize must be at least two-dimensional. Received: shape={shape}"
            )
        rows, columns = math.prod(shape[:-1]), shape[-1]
        q, r = np.linalg.qr(
            self._create_generator().standard_normal((max(rows, columns), min(rows, columns)))
        )
        q = q * np.sign(np.diag(r))
        return self.gain * (q.T if rows < columns else q).reshape(shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"gain": self.gain, "seed": self.seed}


class Identity(Initializer):
    """Initializer with the identity matrix.

    Args:
      gain: Factor of the matrix.

    Example:
      >>> tf.keras.initializers.Identity(gain=2.0)([2, 3]).numpy().tolist()
      [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
    """

    _has_partitions = False

    _needs_floating_dtype = True

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an identity matrix."""
        if len(shape) != 2:
            raise ValueError(
                f"Identity matrix initializer can only be used for 2D matrices. Received: shape={shape} of rank {len(shape)}."
            )
        return self.gain * np.eye(*shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {"gain": self.gain}


zeros, ones, constant, identity, orthogonal = Zeros, Ones, Constant, Identity, Orthogonal
random_normal, random_uniform, truncated_normal = RandomNormal, RandomUniform, TruncatedNormal
variance_scaling, glorot_uniform, glorot_normal = VarianceScaling, GlorotUniform, GlorotNormal
he_uniform, he_normal, lecun_uniform, lecun_normal = HeUniform, HeNormal, LecunUniform, LecunNormal

_REGISTRY = registry.create_registry(
    "initializer",
    "keras.initializers",
    registry.make_name_table(
        *(Zeros, Ones, Constant, RandomNormal, RandomUniform, TruncatedNormal, VarianceScaling),
        *(GlorotUniform, GlorotNormal, HeUniform, HeNormal, LecunUniform, LecunNormal),
        *(Orthogonal, Identity),
        Initializer,
        zero=Zeros,
        one=Ones,
        normal=RandomNormal,
        uniform=RandomUniform,
        eye=Identity,
    ),
)


@hide_frames_of_errors
def get(identifier: object) -> KerasObject:
    """Return the initializer for a name, class, object, function or configuration; None for None.

    Raises:
      ValueError: If the name is unknown.

    Example:
      >>> type(tf.keras.initializers.get("he_normal")).__name__
      'HeNormal'
    """
    return _REGISTRY.get(identifier)


def copy_unseeded(initializer: object) -> object:
    """Copy a random initializer without a seed, so that another weight has other values."""
    if isinstance(initializer, _RandomInitializer) and initializer.seed is None:
        return type(initializer).from_config(initializer.get_config())
    return initializer


def serialize(initializer: object, use_legacy_format: bool = False) -> Config:
    """Return the configuration of an initializer.

    Example:
      >>> tf.keras.initializers.serialize(tf.keras.initializers.Constant(3))["config"]
      {'value': 3}
    """
    return serialization.serialize(initializer, use_legacy_format)


def deserialize(
    config: str | Config | None,
    custom_objects: CustomObjects = None,
    use_legacy_format: bool = False,
) -> KerasObject:
    """Create an initializer from its configuration.

    Example:
      >>> config = tf.keras.initializers.serialize(tf.keras.initializers.Constant(3))
      >>> tf.keras.initializers.deserialize(config).value
      3
    """
    return _REGISTRY.deserialize(config, custom_objects)
