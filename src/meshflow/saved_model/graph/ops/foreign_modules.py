"""StableHLO programs of unknown origin, which a child process verifies.

MLIR trusts the bytes that it reads, so damage may crash the process or make it loop forever. Files
that other programs wrote contain no checksum. Therefore a child process reads a program and writes
it again, and only the bytes that it wrote are read in this process.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from meshflow.core.runtime.errors import DataLossError, UnimplementedError

__all__ = ["rewrite_in_child_process"]

_TIMEOUT_SECONDS = 120
_BYTECODE_PREFIX = b"ML\xefR"
_CHILD_SOURCE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from meshflow.environment import jax_internals as jax
data = sys.stdin.buffer.read()
with jax.mlir.make_ir_context():
    try:
        found = jax.write_portable_artifact(jax.read_portable_artifact(data))
    except Exception as error:
        sys.exit((str(error).splitlines() or [repr(error)])[0])
sys.stdout.buffer.write(found)
"""


@functools.lru_cache(maxsize=64)
def rewrite_in_child_process(data: bytes) -> bytes:
    """Read a program in a child process, and return it as that process writes it.

    Args:
      data: Portable artifact of StableHLO, possibly damaged.

    Raises:
      DataLossError: If it cannot be read, with MLIR's error or the signal that ended the process.
      UnimplementedError: If no Python interpreter can be started.
    """
    if not data.startswith(_BYTECODE_PREFIX):
        raise DataLossError("it does not begin with the prefix of MLIR bytecode")
    # The child process imports from the same path, because the package may not be installed.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    if not sys.executable:
        raise UnimplementedError(
            "StableHLO programs without a checksum are verified by another process, and sys.executable is not set."
        )
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD_SOURCE],
            input=data,
            capture_output=True,
            env=environment,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataLossError(f"reading it took more than {_TIMEOUT_SECONDS} seconds") from None
    if child.returncode < 0:
        raise DataLossError(
            f"it is damaged: the process that read it was ended by signal {-child.returncode}"
        )
    if child.returncode:
        lines = child.stderr.decode(errors="replace").splitlines()
        raise DataLossError(lines[-1] if lines else "it cannot be read")
    return child.stdout
