"""How the processes of a job find each other.

Worker 0 (or `meshflow launch`) holds the meeting point. When all workers are there it tells them the address
of JAX's coordination service, which they then join.
Meeting first is what makes clear errors possible: JAX's service ends the process when somebody is missing
or a port is in use.

A worker started by `meshflow launch` keeps the connection and reports on it that it lives and makes
progress.
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

from meshflow.core.functions.concrete_function import Settings
from meshflow.core.variables import random
from meshflow.distribute.cluster import addresses as network
from meshflow.distribute.cluster.channel import Channel, own_secret
from meshflow.distribute.cluster.rendezvous import TIMEOUT, Rendezvous, join_rendezvous
from meshflow.environment.jax_internals import distributed, runtime, xla_bridge

__all__ = ["COORDINATOR", "LEAVING", "WATCHDOG", "join_cluster"]

# Set by `meshflow launch`: the address of its meeting point.
COORDINATOR = "MESHFLOW_COORDINATOR"
# Also: for how many seconds worker and launcher may not hear each other.
WATCHDOG = "MESHFLOW_WATCHDOG"
# The network device for sums between CPUs, for machines with several; the variable that PyTorch reads.
INTERFACE = "GLOO_SOCKET_IFNAME"
# How often a worker tells its launcher that it lives.
_BEAT = 0.2
# How long a worker that is ready to leave waits for the others.
LEAVING = 3600


def _start_service(address: str, workers: int) -> Any:
    """JAX's coordination service, in this process."""
    return runtime.get_distributed_runtime_service(
        address, workers, heartbeat_timeout=100, shutdown_timeout=LEAVING
    )


def _connect(service: str, index: int, workers: int, here: str) -> None:
    # Private, and in this module only: in JAX's own `initialize` worker 0 always hosts the service,
    # which then ends with that worker.
    state = distributed.global_state
    state.coordinator_address, state.process_id, state.num_processes = service, index, workers
    state.client = runtime.get_distributed_runtime_client(
        service, index, init_timeout=120, heartbeat_timeout=100, use_compression=True
    )
    state.client.connect()
    _exit_at_once_after_errors()
    # By itself gloo listens where this machine's own name leads, on many machines the loopback device.
    interface = os.environ.get(INTERFACE)
    where = {"hostname": here}
    if interface and not network.is_loopback(here):
        where = {"interface": interface}
    collectives = runtime.make_gloo_tcp_collectives(distributed_client=state.client, **where)
    xla_bridge.register_backend_factory(
        "cpu", partial(xla_bridge.make_cpu_client, collectives), fail_quietly=False
    )


def _local_address(channel: Channel) -> str:
    """By which address the other side reaches this machine."""
    return str(channel.socket.getsockname()[0]).removeprefix("::ffff:")


_joined: list[Any] = []


def join_cluster(tasks: Sequence[str], addresses: Sequence[str], index: int) -> None:
    """Makes this process one of several; must run before the first op.

    A single worker joins only to report to its launcher.

    Args:
      tasks: names of the workers, such as "worker:0".
      addresses: their addresses.
      index: this process's number among them.

    Raises:
      RuntimeError: when ops have run already.
      DeadlineExceededError: when a worker does not join in time.
      UnavailableError: when a port is in use.
      InvalidValueError: when the workers disagree about the cluster.
    """
    cluster = [list(tasks), list(addresses), index]
    if _joined:
        if _joined != cluster:
            raise RuntimeError(
                f"This process is {_joined[0][_joined[2]]} of {_joined[1]} already; it cannot be "
                f"{tasks[index]} of {list(addresses)} too."
            )
        return
    if len(tasks) > 1 and xla_bridge.backends_are_initialized():
        raise RuntimeError(
            "Collective ops must be configured at program startup: tensors or variables were made "
            "before. Create the MultiWorkerMirroredStrategy at the beginning of the program."
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    timeout = float(os.environ.get(TIMEOUT, 300))
    launcher = os.environ.get(COORDINATOR)
    secret = own_secret()
    hello = {"worker": index, "workers": len(tasks), "addresses": list(addresses)}
    if launcher:
        hello["addresses"] = None
        service, channel = join_rendezvous(
            launcher, hello, secret, tasks[index], "the launcher", timeout
        )
        here = _local_address(channel)
        _report(channel)
    elif index == 0:
        service, here = _hold(tasks, addresses, secret, timeout)
    else:
        service, channel = join_rendezvous(
            addresses[0], hello, secret, tasks[index], tasks[0], timeout
        )
        here = _local_address(channel)
        channel.close()
    if len(tasks) > 1:
        _connect(service, index, len(tasks), here)
        _share_seeds()
    _joined.extend(cluster)


def _hold(
    tasks: Sequence[str], addresses: Sequence[str], secret: str, timeout: float
) -> tuple[str, str]:
    """As worker 0: waits for the others and starts the service; its address, and this machine's for them."""
    own, port = network.parse(addresses[0])
    host = network.listening_host(own, [network.parse(a)[0] for a in addresses[1:]])
    point = Rendezvous(host, port, tasks, addresses, secret, present=[0])
    point.gather(timeout)
    # The service takes over the port: it is the one that firewalls know.
    point.stop_listening()
    distributed.global_state.service = _start_service(network.with_port(host, port), len(tasks))
    point.release(addresses[0])
    here = next(map(_local_address, point.connections.values()), "localhost")
    point.close()
    return network.with_port(host or "localhost", port), here


def _share_seeds() -> None:
    """Makes seeds that nobody sets worker 0's, for equal initial values, shuffling and dropout everywhere."""
    client: Any = distributed.global_state.client
    key = "meshflow/entropy"
    if distributed.global_state.process_id == 0:
        client.key_value_set(key, str(random._global._entropy))
    else:
        random._global._entropy = int(client.blocking_key_value_get(key, 600_000))


def _report(channel: Channel) -> None:
    """Tells the launcher that this process lives, and how often it made progress; ends with it."""
    steps = 0

    def progress() -> None:
        nonlocal steps
        steps += 1

    def work() -> None:
        while True:
            try:
                channel.send({"steps": steps})
            except OSError:
                # Without its launcher a worker has nobody to be restarted by.
                os._exit(1)
            time.sleep(_BEAT)

    Settings.progress = progress
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A network that is gone closes no connection: without this, sending "succeeds" for minutes.
        silent = float(os.environ.get(WATCHDOG, 600))
        channel.socket.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(int(silent * 1000), 1)
        )
    threading.Thread(target=work, name="meshflow report", daemon=True).start()


def _exit_at_once_after_errors() -> None:
    """Lets a process that failed leave without waiting for the others, who wait for it."""
    failed = threading.Event()
    previous = sys.excepthook

    def note(*error: Any) -> None:
        failed.set()
        previous(*error)

    def leave() -> None:
        if failed.is_set():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    sys.excepthook = note
    atexit.register(leave)
