"""`ParameterServerStrategy`: variables on parameter servers, trained by workers that do not wait for each other."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import FailedPreconditionError, InvalidValueError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.random import STATE_NAME
from meshflow.core.variables.variable import Variable
from meshflow.distribute.input import InputContext
from meshflow.distribute.parameter_server.cluster import Cluster, InProcessCluster, NoCluster
from meshflow.distribute.parameter_server.compression import checked
from meshflow.distribute.parameter_server.exchanges import outside
from meshflow.distribute.parameter_server.extended import ParameterServerExtended
from meshflow.distribute.parameter_server.hosting import HostedVariable, placed_on, wanted_servers
from meshflow.distribute.parameter_server.journal import Folder
from meshflow.distribute.parameter_server.local_processes import LocalProcesses
from meshflow.distribute.parameter_server.messages import Options
from meshflow.distribute.parameter_server.ray_processes import RayProcesses
from meshflow.distribute.parameter_server.rehearsal import Rehearsal
from meshflow.distribute.parameter_server.remote_cluster import RemoteCluster
from meshflow.distribute.parameter_server.roles import working
from meshflow.distribute.parameter_server.serving import JoinedProcesses, all_here
from meshflow.distribute.parameter_server.sharding import sharded_variable
from meshflow.distribute.parameter_server.worker import (
    Call,
    StateNeededError,
    VariablesNeededError,
)
from meshflow.distribute.strategy import Strategy, _check_roles

__all__ = ["ParameterServerStrategy"]


# The jobs that a cluster may have.
_JOBS = {"chief", "evaluator", "ps", "worker"}


class ParameterServerStrategy(Strategy):
    """Asynchronous training: parameter servers hold the variables, workers compute and push what they found.

    Every update of a closure is applied exactly once, also when a worker dies.

    Args:
      cluster_resolver: says which processes there are; None for a cluster of this machine.
      variable_partitioner: a `tf.distribute.experimental.partitioners.Partitioner`, which says into how many
        shards a variable is cut.
      engine: without a resolver: "ray" for processes on a Ray cluster (the default), "processes" for processes of
        this machine, "threads" for servers and workers in this process.
      workers: how many workers, without a resolver.
      servers: how many parameter servers, without a resolver.
      address: of a Ray cluster; default the one connected to already, or a new one of this machine.
      resources_per_worker: what Ray reserves for each worker, as in `{"GPU": 1}`; default nothing.
      durable: whether servers write down what they do, so that one that dies comes back with all of it.
      backup_dir: the folder for that, which all servers' machines share; default a temporary one of this machine.
      patience: for how many seconds the cluster's processes may take to report.
      max_staleness: how many closures a worker may be ahead of any other that works: 0 has all finish one before any
        begins the next, None lets them run free.
      queue_size: how many scheduled closures may wait; `schedule` waits for room.
      backup_closures: whether a worker without work runs a closure too that takes another one three times as long as
        usual. Who is first counts.
      compression: what gradients are sent as: None as they are, "bfloat16", or a share such as 0.01 of the elements that
        are largest, of dense ones; what is left out is added to the worker's next gradient.
      report_every: every so many seconds a line says how fast it goes, to stderr, and at the end one what there was in
        all; None for none.
      log_dir: where what the line says, and the bytes, are written as curves for TensorBoard; None for nowhere.

    Raises:
      ValueError: for an unknown engine, or less than one worker or server.
      FailedPreconditionError: in a closure that a worker runs.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.ParameterServerStrategy(engine="threads", workers=2)
      >>> with strategy.scope():
      ...     counter = tf.Variable(0)
      >>> coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
      >>> @tf.function
      ... def step():
      ...     counter.assign_add(1)
      >>> for _ in range(10):
      ...     _ = coordinator.schedule(step)
      >>> coordinator.join()
      >>> int(counter)
      10
    """

    hosts_variables = True
    no_loss_scaling = "Asynchronous workers would each have a scale of their own."
    extended: ParameterServerExtended

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Callable[..., Sequence[int]] | None = None,
        *,
        engine: str | None = None,
        workers: int = 2,
        servers: int = 1,
        address: str | None = None,
        resources_per_worker: Mapping[str, float] | None = None,
        durable: bool = True,
        backup_dir: str | os.PathLike[str] | None = None,
        patience: float = 120.0,
        max_staleness: int | None = None,
        queue_size: int = 4096,
        backup_closures: bool = False,
        compression: str | float | None = None,
        report_every: float | None = None,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if working.worker is not None and engine != "threads":
            raise FailedPreconditionError(
                f"Worker {working.worker} of parameter servers would begin a cluster of its own: a closure, or a module that "
                "it imports, makes a ParameterServerStrategy. Make it in the main program, or in a function that it calls."
            )
        if workers < 1 or servers < 1:
            raise InvalidValueError(
                f"ParameterServerStrategy: workers and servers must be at least 1, got {workers} and {servers}."
            )
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise InvalidValueError(
                f"ParameterServerStrategy: variable_partitioner must be a Partitioner, got {variable_partitioner!r}."
            )
        if max_staleness is not None and max_staleness < 0:
            raise InvalidValueError(
                f"ParameterServerStrategy: max_staleness must not be negative, got {max_staleness}."
            )
        if queue_size < 1:
            raise InvalidValueError(
                f"ParameterServerStrategy: queue_size must be at least 1, got {queue_size}."
            )
        self.options = Options(
            max_staleness, queue_size, backup_closures, checked(compression), report_every,
            None if log_dir is None else os.fspath(log_dir),
        )  # fmt: skip
        self._start([jax.local_devices()[0]])
        self._resolver = cluster_resolver
        self._variable_partitioner = variable_partitioner
        # Programs at addresses of their own have folders of their own.
        kept = durable and engine != "threads" and cluster_resolver is None
        folder = Folder(backup_dir) if kept else None
        if cluster_resolver is not None:
            self.cluster: Cluster = _resolved(cluster_resolver, durable, patience)
        elif engine == "threads":
            self.cluster = InProcessCluster(workers, servers)
        elif engine == "processes":
            launcher = LocalProcesses(folder, workers)
            self.cluster = RemoteCluster(launcher, workers, servers, patience=patience)
        elif engine in (None, "ray"):
            actors = RayProcesses(folder, workers, address, resources_per_worker)
            self.cluster = RemoteCluster(actors, workers, servers, actors.host, patience)
        else:
            raise InvalidValueError(
                f"ParameterServerStrategy: engine must be 'ray', 'processes' or 'threads', got {engine!r}."
            )
        self.extended = ParameterServerExtended(
            self, self.cluster.worker_count, len(self.cluster.servers)
        )
        # How many variables there have been; the last one's key.
        self.count = 0
        self._optimizer_keys = itertools.count(1)
        self._bytes = [0] * len(self.cluster.servers)
        self._making = threading.RLock()
        # Held while a closure is tried out, and while functions are pickled: of what is half built no part is sent. Who traces
        # a function may want the other one, so that is not held for so long.
        self.building = threading.RLock()
        # By optimizer, the variables that servers have slots of.
        self.states: dict[int, set[int]] = {}
        self._variables: weakref.WeakValueDictionary[int, HostedVariable] = (
            weakref.WeakValueDictionary()
        )
        self._own_makers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # The one `ClusterCoordinator` of this strategy, once there is one.
        self._cluster_coordinator: Any = None

    @classmethod
    def of_worker(cls, workers: int, servers: int, options: Options) -> ParameterServerStrategy:
        """The strategy as closures find it in a worker's own process.

        Args:
          options: how closures are run.
          workers: how many workers there are.
          servers: how many parameter servers.
        """
        made = cls.__new__(cls)
        made.options = options
        made._start([jax.local_devices()[0]])
        made._resolver = made._variable_partitioner = None
        made.cluster, made.count = NoCluster(workers, servers), 0
        made.extended = ParameterServerExtended(made, workers, servers)
        return made

    @property
    def cluster_resolver(self) -> Any:
        """The cluster resolver, or None."""
        return self._resolver

    # ---- running ---------------------------------------------------------------------------

    def run(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None
    ) -> Any:
        """Calls a function for the one replica that a worker is; see `Strategy.run`.

        Args:
          fn: the function.
          args: its arguments.
          kwargs: its keyword arguments.
          options: accepted.
        """
        self.extended.note_use()
        return super().run(fn, args, kwargs, options)

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """What the one replica has, reduced along an axis; see `Strategy.reduce`.

        Args:
          reduce_op: `ReduceOp` or its name.
          value: a value of the replica.
          axis: the axis; None for none.
        """
        self.extended.note_use()
        return super().reduce(reduce_op, value, axis)

    # ---- variables -------------------------------------------------------------------------

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        _check_roles(kwargs)
        if kwargs.get("name") == STATE_NAME:
            # Of one worker.
            return next_creator(**kwargs)
        closure, remote = context.closure, isinstance(self.cluster, NoCluster)
        if remote if closure is None else closure.makes_own:
            return next_creator(**kwargs)
        if closure is not None:
            # What one worker's closure makes, such as a layer's weights, others find; what nothing keeps they need not.
            if remote or not (closure.rehearses or context.trace):
                raise VariablesNeededError(self.count)
            with init_scope():
                return outside(self._create_variable, next_creator, **kwargs)
        if self._variable_partitioner is not None and wanted_servers() is None:
            servers = len(self.cluster.servers)
            return sharded_variable(self.host, servers, self._variable_partitioner, kwargs)
        return self.host(**kwargs)

    def host(self, **kwargs: Any) -> HostedVariable:
        """Makes one variable on one server, or where `placed_on` says.

        Args:
          **kwargs: arguments of `tf.Variable`.
        """
        saved, context.variable_creators = context.variable_creators, []
        try:
            variable = HostedVariable(**kwargs)
        finally:
            context.variable_creators = saved
        if variable.dtype.name == "string" or not variable.shape.is_fully_defined():
            raise InvalidValueError(
                f"Variable {variable.name} of dtype {variable.dtype.name} and shape {variable.shape}: parameter "
                "servers host variables of numbers with a fixed shape. Make it outside of the scope."
            )
        with self._making:
            size = int(np.prod(variable._shape, dtype=np.int64)) * variable.dtype.size
            servers = wanted_servers() or (self._bytes.index(min(self._bytes)),)
            if max(servers) >= len(self._bytes):
                raise InvalidValueError(
                    f"Variable {variable.name} is to be on parameter server {max(servers)}, and there are "
                    f"{len(self._bytes)}, from 0 on."
                )
            for number in servers:
                self._bytes[number] += max(size, 1)
            key = self.count = self.count + 1
            self.cluster.host(variable, key, servers)
            self._variables[key] = variable
        variable._distribute_strategy = self  # type: ignore[attr-defined]
        return variable

    def makes_own(self, function: Any) -> bool:
        """Whether a function is known to make variables for itself alone.

        Args:
          function: the function.
        """
        with contextlib.suppress(TypeError):
            return function in self._own_makers
        return False

    def make_variables(self, call: Call, known: int) -> bool:
        """Makes the variables of a closure, once for all workers: TensorFlow makes them where a function is scheduled first.

        Args:
          call: the closure.
          known: how many variables there were when its function was sent.

        Returns:
          Whether there are more now, with which it is to be run again. Otherwise nothing keeps what it makes: workers
          have their own.
        """
        with self.building:
            before = self.count
            if before != known:
                return True
            while True:
                try:
                    Rehearsal(self).try_out(call)
                    break
                except StateNeededError as need:
                    self.make_state(need.optimizer, need.variables)
            made = range(before + 1, self.count + 1)
            if made:
                gc.collect()
            if any(key in self._variables for key in made):
                return True
            with contextlib.suppress(TypeError):
                self._own_makers.add(call.function)
            return False

    # ---- optimizers ------------------------------------------------------------------------

    def make_state(self, optimizer: Any, variables: Sequence[HostedVariable]) -> None:
        """Makes an optimizer's slots on the servers, and gives these its rule.

        Args:
          optimizer: the optimizer.
          variables: variables that a closure trains.
        """
        with self._making, self.scope():
            key = self.key_of(optimizer)
            known = self.states.get(key, set())
            if all(v.key in known for v in variables):
                return
            with placed_on(range(len(self.cluster.servers))):
                self._share(optimizer)
            optimizer._check_known(variables)
            optimizer.build(variables)
            if optimizer._accumulated_steps is not None:
                self.cluster.spread(optimizer._accumulated_steps)
            self.cluster.adopt(key, optimizer)
            self.states[key] = known | {v.key for v in variables}

    def _share(self, optimizer: Any) -> None:
        """Puts on all servers what an optimizer has one of: its step number and hyperparameters.

        Those that somebody read outside the scope are plain variables, which hosted ones of the same value replace.
        """

        def shared(variable: Variable) -> HostedVariable:
            if isinstance(variable, HostedVariable):
                self.cluster.spread(variable)
                return variable
            return self.host(initial_value=variable.numpy(), trainable=False, name=variable._name)

        before = optimizer.iterations
        optimizer._iterations = shared(before)
        optimizer._weights = [
            optimizer._iterations if w is before else w for w in optimizer._weights
        ]
        for name, variable in optimizer._hyper_variables().items():
            optimizer._hyper[name] = shared(variable)

    def key_of(self, optimizer: Any) -> int:
        """The number that an optimizer has in all processes.

        Args:
          optimizer: the optimizer.
        """
        with self._making:
            key: int | None = optimizer.__dict__.get("_hosted_key")
            if key is None:
                key = optimizer._hosted_key = next(self._optimizer_keys)
                self._optimizers[key] = optimizer
            return key

    def found(self, optimizer: int, keys: Sequence[int]) -> tuple[Any, list[HostedVariable]]:
        """An optimizer and variables by their keys.

        Args:
          optimizer: the optimizer's key.
          keys: the variables'.
        """
        return self._optimizers[optimizer], [self._variables[key] for key in keys]

    # ---- input -----------------------------------------------------------------------------

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
        """What a function makes of an `InputContext`: inside `create_per_worker_dataset` that of the worker.

        Args:
          dataset_fn: called with an `InputContext`.
          options: accepted.
        """
        number = 0 if context.closure is None else context.closure.worker
        return dataset_fn(InputContext(self.cluster.worker_count, number, 1))

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """The dataset itself: every worker takes all of it.

        Args:
          dataset: a dataset.
          options: accepted.
        """
        return dataset

    def __repr__(self) -> str:
        cluster = self.cluster
        return f"<{type(self).__name__} of {cluster.worker_count} workers and {len(cluster.servers)} servers>"


def _resolved(resolver: Any, durable: bool, patience: float) -> Cluster:
    """The cluster that a resolver describes."""
    if not hasattr(resolver, "cluster_spec"):
        raise InvalidValueError(
            "ParameterServerStrategy: cluster_resolver must be a tf.distribute.cluster_resolver.ClusterResolver, got "
            f"{resolver!r}."
        )
    spec = resolver.cluster_spec()
    unknown = sorted({*spec.jobs} - _JOBS)
    if unknown:
        raise InvalidValueError(
            f"Disallowed task type found in cluster spec: ParameterServerStrategy takes {sorted(_JOBS)}, got {unknown}."
        )
    if "chief" in spec.jobs and spec.num_tasks("chief") > 1:
        raise InvalidValueError(
            f"There must be at most one 'chief' job, and the cluster of the ParameterServerStrategy has {spec.num_tasks('chief')}."
        )
    missing = [job for job in ("worker", "ps") if job not in spec.jobs or not spec.num_tasks(job)]
    if missing:
        raise InvalidValueError(
            f"There must be at least one {missing[0]}: ParameterServerStrategy needs a cluster with the jobs 'worker' and "
            f"'ps', got {spec!r}."
        )
    workers, servers = spec.num_tasks("worker"), spec.num_tasks("ps")
    if all_here(spec):
        # Servers that this program started itself, as tests do.
        return InProcessCluster(workers, servers)
    joined = JoinedProcesses(spec, durable)
    return RemoteCluster(joined, workers, servers, joined.host, patience, secret=joined.secret)
