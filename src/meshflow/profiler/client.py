"""`tf.profiler.experimental.client`: profiles of other processes that run a profiler server."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any, NamedTuple

from meshflow.core.runtime.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.paths import get_file_system, is_remote, to_path_string
from meshflow.profiler.folders import MISSING_FILE, PROFILES, write_page
from meshflow.profiler.messages import (
    SERVICE,
    ProfileRequest,
    ProfileResponse,
    load_grpc,
    pack,
    unpack,
)
from meshflow.profiler.sessions import ProfilerOptions

__all__ = ["monitor", "trace"]

_log = logging.getLogger("meshflow")
# Seconds until the workers start to record, so that all have received the request by then.
_START_DELAY = 0.3
# Seconds for writing and transferring a trace, which may be large.
_TRANSFER_TIMEOUT = 120.0


class _WorkerAnswer(NamedTuple):
    """The files of a worker, or the reason why there are none."""

    files: dict[str, bytes]
    empty: bool = False
    problem: str = ""
    busy: bool = False


def _parse_addresses(service_addr: str) -> list[str]:
    addresses = [a.strip().removeprefix("grpc://") for a in service_addr.split(",")]
    if not all(":" in a for a in addresses):
        raise InvalidArgumentError(
            f"service_addr must be 'host:port', or several separated by commas, got {service_addr!r}."
        )
    return list(dict.fromkeys(addresses))


def trace(
    service_addr: str,
    logdir: StrPath,
    duration_ms: int,
    worker_list: str = "",
    num_tracing_attempts: int = 3,
    options: ProfilerOptions | None = None,
) -> None:
    """Record a profile of one or several processes at once, and wait for it.

    All traces are written to one folder, with a page that shows them together. If some of the
    processes do not answer, the traces of the others are written before the error is raised.

    Args:
      service_addr: Addresses of the servers, such as 'grpc://10.0.0.2:6009,grpc://10.0.0.3:6009'.
      logdir: Folder that this process can write to, local or in an object store.
      duration_ms: Milliseconds to record.
      worker_list: Ignored, for compatibility.
      num_tracing_attempts: Number of attempts if nothing happened while recording.
      options: Options of the tracers; default: `ProfilerOptions()`.

    Raises:
      InvalidArgumentError: If `duration_ms` is not positive, or an address is invalid.
      AlreadyExistsError: If a profile of every process is being taken already.
      UnavailableError: If a process does not answer, or nothing was recorded.
      ImportError: If grpcio (extra `profiler`) is not installed.

    Example:
      >>> tf.profiler.experimental.client.trace("grpc://localhost:6009", "logs", 0)
      Traceback (most recent call last):
      ...
      meshflow.core.runtime.errors.InvalidArgumentError: duration_ms must be greater than zero, got 0.
    """
    take_profile(service_addr, logdir, duration_ms, num_tracing_attempts, options)


def take_profile(
    service_addr: str,
    logdir: StrPath,
    duration_ms: int,
    attempts: int = 3,
    options: ProfilerOptions | None = None,
) -> str:
    """Record a profile as `trace` does; return the path of the page."""
    if duration_ms <= 0:
        raise InvalidArgumentError(f"duration_ms must be greater than zero, got {duration_ms}.")
    addresses, logdir = _parse_addresses(service_addr), to_path_string(logdir)
    load_grpc()
    get_file_system(
        logdir
    )  # Report a missing package for the store before recording, not afterwards.
    base = gfile.join(logdir, PROFILES)
    gfile.makedirs(base)
    for _ in range(max(attempts, 1)):
        session = time.strftime("%Y_%m_%d_%H_%M_%S")
        answers = _request_profiles(
            addresses, base, session, duration_ms, options or ProfilerOptions()
        )
        if any(not a.empty and not a.problem for a in answers.values()):
            break
        if all(a.problem for a in answers.values()):
            break
    return _write_answers(answers, gfile.join(base, session))


def _request_profiles(
    addresses: list[str], base: str, session: str, duration_ms: int, options: ProfilerOptions
) -> dict[str, _WorkerAnswer]:
    library = load_grpc()
    start = time.time_ns() + int((_START_DELAY + (options.delay_ms or 0) / 1000) * 1e9)
    timeout = _START_DELAY + (options.delay_ms or 0) / 1000 + duration_ms / 1000 + _TRANSFER_TIMEOUT
    channels, calls = [], {}
    try:
        for address in addresses:
            channel = library.insecure_channel(
                address, options=[("grpc.max_receive_message_length", -1)]
            )
            channels.append(channel)
            request = ProfileRequest(
                duration_ms,
                options.host_tracer_level,
                options.python_tracer_level,
                options.device_tracer_level,
                start if len(addresses) > 1 or options.delay_ms else 0,
                # Servers of other libraries write the files themselves if they can access this
                # folder.
                "" if is_remote(base) else os.path.abspath(base),
                session,
                _make_stem(address),
                True,
            )
            send = channel.unary_unary(f"/{SERVICE}/Profile")
            calls[address] = send.future(request.to_bytes(), timeout=timeout)
        return {address: _read_answer(call) for address, call in calls.items()}
    finally:
        for channel in channels:
            channel.close()


def _read_answer(call: Any) -> _WorkerAnswer:
    library = load_grpc()
    try:
        response = ProfileResponse.from_bytes(call.result())
    except library.RpcError as error:
        is_busy = error.code() is library.StatusCode.ALREADY_EXISTS or "session active" in (
            error.details() or ""
        )
        return _WorkerAnswer({}, problem=error.details() or str(error.code()), busy=is_busy)
    except OpError as error:
        return _WorkerAnswer({}, problem=str(error))
    return _WorkerAnswer(response.files, response.empty)


def _make_stem(address: str) -> str:
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in address).replace(".", "-")


def _write_answers(answers: dict[str, _WorkerAnswer], folder: str) -> str:
    """Write the received files and the page; raise an error for the processes that failed."""
    failed = {a: answer for a, answer in answers.items() if answer.problem}
    succeeded = [a for a, answer in answers.items() if not answer.problem and not answer.empty]
    if succeeded:
        gfile.makedirs(folder)
    for address in succeeded:
        files = dict(answers[address].files)
        name = files.pop("worker", b"").decode().replace(" ", "_")
        for ending, content in files.items():
            stem = f"{_make_stem(address)}_{name}" if name else _make_stem(address)
            with replace_file(gfile.join(folder, stem + ending), "wb") as file:
                file.write(content)
    if succeeded and failed:
        reasons = {address: answer.problem for address, answer in failed.items()}
        with replace_file(gfile.join(folder, MISSING_FILE), "w") as file:
            file.write(json.dumps(reasons))
    path = write_page(folder) if succeeded else ""
    problems = "; ".join(f"{address}: {answer.problem}" for address, answer in failed.items())
    if failed and all(answer.busy for answer in answers.values()):
        raise AlreadyExistsError(f"Another profile is being taken: {problems}")
    if failed:
        hint = f" The recording of {', '.join(succeeded)} is in {folder}." if succeeded else ""
        raise UnavailableError(
            f"tf.profiler.experimental.client.trace did not reach {problems}. Does every process call "
            f"tf.profiler.experimental.server.start(port), on all networks if it is another machine?{hint}"
        )
    if not succeeded:
        raise UnavailableError(
            f"tf.profiler.experimental.client.trace: nothing happened in {', '.join(answers)} while recording. "
            "Record while the program trains, or for longer."
        )
    _log.info("Open %s to see the profile.", path)
    return path


def monitor(service_addr: str, duration_ms: int, level: int = 1) -> str:
    """Monitor processes for a time without recording.

    Args:
      service_addr: Addresses of the profiler servers.
      duration_ms: Milliseconds to monitor.
      level: Level of detail; 2 includes devices and programs.

    Returns:
      A text with the load and memory of each process.

    Raises:
      InvalidArgumentError: If `duration_ms` is not positive, or an address is invalid.
      UnavailableError: If a process does not answer.
      ImportError: If grpcio (extra `profiler`) is not installed.
    """
    if duration_ms <= 0:
        raise InvalidArgumentError(f"duration_ms must be greater than zero, got {duration_ms}.")
    library = load_grpc()
    request = pack([(1, duration_ms), (2, level), (3, 1)])
    texts: list[str] = []
    channels: list[Any] = []
    calls: dict[str, Any] = {}
    try:
        for address in _parse_addresses(service_addr):
            channels.append(library.insecure_channel(address))
            send = channels[-1].unary_unary(f"/{SERVICE}/Monitor")
            calls[address] = send.future(request, timeout=duration_ms / 1000 + 10)
        for address in calls:
            texts.append(unpack(calls[address].result()).get(1, [b""])[0].decode())
    except library.RpcError as error:
        raise UnavailableError(
            f"tf.profiler.experimental.client.monitor of {address}: {error.details()}"
        ) from error
    finally:
        for channel in channels:
            channel.close()
    return "".join(texts)
