"""Base class of strategies: layouts of variables, placement of batches, and execution of replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

import jax

from meshflow.core.functions.function import Function
from meshflow.core.runtime.context import context
from meshflow.core.runtime.identity_weak_dict import IdentityWeakDict
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable, VariableAggregation, VariableSynchronization
from meshflow.core.variables.variable_creation import variable_creator_scope
from meshflow.distribute.extended import StrategyExtended
from meshflow.distribute.input import DistributedDataset, InputContext, ValueContext
from meshflow.distribute.replicas.collectives import REPLICA_AXIS
from meshflow.distribute.replicas.context import (
    ReplicaContext,
    context_scope,
    context_stack,
    get_spanning_context,
)
from meshflow.distribute.replicas.python_replicas import PythonReplica
from meshflow.distribute.replicas.reductions_and_gathers import (
    ReductionsAndGathers,
    check_cross_replica_context,
)
from meshflow.distribute.replicas.spmd import make_template_key, run_replicas
from meshflow.distribute.replicas.values import PerReplica, map_replicas, to_value
from meshflow.distribute.replicas.variables import MirroredVariable, SyncOnReadVariable
from meshflow.environment.types import PyTree
from meshflow.ops import array
from meshflow.placement.batches import BatchPlacer
from meshflow.placement.layout import Layout
from meshflow.placement.mesh import Mesh, create_1d_mesh

# A dataset, and the type of its distributed form for type checkers, which has elements of the same structure.
Source = TypeVar("Source", bound=Iterable[Any])


class StrategyScope:
    """Context manager of `Strategy.scope()`, which can be entered repeatedly."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._active: list[AbstractContextManager[Strategy]] = []

    def __enter__(self) -> Strategy:
        scope = self._strategy.activate()
        strategy = scope.__enter__()
        self._active.append(scope)
        return strategy

    def __exit__(self, *error: Any) -> bool | None:
        return self._active.pop().__exit__(*error)


