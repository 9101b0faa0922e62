"""`Model.export`: what a model predicts, in the files of the programs that will run it."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow import lite, onnx, saved_model
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.files.paths import text
from meshflow.files.replacing import replacing
from meshflow.keras.engine.saving import serving_signatures
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor

__all__ = ["export", "specs_of_signature"]


def export(
    model: Any,
    filepath: Any,
    format: str = "tf_saved_model",
    verbose: bool | None = None,
    input_signature: Any = None,
    **kwargs: Any,
) -> None:
    """Writes what a model predicts; see `Model.export`."""
    write = _FORMATS.get(format)
    if write is None:
        raise ValueError(
            f"Model.export: format must be one of {', '.join(map(repr, _FORMATS))}, got {format!r}."
        )
    _refuse_unbuilt(model)
    given = None if input_signature is None else specs_of_signature(input_signature)
    with serving_signatures.exported(model, given):
        write(model, filepath, **kwargs)
    if verbose or verbose is None:
        print(f"Saved artifact at '{text(filepath)}'.")


def _refuse_unbuilt(model: Any) -> None:
    if serving_signatures.call_specs(model) is not None:
        return
    graph = hasattr(model, "layers") and model.__dict__.get("_stack") is not None
    wanted = "built (or called)" if graph else "called on data"
    raise ValueError(
        f"The model {model.name!r} cannot be exported yet. It must be {wanted} first: what it takes is not known."
    )


def specs_of_signature(signature: Any) -> tuple[Any, ...]:
    """The specs of positional arguments that an input signature of Keras 3 means.

    Args:
      signature: a list with an entry for each, or one that is no list.

    Raises:
      TypeError: for what describes no tensor.
      ValueError: for an `InputSpec` without a shape.
    """
    wrapped = signature if isinstance(signature, (list, tuple)) else [signature]
    return tuple(nest.map_structure(_spec, entry) for entry in wrapped)


def _spec(x: Any) -> TensorSpec:
    if isinstance(x, TensorSpec):
        return x
    if isinstance(x, InputSpec):
        if x.shape is None:
            raise ValueError(f"an InputSpec in `input_signature` needs a shape: {x!r}.")
        return TensorSpec(x.shape, x.dtype or "float32", x.name)
    if isinstance(x, KerasTensor):
        return TensorSpec(x.shape, x.dtype, x.name)
    if isinstance(x, (Tensor, Variable, np.ndarray)):
        return TensorSpec(x.shape, x.dtype)
    raise TypeError(
        f"Unsupported x={x!r} (of type {type(x).__name__}) in `input_signature`: expected "
        "`tf.TensorSpec`, `keras.InputSpec`, `keras.Input`, or a tensor."
    )


def _write_saved_model(model: Any, filepath: Any, **kwargs: Any) -> None:
    # Those of Keras on JAX say how JAX's functions become TensorFlow's; here they are written as they are.
    unknown = sorted(set(kwargs) - {"jax2tf_kwargs", "is_static", "options"})
    if unknown:
        raise TypeError(f"Model.export: unknown arguments for a SavedModel: {', '.join(unknown)}.")
    saved_model.save(model, filepath, options=kwargs.get("options"))


def _write_onnx(model: Any, filepath: Any, opset_version: int | None = None, **kwargs: Any) -> None:
    if kwargs:
        raise TypeError(f"Model.export: unknown arguments for ONNX: {', '.join(sorted(kwargs))}.")
    onnx.export(model, filepath, opset_version=opset_version)


def _write_litert(model: Any, filepath: Any, **kwargs: Any) -> None:
    path = text(filepath)
    if not path.endswith(".tflite"):
        raise ValueError(
            f"Model.export: a file for LiteRT has a name that ends with '.tflite', got {path!r}."
        )
    converter = lite.TFLiteConverter.from_keras_model(model)
    target = kwargs.pop("target_spec", {})
    if not isinstance(target, dict):
        converter.target_spec, target = target, {}
    for owner, settings, what in (
        (converter, kwargs, "converter"),
        (converter.target_spec, target, "target_spec"),
    ):
        for name, value in settings.items():
            if not hasattr(owner, name):
                raise ValueError(
                    f"Model.export: unknown {what} attribute {name!r}: see `tf.lite.TFLiteConverter`."
                )
            setattr(owner, name, value)
    content = converter.convert()
    with replacing(path) as file:
        file.write(content)


_FORMATS = {
    "tf_saved_model": _write_saved_model,
    "onnx": _write_onnx,
    "litert": _write_litert,
}
