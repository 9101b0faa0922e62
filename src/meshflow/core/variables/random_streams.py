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
from meshflow.core.dispatch.tiers import is_interpreter_enabled, is_local
from meshflow.core.runtime import determinism, philox
from meshflow.core.runtime.context import ActiveTrace, ThreadState, context
from meshflow.core.runtime.seed_sequence import generate_states
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Json

# TensorFlow's global seed, if none was set, for ops with an explicit seed.
DEFAULT_SEED = 87654321
# Seeds of ops are reduced modulo this limit, and drawn below it.
_SEED_LIMIT = 2**31 - 1


def make_jax_key(data: jax.Array) -> jax.Array:
    """Return JAX's key for two uint32 numbers."""
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _advance(operands: Sequence[jax.Array], _: object) -> tuple[jax.Array, jax.Array]:
    state, used = operands
    return state, philox.advance_state(state, used)


_NEXT_KEY = Op("next_key", _advance, differentiable=False)


def split_seed(seed: int) -> list[int]:
    """Split a seed into two words of 32 bits."""
    return [(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF]


def _to_int64(word: int) -> int:
    """Reinterpret 64 bits as an int64."""
    return (word & 0xFFFFFFFFFFFFFFFF) - ((word & 1 << 63) << 1)


def make_state(key: int, high: int = 0, low: int = 0) -> list[int]:
    """Return the state of a generator: the low and high halves of its counter, and its key."""
    return [_to_int64(int(word)) for word in (low, high, key)]


def make_state_from_words(words: Sequence[int]) -> list[int]:
    """Return the initial state for a key of two words."""
    return make_state(int(words[0]) << 32 | int(words[1]))


# All streams by id, in the order of creation: a program that runs again creates the same ones.
_streams: weakref.WeakValueDictionary[int, SeedStream] = weakref.WeakValueDictionary()
_stream_ids = itertools.count()
# Restored states of streams that do not exist yet, such as those of untraced functions.
_pending_states: dict[int, list[int]] = {}


class _ElementKeys(threading.local):
    """Source of the keys of the dataset element that this thread computes, or None."""

    keys: Callable[[int | None, int], np.ndarray | None] | None = None


_element = _ElementKeys()


@contextlib.contextmanager
def call_key_scope(
    call_index: int, unseeded: Callable[[], Sequence[int]] | None = None
) -> Iterator[None]:
    """Make eager random ops of this thread draw keys that belong to one call of a function.

    Args:
      call_index: Index of the call.
      unseeded: Returns integers for ops without an own or global seed; None to draw as usual.
    """
    compute_states = _make_state_function(unseeded)
    indices = np.array([call_index])

    def key(seed: int | None, used: int) -> np.ndarray | None:
        states_ = compute_states(seed, used, indices)
        return None if states_ is None else states_[0]

    previous, _element.keys = _element.keys, key
    try:
        yield
    finally:
        _element.keys = previous


def _make_state_function(
    unseeded: Callable[[], Sequence[int]] | None,
) -> Callable[[int | None, int, np.ndarray], np.ndarray | None]:
    """Return a function that computes the states of ops, in their order, for several calls."""
    op_seeds, op_indices = itertools.count(), itertools.count(1)

    def compute_states(seed: int | None, used: int, call_indices: np.ndarray) -> np.ndarray | None:
        if seed is None and global_seed.seed is None:
            if unseeded is None:
                return None
            words = generate_states([*unseeded(), next(op_indices)], call_indices).astype(np.uint64)
            low = np.zeros(len(call_indices), np.int64)
            return np.stack([low, low, (words[:, 0] << 32 | words[:, 1]).astype(np.int64)], -1)
        _, high, key = global_seed.make_op_state(next(op_seeds) if seed is None else seed)
        low = np.asarray(call_indices, np.int64) * used
        return np.stack([low, np.full_like(low, high), np.full_like(low, key)], -1)

    return compute_states


def compute_call_keys(
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
    compute_states = _make_state_function(unseeded)
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

    is_public = False
    derive_replica_key: Callable[[Tensor], Tensor] | None = None

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.initial_state: list[int] | None = None
        self._state: Variable | None = None
        self._id = next(_stream_ids)
        _streams[self._id] = self

    @property
    def state(self) -> Variable:
        """Return the variable (int64, shape [3]): counter (low, high) and key."""
        if self._state is None:
            with init_scope():
                value = _pending_states.pop(self._id, None)
                if value is None:
                    value = self.initial_state or self._make_first_state()
                self._state = Variable(np.array(value, np.int64), trainable=False, name=STATE_NAME)
                self._state.initializes_in_sessions = True  # type: ignore[attr-defined]
        return self._state

    def _make_first_state(self) -> list[int]:
        if self.seed is not None:
            return make_state(self.seed)
        # A thread that computes an element may call this at any time; see `draw_seed`.
        in_element = _element.keys is not None
        return make_state_from_words(
            global_seed.compute_seed(0, self._id) if in_element else global_seed.draw_seed()
        )

    def next_key(self, used: int | jax.Array) -> Tensor:
        """Return a new key, int64 of shape [3]; this works eagerly and while a function is traced.

        Args:
          used: Number of counters that belong to the key.
        """
        state, used = self.state, philox.count_for_batch(used)
        start = state.value().array if context.trace is None and isinstance(used, int) else None
        is_known = start is not None and not isinstance(start, jax.core.Tracer)
        if is_known and is_interpreter_enabled() and is_local(start):
            known = np.asarray(start)
            low, high, word = (w & 0xFFFFFFFFFFFFFFFF for w in known.tolist())
            carry, low = divmod(low + used, 1 << 64)
            state._write(Tensor(np.array(make_state(word, high + carry, low), np.int64)))
            key = Tensor(known.copy())
            return key if self.derive_replica_key is None else self.derive_replica_key(key)
        # Sizes are symbolic while a function for any size is saved.
        counts = Tensor(np.asarray(used) if isinstance(used, int) else jnp.asarray(used))
        key, advanced = apply(_NEXT_KEY, (state.value(), counts))
        if context.trace is None and isinstance(advanced.array, jax.core.Tracer):
            # A JAX function is being traced, and its tracers must not remain in a variable.
            with jax.ensure_compile_time_eval():
                key, advanced = apply(_NEXT_KEY, (state.value(), counts))
        state._write(advanced)
        return key if self.derive_replica_key is None else self.derive_replica_key(key)

    def draw_op_key(self, used: int | jax.Array, kernel: str) -> Tensor:
        """Draw a key like a Keras layer with this seed, if TensorFlow's numbers are known.

        Args:
          used: Number of counters that belong to the key.
          kernel: Name of the kernel that draws.
        """
        if self.seed is None and global_seed.seed is None:
            return self.next_key(used)
        if self.seed is None:
            return draw_op_key(None, used, kernel)
        # As in Keras, layers increment their seed after each use.
        seed, self.seed = self.seed, self.seed + 1
        return draw_op_key(seed, used, kernel)

    @classmethod
    def for_op(cls, start: list[int]) -> SeedStream:
        """Create the stream of one op of a traced function; it exists as long as its variable."""
        stream = cls()
        stream.initial_state = start
        stream.state._stream = stream  # type: ignore[attr-defined]
        return stream

    def reset(self, start: list[int]) -> None:
        """Set another state, in the same variable."""
        with init_scope():
            # An array would become a constant of the current graph.
            self.state.assign(Tensor(np.array(start, np.int64)))


class OpStreams:
    """The streams of the random ops of one step, which all of its traces share.

    TensorFlow traces a step once for all sizes, so a smaller last batch continues the random numbers of
    the other batches.
    """

    def __init__(self) -> None:
        self._streams: list[SeedStream] = []
        self._count = 0
        self.parent: ActiveTrace | None = None

    @contextlib.contextmanager
    def share(self, parent: ActiveTrace | None = None) -> Iterator[None]:
        """Use the streams for the random ops of a trace inside `parent`, in their order."""
        saved, _shared_streams.current = _shared_streams.current, self
        position = self._count, self.parent
        self._count, self.parent = 0, parent
        try:
            yield
        finally:
            _shared_streams.current = saved
            self._count, self.parent = position

    def find(self, make: Callable[[], SeedStream]) -> SeedStream:
        """Return the stream of the next random op of a trace, and make it in the first trace."""
        if self._count == len(self._streams):
            self._streams.append(make())
        self._count += 1
        return self._streams[self._count - 1]


class _SharedStreams(ThreadState):
    current: OpStreams | None = None


_shared_streams = _SharedStreams()


def share_streams_again() -> contextlib.AbstractContextManager[None]:
    """Use the streams of the current trace, from the first one, for a trace inside of it."""
    streams = _shared_streams.current
    return contextlib.nullcontext() if streams is None else streams.share(context.trace)


def is_stream_state(variable: object) -> bool:
    """Check whether a variable is the state of a stream to which users have no access."""
    return any(s._state is variable and not s.is_public for s in list(_streams.values()))


class _GlobalSeed:
    """The global seed and the seeds derived from it."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self.entropy = int.from_bytes(os.urandom(7), "little")
        self.num_drawn = self._num_reserved = 0
        self._streams: dict[tuple[str, int | None], SeedStream] = {}
        self.op_seeds = PythonSeedSource(0)
        self.weight_seeds = PythonSeedSource(0)

    def _get_base_seed(self) -> int:
        if self.seed is None:
            determinism.require_seed("Random ops")
            return self.entropy
        return self.seed

    def set(self, seed: int) -> None:
        self.seed = seed
        self.num_drawn = self._num_reserved = 0
        self.op_seeds, self.weight_seeds = PythonSeedSource(seed), PythonSeedSource(seed)
        for (_, op_seed), stream in self._streams.items():
            if stream._state is not None:
                stream.reset(self._make_first_state(op_seed))
        for stream in list(_streams.values()):
            if stream.initial_state is not None:
                stream.reset(stream.initial_state)

    def make_op_state(self, op_seed: int) -> list[int]:
        """Return the initial state of an op, from its seed and the global seed."""
        base = DEFAULT_SEED if self.seed is None else self.seed
        first, second = base % _SEED_LIMIT, op_seed % _SEED_LIMIT
        return make_state(first, second if first or second else _SEED_LIMIT)

    def _make_first_state(self, op_seed: int | None) -> list[int]:
        if op_seed is not None:
            return self.make_op_state(op_seed)
        return make_state_from_words(_hash_words(split_seed(self._get_base_seed())))

    def get_stream(self, kind: str, op_seed: int | None) -> SeedStream:
        if op_seed is None:
            self._get_base_seed()
            kind = ""
        if (kind, op_seed) not in self._streams:
            stream = self._streams[kind, op_seed] = SeedStream(0)
            stream.reset(self._make_first_state(op_seed))
        return self._streams[kind, op_seed]

    def make_op_stream(self, scope: ActiveTrace, op_seed: int | None) -> SeedStream:
        """Create the stream of the next random op of a function, branch or loop."""
        if op_seed is None:
            # As in TensorFlow, functions, loops and branches count their ops separately.
            while (
                not (scope.runs_once_per_call or scope.is_loop_body or scope.is_branch)
                and scope.parent is not None
            ):
                scope = scope.parent
            op_seed, scope.num_random_ops = scope.num_random_ops, scope.num_random_ops + 1
        shared = _shared_streams.current
        if shared is not None and scope.parent is not shared.parent:
            shared = None
        make = lambda: SeedStream.for_op(self.make_op_state(op_seed))
        return make() if shared is None else shared.find(make)

    def draw_op_seed(self) -> int:
        """Draw a seed for an eager op without a seed, like TensorFlow."""
        return self.op_seeds.draw(0, _SEED_LIMIT)

    def draw_seed(self) -> list[int]:
        """Draw the words of a new seed, which the global seed and earlier draws determine."""
        self.num_drawn += 1
        return self.compute_seed(self.num_drawn)

    def reserve_seed(self) -> Callable[[], list[int]]:
        """Reserve a seed that any thread may draw later; other seeds are not affected."""
        self._num_reserved += 1
        position = self.num_drawn, self._num_reserved
        return lambda: self.compute_seed(*position)

    def compute_seed(self, *position: int) -> list[int]:
        """Return the words of the seed at a position among those derived from the global seed."""
        return _hash_words([*split_seed(self._get_base_seed()), *position])


class PythonSeedSource:
    """Seeds drawn in sequence from Python's generator, like in TensorFlow."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, inclusive."""
        return self._random.randint(low, high)

    def get_state(self) -> Json:
        """Return the state of the generator, as JSON values."""
        return self._random.getstate()

    def set_state(self, state: Json) -> None:
        """Restore a result of `get_state`."""
        version, words, gauss = state
        self._random.setstate((version, tuple(words), gauss))


def _hash_words(words: Sequence[int]) -> list[int]:
    return [int(w) for w in np.random.SeedSequence(words).generate_state(2)]


global_seed = _GlobalSeed()


def draw_seed() -> list[int]:
    """Return the words of a new seed.

    In a thread that computes a dataset element, they belong to the element: such threads run ahead
    by an arbitrary amount, on which other seeds, such as those of initial weights, must not depend.
    """
    if _element.keys is None:
        return global_seed.draw_seed()
    key = _element.keys(None, 1)
    if key is None:
        determinism.require_seed("Random ops")
        return _hash_words(split_seed(int.from_bytes(os.urandom(7), "little")))
    return _hash_words([w for half in key for w in split_seed(int(half))])


def reserve_seed() -> Callable[[], list[int]]:
    """Return a function that returns the words of a new seed, and may be called in another thread."""
    if _element.keys is None:
        return global_seed.reserve_seed()
    words = draw_seed()
    return lambda: words


def set_seed(seed: int | None) -> None:
    """Set the global seed, so that random ops return the same numbers in every run.

    Args:
      seed: An integer; None removes the global seed.

    Example:
      >>> tf.random.set_seed(1)
      >>> first = tf.random.uniform([2])
      >>> tf.random.set_seed(1)
      >>> bool(tf.reduce_all(first == tf.random.uniform([2])))
      True
    """
    if seed is None:
        global_seed.seed = None
    else:
        global_seed.set(int(seed))


def get_global_seed() -> int | None:
    """Return the global seed, or None if it was not set."""
    return global_seed.seed


class _OperationStreams(ThreadState):
    """Function that returns the stream of the next draw, from its seed or None, while a session runs an operation."""

    find: Callable[[int | None], SeedStream] | None = None


operation_streams = _OperationStreams()


def draw_op_key(seed: Any, used: Any, kernel: str) -> Tensor:
    """Return a key for one call of a random op.

    Args:
      seed: Seed of the op or None.
      used: Number of counters that belong to the call.
      kernel: Name of the kernel that draws: eager calls with the same seed share a stream.
    """
    op_seed = None if seed is None else int(seed)
    scope = context.trace
    if context.host_recorder is not None:
        recorded = context.host_recorder.draw_key(op_seed, used)
        if recorded is not None:
            return recorded
    if scope is None and _element.keys is not None:
        key = _element.keys(op_seed, used)
        if key is not None:
            return Tensor(key)
    has_seed = op_seed is not None or global_seed.seed is not None
    if scope is not None and has_seed and _is_in_function(scope):
        return global_seed.make_op_stream(scope, op_seed).next_key(used)
    if scope is None and has_seed and operation_streams.find is not None:
        return operation_streams.find(op_seed).next_key(used)
    if scope is None and has_seed and op_seed is None:
        # Each call has a separate seed, so there is no state to continue.
        return Tensor(np.array(global_seed.make_op_state(global_seed.draw_op_seed()), np.int64))
    # Outside of functions, each call continues the stream, also if it is traced for its gradient.
    return global_seed.get_stream(kernel, op_seed).next_key(used)


def _is_in_function(scope: ActiveTrace) -> bool:
    while not scope.runs_once_per_call and scope.parent is not None:
        scope = scope.parent
    return scope.runs_once_per_call


def draw_dataset_seed(seed: int | None) -> list[int]:
    """Return two words of a seed, like TensorFlow's datasets; new words if there is no seed."""
    if seed is None and (global_seed.seed is None or _element.keys is not None):
        return draw_seed()
    return global_seed.make_op_state(global_seed.draw_op_seed() if seed is None else seed)[1:]


def make_pass_state() -> list[int]:
    """Return the state of a function's first unseeded op; a new one without a global seed."""
    return (
        make_state_from_words(draw_seed())
        if global_seed.seed is None
        else global_seed.make_op_state(0)
    )


def draw_weight_seed() -> int:
    """Draw a seed for initial weights, like Keras: the n-th after `set_seed` is always the same."""
    if _element.keys is not None:
        return draw_seed()[1] % 10**9 + 1
    if global_seed.seed is None:
        determinism.require_seed("Random ops")
        return random.randint(1, 10**9)
    return global_seed.weight_seeds.draw(1, 10**9)


def get_state() -> dict[str, Json]:
    """Return the state of all streams and of the seed sources, as JSON values."""
    used = {str(n): s._state for n, s in sorted(_streams.items()) if s._state is not None}
    return {
        "drawn": global_seed.num_drawn,
        "entropy": global_seed.entropy,
        "places": {n: [int(w) for w in np.asarray(v._value)] for n, v in used.items()},
        "op_seeds": global_seed.op_seeds.get_state(),
        "weight_seeds": global_seed.weight_seeds.get_state(),
    }


def set_state(saved: dict[str, Json], excluded: frozenset[str] = frozenset()) -> None:
    """Restore a result of `get_state`, in this process or another one that runs the same program.

    Args:
      saved: The state.
      excluded: Ids of streams that are not restored.
    """
    # Earlier versions stored the words of a key and the number of draws.
    earlier = {n: convert_earlier_state(words) for n, words in saved.get("streams", {}).items()}
    for stream_id, words in (earlier | saved.get("places", {})).items():
        stream = _streams.get(int(stream_id))
        if stream is None:
            _pending_states[int(stream_id)] = words
        elif stream_id not in excluded:
            with init_scope():
                stream.state.assign(np.array(words, np.int64))
    global_seed.num_drawn, global_seed.entropy = saved["drawn"], saved["entropy"]
    for name in ("op_seeds", "weight_seeds"):
        if name in saved:
            getattr(global_seed, name).set_state(saved[name])


def convert_earlier_state(words: Sequence[Any]) -> list[int]:
    """Convert the state of earlier versions: a key of two words, and the number of draws."""
    return make_state(int(words[0]) << 32 | int(words[1]), low=int(words[2]))


def make_host_generator() -> np.random.Generator:
    """Return a NumPy generator for values created on the host, seeded from the global seed."""
    return np.random.Generator(np.random.Philox(draw_seed()))
