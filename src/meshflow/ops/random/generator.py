"""`tf.random.Generator`: random numbers with a state of their own."""

from __future__ import annotations

import enum
import math
import os
from typing import Any

import numpy as np

from meshflow.core.runtime import determinism
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random import SeedStream, global_seed, place, place_of_earlier
from meshflow.core.variables.variable import Variable
from meshflow.ops.array import stack, zeros_like
from meshflow.ops.array.creation import as_sizes
from meshflow.ops.random import from_keys

__all__ = [
    "Algorithm",
    "Generator",
    "create_rng_state",
    "get_global_generator",
    "set_global_generator",
]


class Algorithm(enum.Enum):
    """Algorithms of random numbers: Philox is there, and what is selected."""

    PHILOX = 1
    THREEFRY = 2
    AUTO_SELECT = 3


def check_algorithm(alg: Any) -> None:
    """Refuses other algorithms than Philox.

    Raises:
      ValueError: for an unknown name.
      UnimplementedError: for ThreeFry.
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
            "The ThreeFry algorithm is not there, as on TensorFlow's CPUs: use alg='philox'."
        )


class Generator:
    """A random number generator with its own state.

    Made by `from_seed`, `from_state` or `from_non_deterministic_state`. Numbers and states are those of TensorFlow's
    Philox generators.

    Args:
      copy_from: a generator to copy.
      state: the three numbers of a state: the low and high halves of the counter, and the key.
      alg: 'philox' or 'auto_select', which is the same.

    Raises:
      UnimplementedError: for the algorithm 'threefry'.

    Example:
      >>> import meshflow as tf
      >>> generator = tf.random.Generator.from_seed(1)
      >>> [f"{x:.4f}" for x in generator.uniform([2]).numpy()], generator.state.numpy().tolist()
      (['0.7875', '0.3907'], [513, 0, 0])
    """

    def __init__(
        self, copy_from: Generator | None = None, state: Any = None, alg: Any = None
    ) -> None:
        check_algorithm(alg)
        if copy_from is None and state is None:
            raise ValueError(
                "Generator: give copy_from or state, or use Generator.from_seed(seed)."
            )
        self._stream = SeedStream(0)
        self._stream.shown = True
        self.reset(copy_from.state.read_value() if copy_from is not None else state)

    @classmethod
    def from_seed(cls, seed: Any, alg: Any = None) -> Generator:
        """A generator that gives the same numbers for the same seed, an integer or up to three."""
        return cls(state=_state_of_seed(seed), alg=alg)

    @classmethod
    def from_state(cls, state: Any, alg: Any = None) -> Generator:
        """A generator that continues from a state."""
        return cls(state=state, alg=alg)

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> Generator:
        """A generator seeded by the operating system.

        Raises:
          RuntimeError: when op determinism is on.
        """
        determinism.require_seed("Generators from a non-deterministic state")
        return cls.from_seed(int.from_bytes(os.urandom(7), "little"))

    @classmethod
    def from_key_counter(cls, key: Any, counter: Any, alg: Any = None) -> Generator:
        """A generator from a key, a number, and a counter, two of them."""
        return cls(state=_state_of_key_counter(key, counter), alg=alg)

    def _checkpoint_children(self) -> dict[str, Any]:
        return {"_state_var": self._stream.state}

    @property
    def state(self) -> Variable:
        """The state, a variable that checkpoints."""
        return self._stream.state

    @property
    def key(self) -> Tensor:
        """The key part of the state."""
        return self._stream.state.read_value()[2]

    @property
    def algorithm(self) -> int:
        """TensorFlow's number of the algorithm (Philox)."""
        return Algorithm.PHILOX.value

    def reset(self, state: Any) -> None:
        """Sets the state."""
        self._stream.state.assign(_as_state(state))

    def reset_from_seed(self, seed: Any) -> None:
        """Starts again as `from_seed(seed)` does."""
        self.reset(_state_of_seed(seed))

    def reset_from_key_counter(self, key: Any, counter: Any) -> None:
        """Starts again as `from_key_counter` does."""
        self.reset(_state_of_key_counter(key, counter))

    def skip(self, delta: int) -> Tensor:
        """Passes over `delta` numbers, and gives the state before."""
        before = self._stream.state.read_value()
        self._stream.next_key(from_keys.counts_of(int(delta)))
        return before

    def split(self, count: int = 1) -> list[Generator]:
        """`count` new generators, independent of each other and of this one."""
        keys = self.uniform_full_int([count], "int64").numpy().tolist()
        return [Generator(state=[0, 0, key]) for key in keys]

    def make_seeds(self, count: int = 1) -> Tensor:
        """Seeds for stateless ops, int64 of shape [2, count]."""
        seeds = self.uniform_full_int([count], "int64")
        return stack([seeds, zeros_like(seeds)])

    def normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = "float32",
        name: Any = None,
    ) -> Tensor:
        """Normally distributed numbers."""
        sizes = as_sizes(shape)
        return from_keys.normal_from_key(self._key(sizes), sizes, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = "float32",
        name: Any = None,
    ) -> Tensor:
        """Normally distributed numbers within two standard deviations."""
        sizes = as_sizes(shape)
        return from_keys.truncated_normal_from_key(self._key(sizes), sizes, mean, stddev, dtype)

    def uniform(
        self,
        shape: Any,
        minval: Any = 0,
        maxval: Any = None,
        dtype: Any = "float32",
        name: Any = None,
    ) -> Tensor:
        """Uniformly distributed numbers in [minval, maxval); integers of the whole range when both are None."""
        if minval is None and maxval is None and as_dtype(dtype).is_integer:
            return self.uniform_full_int(shape, dtype)
        sizes = as_sizes(shape)
        return from_keys.uniform_from_key(self._key(sizes), sizes, minval, maxval, dtype)

    def uniform_full_int(self, shape: Any, dtype: Any = "uint64", name: Any = None) -> Tensor:
        """Integers over the whole range of the dtype."""
        sizes = as_sizes(shape)
        return from_keys.bits_from_key(self._key(sizes), sizes, dtype)

    def binomial(
        self, shape: Any, counts: Any, probs: Any, dtype: Any = "int32", name: Any = None
    ) -> Tensor:
        """Numbers of successes in `counts` trials with probability `probs`."""
        sizes = as_sizes(shape)
        counts, probs = convert_to_tensor(counts), convert_to_tensor(probs)
        last = np.broadcast_shapes(tuple(counts.shape), tuple(probs.shape))
        each = math.prod(sizes[: len(sizes) - len(last)])
        # Two words for each of a hundred tries, rounded up to fours.
        used = from_keys.counts_of(math.prod(last) * 200 * (each + 3) // 4)
        key = self._stream.next_key(used)
        return from_keys.binomial_from_key(key, sizes, counts, probs, dtype)

    def _key(self, sizes: tuple[Any, ...]) -> Tensor:
        return self._stream.next_key(from_keys.counts_of(*sizes))


def _as_state(state: Any) -> np.ndarray:
    """A state as int64 [3], also one that an earlier version kept."""
    value = np.asarray(convert_to_tensor(state).numpy())
    if value.shape != (3,):
        raise ValueError(
            f"Shapes {value.shape} and [3] are incompatible: a state is three numbers."
        )
    if value.dtype == np.uint32:
        return np.array(place_of_earlier(value.tolist()), np.int64)
    return value.astype(np.int64)


def _state_of_seed(seed: Any) -> list[int]:
    if isinstance(seed, int):
        return place(seed >> 128, seed >> 64, seed)
    numbers = np.asarray(convert_to_tensor(seed).numpy()).reshape(-1).astype(np.int64).tolist()
    return ([0, 0, 0, *numbers[:3]])[-3:]


def _state_of_key_counter(key: Any, counter: Any) -> list[int]:
    low, high = np.asarray(convert_to_tensor(counter).numpy()).astype(np.int64).tolist()
    return [low, high, int(np.asarray(convert_to_tensor(key).numpy()))]


def create_rng_state(seed: Any, alg: Any = None) -> Tensor:
    """The state of a generator made from a seed, for `Generator.from_state`.

    The state is int64 of shape (3,).

    Args:
      seed: an integer or several.
      alg: 'philox' or 'auto_select', which is the same.

    Example:
      >>> import meshflow as tf
      >>> tf.random.create_rng_state([5, 6], alg="philox").numpy().tolist()
      [0, 5, 6]
    """
    check_algorithm(alg)
    return convert_to_tensor(np.array(_state_of_seed(seed), np.int64))


_global_generator: list[Generator] = []


def get_global_generator() -> Generator:
    """The generator shared by the process, made from the global seed when first asked for.

    Example:
      >>> import meshflow as tf
      >>> tf.random.get_global_generator().uniform([3]).shape
      TensorShape([3])
    """
    if not _global_generator:
        seed = global_seed()
        made = (
            Generator.from_non_deterministic_state() if seed is None else Generator.from_seed(seed)
        )
        _global_generator.append(made)
    return _global_generator[0]


def set_global_generator(generator: Generator) -> None:
    """Replaces the shared generator.

    Args:
      generator: the new one.

    Example:
      >>> import meshflow as tf
      >>> before = tf.random.get_global_generator()
      >>> tf.random.set_global_generator(tf.random.Generator.from_seed(3))
      >>> tf.random.get_global_generator() is before
      False
      >>> tf.random.set_global_generator(before)
    """
    _global_generator[:] = [generator]
