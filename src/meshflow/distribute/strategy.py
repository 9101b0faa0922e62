"""Strategies: how variables lie on a mesh, how a batch is split, how replicas run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from meshflow.core.functions.function import Function
from meshflow.core.runtime.context import context
from meshflow.core.runtime.identity import IdentityWeakDict
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.variables.variable import Variable, VariableAggregation, VariableSynchronization
from meshflow.core.variables.variable_creation import variable_creator_scope
from meshflow.distribute.extended import StrategyExtended
from meshflow.distribute.input import (
    DistributedDataset,
    InputContext,
    ValueContext,
)
from meshflow.distribute.replicas.collectives import AXIS
from meshflow.distribute.replicas.context import ReplicaContext, entered, stacks
from meshflow.distribute.replicas.reductions_and_gathers import (
    ReductionsAndGathers,
    require_cross_replica,
)
from meshflow.distribute.replicas.spmd import run_replicas
from meshflow.distribute.replicas.values import PerReplica, map_replicas
from meshflow.distribute.replicas.variables import MirroredVariable, SyncOnReadVariable
from meshflow.placement.batches import BatchPlacer
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh, line

__all__ = [
    "Strategy",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]


class Scope:
    """What `Strategy.scope()` gives: a context manager that may be entered again and again.

    Args:
      strategy: the strategy.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._open: list[Any] = []

    def __enter__(self) -> Strategy:
        entered = self._strategy._entered()
        strategy = entered.__enter__()
        self._open.append(entered)
        return strategy

    def __exit__(self, *error: Any) -> Any:
        return self._open.pop().__exit__(*error)


