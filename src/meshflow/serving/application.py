"""ASGI application of the model server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from meshflow.environment import extras
from meshflow.environment.types import StrPath
from meshflow.serving.metrics import Metrics
from meshflow.serving.versions import Settings

__all__ = ["application"]

_NEEDS = "Serving needs the packages starlette, uvicorn and protobuf"
# Responses of at least this many bytes are compressed for clients that accept gzip.
_LARGE = 1000


def application(
    name: str = "model",
    folder: Any = None,
    settings: Settings | None = None,
    grpc: tuple[str, int] | None = None,
    started: Callable[[int], None] = lambda port: None,
    config_file: StrPath | None = None,
) -> Any:
    """Create an ASGI application that serves saved models.

    Args:
      name: Name of the model in URLs.
      folder: A saved model, or a folder with one saved model per version, named by its number.
      settings: Serving settings.
      grpc: Host and port (0 selects a free one) of the gRPC server, or None.
      started: Function that receives the port when the gRPC server listens.
      config_file: Instead of name and folder: file with a text-format `ModelServerConfig` of
        TensorFlow Serving, which lists models, their folders, versions and labels. The file is
        reloaded when it changes.

    Raises:
      ValueError: Not exactly one of `folder` and `config_file` is given.
      InvalidArgumentError: The file is invalid.
      ImportError: The extra `serving` is not installed.
    """
    applications = extras.load("starlette.applications", "serving", _NEEDS)
    compression = extras.load("starlette.middleware.gzip", "serving", _NEEDS)
    routing = extras.load("starlette.routing", "serving", _NEEDS)
    extras.load("google.protobuf", "serving", _NEEDS)
    if (folder is None) == (config_file is None):
        raise ValueError("Serving requires either a folder or a file that lists models.")
    # These modules need protobuf, an optional package.
    from meshflow.serving.models import Models  # noqa: PLC0415
    from meshflow.serving.rest import METHODS, Rest  # noqa: PLC0415
    from meshflow.serving.rpc import RpcServer  # noqa: PLC0415

    settings, metrics = settings or Settings(), Metrics()
    if config_file is None:
        models = Models({name: (folder, settings)}, settings=settings)
    else:
        models = Models({}, Path(config_file), settings)
    rpc_server = RpcServer(models, metrics, *grpc) if grpc is not None else None

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await models.refresh()
        watch = asyncio.create_task(models.watch())
        if rpc_server is not None:
            await rpc_server.start()
            started(rpc_server.port)
        yield
        if rpc_server is not None:
            await rpc_server.stop()
        watch.cancel()

    answer = routing.Route("/{path:path}", Rest(models, metrics).answer, methods=METHODS)
    app = applications.Starlette(routes=[answer], lifespan=lifespan)
    # Level 1 shrinks numbers in JSON to a third; a higher level would delay other requests.
    app.add_middleware(compression.GZipMiddleware, minimum_size=_LARGE, compresslevel=1)
    return app
