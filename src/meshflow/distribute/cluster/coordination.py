"""Connection of the processes of a job.

Worker 0 (or `meshflow launch`) hosts the rendezvous. When all workers have connected to it, it
sends them the address of JAX's coordination service, which they connect to next. The rendezvous
makes clear errors possible: JAX's service terminates the process if a worker is missing or a port
is in use.

A worker that `meshflow launch` started keeps its connection to the rendezvous and sends heartbeats
and step counts.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from meshflow.core.functions.concrete_function import FunctionSettings
from meshflow.core.variables import random_streams
from meshflow.distribute.cluster import addresses as network
from meshflow.distribute.cluster.channel import SignedChannel, get_secret
from meshflow.distribute.cluster.rendezvous import TIMEOUT_VARIABLE, Rendezvous, join_rendezvous
from meshflow.environment.jax_internals import distributed, runtime, xla_bridge

# Environment variable that `meshflow launch` sets: the address of its rendezvous.
COORDINATOR_VARIABLE = "MESHFLOW_COORDINATOR"
# Environment variable that `meshflow launch` sets: the number of seconds without messages before a
# peer is lost.
WATCHDOG_VARIABLE = "MESHFLOW_WATCHDOG"
# Network interface for collectives between CPUs, on machines with several; PyTorch reads the same
# variable.
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
# Seconds between two heartbeats of a worker.
_HEARTBEAT_SECONDS = 0.2
# Seconds that a worker waits for the others at the end of the program.
SHUTDOWN_SECONDS = 3600


def _start_coordination_service(address: str, workers: int) -> object:
    """Start JAX's coordination service in this process."""
    return runtime.get_distributed_runtime_service(
        address, workers, heartbeat_timeout=100, shutdown_timeout=SHUTDOWN_SECONDS
    )


def _connect_to_service(service: str, index: int, workers: int, local_host: str) -> None:
    # JAX's public `initialize` always hosts the service in worker 0, so the service would end with
    # that worker. Private JAX APIs are used in this module only.
    state = distributed.global_state
    state.coordinator_address, state.process_id, state.num_processes = service, index, workers
    state.client = runtime.get_distributed_runtime_client(
        service, index, init_timeout=120, heartbeat_timeout=100, use_compression=True
    )
    state.client.connect()
    _exit_immediately_after_errors()
    # By default, gloo listens on the address of the host name, which is the loopback interface on
    # many machines.
    interface = os.environ.get(INTERFACE_VARIABLE)
    endpoint = {"hostname": local_host}
    if interface and not network.is_loopback(local_host):
        endpoint = {"interface": interface}
    collectives = runtime.make_gloo_tcp_collectives(distributed_client=state.client, **endpoint)
    xla_bridge.register_backend_factory(
        "cpu", partial(xla_bridge.make_cpu_client, collectives), fail_quietly=False
    )


def _get_local_address(channel: SignedChannel) -> str:
    """Return the address by which the peer reaches this machine."""
    return str(channel.socket.getsockname()[0]).removeprefix("::ffff:")


_current_cluster: list[list[str] | int] = []


