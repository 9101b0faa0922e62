"""`tf.lite.experimental`: what is in a converted model, LiteRT's delegates, and its operators' times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from meshflow.environment import extras
from meshflow.lite import authoring
from meshflow.lite.interpreter import interpreter_module
from meshflow.profiler.deployed import DeployedProfile, profile_model

__all__ = ["Analyzer", "authoring", "load_delegate", "profile"]


class Analyzer:
    """Shows what a converted model is made of."""

    @staticmethod
    def analyze(
        model_path: Any = None, model_content: bytes | None = None, gpu_compatibility: bool = False
    ) -> None:
        """Prints the operators and tensors of a model.

        Args:
          model_path: a .tflite file.
          model_content: its content, in place of the file.
          gpu_compatibility: whether to say which operators GPUs' delegate has.

        Raises:
          ValueError: when neither or both are given.
          ImportError: without the extra `lite`.
        """
        if (model_path is None) == (model_content is None):
            raise ValueError("Analyzer.analyze needs either model_path or model_content.")
        analyzer = extras.load(
            "ai_edge_litert._pywrap_analyzer_wrapper",
            "lite",
            "tf.lite needs LiteRT, the package ai-edge-litert",
        )
        given = model_content if model_path is None else os.fspath(model_path)
        print(analyzer.ModelAnalyzer(given, model_path is not None, gpu_compatibility))


def profile(
    model_path: Any, inputs: Mapping[str, Any] | None = None, runs: int = 50, batch: int = 1
) -> DeployedProfile:
    """The times of a .tflite file's operators; see `tf.profiler.profile_model`.

    Args:
      model_path: the file.
      inputs: arrays by the names of inputs; default zeros.
      runs: how often it is run after the first call.
      batch: rows of zeros, where the model leaves their number open.

    Raises:
      ImportError: without the extra `lite`.
    """
    return profile_model(model_path, inputs, runs, batch)


def load_delegate(library: str, options: Any = None) -> object:
    """A delegate of LiteRT, which runs some operators on other devices.

    Args:
      library: path of its library.
      options: its options.

    Raises:
      ImportError: without the extra `lite`.
    """
    return interpreter_module().load_delegate(library, options)


def __getattr__(name: str) -> Any:
    """LiteRT's enumeration, loaded when it is first used."""
    if name == "OpResolverType":
        return interpreter_module().OpResolverType
    raise AttributeError(f"module 'meshflow.lite.experimental' has no attribute {name!r}")