@hide_frames_of_methods
class Strategy(ReductionsAndGathers):
    """Synchronous training on the devices of a mesh; the base class of all strategies.

    Args:
      extended: Ignored; accepted for compatibility with TensorFlow.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> with strategy.scope():
      ...     w = tf.Variable(2.0)
      >>> total = strategy.run(lambda x: w * x, [tf.constant(3.0)])
      >>> isinstance(strategy, tf.distribute.Strategy), float(strategy.reduce("SUM", total, axis=None))
      (True, 12.0)
    """

    # The reason why losses are not scaled under this strategy; None if they can be.
    no_loss_scaling: str | None = None
    # Whether variables of this strategy's scope are on servers, and no others can be trained.
    hosts_variables = False
    # Whether this is the strategy that is used outside of all scopes.
    is_default = False

    def __init__(self, extended: object = None) -> None:
        self._initialize([jax.local_devices()[0]])

    def _initialize(self, devices: Sequence[jax.Device], mesh: Mesh | None = None) -> None:
        self._devices = list(devices)
        self.mesh = mesh or create_1d_mesh(tuple(self._devices), REPLICA_AXIS)
        self.mesh.is_printed = False
        self.extended = StrategyExtended(self)
        self._programs = IdentityWeakDict()
        # For functions with sizes that depend on values, functions that run them for all replicas.
        self.runners = IdentityWeakDict()
        self._placer = BatchPlacer(self.mesh, REPLICA_AXIS if REPLICA_AXIS in self.mesh else None)
        self.local_replicas = range(self._num_replicas)
        # A single default device needs no placement.
        self.needs_placement = self._devices != jax.local_devices()[:1]

    @property
    def num_replicas_in_sync(self) -> int:
        """Return the number of replicas that compute a step; 1 in the single step of `fit`."""
        entry = context_stack.entries[-1] if context_stack.entries else None
        is_global = (
            isinstance(entry, ReplicaContext) and entry.has_global_batch and entry.strategy is self
        )
        return 1 if is_global else self._num_replicas

    @property
    def _num_replicas(self) -> int:
        return self.mesh.dim_size(REPLICA_AXIS)

    @property
    def cluster_resolver(self) -> Any:
        """Return the cluster resolver, or None."""
        return None

    # ---- scope -----------------------------------------------------------------------------

    def scope(self) -> StrategyScope:
        """Make this the current strategy: variables that are created inside are on all its devices.

        Returns:
          A context manager, which can be entered repeatedly.

        Raises:
          RuntimeError: Inside the scope of another strategy.

        Example:
          >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
          >>> with strategy.scope():
          ...     v = tf.Variable(1.0)
          >>> strategy.extended.variable_created_in_scope(v)
          True
        """
        return StrategyScope(self)

    @contextmanager
    def activate(self) -> Iterator[Strategy]:
        """Make this the current strategy; the context manager can be entered once."""
        if context_stack.entries and has_strategy() and get_strategy() is not self:
            raise RuntimeError(
                f"Mixing different tf.distribute.Strategy objects: {get_strategy()!r} is not {self!r}. "
                "Leave the scope of the first one before entering the other."
            )
        if self.is_default:
            # TensorFlow's default strategy has no scope.
            yield self
            return
        saved, context.num_replicas = context.num_replicas, self.num_replicas_in_sync
        try:
            with context_scope(self), variable_creator_scope(self._create_variable):
                yield self
        finally:
            context.num_replicas = saved

    def get_replicated_layout(self, rank: int) -> Layout:
        """Return the layout of variables: a copy on every device."""
        return Layout.replicated(self.mesh, rank)

    def get_stacked_layout(self, rank: int) -> Layout:
        """Return the layout of stacked per-replica values, with the first axis over the devices."""
        return Layout.batch_sharded(self.mesh, REPLICA_AXIS, rank)

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        _check_variable_options(kwargs)
        replica = get_spanning_context()
        if isinstance(replica, PythonReplica):
            create = functools.partial(self._create_variable, next_creator)
            return replica.create_variable(create, kwargs)
        # In models that are only planned, variables are those of one replica.
        has_replicas = self._num_replicas > 1 and not context.shapes_only
        saved, context.variable_creators = context.variable_creators, []
        try:
            if kwargs.get("synchronization") is VariableSynchronization.ON_READ and has_replicas:
                variable: Variable = SyncOnReadVariable(
                    replicas=self._num_replicas, layout=self.get_stacked_layout, **kwargs
                )
            else:
                variable = MirroredVariable(**kwargs)
                if self.needs_placement and variable.dtype.name != "string":
                    variable.layout = self.get_replicated_layout(variable.ndim)
        finally:
            context.variable_creators = saved
        variable._distribute_strategy = self  # type: ignore[attr-defined]
        return variable

    # ---- running ---------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[..., PyTree],
        args: PyTree = (),
        kwargs: PyTree = None,
        options: object = None,
    ) -> PyTree:
        """Call a function once for each replica; all replicas run in one program.

        Args:
          fn: Function to call; it can read and write variables and use collectives.
          args: Arguments of the function; each replica receives its own value of a `PerReplica`.
          kwargs: Keyword arguments of the function.
          options: Ignored.

        Returns:
          The results of `fn`, with a `PerReplica` for each tensor if there are several replicas.

        Raises:
          InvalidArgumentError: If the replicas' arguments have different shapes, and the function
            does not support that.
          ValueError: If replicas write different values to a variable without aggregation.

        Example:
          >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
          >>> float(strategy.run(lambda x: x + 1.0, args=(tf.constant(1.0),)))
          2.0
        """
        keywords = dict(kwargs or {})
        check_cross_replica_context("run")
        if not callable(fn):
            raise TypeError(f"Strategy.run: `fn` must be callable, got {fn!r}.")
        with self._run_scope():
            if self.num_replicas_in_sync == 1:
                args, keywords = map_replicas(_unwrap_single, (tuple(args), keywords))
                with context_scope(ReplicaContext(self, 0)):
                    return fn(*args, **keywords)
            return run_replicas(self, fn, tuple(args), keywords)

    def experimental_run_v2(
        self,
        fn: Callable[..., PyTree],
        args: PyTree = (),
        kwargs: PyTree = None,
        options: object = None,
    ) -> PyTree:
        """Call `run`, under its name in TensorFlow 2.0 and 2.1."""
        return self.run(fn, args, kwargs, options)

    def experimental_run(
        self, fn: Callable[..., PyTree], input_iterator: Iterator[PyTree] | None = None
    ) -> PyTree:
        """Call `run`, under its name in TensorFlow 1.

        Args:
          fn: Function without arguments, or of one element of the iterator.
          input_iterator: Iterator of a distributed dataset.
        """
        return self.run(fn, () if input_iterator is None else (next(input_iterator),))

    @contextmanager
    def _run_scope(self) -> Iterator[None]:
        """Create variables of this strategy, and set the number of replicas."""
        saved, context.num_replicas = context.num_replicas, self.num_replicas_in_sync
        try:
            with variable_creator_scope(self._create_variable):
                yield
        finally:
            context.num_replicas = saved

    def get_program(
        self, fn: Callable[..., PyTree], template: PyTree, make: Callable[[], Any]
    ) -> Any:
        """Return the program of a function for the shapes of a template; those of a `tf.function` are cached."""
        if not isinstance(fn, Function) or context.trace is not None:
            return make()
        programs = self._programs.get(fn) or {}
        try:
            key = make_template_key(template)
            if key not in programs:
                program = make()
                if program.sets_initial_values:
                    return program
                programs[key] = program
                self._programs[fn] = programs
            return programs[key]
        except TypeError:
            return make()

    # ---- other methods -----------------------------------------------------------------------

    def group(self, value: PyTree, name: str | None = None) -> None:
        """Do nothing, because programs run in order."""

    # ---- input -----------------------------------------------------------------------------

    def experimental_distribute_dataset(self, dataset: Source, options: object = None) -> Source:
        """Create a dataset with batches that are split over the replicas.

        Args:
          dataset: Iterable of batches of the global size.
          options: Ignored.

        Returns:
          An iterable of `PerReplica` structures; for the default strategy, the dataset itself.
        """
        if self.is_default:
            return dataset
        return cast(Source, DistributedDataset(self, dataset, split=True))

    def make_dataset_iterator(self, dataset: Iterable[PyTree]) -> Iterator[PyTree]:
        """Return an iterator over batches that are split over the replicas.

        Args:
          dataset: Dataset of global batches.
        """
        return iter(self.experimental_distribute_dataset(dataset))

    def make_input_fn_iterator(
        self, input_fn: Callable[[InputContext], Iterable[PyTree]], replication_mode: object = None
    ) -> Iterator[PyTree]:
        """Return an iterator over batches for one replica each.

        Args:
          input_fn: Function that returns a dataset.
          replication_mode: Ignored.
        """
        return iter(self.distribute_datasets_from_function(input_fn))

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Source], options: object = None
    ) -> Source:
        """Create a dataset with batches for one replica each.

        Args:
          dataset_fn: Function of an `InputContext` that returns batches of the size of a replica.
          options: Ignored.

        Returns:
          An iterable of `PerReplica` structures; for the default strategy, the result of
          `dataset_fn`.
        """
        dataset = dataset_fn(InputContext(1, 0, self.num_replicas_in_sync))
        if self.is_default:
            return dataset
        return cast(Source, DistributedDataset(self, dataset, split=False))

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], PyTree]
    ) -> PyTree:
        """Create a value for each replica.

        Args:
          value_fn: Function of a `ValueContext`; its results may be nested.

        Returns:
          The structure of the values with a `PerReplica` for each leaf, or the value itself for one
          replica.
        """
        count = self.num_replicas_in_sync
        values = [value_fn(ValueContext(i, count)) for i in range(count)]
        if count == 1:
            return values[0]
        return nest.map_structure(lambda *parts: PerReplica(map(to_value, parts)), *values)

    def share_values(self, values: list[Any]) -> list[Any]:
        """Return the values of all replicas, given those of this process's replicas."""
        return values

    def stack_rows(self, rows: list[Tensor]) -> Tensor:
        """Return a tensor with a row for each replica, given those of this process's replicas."""
        return array.stack(rows)

    def place_batch(self, batch: PyTree) -> PyTree:
        """Place a batch of arrays on all devices, split along the first axis if it is divisible."""
        return self._place_on_devices(batch, 0)

    def place_batches(self, batches: PyTree) -> PyTree:
        """Place batches that are stacked along a new first axis, each split as by `place_batch`."""
        return self._place_on_devices(batches, 1)

    def _place_on_devices(self, batch: PyTree, axis: int) -> PyTree:
        return self._placer(batch, axis)

    def __deepcopy__(self, memo: dict[int, object]) -> Strategy:
        return self  # a copy of a model has the same strategy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {list(self.extended.worker_devices)}>"


