"""`tf.random.Generator`: random numbers with an explicit state."""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from meshflow.core.runtime import determinism
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import (
    SeedStream,
    convert_earlier_state,
    get_global_seed,
    make_state,
)
from meshflow.core.variables.variable import Variable
from meshflow.ops.array import stack, zeros_like
from meshflow.ops.array.creation import as_sizes
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.random import from_keys

__all__ = [
    "Algorithm",
    "Generator",
    "create_rng_state",
    "get_global_generator",
    "set_global_generator",
]


class Algorithm(enum.Enum):
    """Algorithms for random numbers. Only Philox is implemented, and AUTO_SELECT selects it."""

    PHILOX = 1
    THREEFRY = 2
    AUTO_SELECT = 3


# An algorithm, its integer or its name; None selects Philox.
_AlgorithmLike: TypeAlias = Algorithm | int | str | None


def check_algorithm(alg: _AlgorithmLike) -> None:
    """Check that an algorithm is Philox.

    Raises:
      ValueError: If the name is unknown.
      UnimplementedError: For ThreeFry.
    """
    value = alg.value if isinstance(alg, Algorithm) else alg
    if isinstance(value, str):
        names = {a.name.lower(): a.value for a in Algorithm}
        if value not in names:
            raise ValueError(
                f"Argument `alg` got unsupported value {alg}. Supported values are philox for the Philox "
                "algorithm, threefry for the ThreeFry algorithm, and auto_select for auto selection."
            )
        value = names[value]
    if value == Algorithm.THREEFRY.value:
        raise UnimplementedError(
            "The ThreeFry algorithm is not implemented, as on TensorFlow's CPUs: use alg='philox'."
        )


