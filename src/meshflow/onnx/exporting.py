"""`Model.export("model.onnx", format="onnx")`: conversion of a model's prediction to an ONNX file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from meshflow._version import __version__
from meshflow.deployment.programs import Deployable, of_anything
from meshflow.environment.types import StrPath
from meshflow.files.replacing import replacing
from meshflow.onnx import elementwise, loops, products, shaping  # noqa: F401 - they fill the table
from meshflow.onnx.loops import described
from meshflow.onnx.lowering import OPSET, Lowering, Names, Tensor, onnx

__all__ = ["export", "exported"]

# Older opsets take axes and shapes as attributes of many operators.
_OLDEST = 13
_LARGEST = 1 << 31


def export(
    source: Any, filepath: StrPath, signature: str = "serving_default", opset_version: int | None = None
) -> None:  # fmt: skip
    """Convert a model or a function to an ONNX file; unknown sizes remain unknown.

    Args:
      source: a built Keras model, of which the prediction is converted; a concrete function; a
        `tf.function` with an input signature; or the folder of a saved model, written here or in
        TensorFlow.
      filepath: path of the file to write.
      signature: signature of a saved model.
      opset_version: version of ONNX's operators, at least 13; default 18, which ONNX Runtime
        supports
        since 1.14 and TensorRT since 8.6.

    Raises:
      UnimplementedError: if an operation cannot be converted; names its primitive and its layer.
      ValueError: if the model is not built, has 2 GiB of weights or more, has no such signature, or
        if the package onnx does not support the opset version.
      TypeError: if `source` is none of these, or a function without an input signature.
      OSError: if the folder contains no saved model.
      ImportError: if the extra `onnx` is not installed.

    Example:
      >>> import meshflow as tf
      >>> scaled = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None, 3], name="x")])
      >>> meshflow.onnx.export(scaled, "scaled.onnx")  # doctest: +SKIP
    """
    content = exported(
        of_anything(source, signature), OPSET if opset_version is None else opset_version
    )
    with replacing(filepath) as file:
        file.write(content)


def exported(signature: Deployable, opset: int = OPSET) -> bytes:
    """Return the content of an ONNX file.

    Args:
      signature: the function to convert.
      opset: version of ONNX's operators.

    Raises:
      UnimplementedError: if an operation cannot be converted.
      ValueError: if the version is not supported, or the weights have 2 GiB or more.
    """
    helper, numpy_helper = onnx(".helper"), onnx(".numpy_helper")
    newest = onnx(".defs").onnx_opset_version()
    if isinstance(opset, bool) or not isinstance(opset, int) or not _OLDEST <= opset <= newest:
        raise ValueError(
            f"Model.export: opset_version is an integer from {_OLDEST} to {newest}, the newest of the package onnx "
            f"that is installed; got {opset!r}."
        )
    names = Names(opset)
    model_inputs = []
    for name, value in zip(signature.inputs, signature.program.inputs, strict=True):
        model_inputs.append(Tensor(name, value.shape, _at_the_ends(value.dtype)))
    names.inputs = model_inputs
    lowering = Lowering(names)
    inputs = [lowering.cast(t, t.dtype) for t in model_inputs]
    results = []
    tensors = lowering.run(signature.program, inputs)
    for name, value, tensor in zip(
        signature.outputs, signature.program.outputs, tensors, strict=True
    ):
        dtype = np.dtype(np.float16) if value.dtype == np.float16 else tensor.dtype
        output = Tensor(name if name not in signature.inputs else f"{name}_output", tensor.shape, dtype)  # fmt: skip
        lowering.add("Cast", [tensor], [output], to=helper.np_dtype_to_tensor_dtype(dtype))
        results.append(output)
    results = [results[i] for i in signature.order or range(len(results))]
    nodes = _needed(lowering.nodes, {t.name for t in results})
    used_names = _read(nodes)
    initializers = [t for t in names.constants if t.name in used_names]
    size = sum(t.data.nbytes for t in initializers if t.data is not None)
    if size >= _LARGEST:
        raise ValueError(
            f"The model has {size / 1e9:.1f} GB of constants; an ONNX file has at most 2 GB."
        )
    constants = [numpy_helper.from_array(np.asarray(t.data), t.name) for t in initializers]
    graph = helper.make_graph(
        nodes, signature.name, [described(t) for t in model_inputs], [described(t) for t in results], constants
    )  # fmt: skip
    versions = [helper.make_opsetid("", opset)]
    model = helper.make_model(
        graph, opset_imports=versions, ir_version=helper.find_min_ir_version_for(versions),
        producer_name="Meshflow", producer_version=__version__,
    )  # fmt: skip
    onnx(".checker").check_model(model)
    return bytes(model.SerializeToString())


def _read(nodes: Iterable[Any]) -> set[str]:
    """Return the names that nodes and their nested graphs read."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names |= _read(attribute.g.node) | {o.name for o in attribute.g.output}
    return names


def _needed(nodes: list[Any], required: set[str]) -> list[Any]:
    """Return the nodes on which results depend."""
    used = []
    for node in reversed(nodes):
        if required.intersection(node.output):
            used.append(node)
            required |= _read([node])
    return used[::-1]


def _at_the_ends(dtype: DTypeLike) -> np.dtype:
    """Return the dtype of an input; bfloat16, which NumPy lacks, becomes float32."""
    return np.dtype(np.float32) if np.dtype(dtype).name == "bfloat16" else np.dtype(dtype)
