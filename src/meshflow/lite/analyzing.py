"""What a converted model is made of, in words."""

from __future__ import annotations

import os
from typing import Any

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment import extras

__all__ = ["Analyzer"]


class Analyzer:
    """Shows what a converted model is made of."""

    @staticmethod
    def analyze(
        model_path: Any = None,
        model_content: bytes | None = None,
        gpu_compatibility: bool = False,
        **kwargs: Any,
    ) -> None:
        """Prints the operators and tensors of a model.

        Args:
          model_path: a .tflite file.
          model_content: its content, in place of the file.
          gpu_compatibility: whether to say which operators GPUs' delegate has.
          **kwargs: `experimental_use_mlir`: only False.

        Raises:
          ValueError: when neither is given.
          UnimplementedError: when the model is asked for as MLIR, which only TensorFlow's converter writes.
          ImportError: without the extra `lite`.
        """
        if not model_path and not model_content:
            raise ValueError("neither `model_path` nor `model_content` is provided")
        if kwargs.get("experimental_use_mlir"):
            raise UnimplementedError(
                "Analyzer.analyze(experimental_use_mlir=True): MLIR is written by TensorFlow's converter alone; "
                "leave the argument out for the same in words."
            )
        analyzer = extras.load(
            "ai_edge_litert._pywrap_analyzer_wrapper",
            "lite",
            "tf.lite needs LiteRT, the package ai-edge-litert",
        )
        path = os.fspath(model_path) if model_path else None
        print(f"=== {path or 'TFLite ModelAnalyzer'} ===\n")
        print(analyzer.ModelAnalyzer(path or model_content, path is not None, gpu_compatibility))
