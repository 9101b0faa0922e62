"""Several workers on a Ray cluster: `meshflow.distribute.ray.run(train_fn, workers=4)`.

Every worker is a Ray actor that calls the same function, with a `TF_CONFIG` for
`tf.distribute.MultiWorkerMirroredStrategy`. When an actor dies or hangs all start again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshflow.core.runtime.errors import DeadlineExceededError, UnavailableError
from meshflow.distribute.cluster.addresses import free_port, parse, with_port
from meshflow.distribute.cluster.channel import SECRET
from meshflow.distribute.cluster.supervision import Failure, Supervisor, virtual_devices
from meshflow.environment import extras

__all__ = ["run"]

# Settings of this process that workers on other machines need too.
_SENT = ("JAX_", "XLA_", "NCCL_", "GLOO_", "MESHFLOW_")
# Of an error in one worker and the death of another, the death is the reason; it may be seen later.
_DEATH_IS_SEEN_WITHIN = 3.0


def run(
    train_fn: Callable[..., Any],
    workers: int = 1,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    devices_per_worker: int | None = None,
    max_restarts: int = 0,
    watchdog: float = 600.0,
    environment: Mapping[str, str] | None = None,
    scheduling_timeout: float = 300.0,
) -> list[Any]:
    """Calls a function on several workers of a Ray cluster at the same time.

    Starts a Ray of this machine's when there is none; `ray.init(address=...)` before connects to another.

    Args:
      train_fn: the function; makes a `MultiWorkerMirroredStrategy` and trains.
      workers: how many workers.
      args: its arguments.
      kwargs: its keyword arguments.
      resources_per_worker: what Ray reserves for each worker; default {"CPU": 1}.
      devices_per_worker: virtual CPU devices of each worker; default the machine's devices.
      max_restarts: how often all workers are started again after one died or hung. Have the function use
        `BackupAndRestore` (on a shared file system) to go on from the last backup.
      watchdog: after how many seconds without a sign of life, or without a step, a worker has failed.
      environment: environment variables of the workers.
      scheduling_timeout: how many seconds to wait until the cluster has room.

    Returns:
      What the function returned on each worker, in their order.

    Raises:
      ImportError: when Ray is not installed.
      DeadlineExceededError: when the cluster has no room for the workers.
      UnavailableError: when workers died or hung more often than `max_restarts`.
    """
    if workers < 1:
        raise ValueError(f"ray.run: workers must be at least 1, got {workers}.")
    ray, _ = connected()
    resources = dict(resources_per_worker or {"CPU": 1})
    variables = {
        **{k: v for k, v in os.environ.items() if k.startswith(_SENT) and k != SECRET},
        **(virtual_devices(devices_per_worker) if devices_per_worker is not None else {}),
        **(environment or {}),
    }
    group = _reserve(ray, resources, workers, scheduling_timeout)
    try:
        for restarts in range(max_restarts + 1):
            try:
                return _run_once(
                    ray, group, resources, workers, variables, watchdog, restarts,
                    lambda actor: actor.run.remote(train_fn, tuple(args), dict(kwargs or {})),
                )  # fmt: skip
            except Failure as failure:
                if restarts == max_restarts:
                    raise UnavailableError(
                        f"{failure} The job has failed after {restarts} restarts."
                    ) from failure.__cause__
                print(f"{failure} Restart {restarts + 1} of {max_restarts}.", flush=True)
    finally:
        ray.util.remove_placement_group(group)
    raise AssertionError("unreachable")


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _part("ray")
    _part("ray.util")
    return ray


def connected(address: str | None = None, logs: bool = True) -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether that was done here.

    Args:
      address: the cluster's; default the one that is connected to already, RAY_ADDRESS's, the one that runs on
        this machine, or a new one.
      logs: whether what actors print is printed here.
    """
    ray = _ray()
    if ray.is_initialized():
        return ray, False
    if address is None:
        # A cluster for this job alone: its workers are what the machine is there for.
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(include_dashboard=False, log_to_driver=logs)
    else:
        ray.init(address, log_to_driver=logs)
    return ray, True


def _part(module: str) -> Any:
    return extras.load(module, "ray", "meshflow.distribute.ray needs the package ray")


