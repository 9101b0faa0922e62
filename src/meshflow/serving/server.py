"""Entry point of `meshflow serve`: an HTTP server in this process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from meshflow.environment import extras
from meshflow.environment.types import StrPath
from meshflow.serving.application import application
from meshflow.serving.versions import Settings

__all__ = ["serve"]


def serve(
    folder: StrPath | None = None,
    name: str = "model",
    port: int = 8501,
    host: str = "127.0.0.1",
    settings: Settings | None = None,
    grpc_port: int | None = None,
    config_file: StrPath | None = None,
) -> None:
    """Serve saved models over TensorFlow Serving's REST protocol, without authentication of clients.

    Args:
      folder: A saved model, or a folder with one saved model per version, named by its number.
      name: Name of the model in URLs: /v1/models/NAME:predict.
      port: HTTP port; 0 selects a free port, which is printed.
      host: Address to listen on. By default, only this machine can connect.
      settings: Serving settings.
      grpc_port: Port of the gRPC services PredictionService and ModelService; 0 selects a free
        port, which is printed; None disables gRPC.
      config_file: Instead of a folder: file that lists models; see `application`.

    Raises:
      FileNotFoundError: The folder or file does not exist.
      InvalidArgumentError: The file does not list models.
      ImportError: The extra `serving` is not installed.
    """
    if folder is not None and not Path(folder).is_dir():
        raise FileNotFoundError(f"meshflow serve: the folder {folder} does not exist.")
    if config_file is not None and not Path(config_file).is_file():
        raise FileNotFoundError(f"meshflow serve: the file {config_file} does not exist.")
    uvicorn = extras.load("uvicorn", "serving", "Serving needs the packages starlette and uvicorn")
    logging.getLogger("meshflow").setLevel(logging.INFO)
    grpc = None if grpc_port is None else (host, grpc_port)
    description = name if config_file is None else f"the models of {config_file}"
    announce = lambda port: print(f"Serving {description} by gRPC at {host}:{port}", flush=True)
    app = application(name, folder, settings, grpc, announce, config_file)
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", lifespan="on")
    path = "" if config_file is not None else f"/{name}"
    server = _server(uvicorn, description, path)(config)
    server.run()


def _server(uvicorn: Any, description: str, path: str) -> Any:
    class Server(uvicorn.Server):
        """Server that prints its address when it listens."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            for server in self.servers:
                for socket in server.sockets:
                    host, port = socket.getsockname()[:2]
                    print(f"Serving {description} at http://{host}:{port}/v1/models{path}", flush=True)  # fmt: skip

    return Server
