"""`tf.keras.random`: Keras 3's random numbers, from a seed, a seed generator, or the global seed.

A whole number as a seed gives the same numbers at each call; a `SeedGenerator` others each time; None draws
from the program's own generator (`tf.random.set_seed`, `tf.keras.utils.set_random_seed`).

Example:
  >>> import meshflow as tf
  >>> a, b = (tf.keras.random.normal([3], seed=1) for _ in range(2))
  >>> bool(tf.reduce_all(a == b))
  True
"""

from __future__ import annotations

import random as python_random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.module import Module
from meshflow.core.variables.random import random_key
from meshflow.core.variables.variable import Variable
from meshflow.environment.jax_internals import trace_state_clean
from meshflow.keras.settings import floatx
from meshflow.ops import array, casting
from meshflow.ops import random as random_ops
from meshflow.ops.array.creation import as_sizes

__all__ = [
    "SeedGenerator",
    "beta",
    "binomial",
    "categorical",
    "dropout",
    "gamma",
    "normal",
    "randint",
    "shuffle",
    "truncated_normal",
    "uniform",
]


class SeedGenerator(Module):
    """Seeds one after the other: a variable of two numbers, of which the second counts.

    Args:
      seed: the first seed; default a random one.
      name: a name.

    Attributes:
      seed: the first seed.
      state: the variable, [2].

    Example:
      >>> import meshflow as tf
      >>> seeds = tf.keras.random.SeedGenerator(seed=3)
      >>> [seeds.next().numpy().tolist() for _ in range(2)]
      [[3, 0], [3, 1]]
    """

    def __init__(self, seed: int | None = None, name: str | None = None, **kwargs: Any) -> None:
        if kwargs:
            raise ValueError(f"Unrecognized keyword arguments: {kwargs}")
        super().__init__(name=name)
        if seed is None:
            seed = python_random.randint(1, 2**31 - 1)
        if not isinstance(seed, int):
            raise ValueError(f"Argument `seed` must be an integer. Received: seed={seed}")
        if seed < 0:
            raise ValueError(f"Argument `seed` must be a positive integer. Received: seed={seed}")
        self._initial_seed = seed
        self.seed = seed
        self.state = Variable(
            [seed, 0], dtype="int64", trainable=False, name="seed_generator_state"
        )

    def next(self, ordered: bool = True) -> Tensor:
        """The next seed, two numbers.

        Args:
          ordered: accepted: seeds come in order.
        """
        found = array.identity(self.state)
        self.state.assign_add([0, 1])
        return found

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {"seed": self._initial_seed}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SeedGenerator:
        """A generator of a configuration."""
        return cls(**config)


def _key(seed: Any) -> Tensor:
    """The key that a seed stands for: JAX's own, so that numbers are those of Keras on JAX."""
    return casting.cast(draw_seed(seed), dtypes.uint32)


@op(same=(), differentiable=False, name="random_normal")
def _normal(key: TensorLike, shape: Any, dtype: Any) -> Any:
    return jax.random.normal(random_key(key), shape, dtype.dtype)


@op(same=(), differentiable=False, name="truncated_normal")
def _truncated_normal(key: TensorLike, shape: Any, dtype: Any) -> Any:
    return jax.random.truncated_normal(random_key(key), -2, 2, shape, dtype.dtype)


@op(same=(), differentiable=False, name="random_uniform")
def _uniform(key: TensorLike, shape: Any, dtype: Any) -> Any:
    return jax.random.uniform(random_key(key), shape, dtype.dtype)


@op(same=(), differentiable=False, name="random_integers")
def _integers(key: TensorLike, low: TensorLike, high: TensorLike, shape: Any, dtype: Any) -> Any:
    return jax.random.randint(random_key(key), shape, low, high, dtype.dtype)


@op(same=(), differentiable=False, name="random_order")
def _order(key: TensorLike, size: Any) -> Any:
    return jax.random.permutation(random_key(key), size)


def _scaled(drawn: Tensor, scale: Any, start: Any) -> Tensor:
    return drawn * _as(scale, drawn.dtype) + _as(start, drawn.dtype)


def draw_seed(seed: Any) -> Tensor:
    """The two numbers that a seed stands for, as int64."""
    if isinstance(seed, SeedGenerator):
        return seed.next()
    if isinstance(seed, int):
        return convert_to_tensor([seed, 0], "int64")
    if seed is None:
        _check_not_in_jax()
        return random_ops.uniform([2], maxval=2**31 - 1, dtype="int64")
    if isinstance(seed, jax.Array):
        if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
            seed = jax.random.key_data(seed)
        return casting.cast(convert_to_tensor(seed), "int64")
    raise ValueError(
        f"Argument `seed` must be either an integer or an instance of `SeedGenerator`. Received: seed={seed} (of type {type(seed)})"
    )


