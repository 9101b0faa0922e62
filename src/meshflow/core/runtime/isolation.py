"""Calls of functions in a process without network and write access, with limits on memory and time.

The parent passes arguments as JSON and receives bytes, which it treats as untrusted: a file that took over the child can
return any bytes, but neither connect, write a file, start a program, nor stop the parent.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, NoReturn

from meshflow.core.runtime import errors
from meshflow.environment.child_processes import get_import_path, make_python_command
from meshflow.environment.json_documents import parse_json
from meshflow.environment.limits import get_unpacked_limit
from meshflow.environment.sandbox import (
    MECHANISMS,
    NAMESPACES,
    SECCOMP,
    CannotIsolateError,
    choose_mechanism,
    enter_namespaces,
    limit_resources,
    refuse_system_calls,
)
from meshflow.environment.types import Json

# Wall-clock time and processor time of a call, in seconds.
MAX_SECONDS = 300
# Memory in addition to that of the imported package and the limit on unpacked data, in bytes.
_BASE_MEMORY = 2 << 30
_VALUE, _ERROR, _UNAVAILABLE = b"V", b"E", b"U"
_ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "OPENBLAS_CORETYPE",
)
_BUILTIN_ERRORS = (
    "ValueError",
    "TypeError",
    "OSError",
    "MemoryError",
    "ImportError",
    "NotImplementedError",
)


def call_isolated(
    target: str,
    arguments: Json,
    label: str,
    size: int,
    mechanisms: Sequence[str] = MECHANISMS,
    seconds: int = MAX_SECONDS,
) -> bytes:
    """Call a function in an isolated process.

    Args:
      target: `module:function`. The function takes the arguments and a binary file for its result.
      arguments: Arguments.
      label: Name of the data that the function reads, for errors.
      size: Size of the file that it reads, in bytes, which determines the limits.
      mechanisms: Mechanisms of isolation, in the order of preference.
      seconds: Maximum duration.

    Returns:
      What the function wrote.

    Raises:
      UnimplementedError: If this system offers no isolation.
      DeadlineExceededError: If the call takes too long.
      DataLossError: If the process crashes.
      OpError: The errors of the function have their classes of `tf.errors`, or are built-in.
    """
    mechanism = choose_mechanism(mechanisms)
    if mechanism is None or not sys.executable:
        raise _make_unavailable_error(
            label, "it needs Linux with seccomp or namespaces, and sys.executable"
        )
    limit = get_unpacked_limit(size)
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as log:
        request = {
            "target": target,
            "arguments": arguments,
            "mechanism": mechanism,
            "memory": 2 * limit + _BASE_MEMORY,
            "seconds": seconds,
            "result_bytes": limit,
        }
        process = subprocess.Popen(
            make_python_command(f"from {__name__} import main; main({result.fileno()})"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=_make_environment(),
            pass_fds=(result.fileno(),),
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(request).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            raise errors.DeadlineExceededError(
                f"{label}: the isolated process did not end within {seconds} s. The file may be built to stop its reader."
            ) from None
        finally:
            # Only namespaces permit further processes.
            if process.returncode is None or mechanism == NAMESPACES:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        result.seek(0)
        status, content = result.read(1), result.read()
        if process.returncode == 0 and status == _VALUE:
            return content
        log.seek(0)
        _raise_failure(label, status, content, process.returncode, log.read()[-500:])


def _make_environment() -> dict[str, str]:
    """Return the child's environment variables: no secrets of the parent's."""
    kept = (*_ENVIRONMENT, *(name for name in os.environ if name.startswith("MESHFLOW_MAX_")))
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "PYTHONPATH": get_import_path(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MALLOC_ARENA_MAX": "2",
        "JAX_PLATFORMS": "cpu",
        "MESHFLOW_CACHE_DIR": "",
        "OMP_NUM_THREADS": "1",
        # A process with several threads cannot enter a namespace of users.
        "OPENBLAS_NUM_THREADS": "1",
    }


def _raise_failure(label: str, status: bytes, content: bytes, code: int, log: bytes) -> NoReturn:
    if status == _UNAVAILABLE:
        raise _make_unavailable_error(label, content.decode(errors="replace"))
    if status == _ERROR and code == 0:
        names, message = _parse_error(content)
        for name in names:
            error = getattr(errors, name, None)
            if isinstance(error, type) and issubclass(error, errors.OpError):
                raise error(message)
            if name in _BUILTIN_ERRORS:
                raise getattr(builtins, name)(message)
        raise errors.DataLossError(f"{label} is damaged: {names[0]}: {message}")
    reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    raise errors.DataLossError(
        f"{label}: the isolated process ended with {reason}. The file is damaged or malicious. "
        f"{log.decode(errors='backslashreplace').strip()!r}"
    )


def _parse_error(content: bytes) -> tuple[list[str], str]:
    """Return the names of an error's class and its bases, and its message."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        value = parse_json(content)
        return [str(name) for name in value["names"]], str(value["message"])
    return ["DataLossError"], "its error cannot be read"


def _make_unavailable_error(label: str, reason: str) -> errors.UnimplementedError:
    return errors.UnimplementedError(
        f"{label} cannot be read in isolation on this system: {reason}. Install 'meshflow-tf[isolation]', or read the file in "
        "a container without network, with isolated=False."
    )


def main(descriptor: int) -> None:
    """Run the call that standard input describes, and write its result.

    Args:
      descriptor: File descriptor of the result.
    """
    # A request is from the parent; it does not contain bytes of the file.
    request = json.loads(sys.stdin.buffer.read())
    with os.fdopen(descriptor, "wb", closefd=False) as result:
        try:
            if request["mechanism"] == NAMESPACES:
                enter_namespaces()
            module, name = request["target"].split(":")
            function = getattr(importlib.import_module(module), name)
            limit_resources(request["memory"], request["seconds"], request["result_bytes"])
            if request["mechanism"] == SECCOMP:
                refuse_system_calls()
        except CannotIsolateError as error:
            result.write(_UNAVAILABLE + str(error).encode())
            return
        _write_result(function, request["arguments"], result)
    # Threads of XLA may wait for system calls that are refused.
    os._exit(0)


def _write_result(
    function: Callable[[Json, IO[bytes]], None], arguments: Json, result: IO[bytes]
) -> None:
    result.write(_VALUE)
    try:
        function(arguments, result)
        result.flush()
    except Exception as error:
        result.seek(0)
        result.truncate()
        # Some classes have the name of another one in tracebacks.
        names_by_class = {cls: name for name, cls in vars(errors).items() if isinstance(cls, type)}
        names = [names_by_class.get(cls, cls.__name__) for cls in type(error).__mro__]
        text = json.dumps({"names": names, "message": str(error)[:10_000]})
        result.write(_ERROR + text.encode())
        result.flush()
