"""Entry point of `meshflow serve`: an HTTP server in this process."""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import logging
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from meshflow.environment import optional_packages
from meshflow.environment.types import StrPath
from meshflow.serving.application import application
from meshflow.serving.limits import is_loopback
from meshflow.serving.metrics import Metrics
from meshflow.serving.versions import Settings

# The last seconds before a server is ended: requests are cancelled, and gRPC and processes stop.
_FINAL_SECONDS = 3.0
_SWITCH_SECONDS = 0.001
# The event loop accepts this many connections in one step.
_MAX_ACCEPTED = 100


def serve(
    folder: StrPath | None = None,
    name: str = "model",
    port: int = 8501,
    host: str = "127.0.0.1",
    settings: Settings | None = None,
    grpc_port: int | None = None,
    config_file: StrPath | None = None,
    max_connections: int = 512,
    grace: float = 20.0,
) -> None:
    """Serve saved models over TensorFlow Serving's REST protocol, without authentication of clients.

    The signals SIGTERM and SIGINT end the process. Requests that are being answered may complete
    within `grace` seconds; then the process ends in any case, with the tracebacks of its threads on
    the standard error output. A second signal ends it at once.

    Args:
      folder: A saved model, or a folder with one saved model per version, named by its number.
      name: Name of the model in URLs: /v1/models/NAME:predict.
      port: HTTP port; 0 selects a free port, which is printed.
      host: Address to listen on. By default, only this machine can connect.
      settings: Serving settings.
      grpc_port: Port of the gRPC services PredictionService and ModelService; 0 selects a free
        port, which is printed; None disables gRPC.
      config_file: Instead of a folder: file that lists models; see `application`.
      max_connections: Maximum number of HTTP connections; more are answered with status 503.
      grace: Seconds within which the process ends after a signal.

    Raises:
      FileNotFoundError: The folder or file does not exist.
      InvalidArgumentError: The file does not list models.
      ImportError: The extra `serving` is not installed.
    """
    if folder is not None and not Path(folder).is_dir():
        raise FileNotFoundError(f"meshflow serve: the folder {folder} does not exist.")
    if config_file is not None and not Path(config_file).is_file():
        raise FileNotFoundError(f"meshflow serve: the file {config_file} does not exist.")
    uvicorn = optional_packages.import_extra(
        "uvicorn", "serving", "Serving needs the packages starlette and uvicorn"
    )
    from meshflow.serving.http_protocol import make_protocol_class  # noqa: PLC0415

    settings = settings or Settings()
    if settings.hosts is None and is_loopback(host):
        settings = dataclasses.replace(settings, hosts=())
    logging.getLogger("meshflow").setLevel(logging.INFO)
    # Threads of Python code would otherwise delay the event loop by 5 ms at each of its steps.
    sys.setswitchinterval(_SWITCH_SECONDS)
    grpc = None if grpc_port is None else (host, grpc_port)
    description = name if config_file is None else f"the models of {config_file}"
    announce = lambda port: print(f"Serving {description} by gRPC at {host}:{port}", flush=True)
    metrics = Metrics()
    app = application(name, folder, settings, grpc, announce, config_file, metrics)
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", lifespan="on", ws="none", loop="asyncio",
        http=make_protocol_class(metrics, max_connections),
        backlog=_MAX_ACCEPTED, timeout_graceful_shutdown=max(int(grace - _FINAL_SECONDS), 0),
    )  # fmt: skip
    path = "" if config_file is not None else f"/{name}"
    server = _make_server_class(uvicorn, description, path, grace)(config)
    # Collections would otherwise visit the objects of all modules, and delay all requests.
    gc.collect()
    gc.freeze()
    server.run()


def _make_server_class(uvicorn: Any, description: str, path: str, grace: float) -> Any:
    class Server(uvicorn.Server):
        """Server that prints its address when it listens, and that always ends after a signal."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            for server in self.servers:
                for socket in server.sockets:
                    host, port = socket.getsockname()[:2]
                    print(f"Serving {description} at http://{host}:{port}/v1/models{path}", flush=True)  # fmt: skip

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit:
                os._exit(1)
            # Python waits for its threads, and a model cannot be interrupted. This timer needs no
            # thread of Python.
            faulthandler.dump_traceback_later(grace, exit=True)
            super().handle_exit(sig, frame)

    return Server
