"""`Model.export("model.onnx", format="onnx")`: conversion of a model's prediction to an ONNX file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from meshflow._version import __version__
from meshflow.deployment.deployable_function import DeployableFunction, trace_source
from meshflow.environment.types import StrPath
from meshflow.files.atomic_writes import replace_file

# These modules register the lowering rules.
from meshflow.onnx import array_ops, elementwise, loops, products  # noqa: F401
from meshflow.onnx.loops import make_value_info
from meshflow.onnx.lowering import OPSET, ModelState, OnnxLowering, OnnxTensor, load_onnx

# Older opsets take axes and shapes as attributes of many operators.
_MIN_OPSET = 13
_MAX_BYTES = 1 << 31


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
      >>> scaled = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None, 3], name="x")])
      >>> meshflow.onnx.export(scaled, "scaled.onnx")  # doctest: +SKIP
    """
    content = convert_to_onnx(
        trace_source(source, signature), OPSET if opset_version is None else opset_version
    )
    with replace_file(filepath) as file:
        file.write(content)


def convert_to_onnx(signature: DeployableFunction, opset: int = OPSET) -> bytes:
    """Return the content of an ONNX file.

    Args:
      signature: the function to convert.
      opset: version of ONNX's operators.

    Raises:
      UnimplementedError: if an operation cannot be converted.
      ValueError: if the version is not supported, or the weights have 2 GiB or more.
    """
    helper, numpy_helper = load_onnx(".helper"), load_onnx(".numpy_helper")
    newest = load_onnx(".defs").onnx_opset_version()
    if isinstance(opset, bool) or not isinstance(opset, int) or not _MIN_OPSET <= opset <= newest:
        raise ValueError(
            f"Model.export: opset_version is an integer from {_MIN_OPSET} to {newest}, the newest of the package onnx "
            f"that is installed; got {opset!r}."
        )
    names = ModelState(opset)
    model_inputs = []
    for name, value in zip(signature.inputs, signature.program.inputs, strict=True):
        model_inputs.append(OnnxTensor(name, value.shape, _get_input_dtype(value.dtype)))
    names.inputs = model_inputs
    lowering = OnnxLowering(names)
    inputs = [lowering.cast(t, t.dtype) for t in model_inputs]
    results = []
    tensors = lowering.lower_program(signature.program, inputs)
    for name, value, tensor in zip(
        signature.outputs, signature.program.outputs, tensors, strict=True
    ):
        dtype = np.dtype(np.float16) if value.dtype == np.float16 else tensor.dtype
        output = OnnxTensor(name if name not in signature.inputs else f"{name}_output", tensor.shape, dtype)  # fmt: skip
        lowering.add("Cast", [tensor], [output], to=helper.np_dtype_to_tensor_dtype(dtype))
        results.append(output)
    results = [results[i] for i in signature.order or range(len(results))]
    nodes = _remove_unused_nodes(lowering.nodes, {t.name for t in results})
    used_names = _collect_input_names(nodes)
    initializers = [t for t in names.constants if t.name in used_names]
    size = sum(t.data.nbytes for t in initializers if t.data is not None)
    if size >= _MAX_BYTES:
        raise ValueError(
            f"The model has {size / 1e9:.1f} GB of constants; an ONNX file has at most 2 GB."
        )
    constants = [numpy_helper.from_array(np.asarray(t.data), t.name) for t in initializers]
    graph = helper.make_graph(
        nodes, signature.name, [make_value_info(t) for t in model_inputs], [make_value_info(t) for t in results], constants
    )  # fmt: skip
    versions = [helper.make_opsetid("", opset)]
    model = helper.make_model(
        graph, opset_imports=versions, ir_version=helper.find_min_ir_version_for(versions),
        producer_name="Meshflow", producer_version=__version__,
    )  # fmt: skip
    load_onnx(".checker").check_model(model)
    return bytes(model.SerializeToString())


def _collect_input_names(nodes: Iterable[Any]) -> set[str]:
    """Return the names that nodes and their nested graphs read."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names |= _collect_input_names(attribute.g.node) | {
                    o.name for o in attribute.g.output
                }
    return names


def _remove_unused_nodes(nodes: list[Any], required: set[str]) -> list[Any]:
    """Return the nodes on which results depend."""
    used = []
    for node in reversed(nodes):
        if required.intersection(node.output):
            used.append(node)
            required |= _collect_input_names([node])
    return used[::-1]


def _get_input_dtype(dtype: DTypeLike) -> np.dtype:
    """Return the dtype of an input; bfloat16, which NumPy lacks, becomes float32."""
    return np.dtype(np.float32) if np.dtype(dtype).name == "bfloat16" else np.dtype(dtype)
