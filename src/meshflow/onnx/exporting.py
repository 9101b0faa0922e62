"""`Model.export("model.onnx", format="onnx")`: what a model predicts as an ONNX file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from meshflow._version import __version__
from meshflow.deployment.programs import Deployable, of_anything
from meshflow.files.replacing import replacing
from meshflow.onnx import elementwise, loops, products, shaping  # noqa: F401 - they fill the table
from meshflow.onnx.loops import described
from meshflow.onnx.lowering import OPSET, Lowering, Names, Tensor, onnx

__all__ = ["export", "exported"]

# Before, axes and shapes were attributes of many operators.
_OLDEST = 13
_LARGEST = 1 << 31


def export(
    source: Any, filepath: Any, signature: str = "serving_default", opset_version: int | None = None
) -> None:
    """Writes what a model or a function computes as an ONNX file; sizes that are left open stay open.

    Args:
      source: a built Keras model, which predicts; a concrete function; a `tf.function` with an input signature; or
        the folder of a saved model, written here or in TensorFlow.
      filepath: the file.
      signature: which one, of a saved model.
      opset_version: the version of ONNX's operators, from 13; default 18, which ONNX Runtime since 1.14 and TensorRT
        since 8.6 have.

    Raises:
      UnimplementedError: for an operation that cannot be converted, naming its primitive, its layer and why.
      ValueError: when the model has not been built, has more than 2 GB of weights, or no such signature, and for a
        version that the package onnx does not have.
      TypeError: for anything else, and for a function whose arguments are not known.
      OSError: when nothing was saved in the folder.
      ImportError: without the extra `onnx`.

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
    """An ONNX file's content.

    Args:
      signature: the function.
      opset: the version of ONNX's operators.

    Raises:
      UnimplementedError: for an operation that cannot be converted.
      ValueError: for a version that is not known, or more than 2 GB of weights.
    """
    helper, numpy_helper = onnx(".helper"), onnx(".numpy_helper")
    newest = onnx(".defs").onnx_opset_version()
    if isinstance(opset, bool) or not isinstance(opset, int) or not _OLDEST <= opset <= newest:
        raise ValueError(
            f"Model.export: opset_version is an integer from {_OLDEST} to {newest}, the newest of the package onnx "
            f"that is installed; got {opset!r}."
        )
    names = Names(opset)
    given = []
    for name, value in zip(signature.inputs, signature.program.inputs, strict=True):
        given.append(Tensor(name, value.shape, _at_the_ends(value.dtype)))
    names.inputs = given
    lowering = Lowering(names)
    inputs = [lowering.cast(t, t.dtype) for t in given]
    results = []
    found = lowering.run(signature.program, inputs)
    for name, value, tensor in zip(
        signature.outputs, signature.program.outputs, found, strict=True
    ):
        dtype = np.dtype(np.float16) if value.dtype == np.float16 else tensor.dtype
        output = Tensor(name if name not in signature.inputs else f"{name}_output", tensor.shape, dtype)  # fmt: skip
        lowering.add("Cast", [tensor], [output], to=helper.np_dtype_to_tensor_dtype(dtype))
        results.append(output)
    results = [results[i] for i in signature.order or range(len(results))]
    nodes = _needed(lowering.nodes, {t.name for t in results})
    read = _read(nodes)
    known = [t for t in names.constants if t.name in read]
    size = sum(t.data.nbytes for t in known if t.data is not None)
    if size >= _LARGEST:
        raise ValueError(
            f"The model has {size / 1e9:.1f} GB of constants; an ONNX file has at most 2 GB."
        )
    constants = [numpy_helper.from_array(np.asarray(t.data), t.name) for t in known]
    graph = helper.make_graph(
        nodes, signature.name, [described(t) for t in given], [described(t) for t in results], constants
    )  # fmt: skip
    versions = [helper.make_opsetid("", opset)]
    model = helper.make_model(
        graph, opset_imports=versions, ir_version=helper.find_min_ir_version_for(versions),
        producer_name="Meshflow", producer_version=__version__,
    )  # fmt: skip
    onnx(".checker").check_model(model)
    return bytes(model.SerializeToString())


def _read(nodes: Iterable[Any]) -> set[str]:
    """The names that nodes, and those of the graphs inside, read."""
    found: set[str] = set()
    for node in nodes:
        found.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _read(attribute.g.node) | {o.name for o in attribute.g.output}
    return found


def _needed(nodes: list[Any], wanted: set[str]) -> list[Any]:
    """The nodes that results depend on."""
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted |= _read([node])
    return kept[::-1]


def _at_the_ends(dtype: Any) -> np.dtype:
    """The dtype of an input: NumPy has no bfloat16."""
    return np.dtype(np.float32) if np.dtype(dtype).name == "bfloat16" else np.dtype(dtype)
