"""`tf.lite.experimental`: model analysis, quantization debugging, delegates and profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.core.runtime.unavailable_names import raise_if_unavailable
from meshflow.environment.types import StrPath
from meshflow.lite import authoring
from meshflow.lite.analyzer import Analyzer
from meshflow.lite.debugger import QuantizationDebugger, QuantizationDebugOptions
from meshflow.lite.interpreter import load_interpreter_module
from meshflow.profiler.deployed_models import DeployedProfile, profile_model

__all__ = [
    "Analyzer", "QuantizationDebugOptions", "QuantizationDebugger", "authoring",
    "load_delegate", "profile",
]  # fmt: skip


def profile(
    model_path: StrPath, inputs: Mapping[str, Any] | None = None, runs: int = 50, batch: int = 1
) -> DeployedProfile:
    """Measure the times of a model's operators, as `tf.profiler.profile_model` does.

    Args:
      model_path: path of a .tflite file.
      inputs: arrays by names of inputs; default zeros.
      runs: number of runs after the first call.
      batch: batch size of the zeros if the model does not fix it.

    Raises:
      ImportError: if the extra `lite` is not installed.
    """
    return profile_model(model_path, inputs, runs, batch)


def load_delegate(library: str, options: Mapping[str, Any] | None = None) -> object:
    """Load a delegate of LiteRT, which runs operators on another device.

    Args:
      library: path of the delegate's shared library.
      options: options of the delegate.

    Raises:
      ImportError: if the extra `lite` is not installed.
    """
    return load_interpreter_module().load_delegate(library, options)


def __getattr__(name: str) -> Any:
    """Import LiteRT's enumeration when it is first used."""
    if name == "OpResolverType":
        return load_interpreter_module().OpResolverType
    raise_if_unavailable(name, "tf.compat.v1.lite.experimental")
    raise AttributeError(f"module 'meshflow.lite.experimental' has no attribute {name!r}")
