"""ONNX files run by ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment import extras

__all__ = ["Session", "providers_for", "runtime"]

_log = logging.getLogger("meshflow")


def runtime(part: str = "") -> Any:
    """ONNX Runtime, or a module of it.

    Raises:
      ImportError: without the extra `onnx`.
    """
    return extras.load(f"onnxruntime{part}", "onnx", "Running ONNX files needs the package onnxruntime")  # fmt: skip


def providers_for(options: Mapping[str, Any] | None) -> list[Any]:
    """Where a model is run: by TensorRT if it is there, else on the GPU, else on the CPU, which is said.

    Args:
      options: TensorRT's, or None when it is not asked for.
    """
    there = runtime().get_available_providers()
    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    found: list[Any] = [p for p in wanted if p in there]
    if options is None:
        return found
    if "TensorrtExecutionProvider" in there:
        return [("TensorrtExecutionProvider", dict(options)), *found]
    instead = found[0].removesuffix("ExecutionProvider")
    _log.warning(
        "TensorRT is not there: ONNX Runtime has %s. The model is run by %s; for TensorRT install the packages "
        "onnxruntime-gpu and tensorrt on a machine with an NVIDIA GPU.",
        ", ".join(there),
        instead,
    )
    return found


class Session:
    """An ONNX file as a function of tensors by name.

    Args:
      model: its content, or a path.
      providers: of `providers_for`.
      profile: a prefix of the file that times of nodes are written to.

    Attributes:
      structured_input_signature: ((), specs by name).
      structured_outputs: specs by name.
      providers: those in use.

    Raises:
      DataLossError: for a file that ONNX Runtime cannot read.
    """

    def __init__(self, model: bytes | str, providers: Sequence[Any], profile: str | None = None) -> None:  # fmt: skip
        module = runtime()
        options = module.SessionOptions()
        # Errors are raised; what it says of files besides is of no use here.
        options.log_severity_level = 3
        if profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, profile
        try:
            self.session = module.InferenceSession(model, options, providers=list(providers))
        except Exception as error:  # of ONNX Runtime's own classes
            what = model if isinstance(model, str) else "The model"
            raise DataLossError(f"{what} cannot be run by ONNX Runtime: {error}") from error
        self.providers = self.session.get_providers()
        self._inputs = {i.name: _spec(i) for i in self.session.get_inputs()}
        self.structured_input_signature = ((), self._inputs)
        self.structured_outputs = {o.name: _spec(o) for o in self.session.get_outputs()}

    def arrays(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Results by name for arrays by name."""
        found = self.session.run(list(self.structured_outputs), dict(feed))
        return dict(zip(self.structured_outputs, found, strict=True))

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Results by name.

        Raises:
          TypeError: when a tensor is missing, unknown, or has another shape.
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
        return {n: convert_to_tensor(a) for n, a in self.arrays(feed).items()}


def _spec(node: Any) -> TensorSpec:
    sizes = [d if isinstance(d, int) else None for d in node.shape]
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    names = {"float": "float32", "double": "float64"}
    return TensorSpec(sizes, names.get(kind, kind), node.name)
