"""Addresses of workers, and where a process listens: where the job's other processes are, and nowhere else."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import socket
from collections.abc import Sequence

from meshflow.core.runtime.errors import InvalidValueError, UnavailableError

__all__ = [
    "free_port",
    "is_loopback",
    "listening",
    "listening_host",
    "parse",
    "route_to",
    "with_port",
]

# JAX's name for where the coordinator listens, as 'host:port'; its host counts for the meeting point too.
_BIND = "JAX_COORDINATOR_BIND_ADDRESS"


def parse(text: str) -> tuple[str, int]:
    """Host and port of a worker's address.

    Args:
      text: as 'host:port'.

    Raises:
      InvalidValueError: for another text.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit():
        raise InvalidValueError(f"{text!r} is not the address of a worker: expected 'host:port'.")
    return host.strip("[]") or "localhost", int(port)


def with_port(host: str, port: int) -> str:
    """An address for gRPC.

    Args:
      host: where to listen; "" for everywhere.
      port: the port.
    """
    if not host:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening_host(host: str, others: Sequence[str] = ()) -> str:
    """The one address at which to listen for a job; "" for all, where this machine does not know the right one.

    Args:
      host: by which name or address this machine's workers, and others, reach this process.
      others: names or addresses of the other workers.
    """
    if _BIND in os.environ:
        chosen = parse(os.environ[_BIND])[0]
        return "" if chosen in ("0.0.0.0", "::") else chosen
    found = _addresses(host)
    if found and not any(is_loopback(a) for a in found):
        away: list[str] = []
    else:
        # Many machines call themselves 127.0.1.1, where nobody else finds them.
        away = [] if is_loopback(host) else [o for o in others if o != host and not is_loopback(o)]
    if away:
        found = [a for a in (*found, *map(route_to, away)) if a and not is_loopback(a)]
    for address in found:
        with contextlib.suppress(OSError), _socket(address) as tried:
            tried.bind((address, 0))
            return address
    logging.getLogger("meshflow").warning(
        "%s is not an address of this machine: listening at all its addresses. %s sets another.",
        *(host, _BIND),
    )
    return ""


def route_to(host: str) -> str | None:
    """By which of its addresses this machine reaches another; None when it does not find it.

    Args:
      host: the other machine.
    """
    # Nothing is sent: the system only says which device leads there.
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 22, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as asked:
                asked.connect(address)
                return str(asked.getsockname()[0])
    return None


def listening(host: str, port: int, whose: str) -> socket.socket:
    """A socket that listens.

    Args:
      host: at which address; "" for all.
      port: the port; 0 for any free one.
      whose: the worker, for errors.

    Raises:
      UnavailableError: when the port is in use.
    """
    dual = not host and socket.has_dualstack_ipv6()
    made = socket.socket(socket.AF_INET6) if dual else _socket(host)
    if dual:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(128)
    except OSError as error:
        made.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "in use by another program" if error.errno == errno.EADDRINUSE else "not allowed"
        raise UnavailableError(
            f"Port {port}, where {whose} must listen for the other workers, is {why}. "
            "End that program, or give TF_CONFIG another port on all workers."
        ) from None
    return made


def free_port(host: str = "") -> int:
    """A port that nobody uses now.

    Args:
      host: at which address.
    """
    with _socket(host) as held:
        held.bind((host, 0))
        return int(held.getsockname()[1])


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def _addresses(host: str) -> list[str]:
    """What a name stands for, IPv4 first, as gRPC and sockets try both."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    ordered = sorted(found, key=lambda f: f[0] != socket.AF_INET)
    return list(dict.fromkeys(str(address[0]) for *_, address in ordered))


def is_loopback(host: str) -> bool:
    """Whether a name or address says that it is this machine, for itself only.

    Args:
      host: the name or address.
    """
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