class Generator:
    """Random number generator with its own state.

    Create one by `from_seed`, `from_state` or `from_non_deterministic_state`. The numbers and
    states are those of TensorFlow's Philox generators.

    Args:
      copy_from: A generator to copy.
      state: The three integers of a state: the low and high halves of the counter, and the key.
      alg: 'philox' or 'auto_select', which is the same.

    Raises:
      UnimplementedError: For the algorithm 'threefry'.

    Example:
      >>> generator = tf.random.Generator.from_seed(1)
      >>> [f"{x:.4f}" for x in generator.uniform([2]).numpy()], generator.state.numpy().tolist()
      (['0.7875', '0.3907'], [513, 0, 0])
    """

    def __init__(
        self,
        copy_from: Generator | None = None,
        state: TensorLike | None = None,
        alg: _AlgorithmLike = None,
    ) -> None:
        check_algorithm(alg)
        if copy_from is None and state is None:
            raise ValueError(
                "Generator: pass copy_from or state, or use Generator.from_seed(seed)."
            )
        self._stream = SeedStream(0)
        self._stream.is_public = True
        self.reset(copy_from.state.read_value() if copy_from is not None else state)

    @classmethod
    def from_seed(cls, seed: int | Sequence[int], alg: _AlgorithmLike = None) -> Generator:
        """Create a generator from a seed: one integer or up to three."""
        return cls(state=_make_state_from_seed(seed), alg=alg)

    @classmethod
    def from_state(cls, state: TensorLike, alg: _AlgorithmLike = None) -> Generator:
        """Create a generator that continues from a state."""
        return cls(state=state, alg=alg)

    @classmethod
    def from_non_deterministic_state(cls, alg: _AlgorithmLike = None) -> Generator:
        """Create a generator with a seed from the operating system.

        Raises:
          RuntimeError: If op determinism is enabled.
        """
        determinism.require_seed("Generators from a non-deterministic state")
        return cls.from_seed(int.from_bytes(os.urandom(7), "little"))

    @classmethod
    def from_key_counter(
        cls, key: TensorLike, counter: TensorLike, alg: _AlgorithmLike = None
    ) -> Generator:
        """Create a generator from a key, one integer, and a counter, two integers."""
        return cls(state=_make_state_from_key_counter(key, counter), alg=alg)

    def _checkpoint_children(self) -> dict[str, Variable]:
        return {"_state_var": self._stream.state}

    @property
    def state(self) -> Variable:
        """Return the state, a variable that is saved in checkpoints."""
        return self._stream.state

    @property
    def key(self) -> Tensor:
        """Return the key part of the state."""
        return self._stream.state.read_value()[2]

    @property
    def algorithm(self) -> int:
        """Return TensorFlow's integer for Philox."""
        return Algorithm.PHILOX.value

    def reset(self, state: TensorLike) -> None:
        """Set the state."""
        self._stream.state.assign(_to_state(state))

    def reset_from_seed(self, seed: int | Sequence[int]) -> None:
        """Set the state to that of `from_seed(seed)`."""
        self.reset(_make_state_from_seed(seed))

    def reset_from_key_counter(self, key: TensorLike, counter: TensorLike) -> None:
        """Set the state to that of `from_key_counter(key, counter)`."""
        self.reset(_make_state_from_key_counter(key, counter))

    def skip(self, delta: int) -> Tensor:
        """Skip `delta` numbers and return the previous state."""
        before = self._stream.state.read_value()
        self._stream.next_key(from_keys.count_counters(int(delta)))
        return before

    def split(self, count: int = 1) -> list[Generator]:
        """Create `count` generators that are independent of each other and of this one."""
        keys = self.uniform_full_int([count], "int64").numpy().tolist()
        return [Generator(state=[0, 0, key]) for key in keys]

    def make_seeds(self, count: int = 1) -> Tensor:
        """Create seeds for stateless ops, int64 of shape [2, count]."""
        seeds = self.uniform_full_int([count], "int64")
        return stack([seeds, zeros_like(seeds)])

    def normal(
        self,
        shape: StaticInts,
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> Tensor:
        """Draw normally distributed numbers."""
        sizes = as_sizes(shape)
        return from_keys.draw_normal(self._draw_key(sizes), sizes, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: StaticInts,
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> Tensor:
        """Draw normally distributed numbers within two standard deviations of the mean."""
        sizes = as_sizes(shape)
        return from_keys.draw_truncated_normal(self._draw_key(sizes), sizes, mean, stddev, dtype)

    def uniform(
        self,
        shape: StaticInts,
        minval: TensorLike | None = 0,
        maxval: TensorLike | None = None,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> Tensor:
        """Draw uniformly distributed numbers in [minval, maxval).

        Integers are drawn from the full range of the dtype if both limits are None.
        """
        if minval is None and maxval is None and as_dtype(dtype).is_integer:
            return self.uniform_full_int(shape, dtype)
        sizes = as_sizes(shape)
        return from_keys.draw_uniform(self._draw_key(sizes), sizes, minval, maxval, dtype)

    def uniform_full_int(
        self, shape: StaticInts, dtype: DTypeLike = "uint64", name: str | None = None
    ) -> Tensor:
        """Draw integers from the full range of the dtype."""
        sizes = as_sizes(shape)
        return from_keys.draw_bits(self._draw_key(sizes), sizes, dtype)

    def binomial(
        self,
        shape: StaticInts,
        counts: TensorLike,
        probs: TensorLike,
        dtype: DTypeLike = "int32",
        name: str | None = None,
    ) -> Tensor:
        """Draw numbers of successes in `counts` trials with probability `probs`."""
        sizes = as_sizes(shape)
        counts, probs = convert_to_tensor(counts), convert_to_tensor(probs)
        last = np.broadcast_shapes(tuple(counts.shape), tuple(probs.shape))
        num_per_parameter = math.prod(sizes[: len(sizes) - len(last)])
        # TensorFlow reserves two words for each of a hundred attempts, rounded up to blocks of
        # four.
        num_counters = from_keys.count_counters(
            math.prod(last) * 200 * (num_per_parameter + 3) // 4
        )
        key = self._stream.next_key(num_counters)
        return from_keys.draw_binomial(key, sizes, counts, probs, dtype)

    def _draw_key(self, sizes: tuple[int, ...]) -> Tensor:
        return self._stream.next_key(from_keys.count_counters(*sizes))


def _to_state(state: TensorLike) -> np.ndarray:
    """Convert a state to int64 [3], including states that earlier versions saved."""
    value = np.asarray(convert_to_tensor(state).numpy())
    if value.shape != (3,):
        raise ValueError(
            f"Shapes {value.shape} and [3] are incompatible: a state consists of three integers."
        )
    if value.dtype == np.uint32:
        return np.array(convert_earlier_state(value.tolist()), np.int64)
    return value.astype(np.int64)


def _make_state_from_seed(seed: int | Sequence[int]) -> list[int]:
    if isinstance(seed, int):
        return make_state(seed >> 128, seed >> 64, seed)
    words = np.asarray(convert_to_tensor(seed).numpy()).reshape(-1).astype(np.int64).tolist()
    return ([0, 0, 0, *words[:3]])[-3:]


def _make_state_from_key_counter(key: TensorLike, counter: TensorLike) -> list[int]:
    low, high = np.asarray(convert_to_tensor(counter).numpy()).astype(np.int64).tolist()
    return [low, high, int(np.asarray(convert_to_tensor(key).numpy()))]


def create_rng_state(seed: int | Sequence[int], alg: _AlgorithmLike = None) -> Tensor:
    """Create the state, int64 [3], of a generator with a seed, for `Generator.from_state`.

    Args:
      seed: One integer or several.
      alg: 'philox' or 'auto_select', which is the same.

    Example:
      >>> tf.random.create_rng_state([5, 6], alg="philox").numpy().tolist()
      [0, 5, 6]
    """
    check_algorithm(alg)
    return convert_to_tensor(np.array(_make_state_from_seed(seed), np.int64))


_global_generator: list[Generator] = []


def get_global_generator() -> Generator:
    """Return the generator that the process shares, created from the global seed at the first call.

    Example:
      >>> tf.random.get_global_generator().uniform([3]).shape
      TensorShape([3])
    """
    if not _global_generator:
        seed = get_global_seed()
        generator = (
            Generator.from_non_deterministic_state() if seed is None else Generator.from_seed(seed)
        )
        _global_generator.append(generator)
    return _global_generator[0]


def set_global_generator(generator: Generator) -> None:
    """Replace the generator that the process shares.

    Example:
      >>> before = tf.random.get_global_generator()
      >>> tf.random.set_global_generator(tf.random.Generator.from_seed(3))
      >>> tf.random.get_global_generator() is before
      False
      >>> tf.random.set_global_generator(before)
    """
    _global_generator[:] = [generator]
