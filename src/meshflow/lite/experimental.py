"""`tf.lite.experimental`: what is in a converted model, LiteRT's delegates, and its operators' times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.lite import authoring
from meshflow.lite.analyzing import Analyzer
from meshflow.lite.debugging import QuantizationDebugger, QuantizationDebugOptions
from meshflow.lite.interpreter import interpreter_module
from meshflow.profiler.deployed import DeployedProfile, profile_model

__all__ = [
    "Analyzer",
    "QuantizationDebugOptions",
    "QuantizationDebugger",
    "authoring",
    "load_delegate",
    "profile",
]


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