def _reserve(ray: Any, resources: dict[str, float], workers: int, timeout: float) -> Any:
    """Room for all workers at once: a part of them could do nothing but wait."""
    group = ray.util.placement_group([resources] * workers, strategy="PACK")
    if not group.wait(timeout):
        ray.util.remove_placement_group(group)
        raise DeadlineExceededError(
            f"ray.run: after {timeout:g} s the Ray cluster has no room for {workers} workers of "
            f"{resources} each; it has {ray.cluster_resources()}, of which free: "
            f"{ray.available_resources()}. Use fewer workers or smaller resources_per_worker."
        )
    return group


class _Worker:
    """The actor of one worker."""

    def address(self) -> str:
        """Where this worker can be reached."""
        return f"{_part('ray.util').get_node_ip_address()}:{free_port()}"

    def configure(self, variables: dict[str, str]) -> None:
        """Sets environment variables, before the function comes."""
        os.environ.update(variables)

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls the function."""
        return function(*args, **kwargs)


def _run_once(
    ray: Any,
    group: Any,
    resources: dict[str, float],
    workers: int,
    variables: dict[str, str],
    watchdog: float,
    restarts: int,
    call: Callable[[Any], Any],
) -> list[Any]:
    strategies = _part("ray.util.scheduling_strategies")
    own = {k: v for k, v in resources.items() if k not in ("CPU", "GPU")}
    make = ray.remote(_Worker).options
    actors = [
        make(
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            resources=own,
            max_restarts=0,
            runtime_env={"env_vars": variables},
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=i
            ),
        ).remote()
        for i in range(workers)
    ]
    supervisor = None
    try:
        addresses = ray.get([a.address.remote() for a in actors])
        here = ray.util.get_node_ip_address()
        if {parse(a)[0] for a in addresses} == {here}:
            # All on this machine: nobody else need be able to connect.
            here = "127.0.0.1"
            addresses = [with_port(here, parse(a)[1]) for a in addresses]
        supervisor = Supervisor(addresses, watchdog, here)
        for number, actor in enumerate(actors):
            task = {"type": "worker", "index": number}
            config = {"cluster": {"worker": addresses}, "task": task}
            own_variables = {
                **supervisor.environment(restarts),
                "TF_CONFIG": json.dumps(config),
            }
            ray.get(actor.configure.remote(own_variables))
        return _collect(ray, [call(a) for a in actors], supervisor)
    except ray.exceptions.RayActorError as error:
        raise Failure(f"A worker died before it began: {error}") from error
    finally:
        # Before the supervisor: workers that lose it end by themselves, which Ray would report.
        for actor in actors:
            ray.kill(actor)
        if supervisor is not None:
            supervisor.close()


def _collect(ray: Any, futures: list[Any], supervisor: Supervisor) -> list[Any]:
    """The results, when all workers have returned."""
    waiting = dict(zip(futures, range(len(futures)), strict=True))
    results: list[Any] = [None] * len(futures)
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=0.2)
        for future in done:
            number = waiting.pop(future)
            try:
                results[number] = ray.get(future)
            except ray.exceptions.RayActorError as error:
                raise Failure(f"Worker {number} died.") from error
            except ray.exceptions.RayTaskError as error:
                dead = _dead(ray, waiting)
                if dead is not None:
                    raise Failure(f"Worker {dead} died.") from error
                if _lost_connection(error):
                    raise Failure(f"Worker {number} lost the others.") from error
                raise
        supervisor.check(list(waiting.values()))
    return results


def _dead(ray: Any, waiting: dict[Any, int]) -> int | None:
    """The number of a worker that has died, if any has."""
    futures = list(waiting)
    done, _ = (
        ray.wait(futures, num_returns=len(futures), timeout=_DEATH_IS_SEEN_WITHIN)
        if futures
        else ([], [])
    )
    for future in done:
        try:
            ray.get(future)
        except ray.exceptions.RayActorError:
            return waiting[future]
        except ray.exceptions.RayTaskError:
            continue
    return None


def _lost_connection(error: Exception) -> bool:
    """Whether an error is that of a collective whose other side is gone."""
    return "has lost another worker" in str(error) or "Gloo" in str(error)