def _check_not_in_jax() -> None:
    """Refuses a draw that would become a constant of a function of JAX."""
    if (
        context.trace is None
        and not trace_state_clean()
        and isinstance(jnp.ones(()), jax.core.Tracer)
    ):
        raise ValueError(
            "In a function that JAX traces you should only use seeded random ops: give `seed` a `SeedGenerator` of "
            "the layer or model, or a key of JAX. Unseeded ones would become constants of the compiled function."
        )


def _floating(dtype: Any) -> Any:
    found = dtypes.as_dtype(dtype or floatx())
    if not found.is_floating:
        raise ValueError(
            f"`keras.random` requires a floating point `dtype`. Received: dtype={found.name} "
        )
    return found


def normal(
    shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, seed: Any = None
) -> Tensor:
    """Normally distributed numbers.

    Args:
      shape: the shape.
      mean: the mean.
      stddev: the standard deviation.
      dtype: a floating dtype; default `floatx()`.
      seed: a whole number, a `SeedGenerator`, or None.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.random.normal([2, 3]).shape
      TensorShape([2, 3])
    """
    return _scaled(_normal(_key(seed), as_sizes(shape), _floating(dtype)), stddev, mean)


def truncated_normal(
    shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, seed: Any = None
) -> Tensor:
    """Normally distributed numbers within two standard deviations.

    Args:
      shape: the shape.
      mean: the mean.
      stddev: the standard deviation.
      dtype: a floating dtype; default `floatx()`.
      seed: a whole number, a `SeedGenerator`, or None.

    Example:
      >>> import meshflow as tf
      >>> bool(tf.reduce_all(tf.abs(tf.keras.random.truncated_normal([100])) <= 2.0))
      True
    """
    drawn = _truncated_normal(_key(seed), as_sizes(shape), _floating(dtype))
    return _scaled(drawn, stddev, mean)


def uniform(
    shape: Any, minval: float = 0.0, maxval: float = 1.0, dtype: Any = None, seed: Any = None
) -> Tensor:
    """Numbers of a range, each as probable as the others.

    Args:
      shape: the shape.
      minval: the least number.
      maxval: where the range ends.
      dtype: a floating dtype; default `floatx()`.
      seed: a whole number, a `SeedGenerator`, or None.

    Example:
      >>> import meshflow as tf
      >>> bool(tf.reduce_all(tf.keras.random.uniform([9], 2.0, 3.0) >= 2.0))
      True
    """
    drawn = _uniform(_key(seed), as_sizes(shape), _floating(dtype))
    return _scaled(drawn, _as(maxval, drawn.dtype) - _as(minval, drawn.dtype), minval)


def randint(shape: Any, minval: int, maxval: int, dtype: Any = "int32", seed: Any = None) -> Tensor:
    """Whole numbers of a range, each as probable as the others.

    Args:
      shape: the shape.
      minval: the least number.
      maxval: where the range ends, which is left out.
      dtype: a dtype of integers.
      seed: a whole number, a `SeedGenerator`, or None.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.random.randint([3], 0, 1).numpy().tolist()
      [0, 0, 0]
    """
    kind = dtypes.as_dtype(dtype)
    if not kind.is_integer:
        raise ValueError(
            f"`keras.random.randint` requires an integer `dtype`. Received: dtype={kind.name} "
        )
    bounds = [v for v in (minval, maxval) if isinstance(v, int)]
    drawn = kind if all(kind.min <= v <= kind.max for v in bounds) else dtypes.int32
    low, high = (convert_to_tensor(v, drawn) for v in (minval, maxval))
    known = [v._value for v in (low, high) if isinstance(v._value, np.ndarray)]
    if len(known) == 2 and np.any(known[0] >= known[1]):
        raise InvalidArgumentError(f"Need minval < maxval, got {known[0]} >= {known[1]}")
    return casting.cast(_integers(_key(seed), low, high, as_sizes(shape), drawn), kind)


@op(same=("logits",), kinds="f", differentiable=False, name="random_categorical")
def _categorical(key: TensorLike, logits: TensorLike, num_samples: int) -> Any:
    shape = (logits.shape[0], num_samples)
    return jax.random.categorical(random_key(key), logits[..., None], axis=1, shape=shape)


def categorical(
    logits: TensorLike, num_samples: int, dtype: Any = "int32", seed: Any = None
) -> Tensor:
    """Numbers of classes, drawn by their probabilities.

    Args:
      logits: logarithms of probabilities, [batch, classes].
      num_samples: how many of each row.
      dtype: a dtype of integers.
      seed: a whole number, a `SeedGenerator`, or None.

    Returns:
      [batch, num_samples].

    Example:
      >>> import meshflow as tf
      >>> tf.keras.random.categorical([[0.0, -1e9]], 3).numpy().tolist()
      [[0, 0, 0]]
    """
    logits = convert_to_tensor(logits)
    if len(logits.shape) != 2:
        raise ValueError(
            f"`logits` should be a 2-D tensor with shape [batch_size, num_classes]. Received: logits={logits}"
        )
    return casting.cast(_categorical(_key(seed), logits, num_samples), dtypes.as_dtype(dtype))


