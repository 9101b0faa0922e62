"""Limits for clients: bytes in flight, time, and names of the server."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

from meshflow.core.runtime.errors import (
    DeadlineExceededError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
)


class ByteBudget:
    """Number of bytes that all requests and responses together may hold.

    Args:
      max_bytes: The limit.

    Attributes:
      reserved_bytes: Bytes in use.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.reserved_bytes = max_bytes, 0


class Reservation:
    """A part of a budget, returned at the end of a `with` block.

    Args:
      budget: The budget.

    Example:
      >>> budget = ByteBudget(100)
      >>> with Reservation(budget) as reservation:
      ...     reservation.grow(60)
      ...     budget.reserved_bytes
      60
      >>> budget.reserved_bytes
      0
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._bytes = budget, 0

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.replace(0)

    def grow(self, size: int) -> None:
        """Reserve more bytes.

        Raises:
          ResourceExhaustedError: The budget does not have them.
        """
        budget = self._budget
        if budget.reserved_bytes + size > budget.max_bytes:
            raise ResourceExhaustedError(
                f"The server holds {budget.reserved_bytes} bytes of requests and responses, and its limit is "
                f"{budget.max_bytes}: retry later."
            )
        self.replace(self._bytes + size)

    def replace(self, size: int) -> None:
        """Replace the number of reserved bytes, for example by that of a response.

        The budget may be exceeded; then new requests are rejected.
        """
        self._budget.reserved_bytes += size - self._bytes
        self._bytes = size


class ReadSlots:
    """Slots for requests that are being received, so that slow ones do not keep others from it.

    Args:
      num_slots: Number of requests that are received at the same time.
      max_per_client: Number of those of one client.
      patience: Seconds after which a request that is still incomplete may lose its slot to another one.
    """

    def __init__(self, num_slots: int, max_per_client: int, patience: float) -> None:
        self._slots = asyncio.Semaphore(num_slots)
        self._max_per_client, self._patience = max_per_client, patience
        # By client, the semaphore of its slots, and how many requests use it.
        self._clients: dict[str, asyncio.Semaphore] = {}
        self._num_uses: Counter[str] = Counter()
        # Deadlines of the requests that have a slot, oldest first, with the times of their starts.
        self._held: dict[asyncio.Timeout, float] = {}

    @contextlib.asynccontextmanager
    async def hold(self, client: str) -> AsyncIterator[None]:
        """Receive a request in an `async with` block.

        Args:
          client: Name of the client's connection.

        Raises:
          UnavailableError: The request was incomplete for too long while others waited.
        """
        own = self._clients.setdefault(client, asyncio.Semaphore(self._max_per_client))
        self._num_uses[client] += 1
        try:
            async with own:
                await self._acquire_slot()
                try:
                    async with asyncio.timeout(None) as scope:
                        self._held[scope] = asyncio.get_running_loop().time()
                        yield
                finally:
                    del self._held[scope]
                    self._slots.release()
        except TimeoutError:
            raise UnavailableError(
                f"The request was not complete after {self._patience:g} seconds, while others waited: retry later."
            ) from None
        finally:
            self._num_uses[client] -= 1
            if not self._num_uses[client]:
                del self._num_uses[client], self._clients[client]

    async def _acquire_slot(self) -> None:
        """Wait for a slot, and take it from the slowest request if there is none for some time."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self._slots.acquire()
                return
            now = asyncio.get_running_loop().time()
            for scope, start in self._held.items():
                if now - start >= self._patience and scope.when() is None:
                    scope.reschedule(now)
                    break


@contextlib.asynccontextmanager
async def limit_time(seconds: float, failure: str) -> AsyncIterator[None]:
    """Cancel a block of code that takes too long.

    Args:
      seconds: The limit.
      failure: Description of the event that did not happen in time, for the error message.

    Raises:
      DeadlineExceededError: The block took longer.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DeadlineExceededError(
            f"{failure} within {seconds:g} seconds, the server's limit."
        ) from None


def check_host(headers: Mapping[str, str], hosts: Sequence[str]) -> None:
    """Check that a browser does not send a request for a page of another server.

    Such a page could send requests to this server's address, or resolve its own name to it (DNS
    rebinding). Programs that are no browsers send no `Origin`.

    Args:
      headers: Headers of the request.
      hosts: Names of this server in addition to localhost and IP addresses; "*" allows all names in
        the header `Host`.

    Raises:
      PermissionDeniedError: `Host` or `Origin` is not in the list.

    Example:
      >>> check_host({"host": "localhost:8501"}, [])
      >>> check_host({"host": "localhost:8501", "origin": "http://example.com"}, [])
      Traceback (most recent call last):
        ...
      meshflow.core.runtime.errors.PermissionDeniedError: ...
    """
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and "*" not in hosts:
        name = _parse_name(f"//{host}")
        if name not in hosts and not is_loopback(name) and _parse_address(name) is None:
            raise PermissionDeniedError(
                f"The header Host names {name[:100]!r}, which is no name of this server. Start it with --allow-host NAME."
            )
    if origin is not None:
        name = _parse_name(origin)
        if name not in hosts and not is_loopback(name):
            raise PermissionDeniedError(
                f"The header Origin is {origin[:100]!r}: pages of other servers may send no requests. Start the "
                "server with --allow-host NAME to permit it."
            )


def _parse_name(url: str) -> str:
    """Return the host of a URL; empty if it has none."""
    try:
        return (urllib.parse.urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address; return None for other names."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_loopback(name: str) -> bool:
    """Check whether a name or an address means this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _parse_address(name)
    return address is not None and address.is_loopback
