"""`tf.profiler.experimental.client`: profiles of other processes, which run a profiler's server."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

from meshflow.core.runtime.errors import InvalidArgumentError, UnavailableError
from meshflow.environment import extras
from meshflow.files.copies import copy_folder
from meshflow.files.paths import remote, text
from meshflow.profiler.sessions import ProfilerOptions

__all__ = ["monitor", "trace"]


def _library() -> Any:
    return extras.load(
        "xprof.convert._pywrap_profiler_plugin",
        "profiler",
        "tf.profiler.experimental.client needs the package xprof",
    )


def _addresses(service_addr: str) -> str:
    return ",".join(a.strip().removeprefix("grpc://") for a in service_addr.split(","))


def trace(
    service_addr: str,
    logdir: Any,
    duration_ms: int,
    worker_list: str = "",
    num_tracing_attempts: int = 3,
    options: ProfilerOptions | None = None,
) -> None:
    """Takes a profile of one or several processes for a time, and waits for it.

    Args:
      service_addr: where their servers listen, as 'grpc://10.0.0.2:6009,grpc://10.0.0.3:6009'.
      logdir: a folder that this process can write to, here or in a store.
      duration_ms: how many milliseconds to record.
      worker_list: the workers of a TPU.
      num_tracing_attempts: how often to try when nothing happened in that time.
      options: what to record; default `ProfilerOptions()`.

    Raises:
      InvalidArgumentError: when `duration_ms` is not positive.
      UnavailableError: when a process does not answer, or nothing was recorded.
      ImportError: when xprof (extra `profiler`) is not installed.

    Example:
      >>> import meshflow as tf
      >>> tf.profiler.experimental.client.trace("grpc://localhost:6009", "logs", 0)
      Traceback (most recent call last):
      ...
      meshflow.core.runtime.errors.InvalidArgumentError: duration_ms must be greater than zero, got 0.
    """
    if duration_ms <= 0:
        raise InvalidArgumentError(f"duration_ms must be greater than zero, got {duration_ms}.")
    options = options or ProfilerOptions()
    chosen = {**options._asdict(), "delay_ms": options.delay_ms or 0}
    library, logdir = _library(), text(logdir)
    store = remote(logdir)
    # xprof writes to this machine's disk.
    folder = logdir if store is None else tempfile.mkdtemp(prefix="meshflow-profile-")
    try:
        library.trace(
            *(_addresses(service_addr), folder, worker_list, True),
            *(duration_ms, num_tracing_attempts, chosen),
        )
        if store is not None:
            copy_folder(folder, logdir)
    except RuntimeError as error:
        raise UnavailableError(
            f"tf.profiler.experimental.client.trace of {service_addr}: {error}. Does every process call "
            "tf.profiler.experimental.server.start(port), and is it busy in that time?"
        ) from error
    finally:
        if store is not None:
            shutil.rmtree(folder, ignore_errors=True)


def monitor(service_addr: str, duration_ms: int, level: int = 1) -> str:
    """Watches a TPU for a time.

    Args:
      service_addr: where its profiler's server listens.
      duration_ms: how many milliseconds to watch.
      level: how much to say: 1 or 2.

    Returns:
      A text about how busy it was.

    Raises:
      InvalidArgumentError: when `duration_ms` is not positive.
      UnavailableError: when nobody answers.
      ImportError: when xprof (extra `profiler`) is not installed.
    """
    if duration_ms <= 0:
        raise InvalidArgumentError(f"duration_ms must be greater than zero, got {duration_ms}.")
    try:
        return str(_library().monitor(_addresses(service_addr), duration_ms, level, True))
    except RuntimeError as error:
        raise UnavailableError(
            f"tf.profiler.experimental.client.monitor of {service_addr}: {error}"
        ) from error
