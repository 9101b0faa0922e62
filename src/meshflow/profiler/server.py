"""`tf.profiler.experimental.server`: lets others take profiles of this process."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from meshflow.core.runtime.errors import AlreadyExistsError, OpError, UnavailableError
from meshflow.files import gfile
from meshflow.profiler import sessions
from meshflow.profiler.description import MemorySamples, describe, worker_name
from meshflow.profiler.messages import SERVICE, ProfileRequest, ProfileResponse, grpc, pack, unpack

__all__ = ["start"]

_log = logging.getLogger("meshflow")
# One for the life of the process: it ends when nobody holds it.
_server: Any = None
# One of them is in the trace of a process that did something.
_WORK = (b"PjitFunction(", b"hlo_op", b"step_num", b"meshflow:")


def start(port: int, host: str = "127.0.0.1") -> None:
    """Begins to answer requests for profiles, such as those of `client.trace` and TensorBoard.

    Who can reach it can slow this process down, learn its layers' names, and have it write traces to folders. So it
    listens to this machine only, unless `host` says otherwise; it asks for no password.

    Args:
      port: where to listen.
      host: the address to listen at; '0.0.0.0' is for all of this machine's networks.

    Raises:
      AlreadyExistsError: when this process answers such requests already.
      UnavailableError: when the port is taken.
      ImportError: when grpcio (extra `profiler`) is not installed.

    Example:
      >>> import meshflow as tf
      >>> callable(tf.profiler.experimental.server.start)
      True
    """
    global _server
    if _server is not None:
        raise AlreadyExistsError("tf.profiler.experimental.server: this process has a server.")
    library = grpc()
    # One is busy while it records; another says so to who asks meanwhile.
    workers = ThreadPoolExecutor(4, thread_name_prefix="profiler server")
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
    server = library.server(workers, options=unlimited)
    methods = {
        "Profile": library.unary_unary_rpc_method_handler(_profile),
        "Monitor": library.unary_unary_rpc_method_handler(_monitor),
    }
    server.add_generic_rpc_handlers([library.method_handlers_generic_handler(SERVICE, methods)])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound, reason = server.add_insecure_port(address), ""
    except RuntimeError as error:
        bound, reason = 0, f": {error}"
    if not bound:
        raise UnavailableError(
            f"tf.profiler.experimental.server cannot listen at {address}{reason}. Is another process there? Choose "
            "another port."
        )
    server.start()
    _server = server
    reach = (
        "other machines cannot reach it: host='0.0.0.0' lets them"
        if host in ("127.0.0.1", "localhost", "::1")
        else "whoever reaches that address can take profiles"
    )
    _log.info("The profiler listens at %s; %s.", address, reach)


def _profile(message: bytes, call: Any) -> bytes:
    request = ProfileRequest.unpacked(message)
    codes = grpc().StatusCode
    wait = request.start_ns / 1e9 - time.time()
    if 0 < wait < 60:
        # All workers of a profile begin together.
        time.sleep(wait)
    options = sessions.ProfilerOptions(
        request.host_tracer_level, request.python_tracer_level, request.device_tracer_level
    )
    try:
        files = sessions.record(request.duration_ms, options, lambda: not call.is_active())
        files["worker"] = worker_name().encode()
        if not request.returned and request.folder:
            _write(request, files)
            files = {}
    except AlreadyExistsError as error:
        call.abort(codes.ALREADY_EXISTS, str(error))
    except OpError as error:
        call.abort(codes.INTERNAL, str(error))
    trace = files.get(".xplane.pb")
    # Names are written as they are.
    empty = trace is not None and not any(name in trace for name in _WORK)
    return ProfileResponse(empty, files).packed()


def _write(request: ProfileRequest, files: dict[str, bytes]) -> None:
    """Writes as the servers of other libraries do: into the folder that a client names."""
    for ending, content in files.items():
        if ending.startswith("."):
            path = gfile.join(request.folder, request.session, request.host + ending)
            gfile.makedirs(gfile.join(request.folder, request.session))
            with gfile.GFile(path, "wb") as file:
                file.write(content)


def _monitor(message: bytes, call: Any) -> bytes:
    fields = unpack(message)
    duration = fields.get(1, [0])[0] / 1000
    level = fields.get(2, [1])[0]
    memory = MemorySamples()
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < duration and call.is_active():
        time.sleep(min(0.05, max(duration - (time.monotonic() - began), 0.0)))
    memory.stop()
    passed = max(time.monotonic() - began, 1e-9)
    said = describe(None) if level > 1 else {}
    lines = [
        f"Process {os.getpid()} {worker_name()}".rstrip(),
        f"Cores in use: {(time.process_time() - used) / passed:.2f} of {os.cpu_count()}",
        f"Memory: {max(m[1] for m in memory.taken) / 1e6:.0f} MB, devices {max(m[2] for m in memory.taken) / 1e6:.0f} MB",
        *(f"Device {d['id']}: {d['kind']}" for d in said.get("devices", [])),
        *(f"Program {name}" for name in said.get("programs", {})),
    ]
    return pack([(1, "\n".join(lines) + "\n")])
