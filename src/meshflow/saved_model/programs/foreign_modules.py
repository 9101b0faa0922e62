"""StableHLO programs of unknown origin, which a child process verifies.

MLIR trusts the bytes that it reads, so damage may crash the process, corrupt its memory or make it loop
forever. A checksum in a file does not help, because the author of the file computes it. Therefore a
process reads only the bytes that Meshflow wrote for this user: it remembers their digests in the cache of
compiled programs. A child process reads all other programs and writes them again, and only the bytes that
it wrote are read here.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import subprocess
import sys
from collections.abc import Sequence

from meshflow.core.runtime import compilation_cache
from meshflow.core.runtime.errors import DataLossError, UnimplementedError
from meshflow.environment import sandbox
from meshflow.environment.child_processes import get_import_path, make_python_command
from meshflow.environment.module_rewriting import BYTECODE_PREFIX, rewrite_modules

_TIMEOUT_SECONDS = 120
# Address space of the child process, of which importing JAX takes two.
_MAX_CHILD_BYTES = 16 << 30
# Maximum number of derivatives in the file of a program; Meshflow writes one.
MAX_DERIVATIVES = 4
# `rewrite_modules` defines the formats of the input and the output of the child.
_CHILD_SOURCE = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, ({_MAX_CHILD_BYTES}, {_MAX_CHILD_BYTES}))
from meshflow.environment.child_processes import get_import_path, make_python_command
from meshflow.environment.module_rewriting import rewrite_modules
try:
    rewrite_modules(sys.stdin.buffer, sys.stdout.buffer, {MAX_DERIVATIVES})
except Exception as error:
    kind = "ImportError: " if isinstance(error, ImportError) else ""
    sys.exit(kind + (str(error).splitlines() or [repr(error)])[0])
"""
# Version of the cache entries; it changes with their format.
_FORMAT_VERSION = b"1"
# Version of the result of `rewrite_modules`.
_REWRITING_VERSION = b"2"
# Digests of the programs that this process wrote.
_own_digests: set[str] = set()
# Number of rewritten programs in memory.
_MAX_REWRITTEN = 256
_rewritten: dict[str, bytes] = {}


def _make_key(data: bytes) -> str:
    return hashlib.sha256(_FORMAT_VERSION + data).hexdigest()


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


def rewrite_module(data: bytes) -> bytes:
    """Read a module in a child process, and return it as that process writes it.

    Args:
      data: Portable artifact of StableHLO, possibly damaged. Own ones are returned unchanged.

    Raises:
      DataLossError: If it cannot be read, with MLIR's error or the signal that ended the process.
      UnimplementedError: If no Python interpreter can be started.
    """
    if not data.startswith(BYTECODE_PREFIX):
        raise DataLossError("it does not begin with the prefix of MLIR bytecode")
    return data if is_own_program(data) else rewrite_programs([data])[0][0]


def rewrite_programs(programs: Sequence[bytes]) -> list[list[bytes]]:
    """Read programs in one child process, and return their modules as that process writes them.

    Results are cached in memory and in the cache of compiled programs.

    Args:
      programs: Serialized programs of `jax.export`, or portable artifacts of StableHLO.

    Returns:
      For each program its module, and those of its derivatives.

    Raises:
      DataLossError: If one cannot be read, with MLIR's error or the signal that ended the process.
      UnimplementedError: If no Python interpreter can be started.
    """
    keys = [_make_key(_REWRITING_VERSION + data) for data in programs]
    pending = {}
    for key, data in zip(keys, programs, strict=True):
        if key in _rewritten:
            continue
        if stored := _read_entry(key):
            _remember_rewritten(key, stored)
        else:
            pending[key] = data
    if pending:
        offset, output = 0, _run_child(list(pending.values()))
        for key in pending:
            _, end = _parse_modules(output, offset)
            content = output[offset:end]
            _remember_rewritten(key, content)
            _write_entry(key, content)
            offset = end
    return [_parse_modules(_rewritten[key], 0)[0] for key in keys]


def _remember_rewritten(key: str, content: bytes) -> None:
    while len(_rewritten) >= _MAX_REWRITTEN:
        _rewritten.pop(next(iter(_rewritten)))
    _rewritten[key] = content


def _parse_modules(content: bytes, offset: int) -> tuple[list[bytes], int]:
    """Return the modules of a program in the output of the child process, and the offset of their end."""
    (count,) = struct.unpack_from("<q", content, offset)
    offset, modules = offset + 8, []
    for _ in range(count):
        (size,) = struct.unpack_from("<q", content, offset)
        modules.append(content[offset + 8 : offset + 8 + size])
        offset += 8 + size
    return modules, offset


def _run_child(programs: Sequence[bytes]) -> bytes:
    content = b"".join(struct.pack("<q", len(data)) + data for data in programs)
    if sandbox.is_isolated():
        # This process exists to read files of others, and cannot start another one.
        target = io.BytesIO()
        rewrite_modules(io.BytesIO(content), target, MAX_DERIVATIVES)
        return target.getvalue()
    if not sys.executable:
        raise UnimplementedError(
            "StableHLO programs of unknown origin are verified by another process, and sys.executable is not set."
        )
    try:
        child = subprocess.run(
            make_python_command(_CHILD_SOURCE),
            input=content,
            capture_output=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": get_import_path()},
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
        lines = child.stderr.decode(errors="replace").splitlines() or ["it cannot be read"]
        if lines[-1].startswith("ImportError"):
            raise ImportError(lines[-1])
        raise DataLossError(lines[-1])
    return child.stdout
