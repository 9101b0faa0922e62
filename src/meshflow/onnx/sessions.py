"""Execution of ONNX files by ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment import optional_packages

_log = logging.getLogger("meshflow")


def load_runtime(part: str = "") -> Any:
    """Import ONNX Runtime or a module of it.

    Raises:
      ImportError: if the extra `onnx` is not installed.
    """
    return optional_packages.import_extra(f"onnxruntime{part}", "onnx", "Running ONNX files needs the package onnxruntime")  # fmt: skip


def choose_providers(options: Mapping[str, Any] | None) -> list[Any]:
    """Choose TensorRT if requested and available, else the GPU, else the CPU; log a fallback.

    Args:
      options: options of TensorRT, or None if it is not requested.
    """
    available = load_runtime().get_available_providers()
    preferred = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    providers: list[Any] = [p for p in preferred if p in available]
    if options is None:
        return providers
    if "TensorrtExecutionProvider" in available:
        return [("TensorrtExecutionProvider", dict(options)), *providers]
    fallback = providers[0].removesuffix("ExecutionProvider")
    _log.warning(
        "TensorRT is not available: ONNX Runtime has %s. %s runs the model. For TensorRT, install the packages "
        "onnxruntime-gpu and tensorrt on a machine with an NVIDIA GPU.",
        ", ".join(available),
        fallback,
    )
    return providers


class OnnxSession:
    """ONNX file as a function of named tensors.

    Args:
      model: content or path of the file.
      providers: result of `choose_providers`.
      profile: prefix of the file to which the times of nodes are written.

    Attributes:
      structured_input_signature: ((), specs by name).
      structured_outputs: specs by name.
      providers: providers in use.

    Raises:
      DataLossError: if ONNX Runtime cannot read the file.
    """

    def __init__(self, model: bytes | str, providers: Sequence[Any], profile: str | None = None) -> None:  # fmt: skip
        module = load_runtime()
        options = module.SessionOptions()
        # Errors are raised, and the other messages of ONNX Runtime would not help a user.
        options.log_severity_level = 3
        if profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, profile
        try:
            self.session = module.InferenceSession(model, options, providers=list(providers))
        except Exception as error:  # ONNX Runtime raises its own classes.
            source = model if isinstance(model, str) else "The model"
            raise DataLossError(f"{source} cannot be run by ONNX Runtime: {error}") from error
        self.providers = self.session.get_providers()
        self._inputs = {i.name: _make_spec(i) for i in self.session.get_inputs()}
        self.structured_input_signature = ((), self._inputs)
        self.structured_outputs = {o.name: _make_spec(o) for o in self.session.get_outputs()}

    def run_arrays(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the model on arrays by name, and return arrays by name."""
        results = self.session.run(list(self.structured_outputs), dict(feed))
        return dict(zip(self.structured_outputs, results, strict=True))

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Run the model on tensors by position or name, and return tensors by name.

        Raises:
          TypeError: if a tensor is missing, unknown, or of another shape.
        """
        if args and len(args) <= len(self._inputs):
            kwargs = {**dict(zip(self._inputs, args, strict=False)), **kwargs}
        if set(kwargs) != set(self._inputs):
            raise TypeError(f"Expected the tensors {sorted(self._inputs)}, got {sorted(kwargs)}.")
        feed = {}
        for name, spec in self._inputs.items():
            array = np.asarray(kwargs[name]).astype(spec.dtype.dtype)
            if not spec.shape.is_compatible_with(array.shape):
                raise TypeError(f"Input {name} has shape {list(array.shape)}, expected {spec}.")
            feed[name] = array
        return {n: convert_to_tensor(a) for n, a in self.run_arrays(feed).items()}


def _make_spec(node: Any) -> TensorSpec:
    sizes = [d if isinstance(d, int) else None for d in node.shape]
    dtype_name = node.type.removeprefix("tensor(").removesuffix(")")
    names = {"float": "float32", "double": "float64"}
    return TensorSpec(sizes, names.get(dtype_name, dtype_name), node.name)
