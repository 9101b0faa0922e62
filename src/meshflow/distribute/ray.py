"""Workers on a Ray cluster: `meshflow.distribute.ray.run(train_fn, workers=4)`.

Every worker is a Ray actor that calls the same function, with a `TF_CONFIG` for
`tf.distribute.MultiWorkerMirroredStrategy`. If an actor dies or hangs, all actors are restarted.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from meshflow.core.runtime.errors import DeadlineExceededError, UnavailableError
from meshflow.distribute.cluster.addresses import find_free_port, format_address, parse_address
from meshflow.distribute.cluster.channel import SECRET_VARIABLE
from meshflow.distribute.cluster.supervision import (
    JobSupervisor,
    WorkerFailureError,
    make_virtual_device_environment,
)
from meshflow.environment import optional_packages
from meshflow.shims import activate_as_requested

_log = logging.getLogger("meshflow")

_Result = TypeVar("_Result")

# Prefixes of environment variables that are passed to workers on other machines.
_PASSED_PREFIXES = ("JAX_", "XLA_", "NCCL_", "GLOO_", "MESHFLOW_")
# An error in one worker can be caused by the death of another one, which Ray may report later.
_DEATH_REPORT_SECONDS = 3.0
# Seconds to wait for the answer of a Ray cluster.
_RESPONSE_SECONDS = 3.0
# The first bytes that a client of HTTP/2 sends: the preface, and a frame with settings, which is
# empty. The server answers with such a frame, of type 4.
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def run(
    train_fn: Callable[..., _Result],
    workers: int = 1,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    devices_per_worker: int | None = None,
    max_restarts: int = 0,
    watchdog: float = 600.0,
    environment: Mapping[str, str] | None = None,
    scheduling_timeout: float = 300.0,
) -> list[_Result]:
    """Call a function on several workers of a Ray cluster at the same time.

    Without a connection to Ray, a cluster is started on this machine; call `ray.init(address=...)`
    before to use another one.

    Args:
      train_fn: Function that creates a `MultiWorkerMirroredStrategy` and trains.
      workers: Number of workers.
      args: Arguments of the function.
      kwargs: Keyword arguments of the function.
      resources_per_worker: Resources that Ray reserves for each worker; default {"CPU": 1}.
      devices_per_worker: Number of virtual CPU devices of each worker; default the devices of the
        machine.
      max_restarts: Number of restarts of all workers after one of them died or hung. Use
        `BackupAndRestore` in the function, with a folder on a shared file system, to continue from
        the last backup.
      watchdog: Number of seconds without a heartbeat, or without a step, after which a worker has
        failed.
      environment: Environment variables of the workers.
      scheduling_timeout: Number of seconds to wait until the cluster has free resources.

    Returns:
      The results of the function on the workers, in their order.

    Raises:
      ImportError: If Ray is not installed.
      DeadlineExceededError: If the cluster has too few resources for the workers.
      UnavailableError: If workers died or hung more often than `max_restarts`.
    """
    if workers < 1:
        raise ValueError(f"ray.run: workers must be at least 1, got {workers}.")
    ray, _ = connect()
    resources = dict(resources_per_worker or {"CPU": 1})
    variables = {
        **{
            k: v
            for k, v in os.environ.items()
            if k.startswith(_PASSED_PREFIXES) and k != SECRET_VARIABLE
        },
        **(
            make_virtual_device_environment(devices_per_worker)
            if devices_per_worker is not None
            else {}
        ),
        **(environment or {}),
    }
    group = _reserve_placement_group(ray, resources, workers, scheduling_timeout)
    try:
        for restarts in range(max_restarts + 1):
            try:
                return _run_once(
                    ray, group, resources, workers, variables, watchdog, restarts,
                    lambda actor: actor.run.remote(train_fn, tuple(args), dict(kwargs or {})),
                )  # fmt: skip
            except WorkerFailureError as failure:
                if restarts == max_restarts:
                    raise UnavailableError(
                        f"{failure} The job has failed after {restarts} restarts."
                    ) from failure.__cause__
                print(f"{failure} Restart {restarts + 1} of {max_restarts}.", flush=True)
    finally:
        ray.util.remove_placement_group(group)
    raise AssertionError("unreachable")


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _import_ray_module("ray")
    _import_ray_module("ray.util")
    return ray


def connect(address: str | None = None, logs: bool = True) -> tuple[Any, bool]:
    """Connect to a Ray cluster; return the module `ray`, and whether this call created the connection.

    Args:
      address: Address of the cluster. Default: the existing connection, `RAY_ADDRESS`, a cluster on
        this machine, or a new one, in this order.
      logs: Whether to print the output of actors in this process.

    Raises:
      UnavailableError: If the cluster at `address` or `RAY_ADDRESS` does not respond.
    """
    ray = _import_ray()
    if ray.is_initialized():
        return ray, False
    if address is None:
        # A new cluster is used by this job only, so its workers need no lower priority.
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(_find_cluster(), include_dashboard=False, log_to_driver=logs)
    else:
        _check_cluster(address, "address")
        ray.init(address, log_to_driver=logs)
    return ray, True


def _find_cluster() -> str | None:
    """Return the address of a new cluster, or None for the cluster that Ray finds by itself.

    Ray would try for minutes to connect to a cluster that was killed and left its address in a file.
    """
    if os.environ.get("RAY_ADDRESS"):
        _check_cluster(os.environ["RAY_ADDRESS"], "RAY_ADDRESS")
        return None
    address = _import_ray_module("ray._private.services").find_bootstrap_address(None)
    if address is None or is_responding(address):
        return None
    _log.warning("The Ray cluster at %s does not respond; starting one on this machine.", address)
    return "local"


def _check_cluster(address: str, source: str) -> None:
    """Check that a cluster responds, unless its address is a word or a URL that Ray resolves."""
    if address not in ("auto", "local") and "://" not in address and not is_responding(address):
        raise UnavailableError(
            f"The Ray cluster at {source}={address!r} does not respond: start it, or select another one."
        )


def is_responding(address: str) -> bool:
    """Check whether the control process of a Ray cluster responds within seconds.

    Args:
      address: Its address as 'host:port'.
    """
    try:
        with socket.create_connection(parse_address(address), _RESPONSE_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return True
            connection.settimeout(_RESPONSE_SECONDS)
            connection.sendall(_HTTP2_GREETING)
            answer = connection.recv(9, socket.MSG_WAITALL)
    except (OSError, ValueError):
        return False
    return answer[3:4] == b"\4"


def _import_ray_module(module: str) -> Any:
    return optional_packages.import_extra(
        module, "ray", "meshflow.distribute.ray needs the package ray"
    )


def _reserve_placement_group(
    ray: Any, resources: dict[str, float], workers: int, timeout: float
) -> Any:
    """Reserve resources for all workers at once, because a part of them could only wait."""
    group = ray.util.placement_group([resources] * workers, strategy="PACK")
    if not group.wait(timeout):
        ray.util.remove_placement_group(group)
        raise DeadlineExceededError(
            f"ray.run: after {timeout:g} s the Ray cluster has no room for {workers} workers of "
            f"{resources} each; it has {ray.cluster_resources()}, of which free: "
            f"{ray.available_resources()}. Use fewer workers or smaller resources_per_worker."
        )
    return group


class _WorkerActor:
    """Ray actor of a worker."""

    def address(self) -> str:
        """Return the address by which others reach this worker."""
        return f"{_import_ray_module('ray.util').get_node_ip_address()}:{find_free_port()}"

    def configure(self, variables: dict[str, str]) -> None:
        """Set environment variables before the function is unpickled."""
        os.environ.update(variables)
        activate_as_requested()

    def run(
        self, function: Callable[..., _Result], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> _Result:
        """Call the function."""
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
    strategies = _import_ray_module("ray.util.scheduling_strategies")
    custom_resources = {k: v for k, v in resources.items() if k not in ("CPU", "GPU")}
    create_actor = ray.remote(_WorkerActor).options
    actors = [
        create_actor(
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            resources=custom_resources,
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
        addresses = _get_answers(ray, [a.address.remote() for a in actors], watchdog)
        host = ray.util.get_node_ip_address()
        if {parse_address(a)[0] for a in addresses} == {host}:
            # If all workers are on this machine, no other machine has to reach them.
            host = "127.0.0.1"
            addresses = [format_address(host, parse_address(a)[1]) for a in addresses]
        supervisor = JobSupervisor(addresses, watchdog, host)
        for index, actor in enumerate(actors):
            task = {"type": "worker", "index": index}
            config = {"cluster": {"worker": addresses}, "task": task}
            worker_variables = {
                **supervisor.make_environment(restarts),
                "TF_CONFIG": json.dumps(config),
            }
            _get_answers(ray, [actor.configure.remote(worker_variables)], watchdog)
        return _collect_results(ray, [call(a) for a in actors], supervisor)
    except ray.exceptions.RayActorError as error:
        raise WorkerFailureError(f"A worker died before it called the function: {error}") from error
    finally:
        # The actors end before the supervisor: workers that lose it exit, which Ray would report as
        # failures.
        for actor in actors:
            ray.kill(actor)
        if supervisor is not None:
            supervisor.close()


def _get_answers(ray: Any, futures: list[Any], timeout: float) -> list[Any]:
    """Return the results of calls, which an actor that is suspended does not answer."""
    try:
        answers: list[Any] = ray.get(futures, timeout=timeout)
    except ray.exceptions.GetTimeoutError as error:
        raise WorkerFailureError(
            f"A worker has not answered within {timeout:g} s, before it called the function."
        ) from error
    return answers


def _collect_results(ray: Any, futures: list[Any], supervisor: JobSupervisor) -> list[Any]:
    """Return the results when all workers have finished."""
    pending = dict(zip(futures, range(len(futures)), strict=True))
    results: list[Any] = [None] * len(futures)
    while pending:
        done, _ = ray.wait(list(pending), timeout=0.2)
        for future in done:
            index = pending.pop(future)
            try:
                results[index] = ray.get(future)
            except ray.exceptions.RayActorError as error:
                raise WorkerFailureError(f"Worker {index} died.") from error
            except ray.exceptions.RayTaskError as error:
                dead = _find_dead_worker(ray, pending)
                if dead is not None:
                    raise WorkerFailureError(f"Worker {dead} died.") from error
                if _is_lost_connection(error):
                    raise WorkerFailureError(
                        f"Worker {index} lost the connection to the others."
                    ) from error
                raise
        supervisor.check_workers(list(pending.values()))
    return results


def _find_dead_worker(ray: Any, pending: dict[Any, int]) -> int | None:
    """Return the index of a dead worker, or None."""
    futures = list(pending)
    done, _ = (
        ray.wait(futures, num_returns=len(futures), timeout=_DEATH_REPORT_SECONDS)
        if futures
        else ([], [])
    )
    for future in done:
        try:
            ray.get(future)
        except ray.exceptions.RayActorError:
            return pending[future]
        except ray.exceptions.RayTaskError:
            continue
    return None


def _is_lost_connection(error: Exception) -> bool:
    """Check whether an error was raised by a collective after another worker was lost."""
    return "has lost another worker" in str(error) or "Gloo" in str(error)
