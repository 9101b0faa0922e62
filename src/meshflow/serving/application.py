"""ASGI application of the model server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from meshflow.environment import optional_packages
from meshflow.environment.types import StrPath
from meshflow.serving.codec_pool import CodecPool
from meshflow.serving.limits import ByteBudget
from meshflow.serving.metrics import Metrics
from meshflow.serving.versions import Settings

_REQUIREMENT = "Serving needs the packages starlette, uvicorn and protobuf"
# Processes that parse large requests and format large responses.
_NUM_CODECS = 2


def application(
    name: str = "model",
    folder: Any = None,
    settings: Settings | None = None,
    grpc: tuple[str, int] | None = None,
    started: Callable[[int], None] = lambda port: None,
    config_file: StrPath | None = None,
    metrics: Metrics | None = None,
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
      metrics: Counter of requests; by default a new one.

    Raises:
      ValueError: Not exactly one of `folder` and `config_file` is given.
      InvalidArgumentError: The file is invalid.
      ImportError: The extra `serving` is not installed.
    """
    applications = optional_packages.import_extra("starlette.applications", "serving", _REQUIREMENT)
    routing = optional_packages.import_extra("starlette.routing", "serving", _REQUIREMENT)
    optional_packages.import_extra("google.protobuf", "serving", _REQUIREMENT)
    if (folder is None) == (config_file is None):
        raise ValueError("Serving requires either a folder or a file that lists models.")
    # These modules need protobuf, an optional package.
    from meshflow.serving.models import Models  # noqa: PLC0415
    from meshflow.serving.rest import METHODS, RestApi  # noqa: PLC0415
    from meshflow.serving.rpc import RpcServer  # noqa: PLC0415

    settings, metrics = settings or Settings(), metrics or Metrics()
    if config_file is None:
        models = Models({name: (folder, settings)}, settings=settings)
    else:
        models = Models({}, Path(config_file), settings)
    pool = CodecPool(_NUM_CODECS, settings.deadline, settings.most_bytes)
    budget = ByteBudget(settings.most_bytes_in_flight)
    rest_api = RestApi(models, metrics, pool, budget)
    rpc_server = None if grpc is None else RpcServer(models, metrics, pool, budget, *grpc)

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        if settings.warm_up:
            pool.start()
        await models.refresh()
        watch = asyncio.create_task(models.watch())
        if rpc_server is not None:
            await rpc_server.start()
            started(rpc_server.port)
        yield
        if rpc_server is not None:
            await rpc_server.stop()
        watch.cancel()
        pool.close()

    route = routing.Route("/{path:path}", rest_api, methods=METHODS)
    return applications.Starlette(routes=[route], lifespan=lifespan)
