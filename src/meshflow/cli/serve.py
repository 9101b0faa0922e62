"""`meshflow serve`: a saved model behind HTTP and gRPC."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from meshflow.core.runtime.errors import OpError
from meshflow.serving import Settings
from meshflow.serving import serve as serve_folder

__all__ = ["serve"]


def serve(
    folder: Annotated[
        str, typer.Argument(help="A saved model, or a folder with one in each of its versions.")
    ] = "",
    name: Annotated[str, typer.Option(help="The model's name in addresses.")] = "model",
    port: Annotated[int, typer.Option(help="The port; 0 for a free one.")] = 8501,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than this machine only if told.")
    ] = "127.0.0.1",
    max_batch: Annotated[
        int,
        typer.Option(
            help="The greatest number of rows of a call for several requests; 1 for no batching."
        ),
    ] = 32,
    batch_wait: Annotated[
        float, typer.Option(help="Milliseconds that a call waits for more rows.")
    ] = 0.0,
    warm_up: Annotated[
        bool, typer.Option(help="Compile a version for all batch sizes before it is asked.")
    ] = True,
    keep: Annotated[int, typer.Option(help="How many of the newest versions; 0 for all.")] = 1,
    poll: Annotated[
        float, typer.Option(help="Seconds after which the folder is looked at again.")
    ] = 1.0,
    grpc_port: Annotated[
        int, typer.Option(help="The port for gRPC; 0 for a free one, -1 for none.")
    ] = -1,
    label: Annotated[
        list[str] | None, typer.Option(help="A label of a version, as stable=3.", metavar="L=N")
    ] = None,
    model_config_file: Annotated[
        str,
        typer.Option(
            help="In place of a folder: a file that lists models, as TensorFlow Serving's; read again when it changes."
        ),
    ] = "",
    max_request: Annotated[int, typer.Option(help="The greatest size of a request, in MiB.")] = 256,
) -> None:
    """Serve saved models by TensorFlow Serving's REST protocol, and by its gRPC services with --grpc-port."""
    try:
        labels = {key: int(number) for key, number in (item.split("=") for item in label or [])}
    except ValueError:
        raise typer.BadParameter(f"labels are given as stable=3, got {label}") from None
    if bool(folder) == bool(model_config_file):
        raise typer.BadParameter("give either a folder or --model-config-file")
    settings = Settings(
        max_batch, batch_wait / 1000, warm_up, keep, poll, labels, most_bytes=max_request << 20
    )
    remote = None if grpc_port < 0 else grpc_port
    try:
        serve_folder(folder or None, name, port, host, settings, remote, model_config_file or None)
    except (ImportError, OSError, OpError) as error:
        sys.exit(str(error))
