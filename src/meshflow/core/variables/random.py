"""Random numbers: the global seed and streams of keys.

The numbers are those of TensorFlow: a *key*, a state of a Philox generator (see
`core/runtime/philox.py`), determines them for any number of devices. A `SeedStream` holds such a
state in a variable; every use advances it by the number of counters used, so compiled functions
draw new numbers in every call and a checkpoint of the variable resumes the sequence. As in
TensorFlow, eager calls of one kernel with the same seeds share a stream, while each op of a traced
function has a separate one. The seed of an op without an explicit seed is its index in the
function, branch or loop; outside of functions it is drawn.
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
from meshflow.environment.types import Json

# TensorFlow's global seed, if none was set, for ops with an explicit seed.
_DEFAULT_SEED = 87654321
# Seeds of ops are reduced modulo this limit, and drawn below it.
_SEED_LIMIT = 2**31 - 1


def random_key(data: jax.Array) -> jax.Array:
    """Return JAX's key for two uint32 numbers."""
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _draw(operands: Sequence[jax.Array], _: object) -> tuple[jax.Array, jax.Array]:
    state, used = operands
    return state, philox.passed(state, used)


_NEXT = Op("next_key", _draw, differentiable=False)


def seed_words(seed: int) -> list[int]:
    """Split a seed into two words of 32 bits."""
    return [(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF]


def _signed(word: int) -> int:
    """Reinterpret 64 bits as an int64."""
    return (word & 0xFFFFFFFFFFFFFFFF) - ((word & 1 << 63) << 1)


def place(key: int, high: int = 0, low: int = 0) -> list[int]:
    """Return the state of a generator: the low and high halves of its counter, and its key."""
    return [_signed(low), _signed(high), _signed(key)]


def place_of_words(words: Sequence[int]) -> list[int]:
    """Return the initial state for a key of two words."""
    return place(int(words[0]) << 32 | int(words[1]))


# All streams by id, in the order of creation: a program that runs again creates the same ones.
_streams: weakref.WeakValueDictionary[int, SeedStream] = weakref.WeakValueDictionary()
_numbers = itertools.count()
# Restored states of streams that do not exist yet, such as those of untraced functions.
_waiting: dict[int, list[int]] = {}


class _Element(threading.local):
    """Source of the keys of the dataset element that this thread computes, or None."""

    keys: Callable[[int | None, int], np.ndarray | None] | None = None


_element = _Element()


@contextlib.contextmanager
def call_keys(
    call_index: int, unseeded: Callable[[], Sequence[int]] | None = None
) -> Iterator[None]:
    """Make eager random ops of this thread draw keys that belong to one call of a function.

    Args:
      call_index: Index of the call.
      unseeded: Returns integers for ops without an own or global seed; None to draw as usual.
    """
    compute_states = _places_of_calls(unseeded)
    indices = np.array([call_index])

    def key(seed: int | None, used: int) -> np.ndarray | None:
        states_ = compute_states(seed, used, indices)
        return None if states_ is None else states_[0]

    previous, _element.keys = _element.keys, key
    try:
        yield
    finally:
        _element.keys = previous


def _places_of_calls(
    unseeded: Callable[[], Sequence[int]] | None,
) -> Callable[[int | None, int, np.ndarray], np.ndarray | None]:
    """Return a function that computes the states of ops, in their order, for several calls."""
    op_seeds, op_indices = itertools.count(), itertools.count(1)

    def compute_states(seed: int | None, used: int, call_indices: np.ndarray) -> np.ndarray | None:
        if seed is None and _global.seed is None:
            if unseeded is None:
                return None
            words = states([*unseeded(), next(op_indices)], call_indices).astype(np.uint64)
            low = np.zeros(len(call_indices), np.int64)
            return np.stack([low, low, (words[:, 0] << 32 | words[:, 1]).astype(np.int64)], -1)
        _, high, key = _global.place_of_op(next(op_seeds) if seed is None else seed)
        low = np.asarray(call_indices, np.int64) * used
        return np.stack([low, np.full_like(low, high), np.full_like(low, key)], -1)

    return compute_states


def keys_of_calls(
    call_indices: Sequence[int],
    draws: Sequence[tuple[int | None, int]],
    unseeded: Callable[[], Sequence[int]],
) -> np.ndarray:
    """Compute the keys that calls draw in scopes of `call_key_scope`.

    Args:
      call_indices: Indices of the calls.
      draws: For each op that draws, in order: its seed or None, and the number of counters it uses.
      unseeded: See `call_key_scope`.

    Returns:
      int64 [calls, ops, 3].
    """
    compute_states = _places_of_calls(unseeded)
    indices = np.asarray(call_indices)
    keys = [compute_states(seed, used, indices) for seed, used in draws]
    drawn = [k for k in keys if k is not None]
    return np.stack(drawn, axis=1) if drawn else np.zeros((len(indices), 0, 3), np.int64)


# The name of the variables that hold the states of streams.
STATE_NAME = "seed_state"


class SeedStream:
    """A random generator with its state in a variable, from which keys are drawn.

    Args:
      seed: An integer; None derives a seed from the global seed at the first use.

    Attributes:
      initial_state: The state to which it returns when the global seed is set; None to continue.
      is_public: Whether users have access to its state.
      derive_replica_key: Derives a separate key for each replica of a program; set by strategies.
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
        """Return the variable (int64, shape [3]): counter (low, high) and key."""
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
        # A thread that computes an element may call this at any time; see `draw_seed`.
        in_element = _element.keys is not None
        return place_of_words(
            _global.seed_at(0, self._number) if in_element else _global.draw_seed()
        )

    def next_key(self, used: int | jax.Array) -> Tensor:
        """Return a new key, int64 of shape [3]; this works eagerly and while a function is traced.

        Args:
          used: Number of counters that belong to the key.
        """
        state = self.state
        # Sizes are symbolic while a function for any size is saved.
        counts = Tensor(np.asarray(used) if isinstance(used, int) else jnp.asarray(used))
        key, advanced = apply(_NEXT, (state._as_tensor(), counts))
        if context.trace is None and isinstance(advanced._value, jax.core.Tracer):
            # A JAX function is being traced, and its tracers must not remain in a variable.
            with jax.ensure_compile_time_eval():
                key, advanced = apply(_NEXT, (state._as_tensor(), counts))
        state._write(advanced)
        return key if self.per_replica is None else self.per_replica(key)

    def op_key(self, used: int | jax.Array, kernel: str) -> Tensor:
        """Draw a key like a Keras layer with this seed, if TensorFlow's numbers are known.

        Args:
          used: Number of counters that belong to the key.
          kernel: Name of the kernel that draws.
        """
        if self.seed is None and _global.seed is None:
            return self.next_key(used)
        if self.seed is None:
            return op_key(None, used, kernel)
        # As in Keras, layers increment their seed after each use.
        seed, self.seed = self.seed, self.seed + 1
        return op_key(seed, used, kernel)

    @classmethod
    def of_op(cls, start: list[int]) -> SeedStream:
        """Create the stream of one op of a traced function; it exists as long as its variable."""
        stream = cls()
        stream.start = start
        stream.state._stream = stream  # type: ignore[attr-defined]
        return stream

    def reset(self, start: list[int]) -> None:
        """Set another state, in the same variable."""
        with init_scope():
            self.state.assign(np.array(start, np.int64))


def is_stream_state(variable: object) -> bool:
    """Check whether a variable is the state of a stream to which users have no access."""
    return any(s._state is variable and not s.shown for s in list(_streams.values()))


class _Global:
    """The global seed and the seeds derived from it."""

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
        """Return the initial state of an op, from its seed and the global seed."""
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
        """Create the stream of the next random op of a function, branch or loop."""
        if op_seed is None:
            # As in TensorFlow, functions, loops and branches count their ops separately.
            while not (scope.once or scope.repeats or scope.branch) and scope.parent is not None:
                scope = scope.parent
            op_seed, scope.random_ops = scope.random_ops, scope.random_ops + 1
        return SeedStream.of_op(self.place_of_op(op_seed))

    def next_op_seed(self) -> int:
        """Draw a seed for an eager op without a seed, like TensorFlow."""
        return self.op_seeds.next(0, _SEED_LIMIT)

    def draw_seed(self) -> list[int]:
        """Draw the words of a new seed, which the global seed and earlier draws determine."""
        self._drawn += 1
        return self.seed_at(self._drawn)

    def keep_seed(self) -> Callable[[], list[int]]:
        """Reserve a seed that any thread may draw later; other seeds are not affected."""
        self._kept += 1
        position = self._drawn, self._kept
        return lambda: self.seed_at(*position)

    def seed_at(self, *position: int) -> list[int]:
        """Return the words of the seed at a position among those derived from the global seed."""
        return _mixed([*seed_words(self._base()), *position])


class SeedDraws:
    """Seeds drawn in sequence from Python's generator, like in TensorFlow."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def next(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, inclusive."""
        return self._random.randint(low, high)

    def state(self) -> Json:
        """Return the state of the generator, as JSON values."""
        return self._random.getstate()

    def set_state(self, state: Json) -> None:
        """Restore a result of `get_state`."""
        version, words, gauss = state
        self._random.setstate((version, tuple(words), gauss))


def _mixed(words: Sequence[int]) -> list[int]:
    return [int(w) for w in np.random.SeedSequence(words).generate_state(2)]


_global = _Global()


def new_seed() -> list[int]:
    """Return the words of a new seed.

    In a thread that computes a dataset element, they belong to the element: such threads run ahead
    by an arbitrary amount, on which other seeds, such as those of initial weights, must not depend.
    """
    if _element.keys is None:
        return _global.draw_seed()
    key = _element.keys(None, 1)
    if key is None:
        determinism.require_seed("Random ops")
        return _mixed(seed_words(int.from_bytes(os.urandom(7), "little")))
    return _mixed([w for half in key for w in seed_words(int(half))])


def kept_seed() -> Callable[[], list[int]]:
    """Return a function that returns the words of a new seed, and may be called in another thread."""
    if _element.keys is None:
        return _global.keep_seed()
    words = new_seed()
    return lambda: words


def set_seed(seed: int) -> None:
    """Set the global seed, so that random ops return the same numbers in every run.

    Args:
      seed: An integer.

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
    """Return the global seed, or None if it was not set."""
    return _global.seed


def op_key(seed: Any, used: Any, kernel: str) -> Tensor:
    """Return a key for one call of a random op.

    Args:
      seed: Seed of the op or None.
      used: Number of counters that belong to the call.
      kernel: Name of the kernel that draws: eager calls with the same seed share a stream.
    """
    op_seed = None if seed is None else int(seed)
    scope = context.trace
    if context.recording is not None:
        recorded = context.recording.key(op_seed, used)
        if recorded is not None:
            return recorded
    if scope is None and _element.keys is not None:
        key = _element.keys(op_seed, used)
        if key is not None:
            return Tensor(key)
    has_seed = op_seed is not None or _global.seed is not None
    if scope is not None and has_seed and _is_in_function(scope):
        return _global.stream_of_op(scope, op_seed).next_key(used)
    if scope is None and has_seed and op_seed is None:
        # Each call has a separate seed, so there is no state to continue.
        return Tensor(np.array(_global.place_of_op(_global.next_op_seed()), np.int64))
    # Outside of functions, each call continues the stream, also if it is traced for its gradient.
    return _global.stream(kernel, op_seed).next_key(used)


def _is_in_function(scope: Tracing) -> bool:
    while not scope.once and scope.parent is not None:
        scope = scope.parent
    return scope.once


def dataset_seed(seed: int | None) -> list[int]:
    """Return two words of a seed, like TensorFlow's datasets; new words if there is no seed."""
    if seed is None and (_global.seed is None or _element.keys is not None):
        return new_seed()
    return _global.place_of_op(_global.next_op_seed() if seed is None else seed)[1:]


def place_of_pass() -> list[int]:
    """Return the state of a function's first unseeded op; a new one without a global seed."""
    return place_of_words(new_seed()) if _global.seed is None else _global.place_of_op(0)


def weight_seed() -> int:
    """Draw a seed for initial weights, like Keras: the n-th after `set_seed` is always the same."""
    if _element.keys is not None:
        return new_seed()[1] % 10**9 + 1
    if _global.seed is None:
        determinism.require_seed("Random ops")
        return random.randint(1, 10**9)
    return _global.weight_seeds.next(1, 10**9)


def state() -> dict[str, Json]:
    """Return the state of all streams and of the seed sources, as JSON values."""
    used = {str(n): s._state for n, s in sorted(_streams.items()) if s._state is not None}
    return {
        "drawn": _global._drawn,
        "entropy": _global._entropy,
        "places": {n: [int(w) for w in np.asarray(v._value)] for n, v in used.items()},
        "op_seeds": _global.op_seeds.state(),
        "weight_seeds": _global.weight_seeds.state(),
    }


def set_state(saved: dict[str, Json], excluded: frozenset[str] = frozenset()) -> None:
    """Restore a result of `get_state`, in this process or another one that runs the same program.

    Args:
      saved: The state.
      excluded: Ids of streams that are not restored.
    """
    # Earlier versions stored the words of a key and the number of draws.
    earlier = {n: place_of_earlier(words) for n, words in saved.get("streams", {}).items()}
    for stream_id, words in (earlier | saved.get("places", {})).items():
        stream = _streams.get(int(stream_id))
        if stream is None:
            _waiting[int(stream_id)] = words
        elif stream_id not in excluded:
            with init_scope():
                stream.state.assign(np.array(words, np.int64))
    _global._drawn, _global._entropy = saved["drawn"], saved["entropy"]
    for name in ("op_seeds", "weight_seeds"):
        if name in saved:
            getattr(_global, name).set_state(saved[name])


def place_of_earlier(words: Sequence[Any]) -> list[int]:
    """Convert the state of earlier versions: a key of two words, and the number of draws."""
    return place(int(words[0]) << 32 | int(words[1]), low=int(words[2]))


def host_generator(seed: int | None = None) -> np.random.Generator:
    """Return a NumPy generator for values created on the host, such as initial weights.

    Args:
      seed: An integer; None derives the next seed from the global seed.
    """
    return np.random.Generator(
        np.random.Philox(seed_words(int(seed)) if seed is not None else new_seed())
    )
