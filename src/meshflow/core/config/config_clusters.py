"""Functions of `tf.config` about other processes.

They do little, because strategies connect to the processes themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError


class ClusterDeviceFilters:
    """Filters of the devices that are visible to each task of a cluster.

    This has no effect: a worker of a parameter-server cluster only communicates with the
    coordinator and its servers, never with another worker.

    Example:
      >>> filters = tf.config.experimental.ClusterDeviceFilters()
      >>> filters.set_device_filters("worker", 0, ["/job:ps"])
    """

    def __init__(self) -> None:
        self._device_filters: dict[str, dict[int, tuple[str, ...]]] = {}

    def set_device_filters(
        self, job_name: str, task_index: int, device_filters: Sequence[str]
    ) -> None:
        """Set the devices that are visible to a task.

        Args:
          job_name: Job of the task.
          task_index: Index of the task in the job.
          device_filters: Prefixes of the names of visible devices.
        """
        self._device_filters.setdefault(job_name, {})[task_index] = tuple(device_filters)


def experimental_connect_to_cluster(
    cluster_spec_or_resolver: Any,
    job_name: str = "localhost",
    task_index: int = 0,
    protocol: str | None = None,
    make_master_device_default: bool = True,
    cluster_device_filters: ClusterDeviceFilters | None = None,
) -> None:
    """Check the cluster that a strategy will use.

    The cluster consists of TPUs of this machine, or of workers and parameter servers.

    `TPUStrategy` already has its devices, and `ParameterServerStrategy` connects when it is
    created. The ops of this program run in this process, so `tf.device("/job:worker/...")` does not
    move them.

    Args:
      cluster_spec_or_resolver: A `tf.train.ClusterSpec` with the jobs "worker" and "ps", or a
        resolver of such a cluster or of TPUs.
      job_name: Ignored.
      task_index: Ignored.
      protocol: Ignored.
      make_master_device_default: Ignored.
      cluster_device_filters: Ignored; see `ClusterDeviceFilters`.

    Raises:
      ValueError: If an argument has the wrong type.
      NotImplementedError: If the cluster has no parameter servers.
    """
    cluster = cluster_spec_or_resolver
    if not hasattr(cluster, "jobs") and not hasattr(cluster, "cluster_spec"):
        raise InvalidValueError(
            f"`cluster_spec_or_resolver` must be a `ClusterSpec` or a `ClusterResolver`, got {cluster!r}."
        )
    if cluster_device_filters is not None and not isinstance(
        cluster_device_filters, ClusterDeviceFilters
    ):
        raise InvalidValueError(
            "`cluster_device_filters` must be an instance of `tf.config.experimental.ClusterDeviceFilters`, got "
            f"{cluster_device_filters!r}."
        )
    if getattr(cluster, "environment", "") == "tpu":
        return
    spec = cluster if hasattr(cluster, "jobs") else cluster.cluster_spec()
    if "ps" not in spec.jobs:
        raise NotImplementedError(
            "Connecting to a cluster from one process is not available: start one process per host with "
            "`meshflow launch`, jax.distributed.initialize or a tf.distribute strategy of several workers."
        )


def experimental_connect_to_host(remote_host: str | None = None, job_name: str = "worker") -> None:
    """Raise a `NotImplementedError`; its message describes how to connect processes.

    Raises:
      NotImplementedError: Always.
    """
    raise NotImplementedError(
        f"Connecting to a running process ({remote_host!r}) is not available: start one process per host with "
        "jax.distributed.initialize or a tf.distribute strategy of several workers."
    )
