"""Servers and workers as actors of a Ray cluster, which places them on its machines and ends them with the job."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from meshflow.distribute.cluster.channel import SECRET
from meshflow.distribute.parameter_server.journal import Folder
from meshflow.distribute.parameter_server.roles import HOST, Role, is_crowded, role_of
from meshflow.distribute.ray import connected
from meshflow.environment import extras

__all__ = ["RayProcesses"]

# Settings of this process that the others need too.
_SENT = ("JAX_", "XLA_", "MESHFLOW_", "TF_")


class _Host:
    """The actor: a process for a server or a worker."""

    def work(self, role: Role, secret: str) -> None:
        """Works until the coordinator ends, and the process with it."""
        importlib.import_module(HOST).run(role, secret)


class RayProcesses:
    """Begins and ends the processes of a cluster as actors of Ray.

    Args:
      folder: where servers keep their journals; None for none.
      workers: how many workers there are to be.
      address: a Ray cluster; default the one that is connected to, or a new one of this machine.
      resources: what Ray reserves for each worker, as in `{"GPU": 1}`; default nothing.
    """

    resizes = True

    def __init__(
        self,
        folder: Folder | None,
        workers: int,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self._ray, self._ours = connected(address, logs=False)
        self._folder, self._workers = folder, workers
        self._resources = dict(resources or {})
        self.actors: dict[tuple[str, int], Any] = {}
        # What each of them does until it ends.
        self._working: dict[tuple[str, int], Any] = {}

    @property
    def host(self) -> str:
        """The address at which the others reach this process: its own, when all are on one machine."""
        return "127.0.0.1" if self._on_one_machine() else str(self._ray.util.get_node_ip_address())

    def _on_one_machine(self) -> bool:
        return len([n for n in self._ray.nodes() if n["Alive"]]) == 1

    def launch(self, kind: str, number: int, coordinator: str, secret: str, servers: int) -> None:
        """See `Launcher.launch`."""
        crowded = self._on_one_machine() and is_crowded(self._workers)
        role = role_of(kind, number, coordinator, servers, self._folder, crowded)
        needed = self._resources if kind == "worker" else {}
        options: dict[str, Any] = {
            "num_cpus": needed.get("CPU", 0),
            "num_gpus": needed.get("GPU", 0),
            "resources": {k: v for k, v in needed.items() if k not in ("CPU", "GPU")},
            "max_restarts": 0,
            "runtime_env": {
                "env_vars": {
                    k: v for k, v in os.environ.items() if k.startswith(_SENT) and k != SECRET
                }
            },
        }
        if kind == "ps" and self._folder is not None and self._folder.is_local:
            # Another machine would not find the journal.
            options["scheduling_strategy"] = self._here()
        actor = self._ray.remote(_Host).options(**options).remote()
        self.actors[kind, number] = actor
        self._working[kind, number] = actor.work.remote(role, secret)

    def _here(self) -> Any:
        scheduling = extras.load(
            "ray.util.scheduling_strategies", "ray", "Parameter servers on Ray need the package ray"
        )
        node = self._ray.get_runtime_context().get_node_id()
        return scheduling.NodeAffinitySchedulingStrategy(node_id=node, soft=False)

    def is_dead(self, kind: str, number: int) -> bool:
        """See `Launcher.is_dead`."""
        done, _ = self._ray.wait([self._working[kind, number]], timeout=0)
        return bool(done)

    def kill(self, kind: str, number: int) -> None:
        """See `Launcher.kill`."""
        actor = self.actors.get((kind, number))
        if actor is not None:
            self._ray.kill(actor)

    def about(self, kind: str, number: int) -> str:
        """See `Launcher.about`."""
        return ""

    def stop(self) -> None:
        """See `Launcher.stop`."""
        if self._ray.is_initialized():
            for actor in self.actors.values():
                self._ray.kill(actor)
            if self._ours:
                self._ray.shutdown()
        if self._folder is not None:
            self._folder.close()
