"""`meshflow serve`: serve saved models over HTTP and gRPC."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from meshflow.core.runtime.errors import OpError
from meshflow.serving import Settings
from meshflow.serving import serve as serve_folder


def serve(
    folder: Annotated[
        str, typer.Argument(help="SavedModel, or folder with one SavedModel per version.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the model in URLs.")] = "model",
    port: Annotated[int, typer.Option(help="HTTP port; 0 selects a free port.")] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to listen on. By default, only this machine can connect.")
    ] = "127.0.0.1",
    max_batch: Annotated[
        int,
        typer.Option(
            help="Maximum number of rows of a call that answers several requests; 1: no batching."
        ),
    ] = 32,
    batch_wait: Annotated[
        float, typer.Option(help="Milliseconds that a call waits for more rows.")
    ] = 0.0,
    warm_up: Annotated[
        bool, typer.Option(help="Compile a version for all batch sizes before it gets requests.")
    ] = True,
    keep: Annotated[int, typer.Option(help="Number of newest versions to serve; 0: all.")] = 1,
    poll: Annotated[
        float, typer.Option(help="Seconds between checks of the folder for new versions.")
    ] = 1.0,
    grpc_port: Annotated[
        int, typer.Option(help="gRPC port; 0 selects a free port, -1 disables gRPC.")
    ] = -1,
    label: Annotated[
        list[str] | None, typer.Option(help="Label of a version, as stable=3.", metavar="L=N")
    ] = None,
    model_config_file: Annotated[
        str,
        typer.Option(
            help="Instead of a folder: a TensorFlow Serving file that lists models; it is reloaded when it changes."
        ),
    ] = "",
    max_request: Annotated[int, typer.Option(help="Maximum size of a request, in MiB.")] = 64,
    max_in_flight: Annotated[
        int, typer.Option(help="Maximum size of all requests and responses together, in MiB.")
    ] = 256,
    max_connections: Annotated[int, typer.Option(help="Maximum number of HTTP connections.")] = 512,
    deadline: Annotated[
        float, typer.Option(help="Seconds after which a request fails with status 504.")
    ] = 60.0,
    grace: Annotated[
        float, typer.Option(help="Seconds within which the server ends after SIGTERM.")
    ] = 20.0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of this server that clients may use in Host and Origin; * in Host: all.",
            metavar="NAME",
        ),
    ] = None,
) -> None:
    """Serve saved models over TensorFlow Serving's REST API, and over gRPC with --grpc-port."""
    try:
        labels = {key: int(version) for key, version in (item.split("=") for item in label or [])}
    except ValueError:
        raise typer.BadParameter(f"--label expects values such as stable=3, got {label}") from None
    if bool(folder) == bool(model_config_file):
        raise typer.BadParameter("expected either a folder or --model-config-file")
    settings = Settings(
        max_batch, batch_wait / 1000, warm_up, keep, poll, labels, most_bytes=max_request << 20,
        most_bytes_in_flight=max_in_flight << 20, deadline=deadline, hosts=allow_host or None,
    )  # fmt: skip
    remote = None if grpc_port < 0 else grpc_port
    try:
        serve_folder(
            folder or None, name, port, host, settings, remote, model_config_file or None,
            max_connections, grace,
        )  # fmt: skip
    except (ImportError, OSError, OpError) as error:
        sys.exit(str(error))
