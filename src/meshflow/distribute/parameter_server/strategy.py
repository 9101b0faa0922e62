"""`ParameterServerStrategy`: variables on parameter servers, trained by workers that do not wait for each other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.config.unavailable import NotAvailableError
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import FailedPreconditionError, InvalidValueError
from meshflow.core.variables.random import STATE_NAME
from meshflow.core.variables.variable import Variable
from meshflow.distribute.input import InputContext
from meshflow.distribute.parameter_server.cluster import Cluster, InProcessCluster
from meshflow.distribute.parameter_server.hosting import HostedVariable, placed_on, wanted_servers
from meshflow.distribute.parameter_server.sharding import sharded_variable
from meshflow.distribute.strategy import Strategy, _check_roles

__all__ = ["ParameterServerStrategy"]


class ParameterServerStrategy(Strategy):
    """Asynchronous training: parameter servers hold the variables, workers compute and push what they found.

    Every update of a closure is applied exactly once, also when a worker dies.

    Args:
      cluster_resolver: says which processes there are; None for a cluster of this machine.
      variable_partitioner: a `tf.distribute.experimental.partitioners.Partitioner`, which says into how many
        shards a variable is cut.
      engine: "threads" for servers and workers in this process.
      workers: how many workers, without a resolver.
      servers: how many parameter servers, without a resolver.

    Raises:
      ValueError: for an unknown engine, or less than one worker or server.

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

    no_loss_scaling = "Asynchronous workers would each have a scale of their own."

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Callable[..., Sequence[int]] | None = None,
        *,
        engine: str | None = None,
        workers: int = 2,
        servers: int = 1,
    ) -> None:
        if workers < 1 or servers < 1:
            raise InvalidValueError(
                f"ParameterServerStrategy: workers and servers must be at least 1, got {workers} and {servers}."
            )
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise InvalidValueError(
                f"ParameterServerStrategy: variable_partitioner must be a Partitioner, got {variable_partitioner!r}."
            )
        self._start([jax.local_devices()[0]])
        self._resolver = cluster_resolver
        self._variable_partitioner = variable_partitioner
        self.cluster = self._make_cluster(engine, workers, servers)
        self._keys, self._optimizer_keys = itertools.count(1), itertools.count(1)
        self._bytes = [0] * len(self.cluster.servers)
        self._making = threading.RLock()
        # By optimizer, the variables that servers have slots of.
        self.states: dict[int, set[int]] = {}
        self._coordinator: Any = None

    def _make_cluster(self, engine: str | None, workers: int, servers: int) -> Cluster:
        if engine == "threads":
            return InProcessCluster(workers, servers)
        raise NotAvailableError(
            f"ParameterServerStrategy: engine={engine!r} is not available yet; use engine='threads'."
        )

    @property
    def cluster_resolver(self) -> Any:
        """The cluster resolver, or None."""
        return self._resolver

    # ---- variables -------------------------------------------------------------------------

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        _check_roles(kwargs)
        if context.closure is not None or kwargs.get("name") == STATE_NAME:
            # Of one worker, as keys of random ops are.
            return next_creator(**kwargs)
        if self._variable_partitioner is not None and wanted_servers() is None:
            made = sharded_variable(self, self._variable_partitioner, kwargs)
            if made is not None:
                return made
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
            for number in servers:
                self._bytes[number] += max(size, 1)
            self.cluster.host(variable, next(self._keys), servers)
        variable._distribute_strategy = self  # type: ignore[attr-defined]
        return variable

    # ---- optimizers ------------------------------------------------------------------------

    def make_state(self, optimizer: Any, variables: Sequence[HostedVariable]) -> None:
        """Makes an optimizer's slots on the servers, and gives these its rule.

        Args:
          optimizer: the optimizer.
          variables: variables that a closure trains.

        Raises:
          FailedPreconditionError: when a part of the optimizer was made outside the scope.
        """
        with self._making, self.scope():
            key = optimizer.__dict__.setdefault("_hosted_key", None) or next(self._optimizer_keys)
            optimizer._hosted_key = key
            known = self.states.get(key, set())
            if all(v.key in known for v in variables):
                return
            with placed_on(range(len(self.cluster.servers))):
                own = [optimizer.iterations, *optimizer._hyper_variables().values()]
            for variable in own:
                if not isinstance(variable, HostedVariable):
                    raise FailedPreconditionError(
                        f"The optimizer {optimizer._name} has the variable {variable.name}, which was not made in "
                        "the strategy's scope. Make the optimizer in `strategy.scope()`."
                    )
                self.cluster.spread(variable)
            optimizer._check_known(variables)
            optimizer.build(variables)
            self.cluster.adopt(key, optimizer)
            self.states[key] = known | {v.key for v in variables}

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