class Strategy(ReductionsAndGathers):
    """Synchronous training on the devices of a mesh; the base of all strategies.

    Args:
      extended: accepted for TensorFlow's sake.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> with strategy.scope():
      ...     w = tf.Variable(2.0)
      >>> total = strategy.run(lambda x: w * x, [tf.constant(3.0)])
      >>> isinstance(strategy, tf.distribute.Strategy), float(strategy.reduce("SUM", total, axis=None))
      (True, 12.0)
    """

    # Why losses are not scaled under it; None where they may be.
    no_loss_scaling: str | None = None
    # Whether variables made in its scope are elsewhere, and no others can be trained.
    hosts_variables = False

    def __init__(self, extended: Any = None) -> None:
        self._start([jax.local_devices()[0]])

    def _start(self, devices: Sequence[Any], mesh: Mesh | None = None) -> None:
        self._devices = list(devices)
        self.mesh = mesh or line(tuple(self._devices), AXIS)
        self.mesh.shown = False
        self.extended = StrategyExtended(self)
        self._traces = IdentityWeakDict()
        self._placer = BatchPlacer(self.mesh, AXIS if AXIS in self.mesh else None)
        # On the default device alone, nothing has to be placed.
        self.places = self._devices != jax.local_devices()[:1]

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas compute a step together; in the one step that `fit` compiles, 1."""
        entry = stacks.entries[-1] if stacks.entries else None
        whole = isinstance(entry, ReplicaContext) and entry.whole_batch and entry.strategy is self
        return 1 if whole else self._replicas

    @property
    def _is_default(self) -> bool:
        return bool(_default) and self is _default[0]

    @property
    def _replicas(self) -> int:
        return self.mesh.dim_size(AXIS)

    @property
    def cluster_resolver(self) -> Any:
        """The cluster resolver, or None."""
        return None

    # ---- scope -----------------------------------------------------------------------------

    def scope(self) -> Scope:
        """Makes this the current strategy: variables made inside are on all its devices.

        Returns:
          A context manager, which may be entered several times.

        Raises:
          RuntimeError: inside the scope of another strategy.

        Example:
          >>> import meshflow as tf
          >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
          >>> with strategy.scope():
          ...     v = tf.Variable(1.0)
          >>> strategy.extended.variable_created_in_scope(v)
          True
        """
        return Scope(self)

    @contextmanager
    def _entered(self) -> Iterator[Strategy]:
        if stacks.entries and has_strategy() and get_strategy() is not self:
            raise RuntimeError(
                f"Mixing different tf.distribute.Strategy objects: {get_strategy()!r} is not {self!r}. "
                "Leave the scope of the one before entering the other."
            )
        if self._is_default:
            # TensorFlow's default strategy has no scope of its own.
            yield self
            return
        saved, context.num_replicas = context.num_replicas, self.num_replicas_in_sync
        try:
            with entered(self), variable_creator_scope(self._create_variable):
                yield self
        finally:
            context.num_replicas = saved

    def replicated(self, rank: int) -> Layout:
        """The layout of variables: a copy on every device."""
        return Layout.replicated(self.mesh, rank)

    def batched(self, rank: int) -> Layout:
        """The layout of values of replicas: the first axis over the devices."""
        return Layout.batch_sharded(self.mesh, AXIS, rank)

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        _check_roles(kwargs)
        # Of models that are only looked at, variables are those of one replica.
        several = self._replicas > 1 and not context.shapes_only
        saved, context.variable_creators = context.variable_creators, []
        try:
            if kwargs.get("synchronization") is VariableSynchronization.ON_READ and several:
                variable: Variable = SyncOnReadVariable(
                    replicas=self._replicas, layout=self.batched, **kwargs
                )
            else:
                variable = MirroredVariable(**kwargs)
                if self.places and variable.dtype.name != "string":
                    variable._layout = self.replicated(variable.ndim)
        finally:
            context.variable_creators = saved
        variable._distribute_strategy = self  # type: ignore[attr-defined]
        return variable

    # ---- running ---------------------------------------------------------------------------

    def run(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None
    ) -> Any:
        """Calls a function once for each replica, all in one program.

        Args:
          fn: the function; it may read and write variables, and use collectives.
          args: its arguments; of a `PerReplica` each replica gets its own value.
          kwargs: its keyword arguments.
          options: accepted.

        Returns:
          What `fn` returns, with a `PerReplica` for each tensor when there are several replicas.

        Raises:
          InvalidArgumentError: when the replicas' arguments have different shapes.
          ValueError: when replicas write different values to a variable without aggregation.

        Example:
          >>> import meshflow as tf
          >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
          >>> float(strategy.run(lambda x: x + 1.0, args=(tf.constant(1.0),)))
          2.0
        """
        kwargs = kwargs or {}
        require_cross_replica("run")
        if not callable(fn):
            raise TypeError(f"Strategy.run: `fn` must be callable, got {fn!r}.")
        with self._running():
            if self.num_replicas_in_sync == 1:
                args, kwargs = map_replicas(_only, (tuple(args), dict(kwargs)))
                with entered(ReplicaContext(self, 0)):
                    return fn(*args, **kwargs)
            return run_replicas(self, fn, tuple(args), dict(kwargs))

    def experimental_run_v2(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None
    ) -> Any:
        """The name of `run` in TensorFlow 2.0 and 2.1.

        Args:
          fn: as for `run`.
          args: as for `run`.
          kwargs: as for `run`.
          options: as for `run`.
        """
        return self.run(fn, args, kwargs, options)

    def experimental_run(self, fn: Callable[..., Any], input_iterator: Any = None) -> Any:
        """The name of `run` in TensorFlow 1.

        Args:
          fn: a function without arguments, or of one element of the iterator.
          input_iterator: an iterator of a distributed dataset.
        """
        return self.run(fn, () if input_iterator is None else (next(input_iterator),))

    @contextmanager
    def _running(self) -> Iterator[None]:
        saved, context.num_replicas = context.num_replicas, self.num_replicas_in_sync
        try:
            with variable_creator_scope(self._create_variable):
                yield
        finally:
            context.num_replicas = saved

    def _program(self, fn: Any, template: Any, make: Callable[[], Any]) -> Any:
        """The program of a function for arguments like `template`; kept for `tf.function`s."""
        if not isinstance(fn, Function) or context.trace is not None:
            return make()
        known = self._traces.get(fn) or {}
        leaves, tree = jax.tree.flatten(template)
        kept = (jax.ShapeDtypeStruct,)
        try:
            key = tree, tuple((v.shape, v.dtype) if isinstance(v, kept) else v for v in leaves)
            if key not in known:
                program = make()
                if program.initializes:
                    return program
                known[key] = program
                self._traces[fn] = known
            return known[key]
        except TypeError:
            return make()

    # ---- bringing values together ----------------------------------------------------------

    def group(self, value: Any, name: str | None = None) -> None:
        """Nothing to do: everything runs in program order.

        Args:
          value: a value.
          name: ignored.
        """

    # ---- input -----------------------------------------------------------------------------

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """A dataset whose batches are split over the replicas.

        Args:
          dataset: any iterable of batches of the global size.
          options: accepted.

        Returns:
          An iterable of `PerReplica` structures; under the default strategy the dataset itself.
        """
        return dataset if self._is_default else DistributedDataset(self, dataset, split=True)

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
        """A dataset of which every batch goes to one replica.

        Args:
          dataset_fn: called with an `InputContext`; returns batches of the size of a replica.
          options: accepted.

        Returns:
          An iterable of `PerReplica` structures; under the default strategy what `dataset_fn` returns.
        """
        made = dataset_fn(InputContext(1, 0, self.num_replicas_in_sync))
        return made if self._is_default else DistributedDataset(self, made, split=False)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_distribute_values_from_function(self, value_fn: Callable[..., Any]) -> Any:
        """A value for each replica.

        Args:
          value_fn: called with a `ValueContext`; its results may be nested.

        Returns:
          A `PerReplica` in the place of each leaf, or the value itself for one replica.
        """
        count = self.num_replicas_in_sync
        values = [value_fn(ValueContext(i, count)) for i in range(count)]
        if count == 1:
            return values[0]
        return nest.map_structure(
            lambda *parts: PerReplica([convert_to_tensor(v) for v in parts]), *values
        )

    def place_batch(self, batch: Any) -> Any:
        """A batch of arrays for one program over all devices: split along the first axis when it divides."""
        return self._onto_devices(batch, 0)

    def place_batches(self, batches: Any) -> Any:
        """Batches stacked along a first axis, each split as by `place_batch`."""
        return self._onto_devices(batches, 1)

    def _onto_devices(self, batch: Any, axis: int) -> Any:
        return self._placer(batch, axis)

    def __deepcopy__(self, memo: dict[int, Any]) -> Strategy:
        return self  # a copy of a model is of the same strategy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {list(self.extended.worker_devices)}>"


def _check_roles(arguments: dict[str, Any]) -> None:
    """Checks how a variable is to be synchronized and aggregated."""
    name = arguments.get("name")
    how = arguments.get("synchronization", VariableSynchronization.AUTO)
    total = arguments.get("aggregation", VariableAggregation.NONE)
    if how is VariableSynchronization.NONE:
        raise ValueError(
            "`NONE` variable synchronization mode is not supported with tf.distribute strategy. Please "
            f"change the `synchronization` for variable: {name}"
        )
    if how is not None and not isinstance(how, VariableSynchronization):
        raise ValueError(f"Invalid variable synchronization mode: {how} for variable: {name}")
    if total is not None and not isinstance(total, VariableAggregation):
        raise ValueError(f"Invalid variable aggregation mode: {total} for variable: {name}")


def _only(leaf: Any) -> Any:
    return leaf.values[0] if isinstance(leaf, PerReplica) else leaf


_default: list[Strategy] = []
_default_context: list[ReplicaContext] = []


def get_strategy() -> Strategy:
    """The current strategy; outside all scopes a default one of one replica.

    Example:
      >>> import meshflow as tf
      >>> tf.distribute.get_strategy().num_replicas_in_sync
      1
    """
    for entry in reversed(stacks.entries):
        return entry.strategy if isinstance(entry, ReplicaContext) else entry
    if not _default:
        _default.append(Strategy())
    return _default[0]


def has_strategy() -> bool:
    """Whether a strategy other than the default one is current.

    Example:
      >>> import meshflow as tf
      >>> tf.distribute.has_strategy()
      False
      >>> with tf.distribute.OneDeviceStrategy("CPU:0").scope():
      ...     tf.distribute.has_strategy()
      True
    """
    current = get_strategy()
    return bool(stacks.entries) and not (_default and current is _default[0])


def in_cross_replica_context() -> bool:
    """Whether the current strategy's scope is open and no replica function runs.

    Example:
      >>> import meshflow as tf
      >>> with tf.distribute.OneDeviceStrategy("CPU:0").scope():
      ...     tf.distribute.in_cross_replica_context()
      True
    """
    return bool(stacks.entries) and not isinstance(stacks.entries[-1], ReplicaContext)


def get_replica_context() -> ReplicaContext | None:
    """The replica context, or None in cross-replica context.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> strategy.run(lambda: tf.distribute.get_replica_context().num_replicas_in_sync)
      2
    """
    if not stacks.entries:
        if not _default_context:
            _default_context.append(ReplicaContext(get_strategy(), 0))
        return _default_context[0]
    entry = stacks.entries[-1]
    return entry if isinstance(entry, ReplicaContext) else None


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Makes a strategy the current one until it is called with None.

    Args:
      strategy: the strategy, or None.

    Raises:
      RuntimeError: inside the scope of a strategy.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.OneDeviceStrategy("CPU:0")
      >>> tf.distribute.experimental_set_strategy(strategy)
      >>> tf.distribute.get_strategy() is strategy
      True
      >>> tf.distribute.experimental_set_strategy(None)
    """
    if len(stacks.entries) > len(_held):
        raise RuntimeError(
            "tf.distribute.experimental_set_strategy: Must not be called inside a "
            "`tf.distribute.Strategy` scope."
        )
    if _held:
        _held.pop().__exit__(None, None, None)
    if strategy is not None:
        scope = strategy.scope()
        scope.__enter__()
        _held.append(scope)


_held: list[Any] = []