def _check_variable_options(arguments: dict[str, Any]) -> None:
    """Check the synchronization and aggregation of a variable."""
    name = arguments.get("name")
    synchronization = arguments.get("synchronization", VariableSynchronization.AUTO)
    aggregation = arguments.get("aggregation", VariableAggregation.NONE)
    if synchronization is VariableSynchronization.NONE:
        raise ValueError(
            "`NONE` variable synchronization mode is not supported with tf.distribute strategy. Please "
            f"change the `synchronization` for variable: {name}"
        )
    if synchronization is not None and not isinstance(synchronization, VariableSynchronization):
        raise ValueError(
            f"Invalid variable synchronization mode: {synchronization} for variable: {name}"
        )
    if aggregation is not None and not isinstance(aggregation, VariableAggregation):
        raise ValueError(f"Invalid variable aggregation mode: {aggregation} for variable: {name}")


def _unwrap_single(leaf: object) -> object:
    return leaf.values[0] if isinstance(leaf, PerReplica) else leaf


@functools.cache
def get_default_strategy() -> Strategy:
    """Return the strategy outside of all scopes."""
    strategy = Strategy()
    strategy.is_default = True
    return strategy


@functools.cache
def get_default_replica_context() -> ReplicaContext:
    """Return the replica context outside of all scopes."""
    return ReplicaContext(get_default_strategy(), 0)


