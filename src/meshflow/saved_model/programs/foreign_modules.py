"""StableHLO programs of unknown origin, which a child process verifies.

MLIR trusts the bytes that it reads, so damage may crash the process, corrupt its memory or make it loop
forever. A checksum in a file does not help, because the author of the file computes it. Therefore a
process reads only the bytes that Meshflow wrote for this user: it remembers their digests in the cache of
compiled programs. A child process reads all other programs and writes them again, and only the bytes that
it wrote are read here.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Sequence

from meshflow.core.runtime import compilation_cache
from meshflow.core.runtime.errors import DataLossError, UnimplementedError

__all__ = ["is_own_program", "remember_own_program", "rewrite_modules"]

_TIMEOUT_SECONDS = 120
# Address space of the child process, of which importing JAX takes two.
_MAX_CHILD_BYTES = 16 << 30
_BYTECODE_PREFIX = b"ML\xefR"
_CHILD_SOURCE = f"""
import resource, struct, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, ({_MAX_CHILD_BYTES}, {_MAX_CHILD_BYTES}))
from meshflow.environment import jax_internals as jax
source, target = sys.stdin.buffer, sys.stdout.buffer
while header := source.read(8):
    data = source.read(*struct.unpack("<q", header))
    with jax.mlir.make_ir_context():
        try:
            content = jax.write_portable_artifact(jax.read_portable_artifact(data))
        except Exception as error:
            sys.exit((str(error).splitlines() or [repr(error)])[0])
    target.write(struct.pack("<q", len(content)) + content)
"""
# Digests of the programs that this process wrote.
_own_digests: set[str] = set()
# Number of rewritten programs in memory.
_MAX_REWRITTEN = 256
_rewritten: dict[str, bytes] = {}


def _make_key(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_entry(key: str) -> bytes | None:
    return compilation_cache.read_entry(key, compilation_cache.PROGRAM_SUFFIX)


def _write_entry(key: str, data: bytes) -> None:
    compilation_cache.write_entry(key, data, compilation_cache.PROGRAM_SUFFIX)


def remember_own_program(data: bytes) -> None:
    """Remember that this user's Meshflow wrote a program, or that the user trusts its author.

    Args:
      data: Bytes of the program in a file.
    """
    key = _make_key(data)
    if key not in _own_digests:
        _own_digests.add(key)
        _write_entry(key, b"")


def is_own_program(data: bytes) -> bool:
    """Check whether this user's Meshflow wrote a program.

    Args:
      data: Bytes of the program in a file.
    """
    key = _make_key(data)
    if key not in _own_digests and _read_entry(key) == b"":
        _own_digests.add(key)
    return key in _own_digests


def rewrite_modules(modules: Sequence[bytes]) -> list[bytes]:
    """Read programs in one child process, and return them as that process writes them.

    Results are cached in memory and in the cache of compiled programs.

    Args:
      modules: Portable artifacts of StableHLO, possibly damaged. Own ones are returned unchanged.

    Raises:
      DataLossError: If one cannot be read, with MLIR's error or the signal that ended the process.
      UnimplementedError: If no Python interpreter can be started.
    """
    keys = [_make_key(data) for data in modules]
    pending = {}
    for key, data in zip(keys, modules, strict=True):
        if key in _rewritten or is_own_program(data):
            continue
        if stored := _read_entry(key):
            _rewritten[key] = stored
        else:
            pending[key] = data
    if pending:
        for key, content in zip(pending, _run_child(list(pending.values())), strict=True):
            while len(_rewritten) >= _MAX_REWRITTEN:
                _rewritten.pop(next(iter(_rewritten)))
            _rewritten[key] = content
            _write_entry(key, content)
    return [_rewritten.get(key, data) for key, data in zip(keys, modules, strict=True)]


@functools.cache
def _make_environment() -> dict[str, str]:
    # The child process imports from the same path, because the package may not be installed.
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}


def _run_child(modules: Sequence[bytes]) -> list[bytes]:
    if not all(data.startswith(_BYTECODE_PREFIX) for data in modules):
        raise DataLossError("it does not begin with the prefix of MLIR bytecode")
    if not sys.executable:
        raise UnimplementedError(
            "StableHLO programs of unknown origin are verified by another process, and sys.executable is not set."
        )
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD_SOURCE],
            input=b"".join(struct.pack("<q", len(data)) + data for data in modules),
            capture_output=True,
            env=_make_environment(),
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
    contents, offset = [], 0
    while offset < len(child.stdout):
        (size,) = struct.unpack_from("<q", child.stdout, offset)
        contents.append(child.stdout[offset + 8 : offset + 8 + size])
        offset += 8 + size
    return contents
