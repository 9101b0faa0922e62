"""The ASGI application of served models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from meshflow.environment import extras
from meshflow.serving.metrics import Metrics
from meshflow.serving.versions import Settings

__all__ = ["application"]

_NEEDS = "Serving needs the packages starlette, uvicorn and protobuf"
# Bytes of an answer from which on it is compressed for clients that accept gzip.
_LARGE = 1000


def application(
    name: str = "model",
    folder: Any = None,
    settings: Settings | None = None,
    grpc: tuple[str, int] | None = None,
    started: Callable[[int], None] = lambda port: None,
    config_file: Any = None,
) -> Any:
    """An ASGI application that serves saved models.

    Args:
      name: the model's, in addresses.
      folder: a saved model, or a folder of its versions, whose names are numbers.
      settings: a `Settings`.
      grpc: host and port (0 for a free one) where gRPC is answered too, or None.
      started: called with that port when it is listened on.
      config_file: in place of name and folder: a file of TensorFlow Serving's `ModelServerConfig` as text, which lists
        models, their folders, versions and labels. It is read again when it changes.

    Raises:
      ValueError: unless there is either a folder or a file.
      InvalidArgumentError: for a file that cannot be read as such.
      ImportError: without the extra `serving`.
    """
    applications = extras.load("starlette.applications", "serving", _NEEDS)
    compression = extras.load("starlette.middleware.gzip", "serving", _NEEDS)
    routing = extras.load("starlette.routing", "serving", _NEEDS)
    extras.load("google.protobuf", "serving", _NEEDS)
    if (folder is None) == (config_file is None):
        raise ValueError("Serving takes either a folder or a file that lists models.")
    # They need protobuf, an optional package.
    from meshflow.serving.models import Models  # noqa: PLC0415
    from meshflow.serving.rest import METHODS, Rest  # noqa: PLC0415
    from meshflow.serving.rpc import RpcServer  # noqa: PLC0415

    settings, metrics = settings or Settings(), Metrics()
    if config_file is None:
        models = Models({name: (folder, settings)}, settings=settings)
    else:
        models = Models({}, Path(config_file), settings)
    remote = RpcServer(models, metrics, *grpc) if grpc is not None else None

    @contextlib.asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        await models.refresh()
        watch = asyncio.create_task(models.watch())
        if remote is not None:
            await remote.start()
            started(remote.port)
        yield
        if remote is not None:
            await remote.stop()
        watch.cancel()

    answer = routing.Route("/{path:path}", Rest(models, metrics).answer, methods=METHODS)
    made = applications.Starlette(routes=[answer], lifespan=life)
    # The fastest level: numbers as text become a third or less, and other requests wait for it.
    made.add_middleware(compression.GZipMiddleware, minimum_size=_LARGE, compresslevel=1)
    return made
