"""`tf.config`'s names for other processes, which strategies reach by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError

__all__ = [
    "ClusterDeviceFilters",
    "experimental_connect_to_cluster",
    "experimental_connect_to_host",
]


class ClusterDeviceFilters:
    """Which other tasks each task of a cluster is to see.

    Nothing is left for it to do: a worker of parameter servers speaks to the coordinator and its servers only, and sees
    no other worker.

    Example:
      >>> import meshflow as tf
      >>> filters = tf.config.experimental.ClusterDeviceFilters()
      >>> filters.set_device_filters("worker", 0, ["/job:ps"])
    """

    def __init__(self) -> None:
        self._device_filters: dict[str, dict[int, tuple[str, ...]]] = {}

    def set_device_filters(
        self, job_name: str, task_index: int, device_filters: Sequence[str]
    ) -> None:
        """Says what a task is to see.

        Args:
          job_name: its job.
          task_index: its number in the job.
          device_filters: the beginnings of the names of devices.
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
    """Checks a cluster that a strategy is going to work with: TPUs of this machine, or workers and parameter servers.

    `TPUStrategy` has its devices already, and `ParameterServerStrategy` connects when it is made. Operations of this
    program run in this process, so `tf.device("/job:worker/...")` does not move them.

    Args:
      cluster_spec_or_resolver: a `tf.train.ClusterSpec` with the jobs "worker" and "ps", or a resolver of one or of TPUs.
      job_name: accepted.
      task_index: accepted.
      protocol: accepted.
      make_master_device_default: accepted.
      cluster_device_filters: accepted; see `ClusterDeviceFilters`.

    Raises:
      ValueError: when an argument is of another type.
      NotImplementedError: for a cluster without parameter servers.
    """
    given = cluster_spec_or_resolver
    if not hasattr(given, "jobs") and not hasattr(given, "cluster_spec"):
        raise InvalidValueError(
            f"`cluster_spec_or_resolver` must be a `ClusterSpec` or a `ClusterResolver`, got {given!r}."
        )
    if cluster_device_filters is not None and not isinstance(
        cluster_device_filters, ClusterDeviceFilters
    ):
        raise InvalidValueError(
            "`cluster_device_filters` must be an instance of `tf.config.experimental.ClusterDeviceFilters`, got "
            f"{cluster_device_filters!r}."
        )
    if getattr(given, "environment", "") == "tpu":
        return
    spec = given if hasattr(given, "jobs") else given.cluster_spec()
    if "ps" not in spec.jobs:
        raise NotImplementedError(
            "Connecting to a cluster from one process is not available: start one process per host with "
            "`meshflow launch`, jax.distributed.initialize or a tf.distribute strategy of several workers."
        )


def experimental_connect_to_host(remote_host: str | None = None, job_name: str = "worker") -> None:
    """Not available.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(
        f"Connecting to a running process ({remote_host!r}) is not available: start one process per host with "
        "jax.distributed.initialize or a tf.distribute strategy of several workers."
    )
