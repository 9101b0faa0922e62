"""Random numbers: the global seed and streams of keys.

Numbers are TensorFlow's: a *key*, a place of a Philox generator (see `core/runtime/philox.py`), determines them,
whatever the number of devices. A `SeedStream` is a variable with such a place; every use passes over the counters
that it needs, so compiled functions draw new numbers at every call and a checkpoint of the variable resumes the
sequence. As in TensorFlow, eager calls of one kernel with the same seeds share a stream, while each op of a traced
function has its own, which begins where the seeds say; an op without a seed has its number among those of the
function, branch or loop for one, and a drawn one elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import determinism, philox
from meshflow.core.runtime.context import Tracing, context
from meshflow.core.runtime.seed_sequence import states
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable

# TensorFlow's global seed for ops that have a seed of their own when none was set.
_DEFAULT_SEED = 87654321
# Seeds of ops are taken modulo this, and drawn up to it.
_SEED_LIMIT = 2**31 - 1


def random_key(data: Any) -> Any:
    """JAX's key of two uint32 numbers."""
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _draw(operands: Any, _: Any) -> Any:
    state, used = operands
    return state, philox.passed(state, used)


_NEXT = Op("next_key", _draw, differentiable=False)


def seed_words(seed: int) -> list[int]:
    """A seed as two words of 32 bits."""
    return [(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF]


def _signed(word: int) -> int:
    """64 bits as int64 has them."""
    return (word & 0xFFFFFFFFFFFFFFFF) - ((word & 1 << 63) << 1)


def place(key: int, high: int = 0, low: int = 0) -> list[int]:
    """Where a generator stands: the low and high halves of its counter, and its key."""
    return [_signed(low), _signed(high), _signed(key)]


def place_of_words(words: Sequence[int]) -> list[int]:
    """The beginning for a key of two words."""
    return place(int(words[0]) << 32 | int(words[1]))


# All streams, by the order in which they were made: a program that runs again makes the same ones.
_streams: weakref.WeakValueDictionary[int, SeedStream] = weakref.WeakValueDictionary()
_numbers = itertools.count()
# States put back for streams that will be made later, as those of functions not traced yet.
_waiting: dict[int, list[int]] = {}


class _Element(threading.local):
    """In a thread that computes an element of a dataset: the keys that belong to the element."""

    keys: Callable[[int | None, int], np.ndarray | None] | None = None


_element = _Element()


@contextlib.contextmanager
def call_keys(number: int, unseeded: Callable[[], Sequence[int]] | None = None) -> Iterator[None]:
    """Lets eager random ops of this thread draw keys that belong to one call of a function.

    Args:
      number: the number of the call.
      unseeded: gives integers for ops where neither they nor the program have a seed; without it those
        draw as elsewhere.
    """
    places = _places_of_calls(unseeded)
    numbers = np.array([number])

    def key(seed: int | None, used: int) -> np.ndarray | None:
        found = places(seed, used, numbers)
        return None if found is None else found[0]

    before, _element.keys = _element.keys, key
    try:
        yield
    finally:
        _element.keys = before


def _places_of_calls(
    unseeded: Callable[[], Sequence[int]] | None,
) -> Callable[[int | None, int, np.ndarray], np.ndarray | None]:
    """Where the ops of a function stand, one after the other, in calls of some numbers."""
    without_seed, without_any = itertools.count(), itertools.count(1)

    def places(seed: int | None, used: int, numbers: np.ndarray) -> np.ndarray | None:
        if seed is None and _global.seed is None:
            if unseeded is None:
                return None
            words = states([*unseeded(), next(without_any)], numbers).astype(np.uint64)
            low = np.zeros(len(numbers), np.int64)
            return np.stack([low, low, (words[:, 0] << 32 | words[:, 1]).astype(np.int64)], -1)
        _, high, key = _global.place_of_op(next(without_seed) if seed is None else seed)
        low = np.asarray(numbers, np.int64) * used
        return np.stack([low, np.full_like(low, high), np.full_like(low, key)], -1)

    return places


def keys_of_calls(
    numbers: Sequence[int],
    draws: Sequence[tuple[int | None, int]],
    unseeded: Callable[[], Sequence[int]],
) -> np.ndarray:
    """The keys that calls draw in scopes of `call_keys`.

    Args:
      numbers: the numbers of the calls.
      draws: of the ops that draw, in order: their seeds, None for those without, and what they use.
      unseeded: as in `call_keys`.

    Returns:
      int64 [calls, ops, 3].
    """
    places = _places_of_calls(unseeded)
    found = [places(seed, used, np.asarray(numbers)) for seed, used in draws]
    made = [f for f in found if f is not None]
    return np.stack(made, axis=1) if made else np.zeros((len(numbers), 0, 3), np.int64)


# The name of the variables that streams keep their state in.
STATE_NAME = "seed_state"


class SeedStream:
    """A generator in a variable, from which keys are drawn.

    Args:
      seed: an integer; None takes one from the global seed when first used.

    Attributes:
      start: the place that it begins at again when the global seed is set; None for those that go on.
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
        """The variable (int64, shape [3]): the counter's low and high halves, and the key."""
        if self._state is None:
            with init_scope():
                value = _waiting.pop(self._number, None)
                if value is None:
                    value = self.start or self._first_place()
                self._state = Variable(np.array(value, np.int64), trainable=False, name=STATE_NAME)
        return self._state

    def _first_place(self) -> list[int]:
        if self.seed is not None:
            return place(self.seed)
        # A thread that computes an element may come here at any time: see `new_seed`.
        apart = _element.keys is not None
        return place_of_words(_global.seed_at(0, self._number) if apart else _global.draw_seed())

    def next_key(self, used: Any) -> Tensor:
        """A new key, int64 of shape [3]; works eagerly and while a function is traced.

        Args:
          used: how many numbers of the counter belong to it.
        """
        state = self.state
        # Sizes are symbols while a function for any of them is saved.
        counts = Tensor(np.asarray(used) if isinstance(used, int) else jnp.asarray(used))
        key, advanced = apply(_NEXT, (state._as_tensor(), counts))
        if context.trace is None and isinstance(advanced._value, jax.core.Tracer):
            # A function of JAX is being traced: what it computes may not stay in a variable of the program.
            with jax.ensure_compile_time_eval():
                key, advanced = apply(_NEXT, (state._as_tensor(), counts))
        state._write(advanced)
        return key if self.per_replica is None else self.per_replica(key)

    def op_key(self, used: Any, kind: str) -> Tensor:
        """A new key, as Keras' layers draw it by an op with this seed, where TensorFlow's numbers are known.

        Args:
          used: how many numbers of the counter belong to it.
          kind: what kernel draws.
        """
        if self.seed is None and _global.seed is None:
            return self.next_key(used)
        if self.seed is None:
            return op_key(None, used, kind)
        # As in Keras, whose layers count their seed on.
        seed, self.seed = self.seed, self.seed + 1
        return op_key(seed, used, kind)

    @classmethod
    def of_op(cls, start: list[int]) -> SeedStream:
        """The stream of one op of a traced function; it lives as long as its variable."""
        stream = cls()
        stream.start = start
        stream.state._stream = stream  # type: ignore[attr-defined]
        return stream

    def reset(self, start: list[int]) -> None:
        """Starts again from another place, in the same variable."""
        with init_scope():
            self.state.assign(np.array(start, np.int64))


def is_stream_state(variable: Any) -> bool:
    """Whether a variable is the state of a stream of keys that nobody else sees."""
    return any(s._state is variable and not s.shown for s in list(_streams.values()))


class _Global:
    """The global seed and what is derived from it."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self._entropy = int.from_bytes(os.urandom(7), "little")
        self._drawn = self._kept = 0
        self._streams: dict[tuple[str, int | None], SeedStream] = {}
        self.op_seeds = SeedDraws(0)
        self.weight_seeds = SeedDraws(0)

    def _base(self) -> int:
        if self.seed is None:
            determinism.require_seed("Random ops")
            return self._entropy
        return self.seed

    def set(self, seed: int) -> None:
        self.seed = seed
        self._drawn = self._kept = 0
        self.op_seeds, self.weight_seeds = SeedDraws(seed), SeedDraws(seed)
        for (_, op_seed), stream in self._streams.items():
            if stream._state is not None:
                stream.reset(self._first_place(op_seed))
        for stream in list(_streams.values()):
            if stream.start is not None:
                stream.reset(stream.start)

    def place_of_op(self, op_seed: int) -> list[int]:
        """Where an op begins, by its seed and the global one."""
        base = _DEFAULT_SEED if self.seed is None else self.seed
        first, second = base % _SEED_LIMIT, op_seed % _SEED_LIMIT
        return place(first, second if first or second else _SEED_LIMIT)

    def _first_place(self, op_seed: int | None) -> list[int]:
        if op_seed is not None:
            return self.place_of_op(op_seed)
        return place_of_words(_mixed(seed_words(self._base())))

    def stream(self, kind: str, op_seed: int | None) -> SeedStream:
        if op_seed is None:
            self._base()
            kind = ""
        if (kind, op_seed) not in self._streams:
            stream = self._streams[kind, op_seed] = SeedStream(0)
            stream.reset(self._first_place(op_seed))
        return self._streams[kind, op_seed]

    def stream_of_op(self, scope: Tracing, op_seed: int | None) -> SeedStream:
        """The stream of the next random op of the function, branch or loop that `scope` traces."""
        if op_seed is None:
            # As in TensorFlow, where these have a graph of their own.
            while not (scope.once or scope.repeats or scope.branch) and scope.parent is not None:
                scope = scope.parent
            op_seed, scope.random_ops = scope.random_ops, scope.random_ops + 1
        return SeedStream.of_op(self.place_of_op(op_seed))

    def next_op_seed(self) -> int:
        """The seed of an eager op that has none, as TensorFlow draws it."""
        return self.op_seeds.next(0, _SEED_LIMIT)

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


class SeedDraws:
    """Seeds drawn one after the other by Python's generator, as TensorFlow draws them.

    Args:
      seed: the generator's seed.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def next(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return self._random.randint(low, high)

    def state(self) -> Any:
        """The generator's state, as plain JSON values."""
        return self._random.getstate()

    def set_state(self, state: Any) -> None:
        """Puts back what `state` gave."""
        version, words, gauss = state
        self._random.setstate((version, tuple(words), gauss))


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
    key = _element.keys(None, 1)
    if key is None:
        determinism.require_seed("Random ops")
        return _mixed(seed_words(int.from_bytes(os.urandom(7), "little")))
    return _mixed([w for half in key for w in seed_words(int(half))])


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


def op_key(seed: Any, used: Any, kind: str) -> Tensor:
    """A key for one call of a random op.

    Args:
      seed: the op's own seed or None.
      used: how many numbers of the counter belong to the call.
      kind: what kernel draws: eager calls of one kernel with the same seed go on from each other.
    """
    number = None if seed is None else int(seed)
    scope = context.trace
    if context.recording is not None:
        recorded = context.recording.key(number, used)
        if recorded is not None:
            return recorded
    if scope is None and _element.keys is not None:
        key = _element.keys(number, used)
        if key is not None:
            return Tensor(key)
    seeded = number is not None or _global.seed is not None
    if scope is not None and seeded and _is_in_function(scope):
        return _global.stream_of_op(scope, number).next_key(used)
    if scope is None and seeded and number is None:
        # Each call has a seed of its own, so nothing goes on from it.
        return Tensor(np.array(_global.place_of_op(_global.next_op_seed()), np.int64))
    # Outside of functions each call goes on where the last one ended, also one that is traced for its gradient.
    return _global.stream(kind, number).next_key(used)


def _is_in_function(scope: Tracing) -> bool:
    while not scope.once and scope.parent is not None:
        scope = scope.parent
    return scope.once


def dataset_seed(seed: int | None) -> list[int]:
    """Two words of a seed: the op's and the program's, as TensorFlow's datasets have them; new ones without both."""
    if seed is None and (_global.seed is None or _element.keys is not None):
        return new_seed()
    return _global.place_of_op(_global.next_op_seed() if seed is None else seed)[1:]


def place_of_pass() -> list[int]:
    """Where the first random op of a function without a seed begins; elsewhere each time without a global seed."""
    return place_of_words(new_seed()) if _global.seed is None else _global.place_of_op(0)


def weight_seed() -> int:
    """A seed for initial weights, as Keras draws it: after `set_seed` the n-th is always the same."""
    if _element.keys is not None:
        return new_seed()[1] % 10**9 + 1
    if _global.seed is None:
        determinism.require_seed("Random ops")
        return random.randint(1, 10**9)
    return _global.weight_seeds.next(1, 10**9)


def state() -> dict[str, Any]:
    """The state of all streams and of the seeds still to be drawn, as plain JSON values."""
    used = {str(n): s._state for n, s in sorted(_streams.items()) if s._state is not None}
    return {
        "drawn": _global._drawn,
        "entropy": _global._entropy,
        "places": {n: [int(w) for w in np.asarray(v._value)] for n, v in used.items()},
        "op_seeds": _global.op_seeds.state(),
        "weight_seeds": _global.weight_seeds.state(),
    }


def set_state(known: dict[str, Any], but: frozenset[str] = frozenset()) -> None:
    """Puts back what `state` gave, in this process or in another that runs the same program.

    Args:
      known: the state.
      but: streams that stay as they are.
    """
    # Earlier versions kept the words of a key and a count of draws.
    earlier = {n: place_of_earlier(words) for n, words in known.get("streams", {}).items()}
    for number, words in (earlier | known.get("places", {})).items():
        stream = _streams.get(int(number))
        if stream is None:
            _waiting[int(number)] = words
        elif number not in but:
            with init_scope():
                stream.state.assign(np.array(words, np.int64))
    _global._drawn, _global._entropy = known["drawn"], known["entropy"]
    for name in ("op_seeds", "weight_seeds"):
        if name in known:
            getattr(_global, name).set_state(known[name])


def place_of_earlier(words: Any) -> list[int]:
    """What the state of a generator of earlier versions stands for: a key of two words, and how often it drew."""
    return place(int(words[0]) << 32 | int(words[1]), low=int(words[2]))


def host_generator(seed: int | None = None) -> np.random.Generator:
    """A NumPy generator for values made on the host, such as initial weights.

    Args:
      seed: an integer; None takes the next seed derived from the global one.
    """
    return np.random.Generator(
        np.random.Philox(seed_words(int(seed)) if seed is not None else new_seed())
    )
