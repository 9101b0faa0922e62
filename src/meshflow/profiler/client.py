"""`tf.profiler.experimental.client`: profiles of other processes, which run a profiler's server."""

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
from meshflow.files import gfile
from meshflow.files.paths import is_remote, remote, text
from meshflow.files.replacing import replacing
from meshflow.profiler.folders import MISSING, PROFILES, write_page
from meshflow.profiler.messages import SERVICE, ProfileRequest, ProfileResponse, grpc, pack, unpack
from meshflow.profiler.sessions import ProfilerOptions

__all__ = ["monitor", "trace"]

_log = logging.getLogger("meshflow")
# Seconds until workers begin, so that all have been asked by then.
_AHEAD = 0.3
# Seconds for a trace to be written and to come; it may be large.
_PATIENCE = 120.0


class _Answer(NamedTuple):
    """What became of a worker: its files, or why there are none."""

    files: dict[str, bytes]
    empty: bool = False
    problem: str = ""
    busy: bool = False


def _addresses(service_addr: str) -> list[str]:
    found = [a.strip().removeprefix("grpc://") for a in service_addr.split(",")]
    if not all(":" in a for a in found):
        raise InvalidArgumentError(
            f"service_addr must be 'host:port' or several with commas between, got {service_addr!r}."
        )
    return list(dict.fromkeys(found))


def trace(
    service_addr: str,
    logdir: Any,
    duration_ms: int,
    worker_list: str = "",
    num_tracing_attempts: int = 3,
    options: ProfilerOptions | None = None,
) -> None:
    """Takes a profile of one or several processes at once for a time, and waits for it.

    The traces of all lie in one folder then, with a page that shows them beside each other. When some of the
    processes do not answer, what the others recorded is there before the error that names them.

    Args:
      service_addr: where their servers listen, as 'grpc://10.0.0.2:6009,grpc://10.0.0.3:6009'.
      logdir: a folder that this process can write to, here or in a store.
      duration_ms: how many milliseconds to record.
      worker_list: accepted.
      num_tracing_attempts: how often to try when nothing happened in that time.
      options: what to record; default `ProfilerOptions()`.

    Raises:
      InvalidArgumentError: when `duration_ms` is not positive, or an address is none.
      AlreadyExistsError: when a profile of every process is being taken already.
      UnavailableError: when a process does not answer, or nothing was recorded.
      ImportError: when grpcio (extra `profiler`) is not installed.

    Example:
      >>> import meshflow as tf
      >>> tf.profiler.experimental.client.trace("grpc://localhost:6009", "logs", 0)
      Traceback (most recent call last):
      ...
      meshflow.core.runtime.errors.InvalidArgumentError: duration_ms must be greater than zero, got 0.
    """
    take(service_addr, logdir, duration_ms, num_tracing_attempts, options)


def take(
    service_addr: str,
    logdir: Any,
    duration_ms: int,
    attempts: int = 3,
    options: ProfilerOptions | None = None,
) -> str:
    """As `trace`; returns the path of the page."""
    if duration_ms <= 0:
        raise InvalidArgumentError(f"duration_ms must be greater than zero, got {duration_ms}.")
    addresses, logdir = _addresses(service_addr), text(logdir)
    grpc()
    remote(logdir)  # what is missing for a store is said before the work, not after it
    base = gfile.join(logdir, PROFILES)
    gfile.makedirs(base)
    for _ in range(max(attempts, 1)):
        session = time.strftime("%Y_%m_%d_%H_%M_%S")
        answers = _ask(addresses, base, session, duration_ms, options or ProfilerOptions())
        if any(not a.empty and not a.problem for a in answers.values()):
            break
        if all(a.problem for a in answers.values()):
            break
    return _keep(answers, gfile.join(base, session))