@op(same=("x",), kinds="f", name="dropout")
def _dropout(x: TensorLike, key: TensorLike, rate: float, noise_shape: Any) -> Any:
    given = noise_shape or (None,) * x.ndim
    shape = [full if size is None else size for size, full in zip(given, x.shape, strict=True)]
    kept = jax.random.bernoulli(random_key(key), jnp.float32(1 - rate), shape)
    return jnp.where(kept, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))


def dropout(inputs: TensorLike, rate: float, noise_shape: Any = None, seed: Any = None) -> Tensor:
    """A random fraction of elements set to 0, the others scaled up.

    Args:
      inputs: a floating tensor.
      rate: the fraction, from 0 to 1.
      noise_shape: shape of the mask; sizes of 1 share a decision.
      seed: a whole number, a `SeedGenerator`, or None.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.random.dropout([1.0, 2.0], 0.0).numpy().tolist()
      [1.0, 2.0]
    """
    inputs = convert_to_tensor(inputs)
    if not 0 <= rate <= 1:
        raise ValueError(f"dropout: rate must be from 0 to 1, got {rate}.")
    if rate in (0, 1):
        return inputs if rate == 0 else array.zeros_like(inputs)
    shape = None if noise_shape is None else tuple(noise_shape)
    return _dropout(inputs, _key(seed), float(rate), shape)


def shuffle(x: TensorLike, axis: int = 0, seed: Any = None) -> Tensor:
    """Slices in a random order.

    Args:
      x: a tensor.
      axis: the dimension.
      seed: a whole number, a `SeedGenerator`, or None.

    Example:
      >>> import meshflow as tf
      >>> sorted(tf.keras.random.shuffle([3, 1, 2]).numpy().tolist())
      [1, 2, 3]
    """
    x = convert_to_tensor(x)
    return array.gather(x, _order(_key(seed), x.shape[axis]), axis=axis)


def gamma(shape: Any, alpha: Any, dtype: Any = None, seed: Any = None) -> Tensor:
    """Numbers of a gamma distribution with rate 1.

    Args:
      shape: the shape.
      alpha: the distribution's shape, which broadcasts to the last sizes.
      dtype: a floating dtype; default `floatx()`.
      seed: a whole number, a `SeedGenerator`, or None.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.random.gamma([2], 1.5).shape
      TensorShape([2])
    """
    kind = _floating(dtype)
    return _gamma(_key(seed), _as(alpha, kind), as_sizes(shape))


@op(same=("alpha",), name="random_gamma")
def _gamma(key: TensorLike, alpha: TensorLike, shape: Any) -> Any:
    return jax.random.gamma(random_key(key), alpha, shape, alpha.dtype)


@op(same=("alpha", "beta"), name="random_beta")
def _beta(key: TensorLike, alpha: TensorLike, beta: TensorLike, shape: Any) -> Any:
    return jax.random.beta(random_key(key), alpha, beta, shape, alpha.dtype)


def beta(shape: Any, alpha: Any, beta: Any, dtype: Any = None, seed: Any = None) -> Tensor:
    """Numbers of a beta distribution: of two gamma distributions, the first's share of both.

    Args:
      shape: the shape.
      alpha: the first one's shape.
      beta: the second one's shape.
      dtype: a floating dtype; default `floatx()`.
      seed: a whole number, a `SeedGenerator`, or None.

    Example:
      >>> import meshflow as tf
      >>> bool(tf.reduce_all(tf.keras.random.beta([9], 2.0, 2.0) < 1.0))
      True
    """
    kind = _floating(dtype)
    return _beta(_key(seed), _as(alpha, kind), _as(beta, kind), as_sizes(shape))


@op(same=("counts", "probabilities"), differentiable=False, name="random_binomial")
def _binomial(key: TensorLike, counts: TensorLike, probabilities: TensorLike, shape: Any) -> Any:
    return jax.random.binomial(random_key(key), counts, probabilities, shape, counts.dtype)


def binomial(
    shape: Any, counts: Any, probabilities: Any, dtype: Any = None, seed: Any = None
) -> Tensor:
    """How many of a number of trials succeed.

    Args:
      shape: the shape.
      counts: how many trials.
      probabilities: of the success of each.
      dtype: a floating dtype; default `floatx()`.
      seed: a whole number, a `SeedGenerator`, or None.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.random.binomial([2], 5.0, 1.0).numpy().tolist()
      [5.0, 5.0]
    """
    kind = _floating(dtype)
    # Counts above 2048 have no float16.
    wide = kind if kind.size > 2 else dtypes.float32
    drawn = _binomial(_key(seed), _as(counts, wide), _as(probabilities, wide), as_sizes(shape))
    return casting.cast(drawn, kind)


def _as(value: Any, kind: Any) -> Tensor:
    return casting.cast(convert_to_tensor(value), kind)
