"""Addresses of workers, and listening sockets that only the other processes of the job can reach."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import socket
from collections.abc import Sequence

from meshflow.core.runtime.errors import InvalidValueError, UnavailableError

# JAX's variable with the address 'host:port' that the coordinator binds to. The rendezvous binds to
# the same host.
_BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"


def parse_address(text: str) -> tuple[str, int]:
    """Parse the host and port of a worker's address.

    Args:
      text: Address as 'host:port'.

    Raises:
      InvalidValueError: If the text has another form.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit():
        raise InvalidValueError(f"{text!r} is not the address of a worker: expected 'host:port'.")
    return host.strip("[]") or "localhost", int(port)


def format_address(host: str, port: int) -> str:
    """Format an address for gRPC."""
    if not host:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def choose_listening_host(host: str, others: Sequence[str] = ()) -> str:
    """Choose the address to listen on for a job; "" (all interfaces) if it cannot be determined.

    Args:
      host: Name or address by which this machine's workers, and others, reach this process.
      others: Names or addresses of the other workers.
    """
    if _BIND_VARIABLE in os.environ:
        chosen = parse_address(os.environ[_BIND_VARIABLE])[0]
        return "" if chosen in ("0.0.0.0", "::") else chosen
    candidates = _resolve_host(host)
    if candidates and not any(is_loopback(a) for a in candidates):
        remote_hosts: list[str] = []
    else:
        # Many machines resolve their own name to 127.0.1.1, which other machines cannot reach.
        remote_hosts = (
            [] if is_loopback(host) else [o for o in others if o != host and not is_loopback(o)]
        )
    if remote_hosts:
        candidates = [
            a
            for a in (*candidates, *map(find_route_address, remote_hosts))
            if a and not is_loopback(a)
        ]
    for address in candidates:
        with contextlib.suppress(OSError), _create_socket(address) as probe:
            probe.bind((address, 0))
            return address
    logging.getLogger("meshflow").warning(
        "%s is not an address of this machine: listening at all its addresses. %s sets another.",
        *(host, _BIND_VARIABLE),
    )
    return ""


def find_route_address(host: str) -> str | None:
    """Find the local address from which this machine reaches a host; None if the host is unknown."""
    # Connecting a UDP socket sends no data; the system only selects the interface.
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 22, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return None


def open_listening_socket(host: str, port: int, owner: str) -> socket.socket:
    """Open a listening socket.

    Args:
      host: Address to listen on; "" for all interfaces.
      port: Port number; 0 selects a free port.
      owner: Name of the worker, for error messages.

    Raises:
      UnavailableError: If the port is in use.
    """
    dual = not host and socket.has_dualstack_ipv6()
    listener = socket.socket(socket.AF_INET6) if dual else _create_socket(host)
    if dual:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        reason = "in use by another program" if error.errno == errno.EADDRINUSE else "not allowed"
        raise UnavailableError(
            f"Port {port}, where {owner} must listen for the other workers, is {reason}. "
            "End that program, or give TF_CONFIG another port on all workers."
        ) from None
    return listener


def find_free_port(host: str = "") -> int:
    """Find a free port."""
    with _create_socket(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _create_socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def _resolve_host(host: str) -> list[str]:
    """Resolve a host name; IPv4 addresses precede IPv6 addresses, as in gRPC."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    ordered = sorted(entries, key=lambda f: f[0] != socket.AF_INET)
    return list(dict.fromkeys(str(address[0]) for *_, address in ordered))


def is_loopback(host: str) -> bool:
    """Check whether a name or address refers to the loopback interface."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
