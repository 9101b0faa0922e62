"""Launcher of servers and workers as actors of a Ray cluster.

Ray places the actors on its machines and stops them with the job.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from meshflow.core.runtime.errors import UnavailableError
from meshflow.distribute.cluster.channel import SECRET_VARIABLE
from meshflow.distribute.parameter_server.cluster.roles import (
    HOST_MODULE,
    Role,
    is_crowded,
    make_role,
)
from meshflow.distribute.parameter_server.server.journal import JournalFolder
from meshflow.distribute.ray import connect, is_responding
from meshflow.environment import optional_packages

# Prefixes of environment variables that are passed to the actors.
_PASSED_PREFIXES = ("JAX_", "XLA_", "MESHFLOW_", "TF_")


class _HostActor:
    """Actor with a server or a worker in its process."""

    def work(self, role: Role, secret: str) -> None:
        """Run the server or worker until the coordinator stops, and exit the process."""
        importlib.import_module(HOST_MODULE).run(role, secret)


class RayProcesses:
    """Launcher of the processes of a cluster as actors of Ray.

    Args:
      folder: Folder of the journals of servers, or None.
      workers: Number of workers.
      address: Address of a Ray cluster. By default, the connected cluster, or a new one on this
        machine.
      resources: Resources that Ray reserves for each worker, for example `{"GPU": 1}`. By default
        none.
    """

    can_resize = True

    def __init__(
        self,
        folder: JournalFolder | None,
        workers: int,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self._ray, self._is_own_ray = connect(address, logs=False)
        self._control_address: str = self._ray.get_runtime_context().gcs_address
        self._folder, self._workers = folder, workers
        self._resources = dict(resources or {})
        self.actors: dict[tuple[str, int], Any] = {}
        # References to the results of `work`, which are available when the actors have stopped.
        self._work_results: dict[tuple[str, int], Any] = {}

    @property
    def host(self) -> str:
        """Return the address of this process for the actors.

        It is a loopback address if all are on one machine.
        """
        return (
            "127.0.0.1" if self._is_on_one_machine() else str(self._ray.util.get_node_ip_address())
        )

    def _is_on_one_machine(self) -> bool:
        # Calls of Ray would wait for a control process that has died.
        responds = is_responding(self._control_address)
        num_alive = sum(node["Alive"] for node in self._ray.nodes()) if responds else 0
        if not num_alive:
            raise UnavailableError(
                f"The Ray cluster at {self._control_address} is not alive any more. Restart the cluster and the job, which "
                "continues from its last checkpoint."
            )
        return num_alive == 1

    def launch(
        self, kind: str, index: int, coordinator: str, secret: str, servers: int, num_starts: int
    ) -> None:
        """See `ProcessLauncher.launch`."""
        crowded = self._is_on_one_machine() and is_crowded(self._workers)
        role = make_role(kind, index, coordinator, servers, num_starts, self._folder, crowded)
        resources = self._resources if kind == "worker" else {}
        options: dict[str, Any] = {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "resources": {k: v for k, v in resources.items() if k not in ("CPU", "GPU")},
            "max_restarts": 0,
            "runtime_env": {
                "env_vars": {
                    k: v
                    for k, v in os.environ.items()
                    if k.startswith(_PASSED_PREFIXES) and k != SECRET_VARIABLE
                }
            },
        }
        if kind == "ps" and self._folder is not None and self._folder.is_local:
            # The actor must run on the machine that has the journal.
            options["scheduling_strategy"] = self._make_affinity()
        actor = self._ray.remote(_HostActor).options(**options).remote()
        self.actors[kind, index] = actor
        self._work_results[kind, index] = actor.work.remote(role, secret)

    def _make_affinity(self) -> object:
        """Return the scheduling strategy that places an actor on this machine."""
        scheduling = optional_packages.import_extra(
            "ray.util.scheduling_strategies", "ray", "Parameter servers on Ray need the package ray"
        )
        node = self._ray.get_runtime_context().get_node_id()
        return scheduling.NodeAffinitySchedulingStrategy(node_id=node, soft=False)

    def is_dead(self, kind: str, index: int) -> bool:
        """See `ProcessLauncher.is_dead`."""
        done, _ = self._ray.wait([self._work_results[kind, index]], timeout=0)
        return bool(done)

    def kill(self, kind: str, index: int) -> None:
        """See `ProcessLauncher.kill`."""
        actor = self.actors.get((kind, index))
        if actor is not None:
            self._ray.kill(actor)

    def describe_process(self, kind: str, index: int) -> str:
        """See `ProcessLauncher.describe_process`."""
        return ""

    def stop(self) -> None:
        """See `ProcessLauncher.stop`."""
        if self._ray.is_initialized():
            if is_responding(self._control_address):
                for actor in self.actors.values():
                    self._ray.kill(actor)
            if self._is_own_ray:
                self._ray.shutdown()
        if self._folder is not None:
            self._folder.close()
