"""Listing of the operators and tensors of a converted model."""

from __future__ import annotations

import os
from typing import Any

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment import optional_packages
from meshflow.environment.types import StrPath


class Analyzer:
    """Printer of the structure of a converted model."""

    @staticmethod
    def analyze(
        model_path: StrPath | None = None,
        model_content: bytes | None = None,
        gpu_compatibility: bool = False,
        **kwargs: Any,
    ) -> None:
        """Print the operators and tensors of a model.

        Args:
          model_path: path of a .tflite file.
          model_content: content of the file, instead of a path.
          gpu_compatibility: whether to report which operators the GPU delegate supports.
          **kwargs: `experimental_use_mlir`: only False.

        Raises:
          ValueError: if neither a path nor a content is passed.
          UnimplementedError: for `experimental_use_mlir=True`, because only TensorFlow's converter
            writes MLIR.
          ImportError: if the extra `lite` is not installed.
        """
        if not model_path and not model_content:
            raise ValueError("neither `model_path` nor `model_content` is provided")
        if kwargs.get("experimental_use_mlir"):
            raise UnimplementedError(
                "Analyzer.analyze(experimental_use_mlir=True): only TensorFlow's converter writes MLIR. "
                "Omit the argument to print the model as text."
            )
        analyzer = optional_packages.import_extra(
            "ai_edge_litert._pywrap_analyzer_wrapper",
            "lite",
            "tf.lite needs LiteRT, the package ai-edge-litert",
        )
        path = os.fspath(model_path) if model_path else None
        print(f"=== {path or 'TFLite ModelAnalyzer'} ===\n")
        print(analyzer.ModelAnalyzer(path or model_content, path is not None, gpu_compatibility))
