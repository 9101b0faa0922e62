"""Resolvers of clusters that the caller or an environment variable describes."""

from __future__ import annotations

import json
import os

from meshflow.core.config.config import list_logical_devices
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.cluster.cluster_spec import ClusterSpec


class ClusterResolver:
    """Base class of cluster resolvers, without a cluster.

    Attributes:
      task_type: Job of this process, such as "worker".
      task_id: Id of this task in the job.
      rpc_layer: Protocol, such as "grpc".
      environment: Name of the environment; "" if unknown.
    """

    task_type: str | None = None
    task_id: int | None = None
    rpc_layer: str | None = None
    environment: str | None = ""

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses by job."""
        raise NotImplementedError(f"{type(self).__name__} must define cluster_spec().")

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, or an empty string if there is no cluster.

        Args:
          task_type: Job of the task; default that of this process.
          task_id: Id of the task; default that of this process.
          rpc_layer: Protocol that precedes the address.
        """
        spec = self.cluster_spec()
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if not spec or job is None or index is None:
            return ""
        layer = rpc_layer or self.rpc_layer
        address = spec.task_address(job, index)
        return f"{layer}://{address}" if layer else address

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Return the number of this process's accelerators by type.

        Args:
          task_type: Ignored.
          task_id: Ignored.
          config_proto: Ignored.
        """
        types = [d.device_type for d in list_logical_devices()]
        return {k: types.count(k) for k in set(types) - {"CPU"}}


class SimpleClusterResolver(ClusterResolver):
    """Cluster that the caller describes.

    Args:
      cluster_spec: Addresses by job.
      master: Address of the cluster's master.
      task_type: Job of this process.
      task_id: Id of this task.
      environment: Name of the environment.
      num_accelerators: Number of accelerators by type, as in `{"GPU": 8}`; default those of this
        process.
      rpc_layer: Protocol, such as "grpc".

    Raises:
      TypeError: If the cluster is not accepted by `tf.train.ClusterSpec`, or if the master is no
        string.

    Example:
      >>> cluster = tf.train.ClusterSpec({"worker": ["a:1", "b:1"], "ps": ["c:1"]})
      >>> resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster)
      >>> resolver.cluster_spec().task_address("worker", 1)
      'b:1'
    """

    def __init__(
        self,
        cluster_spec: object,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: dict[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(master, str):
            raise TypeError(f"SimpleClusterResolver: master must be a string, got {master!r}.")
        self._spec, self._master = ClusterSpec(cluster_spec), master
        self._num_accelerators = num_accelerators
        self.task_type, self.task_id, self.rpc_layer = task_type, task_id, rpc_layer
        self.environment = environment

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses by job."""
        return self._spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, or of the master; see `ClusterResolver.master`."""
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{self._master}" if layer and self._master else self._master

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Return the number of accelerators by type, as passed or as found in this process."""
        if self._num_accelerators is not None:
            return self._num_accelerators
        return super().num_accelerators(task_type, task_id, config_proto)


class TFConfigClusterResolver(ClusterResolver):
    """Cluster that the environment variable `TF_CONFIG` describes.

    Args:
      task_type: Job of this process; default that of the variable.
      task_id: Id of this task; default that of the variable.
      rpc_layer: Protocol; default that of the variable.
      environment: Name of the environment.

    Raises:
      ValueError: If the variable is not JSON, or names a task that its cluster does not have.

    Example:
      >>> import os
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
        job_name = task_type if task_type is not None else task.get("type")
        self.task_type = None if job_name is None else str(job_name)
        index = task_id if task_id is not None else task.get("index")
        self.task_id = None if index is None else int(index)
        self.rpc_layer = rpc_layer or config.get("rpc_layer")
        self._session_master = config.get("session_master")
        self.environment = environment
        if self._spec and (self.task_type is None or self.task_id is None):
            raise InvalidValueError(
                'TF_CONFIG has a "cluster" but no "task": add the task of this process, as in '
                '"task": {"type": "worker", "index": 0}.'
            )
        if self._spec and self.task_type != "evaluator":
            is_known = str(self.task_type) in self._spec.jobs
            tasks = self._spec.task_indices(str(self.task_type)) if is_known else []
            if self.task_id not in tasks:
                raise InvalidValueError(
                    f"TF_CONFIG describes this process as task {self.task_type}:{self.task_id}, but its cluster has "
                    f"{ {job: self._spec.num_tasks(job) for job in self._spec.jobs} } tasks."
                )

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses by job; empty without `TF_CONFIG`."""
        return self._spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the "session_master" or the address of a task; empty if there is only one task."""
        if self._session_master is not None:
            return str(self._session_master)
        if sum(self._spec.num_tasks(job) for job in self._spec.jobs) < 2:
            return ""
        return super().master(task_type, task_id, rpc_layer)
