"""`Model.export`: a model's prediction as a SavedModel, an ONNX file, or a LiteRT file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meshflow import lite, onnx, saved_model
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree, StrPath
from meshflow.files.atomic_writes import replace_file
from meshflow.files.paths import to_path_string
from meshflow.keras.engine.saving import serving_signatures
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor

if TYPE_CHECKING:
    from collections.abc import Callable


def export_model(
    model: Any,
    filepath: StrPath,
    format: Literal["tf_saved_model", "onnx", "litert"] = "tf_saved_model",
    verbose: bool | None = None,
    input_signature: PyTree = None,
    **kwargs: Any,
) -> None:
    """Write a model's prediction to files.

    Args:
      model: A model that is built, or that was called.
      filepath: A folder, or for ONNX and LiteRT a file.
      format: `"tf_saved_model"`, `"onnx"` or `"litert"`.
      verbose: Whether to print the path. Default: True.
      input_signature: Specs of the model's arguments, as in `Model.export`. Default: those that the
        model was built with.
      **kwargs: Arguments of the format's writer, as in `Model.export`.

    Raises:
      ValueError: if the format is unknown, or the model's inputs are not known.
      TypeError: if the signature or an argument is invalid.
    """
    write: Callable[..., None] | None = _WRITERS.get(format)
    if write is None:
        raise ValueError(
            f"Model.export: format must be one of {', '.join(map(repr, _WRITERS))}, got {format!r}."
        )
    _check_inputs_known(model)
    specs = None if input_signature is None else parse_input_signature(input_signature)
    with serving_signatures.export_scope(model, specs):
        write(model, filepath, **kwargs)
    if verbose or verbose is None:
        print(f"Saved artifact at '{to_path_string(filepath)}'.")


def _check_inputs_known(model: Any) -> None:
    """Raise an error if the specs of a model's inputs are not known."""
    if serving_signatures.find_call_specs(model) is not None:
        return
    graph = hasattr(model, "layers") and model.__dict__.get("_stack") is not None
    requirement = "built (or called)" if graph else "called on data"
    raise ValueError(
        f"The model {model.name!r} cannot be exported yet, because its inputs are not known. It must be {requirement} "
        "first."
    )


def parse_input_signature(signature: PyTree) -> tuple[PyTree, ...]:
    """Convert an input signature, as Keras 3 defines it, to the specs of positional arguments.

    Args:
      signature: A list with an entry for each argument, or the entry of a single argument.

    Raises:
      TypeError: if an entry does not describe a tensor.
      ValueError: if an `InputSpec` has no shape.
    """
    wrapped = signature if isinstance(signature, (list, tuple)) else [signature]
    return tuple(nest.map_structure(_to_spec, entry) for entry in wrapped)


def _to_spec(x: object) -> TensorSpec:
    if isinstance(x, TensorSpec):
        return x
    if isinstance(x, InputSpec):
        if x.shape is None:
            raise ValueError(
                f"Model.export: an InputSpec in `input_signature` needs a shape, got {x!r}. Create it with shape=."
            )
        return TensorSpec(x.shape, x.dtype or "float32", x.name)
    if isinstance(x, KerasTensor):
        return TensorSpec(x.shape, x.dtype, x.name)
    if isinstance(x, (Tensor, Variable, np.ndarray)):
        return TensorSpec(x.shape, x.dtype)
    raise TypeError(
        f"Unsupported x={x!r} (of type {type(x).__name__}) in `input_signature`: expected "
        "`tf.TensorSpec`, `keras.InputSpec`, `keras.Input`, or a tensor."
    )


def _write_saved_model(model: Any, filepath: StrPath, **kwargs: Any) -> None:
    # Keras on JAX uses `jax2tf_kwargs` and `is_static` to convert JAX functions to TensorFlow. No
    # conversion is needed here.
    unknown = sorted(set(kwargs) - {"jax2tf_kwargs", "is_static", "options"})
    if unknown:
        raise TypeError(f"Model.export: unknown arguments for a SavedModel: {', '.join(unknown)}.")
    saved_model.save(model, filepath, options=kwargs.get("options"))


def _write_onnx(
    model: Any, filepath: StrPath, opset_version: int | None = None, **kwargs: Any
) -> None:
    if kwargs:
        raise TypeError(f"Model.export: unknown arguments for ONNX: {', '.join(sorted(kwargs))}.")
    onnx.export(model, filepath, opset_version=opset_version)


def _write_litert(model: Any, filepath: StrPath, **kwargs: Any) -> None:
    path = to_path_string(filepath)
    if not path.endswith(".tflite"):
        raise ValueError(
            f"Model.export: expected a LiteRT file name that ends with '.tflite', got {path!r}."
        )
    converter = lite.TFLiteConverter.from_keras_model(model)
    target = kwargs.pop("target_spec", {})
    if not isinstance(target, dict):
        converter.target_spec, target = target, {}
    for owner, settings, label in (
        (converter, kwargs, "converter"),
        (converter.target_spec, target, "target_spec"),
    ):
        for name, value in settings.items():
            if not hasattr(owner, name):
                raise ValueError(
                    f"Model.export: unknown {label} attribute {name!r}: see `tf.lite.TFLiteConverter`."
                )
            setattr(owner, name, value)
    content = converter.convert()
    with replace_file(path) as file:
        file.write(content)


_WRITERS = {
    "tf_saved_model": _write_saved_model,
    "onnx": _write_onnx,
    "litert": _write_litert,
}
