"""Resolvers of clusters that a variable or the caller describes."""

from __future__ import annotations

import json
import os
from typing import Any

from meshflow.core.config.config import list_logical_devices
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.cluster.cluster_spec import ClusterSpec

__all__ = ["ClusterResolver", "SimpleClusterResolver", "TFConfigClusterResolver"]


class ClusterResolver:
    """The base of cluster resolvers: says nothing of a cluster.

    Attributes:
      task_type: this process's job, such as "worker".
      task_id: its number in the job.
      rpc_layer: the protocol.
      environment: what the machines are; "" where nothing is known.
    """

    task_type: str | None = None
    task_id: int | None = None
    rpc_layer: str | None = None
    environment: str | None = ""

    def cluster_spec(self) -> ClusterSpec:
        """Addresses by job."""
        raise NotImplementedError(f"{type(self).__name__} must define cluster_spec().")

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of a task; empty when there is no cluster.

        Args:
          task_type: its job; default this process's.
          task_id: its number; default this process's.
          rpc_layer: a protocol to put before it.
        """
        spec = self.cluster_spec()
        kind = self.task_type if task_type is None else task_type
        number = self.task_id if task_id is None else task_id
        if not spec or kind is None or number is None:
            return ""
        layer = rpc_layer or self.rpc_layer
        address = spec.task_address(kind, number)
        return f"{layer}://{address}" if layer else address

    def num_accelerators(
        self, task_type: Any = None, task_id: Any = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Number of this process's accelerators by type.

        Args:
          task_type: accepted.
          task_id: accepted.
          config_proto: accepted.
        """
        kinds = [d.device_type for d in list_logical_devices()]
        return {k: kinds.count(k) for k in set(kinds) - {"CPU"}}


class SimpleClusterResolver(ClusterResolver):
    """A cluster given by the caller.

    Args:
      cluster_spec: addresses by job.
      master: the address of the cluster's master.
      task_type: this process's job.
      task_id: its number.
      environment: a name for the kind of machines.
      num_accelerators: number of accelerators by type, as in `{"GPU": 8}`; default this process's own.
      rpc_layer: the protocol.

    Raises:
      TypeError: for a cluster that `tf.train.ClusterSpec` does not take, or a master that is no string.

    Example:
      >>> import meshflow as tf
      >>> cluster = tf.train.ClusterSpec({"worker": ["a:1", "b:1"], "ps": ["c:1"]})
      >>> resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster)
      >>> resolver.cluster_spec().task_address("worker", 1)
      'b:1'
    """

    def __init__(
        self,
        cluster_spec: Any,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Any = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(master, str):
            raise TypeError(f"SimpleClusterResolver: master must be a string, got {master!r}.")
        self._spec, self._master = ClusterSpec(cluster_spec), master
        self._num_accelerators = num_accelerators
        self.task_type, self.task_id, self.rpc_layer = task_type, task_id, rpc_layer
        self.environment = environment

    def cluster_spec(self) -> ClusterSpec:
        """Addresses by job."""
        return self._spec

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address of a task, or of the master; see `ClusterResolver.master`."""
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{self._master}" if layer and self._master else self._master

    def num_accelerators(
        self, task_type: Any = None, task_id: Any = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Number of accelerators by type: those given, or this process's own."""
        if self._num_accelerators is not None:
            return self._num_accelerators
        return super().num_accelerators(task_type, task_id, config_proto)


class TFConfigClusterResolver(ClusterResolver):
    """The cluster that the environment variable `TF_CONFIG` describes.

    Args:
      task_type: this process's job; default the variable's.
      task_id: its number; default the variable's.
      rpc_layer: the protocol; default the variable's.
      environment: what the machines are.

    Raises:
      ValueError: when the variable is not JSON, or names a task that its cluster lacks.

    Example:
      >>> import os
      >>> import meshflow as tf
      >>> os.environ["TF_CONFIG"] = (
      ...     '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
      ... )
      >>> resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
      >>> del os.environ["TF_CONFIG"]
      >>> resolver.task_id, resolver.master()
      (1, 'b:1')
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        text = os.environ.get("TF_CONFIG", "")
        try:
            config = json.loads(text or "{}")
        except json.JSONDecodeError as error:
            raise InvalidValueError(f"TF_CONFIG is not JSON: {error}. It is {text!r}.") from None
        if not isinstance(config, dict):
            raise InvalidValueError(f"TF_CONFIG must be a JSON object, got {text!r}.")
        task = config.get("task", {})
        cluster = config.get("cluster", {})
        self._spec = ClusterSpec(cluster)
        kind = task_type if task_type is not None else task.get("type")
        self.task_type = None if kind is None else str(kind)
        number = task_id if task_id is not None else task.get("index")
        self.task_id = None if number is None else int(number)
        self.rpc_layer = rpc_layer or config.get("rpc_layer")
        self._session_master = config.get("session_master")
        self.environment = environment
        if self._spec and (self.task_type is None or self.task_id is None):
            raise InvalidValueError(
                'TF_CONFIG has a "cluster" but no "task": it must say which task this process is, as in '
                '"task": {"type": "worker", "index": 0}.'
            )
        if self._spec and self.task_type != "evaluator":
            known = str(self.task_type) in self._spec.jobs
            tasks = self._spec.task_indices(str(self.task_type)) if known else []
            if self.task_id not in tasks:
                raise InvalidValueError(
                    f"TF_CONFIG says this is task {self.task_type}:{self.task_id}, but its cluster has "
                    f"{ {job: self._spec.num_tasks(job) for job in self._spec.jobs} } tasks."
                )

    def cluster_spec(self) -> ClusterSpec:
        """Addresses by job; empty without `TF_CONFIG`."""
        return self._spec

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The variable's "session_master", or the address of a task; empty where there is only one task.

        Args:
          task_type: see `ClusterResolver.master`.
          task_id: see there.
          rpc_layer: see there.
        """
        if self._session_master is not None:
            return str(self._session_master)
        if sum(self._spec.num_tasks(job) for job in self._spec.jobs) < 2:
            return ""
        return super().master(task_type, task_id, rpc_layer)
