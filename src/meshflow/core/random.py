"""Random numbers: the global seed, streams of keys, and `tf.random.Generator`.

All numbers come from JAX's counter-based threefry generator: a *key* of two uint32 numbers
determines them, whatever the number of devices. A `SeedStream` is a variable holding a key and a
counter; every use advances the counter, so compiled functions draw new numbers at every call
and a checkpoint of the variable resumes the sequence.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import Op, apply
from meshflow.core.tensor import Tensor
from meshflow.core.trace import init_scope
from meshflow.core.variable import Variable

# TensorFlow's global seed for ops that have a seed of their own when none was set.
_DEFAULT_SEED = 87654321


def _fold(operands: Any, _: Any) -> Any:
    (state,) = operands
    key = jax.random.wrap_key_data(state[:2], impl="threefry2x32")
    advanced = state.at[2].add(jnp.uint32(1))
    return jax.random.key_data(jax.random.fold_in(key, state[2])), advanced


_NEXT = Op("next_key", _fold, differentiable=False)


def _words(seed: int) -> list[int]:
    return [(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF]


class SeedStream:
    """An endless stream of keys.

    Args:
      seed: an integer; None takes one from the global seed when first used.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._state: Variable | None = None

    @property
    def state(self) -> Variable:
        """The variable (uint32, shape [3]): two words of key and a counter."""
        if self._state is None:
            with init_scope():
                words = _words(self.seed) if self.seed is not None else _global.draw_seed()
                value = np.array([*words, 0], np.uint32)
                self._state = Variable(value, trainable=False, name="seed_state")
        return self._state

    def next_key(self) -> Tensor:
        """A new key, uint32 of shape [2]; works eagerly and while a function is traced."""
        state = self.state
        key, advanced = apply(_NEXT, (state._as_tensor(),))
        state._write(advanced)
        return key

    def reset(self, words: list[int]) -> None:
        """Starts again from another key, in the same variable."""
        with init_scope():
            self.state.assign(np.array([*words, 0], np.uint32))


class _Global:
    """The global seed and what is derived from it."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self._entropy = int.from_bytes(os.urandom(7), "little")
        self._drawn = 0
        self._streams: dict[int | None, SeedStream] = {}

    def _base(self) -> int:
        return self._entropy if self.seed is None else self.seed

    def set(self, seed: int) -> None:
        self.seed = seed
        self._drawn = 0
        for op_seed, stream in self._streams.items():
            if stream._state is not None:
                stream.reset(self._words_for(op_seed))

    def _words_for(self, op_seed: int | None) -> list[int]:
        if op_seed is None:
            high, low = _words(self._base())
            return [high ^ 0x9E3779B9, low]
        base = _DEFAULT_SEED if self.seed is None else self.seed
        return [(base ^ (base >> 32)) & 0xFFFFFFFF, (op_seed ^ (op_seed >> 32)) & 0xFFFFFFFF]

    def stream(self, op_seed: int | None) -> SeedStream:
        if op_seed not in self._streams:
            stream = self._streams[op_seed] = SeedStream(0)
            stream.reset(self._words_for(op_seed))
        return self._streams[op_seed]

    def draw_seed(self) -> list[int]:
        """Words of a new seed; the n-th since the global seed was set is always the same."""
        self._drawn += 1
        sequence = np.random.SeedSequence([*_words(self._base()), self._drawn])
        return [int(w) for w in sequence.generate_state(2)]


_global = _Global()


def set_seed(seed: int) -> None:
    """Sets the global seed: random ops then give the same numbers in every run.

    Args:
      seed: an integer.

    Example:
      >>> import meshflow as tf
      >>> tf.random.set_seed(1)
      >>> first = tf.random.uniform([2])
      >>> tf.random.set_seed(1)
      >>> bool(tf.reduce_all(first == tf.random.uniform([2])))
      True
    """
    _global.set(int(seed))


def global_seed() -> int | None:
    """The global seed, None when it was not set."""
    return _global.seed


def op_key(seed: Any = None) -> Tensor:
    """A key for one call of a random op with an optional seed of its own."""
    return _global.stream(None if seed is None else int(seed)).next_key()


def host_generator(seed: int | None = None) -> np.random.Generator:
    """A NumPy generator for values made on the host, such as initial weights.

    Args:
      seed: an integer; None takes the next seed derived from the global one.
    """
    return np.random.Generator(
        np.random.Philox(_words(int(seed)) if seed is not None else _global.draw_seed())
    )


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
        words = _words(int(value[0]))
        for extra in value[1:]:
            words = [words[0] ^ (int(extra) & 0xFFFFFFFF), words[1]]
        return cls(state=[*words, 0])

    @classmethod
    def from_state(cls, state: Any, alg: Any = None) -> Generator:
        """A generator that continues from a state."""
        return cls(state=state)

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> Generator:
        """A generator seeded by the operating system."""
        return cls.from_seed(int.from_bytes(os.urandom(7), "little"))

    @classmethod
    def from_key_counter(cls, key: Any, counter: Any, alg: Any = None) -> Generator:
        """A generator from a key and a counter."""
        number = int(np.asarray(convert_to_tensor(counter).numpy()).reshape(-1)[0])
        return cls(
            state=[*_words(int(np.asarray(convert_to_tensor(key).numpy()).reshape(-1)[0])), number]
        )

    @property
    def state(self) -> Variable:
        """The state, a variable that checkpoints."""
        return self._stream.state

    @property
    def key(self) -> Tensor:
        """The key part of the state."""
        return self._stream.state.read_value()[:2]  # type: ignore[index]

    @property
    def algorithm(self) -> int:
        """TensorFlow's number of the algorithm (threefry)."""
        return 2

    def reset(self, state: Any) -> None:
        """Sets the state."""
        self._stream.state.assign(np.asarray(convert_to_tensor(state).numpy()).astype(np.uint32))

    def reset_from_seed(self, seed: int) -> None:
        """Starts again as `from_seed(seed)` does."""
        self._stream.reset(_words(int(seed)))

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
        from meshflow.ops import random_ops

        return random_ops.normal_from_key(self._stream.next_key(), shape, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: Any,
        mean: Any = 0.0,
        stddev: Any = 1.0,
        dtype: Any = "float32",
        name: Any = None,
    ) -> Tensor:
        """Normally distributed numbers within two standard deviations."""
        from meshflow.ops import random_ops

        return random_ops.truncated_normal_from_key(
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
        from meshflow.ops import random_ops

        return random_ops.uniform_from_key(self._stream.next_key(), shape, minval, maxval, dtype)

    def uniform_full_int(self, shape: Any, dtype: Any = "uint64", name: Any = None) -> Tensor:
        """Integers over the whole range of the dtype."""
        from meshflow.ops import random_ops

        return random_ops.bits_from_key(self._stream.next_key(), shape, dtype)

    def binomial(
        self, shape: Any, counts: Any, probs: Any, dtype: Any = "int32", name: Any = None
    ) -> Tensor:
        """Numbers of successes in `counts` trials with probability `probs`."""
        from meshflow.ops import random_ops

        return random_ops.binomial_from_key(self._stream.next_key(), shape, counts, probs, dtype)


_global_generator: list[Generator] = []


def get_global_generator() -> Generator:
    """The generator shared by the process, made from the global seed when first asked for."""
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
    """
    _global_generator[:] = [generator]
