"""Random numbers: the global seed and streams of keys.

All numbers come from JAX's counter-based threefry generator: a *key* of two uint32 numbers
determines them, whatever the number of devices. A `SeedStream` is a variable holding a key and a
counter; every use advances the counter, so compiled functions draw new numbers at every call
and a checkpoint of the variable resumes the sequence. As in TensorFlow, eager ops with the same seed share
a stream, while each op of a traced function has its own, which begins where the seeds say.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import determinism
from meshflow.core.runtime.context import Tracing, context
from meshflow.core.runtime.seed_sequence import states
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable

# TensorFlow's global seed for ops that have a seed of their own when none was set.
_DEFAULT_SEED = 87654321


def random_key(data: Any) -> Any:
    """JAX's key of two uint32 numbers."""
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _fold(operands: Any, _: Any) -> Any:
    (state,) = operands
    key = random_key(state[:2])
    advanced = state.at[2].add(jnp.uint32(1))
    return jax.random.key_data(jax.random.fold_in(key, state[2])), advanced


_NEXT = Op("next_key", _fold, differentiable=False)


def seed_words(seed: int) -> list[int]:
    """A seed as the two words of a key."""
    return [(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF]


# All streams, by the order in which they were made: a program that runs again makes the same ones.
_streams: weakref.WeakValueDictionary[int, SeedStream] = weakref.WeakValueDictionary()
_numbers = itertools.count()
# States put back for streams that will be made later, as those of functions not traced yet.
_waiting: dict[int, list[int]] = {}


class _Element(threading.local):
    """In a thread that computes an element of a dataset: the keys that belong to the element."""

    keys: Callable[[int | None], np.ndarray | None] | None = None


_element = _Element()


@contextlib.contextmanager
def call_keys(number: int, unseeded: Callable[[], Sequence[int]] | None = None) -> Iterator[None]:
    """Lets eager random ops of this thread draw keys that belong to one call of a function.

    Args:
      number: the number of the call.
      unseeded: gives integers for ops where neither they nor the program have a seed; without it those
        draw as elsewhere.
    """
    entropy = _entropy(unseeded)

    def key(seed: int | None) -> np.ndarray | None:
        words = entropy(seed)
        if words is None:
            return None
        return np.random.SeedSequence([*words, number]).generate_state(2).astype(np.uint32)

    before, _element.keys = _element.keys, key
    try:
        yield
    finally:
        _element.keys = before


def _entropy(
    unseeded: Callable[[], Sequence[int]] | None,
) -> Callable[[int | None], list[int] | None]:
    """What tells apart the keys that one call draws, one after the other."""
    drawn: collections.Counter[int | None] = collections.Counter()

    def words_of(seed: int | None) -> list[int] | None:
        if seed is not None or _global.seed is not None:
            words: Sequence[int] = _global.words_of_op(seed, drawn.total())
        elif unseeded is not None:
            words = unseeded()
        else:
            return None
        drawn[seed] += 1
        return [*(int(w) for w in words), drawn[seed]]

    return words_of


def keys_of_calls(
    numbers: Sequence[int], seeds: Sequence[int | None], unseeded: Callable[[], Sequence[int]]
) -> np.ndarray:
    """The keys that calls draw in scopes of `call_keys`.

    Args:
      numbers: the numbers of the calls.
      seeds: the seeds of the ops that draw, in order, None for those without.
      unseeded: as in `call_keys`.

    Returns:
      uint32 [calls, ops, 2].
    """
    words_of = _entropy(unseeded)
    found = [states(words_of(seed) or (), np.asarray(numbers)) for seed in seeds]
    return np.stack(found, axis=1) if found else np.zeros((len(numbers), 0, 2), np.uint32)


# The name of the variables that streams keep their state in.
STATE_NAME = "seed_state"


class SeedStream:
    """An endless stream of keys.

    Args:
      seed: an integer; None takes one from the global seed when first used.

    Attributes:
      start: the words that it begins with again when the global seed is set; None for those that go on.
      shown: whether users see its state.
      per_replica: set by the strategies: gives each replica of a program a key of its own.
    """

    shown = False
    per_replica: Callable[[Tensor], Tensor] | None = None

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.start: list[int] | None = None
        self._state: Variable | None = None
        self._number = next(_numbers)
        _streams[self._number] = self

    @property
    def state(self) -> Variable:
        """The variable (uint32, shape [3]): two words of key and a counter."""
        if self._state is None:
            with init_scope():
                words = seed_words(self.seed) if self.seed is not None else self._first_words()
                value = np.array(_waiting.pop(self._number, [*words, 0]), np.uint32)
                self._state = Variable(value, trainable=False, name=STATE_NAME)
        return self._state

    def _first_words(self) -> list[int]:
        # A thread that computes an element may come here at any time: see `new_seed`.
        apart = _element.keys is not None
        return _global.seed_at(0, self._number) if apart else _global.draw_seed()

    def next_key(self) -> Tensor:
        """A new key, uint32 of shape [2]; works eagerly and while a function is traced."""
        state = self.state
        key, advanced = apply(_NEXT, (state._as_tensor(),))
        if context.trace is None and isinstance(advanced._value, jax.core.Tracer):
            # A function of JAX is being traced: what it computes may not stay in a variable of the program.
            with jax.ensure_compile_time_eval():
                key, advanced = apply(_NEXT, (state._as_tensor(),))
        state._write(advanced)
        return key if self.per_replica is None else self.per_replica(key)

    @classmethod
    def of_op(cls, words: list[int]) -> SeedStream:
        """The stream of one op of a traced function; it lives as long as its variable."""
        stream = cls(words[0] << 32 | words[1])
        stream.start = words
        stream.state._stream = stream  # type: ignore[attr-defined]
        return stream

    def reset(self, words: list[int]) -> None:
        """Starts again from another key, in the same variable."""
        with init_scope():
            self.state.assign(np.array([*words, 0], np.uint32))


def is_stream_state(variable: Any) -> bool:
    """Whether a variable is the state of a stream of keys that nobody else sees."""
    return any(s._state is variable and not s.shown for s in list(_streams.values()))


class _Global:
    """The global seed and what is derived from it."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self._entropy = int.from_bytes(os.urandom(7), "little")
        self._drawn = self._kept = 0
        self._streams: dict[int | None, SeedStream] = {}

    def _base(self) -> int:
        if self.seed is None:
            determinism.require_seed("Random ops")
            return self._entropy
        return self.seed

    def set(self, seed: int) -> None:
        self.seed = seed
        self._drawn = self._kept = 0
        for op_seed, stream in self._streams.items():
            if stream._state is not None:
                stream.reset(self._words_for(op_seed))
        for stream in list(_streams.values()):
            if stream.start is not None:
                stream.reset(stream.start)

    def words_of_op(self, op_seed: int | None, position: int) -> list[int]:
        """The words that an op of a function begins with, one of the two seeds being set.

        Args:
          op_seed: its own seed.
          position: how many random ops the function has before it, which tells ops without a seed apart.
        """
        words = self._words_for(op_seed)
        if op_seed is None:
            words = _mixed([*words, position])
        return words

    def _words_for(self, op_seed: int | None) -> list[int]:
        if op_seed is None:
            high, low = seed_words(self._base())
            return [high ^ 0x9E3779B9, low]
        base = _DEFAULT_SEED if self.seed is None else self.seed
        return [(base ^ (base >> 32)) & 0xFFFFFFFF, (op_seed ^ (op_seed >> 32)) & 0xFFFFFFFF]

    def stream(self, op_seed: int | None) -> SeedStream:
        if op_seed is None and self.seed is None:
            determinism.require_seed("Random ops")
        if op_seed not in self._streams:
            stream = self._streams[op_seed] = SeedStream(0)
            stream.reset(self._words_for(op_seed))
        return self._streams[op_seed]

    def stream_of_op(self, scope: Tracing, op_seed: int | None) -> SeedStream:
        """The stream of the next random op of the function that `scope` traces."""
        position, scope.random_ops = scope.random_ops, scope.random_ops + 1
        return SeedStream.of_op(self.words_of_op(op_seed, position))

    def draw_seed(self) -> list[int]:
        """Words of a new seed; the n-th since the global seed was set is always the same."""
        self._drawn += 1
        return self.seed_at(self._drawn)

    def keep_seed(self) -> Callable[[], list[int]]:
        """A seed to be drawn later, in whichever thread: it is decided by now, and moves none of the others."""
        self._kept += 1
        position = self._drawn, self._kept
        return lambda: self.seed_at(*position)

    def seed_at(self, *position: int) -> list[int]:
        """Words of the seed at a place among those derived from the global one."""
        return _mixed([*seed_words(self._base()), *position])


def _mixed(words: Sequence[int]) -> list[int]:
    return [int(w) for w in np.random.SeedSequence(words).generate_state(2)]


_global = _Global()


def new_seed() -> list[int]:
    """Words of a new seed.

    In a thread that computes an element they belong to the element: such threads run ahead by as much
    as time allows, and what is drawn elsewhere, such as initial weights, must not depend on that.
    """
    if _element.keys is None:
        return _global.draw_seed()
    key = _element.keys(None)
    if key is None:
        determinism.require_seed("Random ops")
        return _mixed(seed_words(int.from_bytes(os.urandom(7), "little")))
    return [int(w) for w in key]


def kept_seed() -> Callable[[], list[int]]:
    """Gives the words of a new seed when called, which may be in another thread."""
    if _element.keys is None:
        return _global.keep_seed()
    words = new_seed()
    return lambda: words


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
    number = None if seed is None else int(seed)
    scope = context.trace
    if context.recording is not None:
        recorded = context.recording.key(number)
        if recorded is not None:
            return recorded
    if scope is None and _element.keys is not None:
        key = _element.keys(number)
        if key is not None:
            return Tensor(key)
    if scope is not None and (number is not None or _global.seed is not None):
        while not scope.once and scope.parent is not None:
            scope = scope.parent
        if scope.once:
            return _global.stream_of_op(scope, number).next_key()
    # Outside of functions each call goes on where the last one ended, also one that is traced for its gradient.
    return _global.stream(number).next_key()


def state() -> dict[str, Any]:
    """The state of all streams and of the seeds still to be drawn, as plain JSON values."""
    used = {str(n): s._state for n, s in sorted(_streams.items()) if s._state is not None}
    streams = {n: [int(w) for w in np.asarray(v._value)] for n, v in used.items()}
    return {"drawn": _global._drawn, "entropy": _global._entropy, "streams": streams}


def set_state(known: dict[str, Any], but: frozenset[str] = frozenset()) -> None:
    """Puts back what `state` gave, in this process or in another that runs the same program.

    Args:
      known: the state.
      but: streams that stay as they are.
    """
    for number, words in known["streams"].items():
        stream = _streams.get(int(number))
        if stream is None:
            _waiting[int(number)] = words
        elif number not in but:
            with init_scope():
                stream.state.assign(np.array(words, np.uint32))
    _global._drawn, _global._entropy = known["drawn"], known["entropy"]


def host_generator(seed: int | None = None) -> np.random.Generator:
    """A NumPy generator for values made on the host, such as initial weights.

    Args:
      seed: an integer; None takes the next seed derived from the global one.
    """
    return np.random.Generator(
        np.random.Philox(seed_words(int(seed)) if seed is not None else new_seed())
    )
