"""Cluster resolver for TPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax

from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.cluster.resolvers import ClusterResolver
from meshflow.distribute.tpu import system as tpu_system


class TPUClusterResolver(ClusterResolver):
    """Cluster of this job's TPUs: JAX's devices, or virtual devices with `MESHFLOW_EMULATE_TPU`.

    JAX programs run on the hosts of the TPUs, so no connection is made: every name or address
    refers to the TPUs that this process can use.

    Args:
      tpu: Name, 'local', '', or an address `grpc://...`; default the variable `TPU_NAME`.
      zone: Ignored.
      project: Ignored.
      job_name: Name of the job.
      coordinator_name: Ignored.
      coordinator_address: Ignored.
      credentials: Ignored.
      service: Ignored.
      discovery_url: Ignored.

    Raises:
      NotFoundError: If there is no TPU; the error is a ValueError, too.
    """

    environment = "tpu"

    def __init__(
        self,
        tpu: str | bytes | Sequence[str] | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: object = "default",
        service: object = None,
        discovery_url: str | None = None,
    ) -> None:
        del zone, project, coordinator_name, coordinator_address, credentials, service
        del discovery_url
        if isinstance(tpu, (list, tuple)):
            tpu = tpu[0] if tpu else None
        if isinstance(tpu, bytes):
            tpu = tpu.decode()
        tpu_system.list_tpus()
        name = tpu or os.environ.get("TPU_NAME", "")
        self._name = "" if name == "local" else str(name)
        self._job = job_name
        self._topology: tpu_system.Topology | None = None
        self.task_type, self.task_id = job_name, jax.process_index()
        self.rpc_layer = "grpc"

    @staticmethod
    def connect(
        tpu: str | bytes | Sequence[str] | None = None,
        zone: str | None = None,
        project: str | None = None,
    ) -> TPUClusterResolver:
        """Create a resolver and initialize its TPUs."""
        resolver = TPUClusterResolver(tpu, zone, project)
        tpu_system.initialize_tpu_system(resolver)
        return resolver

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address that was passed; empty for this machine's TPUs."""
        if not self._name or "://" in self._name:
            return self._name
        return f"{rpc_layer or self.rpc_layer}://{self._name}"

    def get_master(self) -> str:
        """Return the address that was passed."""
        return self.master()

    def get_job_name(self) -> str:
        """Return the name of the job."""
        return self._job

    def get_tpu_system_metadata(self) -> tpu_system.TPUSystemMetadata:
        """Return the numbers of cores and hosts, the topology and the device names."""
        return tpu_system.get_metadata()

    def set_tpu_topology(self, serialized_tpu_topology: tpu_system.Topology) -> None:
        """Store the topology that `initialize_tpu_system` found."""
        self._topology = serialized_tpu_topology

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of the TPU's hosts, or their names in this job without an address."""
        hosts = sorted({d.process_index for d in tpu_system.list_tpus()})
        address = self.master().split("://")[-1]
        return ClusterSpec({self._job: [address or f"localhost:{8470 + h}" for h in hosts]})

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Return the number of TPU cores of a host."""
        return {"TPU": tpu_system.get_metadata().num_of_cores_per_host}
