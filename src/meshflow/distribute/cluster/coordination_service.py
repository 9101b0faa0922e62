"""JAX's coordination service as a process of its own, so that what happens to it does not end the launcher.

Started by its path with the address to listen at, the number of workers and how many seconds they wait for
each other at the end; writes a line when it serves, and ends with who started it.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Serves until the launcher closes the standard input."""
    sys.path.pop(0)  # this folder's names are not modules of the standard library
    # Without Meshflow, so not by its door to private names: this process starts at once.
    from jax._src.lib import _jax  # noqa: PLC0415 - the path is mended first

    address, workers, leaving = sys.argv[1:4]
    service = _jax.get_distributed_runtime_service(
        address, int(workers), heartbeat_timeout=100, shutdown_timeout=int(leaving)
    )
    print("serving", flush=True)
    sys.stdin.read()
    # Ending it properly would wait for workers that are gone.
    _ = service
    os._exit(0)


if __name__ == "__main__":
    main()
