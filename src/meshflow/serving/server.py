"""`meshflow serve`: a saved model behind HTTP, in this process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from meshflow.environment import extras
from meshflow.serving.application import application
from meshflow.serving.versions import Settings

__all__ = ["serve"]


def serve(
    folder: Any = None,
    name: str = "model",
    port: int = 8501,
    host: str = "127.0.0.1",
    settings: Settings | None = None,
    grpc_port: int | None = None,
    config_file: Any = None,
) -> None:
    """Serves saved models by TensorFlow Serving's REST protocol, until the process is told to end.

    Args:
      folder: a saved model, or a folder of its versions, whose names are numbers.
      name: the model's, in addresses: /v1/models/NAME:predict.
      port: the port; 0 for a free one, which is printed.
      host: the address that is listened on: this machine only, unless told otherwise. Nobody is asked who they are.
      settings: a `Settings`.
      grpc_port: the port where gRPC is answered too (PredictionService and ModelService); 0 for a free one, which
        is printed; None for none.
      config_file: in place of a folder: a file that lists models; see `application`.

    Raises:
      FileNotFoundError: when there is no such folder or file.
      InvalidArgumentError: for a file that does not list models.
      ImportError: without the extra `serving`.
    """
    if folder is not None and not Path(folder).is_dir():
        raise FileNotFoundError(f"meshflow serve: there is no folder {folder}.")
    if config_file is not None and not Path(config_file).is_file():
        raise FileNotFoundError(f"meshflow serve: there is no file {config_file}.")
    uvicorn = extras.load("uvicorn", "serving", "Serving needs the packages starlette and uvicorn")
    logging.getLogger("meshflow").setLevel(logging.INFO)
    grpc = None if grpc_port is None else (host, grpc_port)
    what = name if config_file is None else f"the models of {config_file}"
    say = lambda port: print(f"Serving {what} by gRPC at {host}:{port}", flush=True)
    made = application(name, folder, settings, grpc, say, config_file)
    config = uvicorn.Config(made, host=host, port=port, log_level="warning", lifespan="on")
    path = "" if config_file is not None else f"/{name}"
    server = _server(uvicorn, what, path)(config)
    server.run()


def _server(uvicorn: Any, what: str, path: str) -> Any:
    class Server(uvicorn.Server):
        """Says where it listens, when it does."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            for server in self.servers:
                for socket in server.sockets:
                    host, port = socket.getsockname()[:2]
                    print(f"Serving {what} at http://{host}:{port}/v1/models{path}", flush=True)

    return Server
