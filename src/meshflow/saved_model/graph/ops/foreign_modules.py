"""Programs of StableHLO of unknown origin, read by a process of their own.

MLIR trusts the bytes that it reads: damage may end the process, or keep it busy for ever. What other programs wrote has no
checksum, so a child reads it first, and writes it again; that is what is read here.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from meshflow.core.runtime.errors import DataLossError, UnimplementedError

__all__ = ["rewritten"]

_SECONDS = 120
_MAGIC = b"ML\xefR"
_PROGRAM = """
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
def rewritten(data: bytes) -> bytes:
    """A program as MLIR writes it, after another process has read it.

    Args:
      data: a portable artifact of StableHLO, or what claims to be one.

    Raises:
      DataLossError: when it is none, saying what MLIR says, or how the process ended.
      UnimplementedError: where no Python can be started.
    """
    if not data.startswith(_MAGIC):
        raise DataLossError("it does not begin as MLIR's bytecode does")
    # Python's own search path, as of a package that is not installed.
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    if not sys.executable:
        raise UnimplementedError(
            "programs of StableHLO without a checksum are read by another process, and sys.executable names no Python."
        )
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=data,
            capture_output=True,
            env=environment,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataLossError(f"reading it took more than {_SECONDS} seconds") from None
    if done.returncode < 0:
        raise DataLossError(
            f"it is damaged: reading it ended a process by signal {-done.returncode}"
        )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise DataLossError(lines[-1] if lines else "it cannot be read")
    return done.stdout