def _ask(
    addresses: list[str], base: str, session: str, duration_ms: int, options: ProfilerOptions
) -> dict[str, _Answer]:
    library = grpc()
    begin = time.time_ns() + int((_AHEAD + (options.delay_ms or 0) / 1000) * 1e9)
    patience = _AHEAD + (options.delay_ms or 0) / 1000 + duration_ms / 1000 + _PATIENCE
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
                begin if len(addresses) > 1 or options.delay_ms else 0,
                # Servers of other libraries write by themselves, when they see this folder.
                "" if is_remote(base) else os.path.abspath(base),
                session,
                _stem(address),
                True,
            )
            ask = channel.unary_unary(f"/{SERVICE}/Profile")
            calls[address] = ask.future(request.packed(), timeout=patience)
        return {address: _answer(call) for address, call in calls.items()}
    finally:
        for channel in channels:
            channel.close()


def _answer(call: Any) -> _Answer:
    library = grpc()
    try:
        response = ProfileResponse.unpacked(call.result())
    except library.RpcError as error:
        busy = error.code() is library.StatusCode.ALREADY_EXISTS or "session active" in (
            error.details() or ""
        )
        return _Answer({}, problem=error.details() or str(error.code()), busy=busy)
    except OpError as error:
        return _Answer({}, problem=str(error))
    return _Answer(response.files, response.empty)


def _stem(address: str) -> str:
    return "".join(c if c.isalnum() or c in ".-" else "_" for c in address).replace(".", "-")


def _keep(answers: dict[str, _Answer], folder: str) -> str:
    """Writes what came, and the page; says what did not."""
    failed = {a: answer for a, answer in answers.items() if answer.problem}
    kept = [a for a, answer in answers.items() if not answer.problem and not answer.empty]
    if kept:
        gfile.makedirs(folder)
    for address in kept:
        files = dict(answers[address].files)
        name = files.pop("worker", b"").decode().replace(" ", "_")
        for ending, content in files.items():
            stem = f"{_stem(address)}_{name}" if name else _stem(address)
            with replacing(gfile.join(folder, stem + ending), "wb") as file:
                file.write(content)
    if kept and failed:
        reasons = {address: answer.problem for address, answer in failed.items()}
        with replacing(gfile.join(folder, MISSING), "w") as file:
            file.write(json.dumps(reasons))
    path = write_page(folder) if kept else ""
    said = "; ".join(f"{address}: {answer.problem}" for address, answer in failed.items())
    if failed and all(answer.busy for answer in answers.values()):
        raise AlreadyExistsError(f"Another profile is being taken: {said}")
    if failed:
        saved = f" What {', '.join(kept)} recorded is in {folder}." if kept else ""
        raise UnavailableError(
            f"tf.profiler.experimental.client.trace did not reach {said}. Does every process call "
            f"tf.profiler.experimental.server.start(port), on all networks if it is another machine?{saved}"
        )
    if not kept:
        raise UnavailableError(
            f"tf.profiler.experimental.client.trace: nothing happened in {', '.join(answers)} in that time. Record "
            "while the program trains, or for longer."
        )
    _log.info("Open %s to see where the time goes.", path)
    return path


def monitor(service_addr: str, duration_ms: int, level: int = 1) -> str:
    """Watches processes for a time without recording.

    Args:
      service_addr: where their profiler's servers listen.
      duration_ms: how many milliseconds to watch.
      level: how much to say: 2 names devices and programs too.

    Returns:
      A text about how busy each is, and its memory.

    Raises:
      InvalidArgumentError: when `duration_ms` is not positive, or an address is none.
      UnavailableError: when one of them does not answer.
      ImportError: when grpcio (extra `profiler`) is not installed.
    """
    if duration_ms <= 0:
        raise InvalidArgumentError(f"duration_ms must be greater than zero, got {duration_ms}.")
    library = grpc()
    request = pack([(1, duration_ms), (2, level), (3, 1)])
    texts: list[str] = []
    channels: list[Any] = []
    asked: dict[str, Any] = {}
    try:
        for address in _addresses(service_addr):
            channels.append(library.insecure_channel(address))
            ask = channels[-1].unary_unary(f"/{SERVICE}/Monitor")
            asked[address] = ask.future(request, timeout=duration_ms / 1000 + 10)
        for address in asked:
            texts.append(unpack(asked[address].result()).get(1, [b""])[0].decode())
    except library.RpcError as error:
        raise UnavailableError(
            f"tf.profiler.experimental.client.monitor of {address}: {error.details()}"
        ) from error
    finally:
        for channel in channels:
            channel.close()
    return "".join(texts)
