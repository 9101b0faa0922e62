"""`tf.profiler.experimental.server`: a server that records profiles of this process for others."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from meshflow.core.runtime.errors import AlreadyExistsError, OpError, UnavailableError
from meshflow.files import gfile
from meshflow.profiler import sessions
from meshflow.profiler.description import MemorySamples, describe_process, get_worker_name
from meshflow.profiler.messages import (
    SERVICE,
    ProfileRequest,
    ProfileResponse,
    load_grpc,
    pack,
    unpack,
)

__all__ = ["start"]

_log = logging.getLogger("meshflow")
# The server must be referenced for the life of the process, otherwise it ends.
_server: Any = None
# Byte strings of which the trace of an active process contains at least one.
_ACTIVITY_MARKERS = (b"PjitFunction(", b"hlo_op", b"step_num", b"meshflow:")


def start(port: int, host: str = "127.0.0.1") -> None:
    """Start to serve profile requests, such as those of `client.trace` and TensorBoard.

    There is no authentication: every client can slow this process down, read its layers' names, and
    make it write traces to folders. Therefore it is only reachable from this machine by default.

    Args:
      port: Port to listen on.
      host: Address to listen on; '0.0.0.0' makes it reachable from all networks of this machine.

    Raises:
      AlreadyExistsError: If this process has a profiler server already.
      UnavailableError: If the port is in use.
      ImportError: If grpcio (extra `profiler`) is not installed.

    Example:
      >>> callable(tf.profiler.experimental.server.start)
      True
    """
    global _server
    if _server is not None:
        raise AlreadyExistsError(
            "tf.profiler.experimental.server: this process has a server already."
        )
    library = load_grpc()
    # One thread is busy while it records; the others reject further requests meanwhile.
    workers = ThreadPoolExecutor(4, thread_name_prefix="profiler server")
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
    server = library.server(workers, options=unlimited)
    methods = {
        "Profile": library.unary_unary_rpc_method_handler(_handle_profile),
        "Monitor": library.unary_unary_rpc_method_handler(_handle_monitor),
    }
    server.add_generic_rpc_handlers([library.method_handlers_generic_handler(SERVICE, methods)])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound, reason = server.add_insecure_port(address), ""
    except RuntimeError as error:
        bound, reason = 0, f": {error}"
    if not bound:
        raise UnavailableError(
            f"tf.profiler.experimental.server cannot listen at {address}{reason}. The port may be in use. "
            "Choose another port."
        )
    server.start()
    _server = server
    reach = (
        "other machines cannot reach it unless host='0.0.0.0'"
        if host in ("127.0.0.1", "localhost", "::1")
        else "every client that reaches this address can record profiles"
    )
    _log.info("The profiler listens at %s; %s.", address, reach)


def _handle_profile(message: bytes, call: Any) -> bytes:
    request = ProfileRequest.from_bytes(message)
    codes = load_grpc().StatusCode
    wait = request.start_ns / 1e9 - time.time()
    if 0 < wait < 60:
        # All workers of a profile start at the same time.
        time.sleep(wait)
    options = sessions.ProfilerOptions(
        request.host_tracer_level, request.python_tracer_level, request.device_tracer_level
    )
    try:
        files = sessions.record_profile(request.duration_ms, options, lambda: not call.is_active())
        files["worker"] = get_worker_name().encode()
        if not request.returns_files and request.folder:
            _write_files(request, files)
            files = {}
    except AlreadyExistsError as error:
        call.abort(codes.ALREADY_EXISTS, str(error))
    except OpError as error:
        call.abort(codes.INTERNAL, str(error))
    trace = files.get(".xplane.pb")
    # XSpaces contain names as plain bytes.
    empty = trace is not None and not any(name in trace for name in _ACTIVITY_MARKERS)
    return ProfileResponse(empty, files).to_bytes()


def _write_files(request: ProfileRequest, files: dict[str, bytes]) -> None:
    """Write files to the folder of the request, as the servers of other libraries do."""
    for ending, content in files.items():
        if ending.startswith("."):
            path = gfile.join(request.folder, request.session, request.host + ending)
            gfile.makedirs(gfile.join(request.folder, request.session))
            with gfile.GFile(path, "wb") as file:
                file.write(content)


def _handle_monitor(message: bytes, call: Any) -> bytes:
    fields = unpack(message)
    duration = fields.get(1, [0])[0] / 1000
    level = fields.get(2, [1])[0]
    memory = MemorySamples()
    start_time, start_cpu_time = time.monotonic(), time.process_time()
    while time.monotonic() - start_time < duration and call.is_active():
        time.sleep(min(0.05, max(duration - (time.monotonic() - start_time), 0.0)))
    memory.stop()
    elapsed = max(time.monotonic() - start_time, 1e-9)
    description = describe_process(None) if level > 1 else {}
    lines = [
        f"Process {os.getpid()} {get_worker_name()}".rstrip(),
        f"Cores in use: {(time.process_time() - start_cpu_time) / elapsed:.2f} of {os.cpu_count()}",
        f"Memory: {max(m[1] for m in memory.samples) / 1e6:.0f} MB, devices {max(m[2] for m in memory.samples) / 1e6:.0f} MB",
        *(f"Device {d['id']}: {d['kind']}" for d in description.get("devices", [])),
        *(f"Program {name}" for name in description.get("programs", {})),
    ]
    return pack([(1, "\n".join(lines) + "\n")])
