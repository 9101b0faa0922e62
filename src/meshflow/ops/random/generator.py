"""`tf.random.Generator`: random numbers with a state of their own."""

from __future__ import annotations

import enum
import os
from typing import Any

import numpy as np

from meshflow.core.runtime import determinism
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random import SeedStream, global_seed, seed_words
from meshflow.core.variables.variable import Variable
from meshflow.ops.random import from_keys

__all__ = [
    "Algorithm",
    "Generator",
    "create_rng_state",
    "get_global_generator",
    "set_global_generator",
]


class Algorithm(enum.Enum):
    """Algorithms of random numbers; accepted, all numbers here are threefry's."""

    PHILOX = 1
    THREEFRY = 2
    AUTO_SELECT = 3


class Generator:
    """A random number generator with its own state.

    Made by `from_seed`, `from_state` or `from_non_deterministic_state`.

    Args:
      copy_from: a generator to copy.
      state: the three numbers of a state.
      alg: accepted; the algorithm is always threefry.

    Example:
      >>> import meshflow as tf
      >>> a = tf.random.Generator.from_seed(1).normal([2])
      >>> b = tf.random.Generator.from_seed(1).normal([2])
      >>> bool(tf.reduce_all(a == b))
      True
    """

    def __init__(
        self, copy_from: Generator | None = None, state: Any = None, alg: Any = None
    ) -> None:
        del alg
        self._stream = SeedStream(0)
        self._stream.shown = True
        if copy_from is not None:
            self._stream.state.assign(copy_from.state.read_value())
        elif state is not None:
            self._stream.state.assign(
                np.asarray(convert_to_tensor(state).numpy()).astype(np.uint32)
            )
        else:
            raise ValueError(
                "Generator: give copy_from or state, or use Generator.from_seed(seed)."
            )

    @classmethod
    def from_seed(cls, seed: Any, alg: Any = None) -> Generator:
        """A generator that gives the same numbers for the same seed."""
        value = np.asarray(convert_to_tensor(seed).numpy()).reshape(-1)
        words = seed_words(int(value[0]))
        for extra in value[1:]:
            words = [words[0] ^ (int(extra) & 0xFFFFFFFF), words[1]]
        return cls(state=[*words, 0])

    @classmethod
    def from_state(cls, state: Any, alg: Any = None) -> Generator:
        """A generator that continues from a state."""
        return cls(state=state)

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
        """A generator from a key and a counter."""
        number = int(np.asarray(convert_to_tensor(counter).numpy()).reshape(-1)[0])
        return cls(
            state=[
                *seed_words(int(np.asarray(convert_to_tensor(key).numpy()).reshape(-1)[0])),
                number,
            ]
        )

    def _checkpoint_children(self) -> dict[str, Any]:
        return {"_state_var": self._stream.state}

    @property
    def state(self) -> Variable:
        """The state, a variable that checkpoints."""
        return self._stream.state

    @property
    def key(self) -> Tensor:
        """The key part of the state."""
        return self._stream.state.read_value()[:2]

    @property
    def algorithm(self) -> int:
        """TensorFlow's number of the algorithm (threefry)."""
        return 2

    def reset(self, state: Any) -> None:
        """Sets the state."""
        self._stream.state.assign(np.asarray(convert_to_tensor(state).numpy()).astype(np.uint32))

    def reset_from_seed(self, seed: int) -> None:
        """Starts again as `from_seed(seed)` does."""
        self._stream.reset(seed_words(int(seed)))

    def reset_from_key_counter(self, key: Any, counter: Any) -> None:
        """Starts again as `from_key_counter` does."""
        self._stream.state.assign(Generator.from_key_counter(key, counter).state.read_value())

    def skip(self, delta: int) -> None:
        """Passes over `delta` draws."""
        state = self._stream.state
        state.assign(state.numpy() + np.array([0, 0, int(delta)], np.uint32))

    def split(self, count: int = 1) -> list[Generator]:
        """`count` new generators, independent of each other and of this one."""
        return [
            Generator(state=[*(int(w) for w in self._stream.next_key().numpy()), 0])
            for _ in range(count)
        ]

    def make_seeds(self, count: int = 1) -> Tensor:
        """Seeds for stateless ops, int64 of shape [2, count]."""
        keys = [self._stream.next_key().numpy().astype(np.int64) for _ in range(count)]
        return convert_to_tensor(np.stack(keys, axis=1))

    def normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = "float32",
        name: Any = None,
    ) -> Tensor:
        """Normally distributed numbers."""
        return from_keys.normal_from_key(self._stream.next_key(), shape, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = "float32",
        name: Any = None,
    ) -> Tensor:
        """Normally distributed numbers within two standard deviations."""
        return from_keys.truncated_normal_from_key(
            self._stream.next_key(), shape, mean, stddev, dtype
        )

    def uniform(
        self,
        shape: Any,
        minval: Any = 0,
        maxval: Any = None,
        dtype: Any = "float32",
        name: Any = None,
    ) -> Tensor:
        """Uniformly distributed numbers in [minval, maxval)."""
        return from_keys.uniform_from_key(self._stream.next_key(), shape, minval, maxval, dtype)

    def uniform_full_int(self, shape: Any, dtype: Any = "uint64", name: Any = None) -> Tensor:
        """Integers over the whole range of the dtype."""
        return from_keys.bits_from_key(self._stream.next_key(), shape, dtype)

    def binomial(
        self, shape: Any, counts: Any, probs: Any, dtype: Any = "int32", name: Any = None
    ) -> Tensor:
        """Numbers of successes in `counts` trials with probability `probs`."""
        return from_keys.binomial_from_key(self._stream.next_key(), shape, counts, probs, dtype)


def create_rng_state(seed: Any, alg: Any = None) -> np.ndarray:
    """The state of a generator made from a seed, for `Generator.from_state`.

    The state is a vector of shape (3,).

    Args:
      seed: an integer or several.
      alg: accepted; the algorithm is always threefry.

    Example:
      >>> import meshflow as tf
      >>> state = tf.random.create_rng_state(7, alg="threefry")
      >>> generator = tf.random.Generator.from_state(state, alg="threefry")
      >>> generator.normal([2]).shape
      TensorShape([2])
    """
    return Generator.from_seed(seed).state.numpy()


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