def join_cluster(tasks: Sequence[str], addresses: Sequence[str], index: int) -> None:
    """Connect this process to the other processes of a job; must run before the first op.

    A single worker connects only to its launcher.

    Args:
      tasks: Names of the workers, such as "worker:0".
      addresses: Addresses of the workers.
      index: Index of this process among the workers.

    Raises:
      RuntimeError: If ops were run before.
      DeadlineExceededError: If a worker does not connect in time.
      UnavailableError: If a port is in use.
      InvalidValueError: If the workers have different descriptions of the cluster.
    """
    cluster: list[list[str] | int] = [list(tasks), list(addresses), index]
    if _current_cluster:
        if _current_cluster != cluster:
            raise RuntimeError(
                f"This process is already worker {_current_cluster[2]} of the tasks {_current_cluster[0]} at {_current_cluster[1]}; it cannot "
                f"become {tasks[index]} of {list(addresses)}."
            )
        return
    if len(tasks) > 1 and xla_bridge.backends_are_initialized():
        raise RuntimeError(
            "Collective ops must be configured at program startup: tensors or variables were created "
            "before. Create the MultiWorkerMirroredStrategy at the beginning of the program."
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    timeout = float(os.environ.get(TIMEOUT_VARIABLE, 300))
    launcher = os.environ.get(COORDINATOR_VARIABLE)
    secret = get_secret()
    hello = {"worker": index, "workers": len(tasks), "addresses": list(addresses)}
    if launcher:
        hello["addresses"] = None
        service, channel = join_rendezvous(
            launcher, hello, secret, tasks[index], "the launcher", timeout
        )
        local_host = _get_local_address(channel)
        _start_reporting(channel)
    elif index == 0:
        service, local_host = _host_rendezvous(tasks, addresses, secret, timeout)
    else:
        service, channel = join_rendezvous(
            addresses[0], hello, secret, tasks[index], tasks[0], timeout
        )
        local_host = _get_local_address(channel)
        channel.close()
    if len(tasks) > 1:
        _connect_to_service(service, index, len(tasks), local_host)
        _share_random_seed()
    _current_cluster.extend(cluster)


def _host_rendezvous(
    tasks: Sequence[str], addresses: Sequence[str], secret: str, timeout: float
) -> tuple[str, str]:
    """Wait for the workers and start the service; return its address and that of this machine."""
    own_host, port = network.parse_address(addresses[0])
    host = network.choose_listening_host(
        own_host, [network.parse_address(a)[0] for a in addresses[1:]]
    )
    rendezvous = Rendezvous(host, port, tasks, addresses, secret, present=[0])
    rendezvous.wait_for_workers(timeout)
    # The service uses the same port, because firewalls may allow only this one.
    rendezvous.stop_listening()
    distributed.global_state.service = _start_coordination_service(
        network.format_address(host, port), len(tasks)
    )
    rendezvous.send_service_address(addresses[0])
    local_host = next(map(_get_local_address, rendezvous.connections.values()), "localhost")
    rendezvous.close()
    return network.format_address(host or "localhost", port), local_host


def _share_random_seed() -> None:
    """Use worker 0's random seed in all workers, for equal initial values, shuffling and dropout."""
    client: Any = distributed.global_state.client
    key = "meshflow/entropy"
    if distributed.global_state.process_id == 0:
        client.key_value_set(key, str(random_streams.global_seed.entropy))
    else:
        random_streams.global_seed.entropy = int(client.blocking_key_value_get(key, 600_000))


def _start_reporting(channel: SignedChannel) -> None:
    """Send heartbeats and step counts to the launcher in a thread; exit if the launcher is lost."""
    steps = 0

    def count_step() -> None:
        nonlocal steps
        steps += 1

    def send_reports() -> None:
        while True:
            try:
                channel.send({"steps": steps})
            except OSError:
                # A worker without its launcher would not be restarted.
                os._exit(1)
            time.sleep(_HEARTBEAT_SECONDS)

    FunctionSettings.on_launch = count_step
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Without this timeout, sends over a broken network succeed for minutes, because no
        # connection is closed.
        timeout = float(os.environ.get(WATCHDOG_VARIABLE, 600))
        channel.socket.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(int(timeout * 1000), 1)
        )
    threading.Thread(target=send_reports, name="meshflow report", daemon=True).start()


def _exit_immediately_after_errors() -> None:
    """Let a failed process exit without waiting for the others, which wait for it."""
    failed = threading.Event()
    previous = sys.excepthook

    def record_failure(*error: Any) -> None:
        failed.set()
        previous(*error)

    def exit_if_failed() -> None:
        if failed.is_set():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    sys.excepthook = record_failure
    atexit.register(exit_if_failed)
