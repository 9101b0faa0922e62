"""`meshflow convert`: export a saved model to LiteRT or ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshflow import lite, onnx
from meshflow.core.runtime.errors import OpError
from meshflow.core.values.dtypes import float16
from meshflow.files.atomic_writes import replace_file

_SUFFIXES = (".onnx", ".tflite")


def convert(
    source: Annotated[
        str, typer.Argument(help="SavedModel folder (Meshflow or TensorFlow), or model file (.keras, .h5).")
    ],
    target: Annotated[str, typer.Argument(help="File to write: .tflite or .onnx.")],
    signature: Annotated[
        str, typer.Option(help="Signature of the SavedModel to export.")
    ] = "serving_default",
    weights: Annotated[
        str, typer.Option(help="Precision of the weights in a .tflite file: float32, float16 or int8.")
    ] = "float32",
    opset: Annotated[
        int | None, typer.Option(help="Opset version of an .onnx file, at least 13. Default: 18.")
    ] = None,
) -> None:  # fmt: skip
    """Convert a saved model to a .tflite or .onnx file that accepts any batch size."""
    if not target.endswith(_SUFFIXES):
        raise typer.BadParameter(f"{target} must end in {' or '.join(_SUFFIXES)}")
    if weights not in ("float32", "float16", "int8"):
        raise typer.BadParameter(f"--weights must be float32, float16 or int8, not {weights!r}")
    if target.endswith(".onnx") and weights != "float32":
        raise typer.BadParameter("--weights applies to .tflite files only")
    if opset is not None and not target.endswith(".onnx"):
        raise typer.BadParameter("--opset applies to .onnx files only")
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
            with replace_file(target) as file:
                file.write(content)
    except (OpError, ImportError, OSError, ValueError) as error:
        sys.exit(str(error))
    print(f"{target}: {Path(target).stat().st_size:,} bytes")
