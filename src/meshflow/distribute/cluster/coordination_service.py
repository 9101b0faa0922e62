"""JAX's coordination service as a process, so that a crash of it does not end the launcher.

The module is run by its path with the address to listen on, the number of workers, and the number
of seconds that workers wait for each other at the end. It prints a line when the service is ready
and ends together with its parent.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the service until the launcher closes the standard input."""
    sys.path.pop(0)  # modules of this folder must not hide modules of the standard library
    # `jax_internals` would import Meshflow, which takes long; this process must start fast.
    from jax._src.lib import _jax  # noqa: PLC0415 - sys.path is corrected first

    address, workers, shutdown_seconds = sys.argv[1:4]
    service = _jax.get_distributed_runtime_service(
        address, int(workers), heartbeat_timeout=100, shutdown_timeout=int(shutdown_seconds)
    )
    print("serving", flush=True)
    sys.stdin.read()
    # A regular shutdown would wait for workers that no longer run.
    _ = service
    os._exit(0)


if __name__ == "__main__":
    main()
