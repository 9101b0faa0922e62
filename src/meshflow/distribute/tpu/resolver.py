"""The resolver that finds TPUs."""

from __future__ import annotations

import os
from typing import Any

import jax

from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.cluster.resolvers import ClusterResolver
from meshflow.distribute.tpu import system as tpu_system

__all__ = ["TPUClusterResolver"]


class TPUClusterResolver(ClusterResolver):
    """Finds the TPUs of this job: those JAX has, or virtual devices under `MESHFLOW_EMULATE_TPU`.

    JAX programs run on the TPU's own machines, so there is nothing to connect to: any name or
    address stands for the TPUs that this process sees.

    Args:
      tpu: a name, 'local', '', or an address `grpc://...`; default the variable `TPU_NAME`.
      zone: accepted.
      project: accepted.
      job_name: the job's name.
      coordinator_name: accepted.
      coordinator_address: accepted.
      credentials: accepted.
      service: accepted.
      discovery_url: accepted.

    Raises:
      NotFoundError: also a ValueError; when there is no TPU, saying what was looked for.
    """

    environment = "tpu"

    def __init__(
        self,
        tpu: Any = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: Any = "default",
        service: Any = None,
        discovery_url: str | None = None,
    ) -> None:
        del zone, project, coordinator_name, coordinator_address, credentials, service
        del discovery_url
        if isinstance(tpu, (list, tuple)):
            tpu = tpu[0] if tpu else None
        if isinstance(tpu, bytes):
            tpu = tpu.decode()
        tpu_system.tpus()
        name = tpu or os.environ.get("TPU_NAME", "")
        self._name = "" if name == "local" else str(name)
        self._job = job_name
        self._topology: Any = None
        self.task_type, self.task_id = job_name, jax.process_index()
        self.rpc_layer = "grpc"

    @staticmethod
    def connect(
        tpu: Any = None, zone: str | None = None, project: str | None = None
    ) -> TPUClusterResolver:
        """A resolver whose TPUs are started.

        Args:
          tpu: as for the constructor.
          zone: accepted.
          project: accepted.
        """
        resolver = TPUClusterResolver(tpu, zone, project)
        tpu_system.initialize_tpu_system(resolver)
        return resolver

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """The address given; empty for this machine's TPUs.

        Args:
          task_type: accepted.
          task_id: accepted.
          rpc_layer: the protocol to put before a name.
        """
        if not self._name or "://" in self._name:
            return self._name
        return f"{rpc_layer or self.rpc_layer}://{self._name}"

    def get_master(self) -> str:
        """The address given."""
        return self.master()

    def get_job_name(self) -> str:
        """The job's name."""
        return self._job

    def get_tpu_system_metadata(self) -> tpu_system.TPUSystemMetadata:
        """What the TPUs consist of."""
        return tpu_system.metadata()

    def set_tpu_topology(self, serialized_tpu_topology: Any) -> None:
        """Keeps the topology that `initialize_tpu_system` found.

        Args:
          serialized_tpu_topology: a `Topology`.
        """
        self._topology = serialized_tpu_topology

    def cluster_spec(self) -> ClusterSpec:
        """Addresses of the TPU's hosts; without an address their names in this job."""
        hosts = sorted({d.process_index for d in tpu_system.tpus()})
        address = self.master().split("://")[-1]
        return ClusterSpec({self._job: [address or f"localhost:{8470 + h}" for h in hosts]})

    def num_accelerators(
        self, task_type: Any = None, task_id: Any = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Number of TPU cores of a host.

        Args:
          task_type: accepted.
          task_id: accepted.
          config_proto: accepted.
        """
        return {"TPU": tpu_system.metadata().num_of_cores_per_host}