def get_strategy() -> Strategy:
    """Return the current strategy; outside of all scopes, a default strategy with one replica.

    Example:
      >>> tf.distribute.get_strategy().num_replicas_in_sync
      1
    """
    if context_stack.entries:
        entry = context_stack.entries[-1]
        strategy: Any = entry.strategy if isinstance(entry, ReplicaContext) else entry
        return strategy
    return get_default_strategy()


def has_strategy() -> bool:
    """Check whether a strategy other than the default one is current.

    Example:
      >>> tf.distribute.has_strategy()
      False
      >>> with tf.distribute.OneDeviceStrategy("CPU:0").scope():
      ...     tf.distribute.has_strategy()
      True
    """
    return bool(context_stack.entries) and not get_strategy().is_default


def in_cross_replica_context() -> bool:
    """Check whether the scope of a strategy is entered and no replica function is running.

    Example:
      >>> with tf.distribute.OneDeviceStrategy("CPU:0").scope():
      ...     tf.distribute.in_cross_replica_context()
      True
    """
    return bool(context_stack.entries) and not isinstance(context_stack.entries[-1], ReplicaContext)


def get_replica_context() -> ReplicaContext:
    """Return the replica context, or None in cross-replica context.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> strategy.run(lambda: tf.distribute.get_replica_context().num_replicas_in_sync)
      2
    """
    if not context_stack.entries:
        return get_default_replica_context()
    entry = context_stack.entries[-1]
    # The type leaves None out, because functions for replicas do not check for it.
    return entry if isinstance(entry, ReplicaContext) else None  # type: ignore[return-value]


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Make a strategy the current one until the next call with None.

    Args:
      strategy: Strategy, or None.

    Raises:
      RuntimeError: Inside the scope of a strategy.

    Example:
      >>> strategy = tf.distribute.OneDeviceStrategy("CPU:0")
      >>> tf.distribute.experimental_set_strategy(strategy)
      >>> tf.distribute.get_strategy() is strategy
      True
      >>> tf.distribute.experimental_set_strategy(None)
    """
    if len(context_stack.entries) > len(_set_scopes):
        raise RuntimeError(
            "tf.distribute.experimental_set_strategy: Must not be called inside a "
            "`tf.distribute.Strategy` scope."
        )
    if _set_scopes:
        _set_scopes.pop().__exit__(None, None, None)
    if strategy is not None:
        scope = strategy.scope()
        scope.__enter__()
        _set_scopes.append(scope)


_set_scopes: list[StrategyScope] = []
