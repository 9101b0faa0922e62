"""`meshflow convert`: a saved model as a file for LiteRT or ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshflow import lite, onnx
from meshflow.core.runtime.errors import OpError
from meshflow.core.values.dtypes import float16
from meshflow.files.replacing import replacing

__all__ = ["convert"]

_SUFFIXES = (".onnx", ".tflite")


def convert(
    source: Annotated[
        str, typer.Argument(help="A saved model's folder, of Meshflow or TensorFlow, or a model's file (.keras, .h5).")
    ],
    target: Annotated[str, typer.Argument(help="The file to write: .tflite or .onnx.")],
    signature: Annotated[
        str, typer.Option(help="Which signature of a saved model.")
    ] = "serving_default",
    weights: Annotated[
        str, typer.Option(help="What a .tflite file keeps its weights in: float32, float16 or int8.")
    ] = "float32",
    opset: Annotated[
        int | None, typer.Option(help="The version of the operators of an .onnx file, from 13; by default 18.")
    ] = None,
) -> None:  # fmt: skip
    """Write a saved model as a .tflite or .onnx file, for any batch size."""
    if not target.endswith(_SUFFIXES):
        raise typer.BadParameter(f"{target} ends in none of {', '.join(_SUFFIXES)}")
    if weights not in ("float32", "float16", "int8"):
        raise typer.BadParameter(f"--weights is float32, float16 or int8, not {weights!r}")
    if target.endswith(".onnx") and weights != "float32":
        raise typer.BadParameter("--weights is for .tflite files")
    if opset is not None and not target.endswith(".onnx"):
        raise typer.BadParameter("--opset is for .onnx files")
    try:
        if target.endswith(".onnx"):
            onnx.export(source, target, signature, opset)
        else:
            converter = lite.TFLiteConverter.from_saved_model(source, [signature])
            if weights != "float32":
                converter.optimizations = [lite.Optimize.DEFAULT]
            if weights == "float16":
                converter.target_spec.supported_types = [float16]
            content = converter.convert()
            with replacing(target) as file:
                file.write(content)
    except (OpError, ImportError, OSError, ValueError) as error:
        sys.exit(str(error))
    print(f"{target}: {Path(target).stat().st_size:,} bytes")
