"""`XlaCallModule`, the op that runs a StableHLO program.

A program for any size is specialized for the shapes of its arguments, once for each combination of
shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from meshflow.core.runtime.errors import DataLossError, UnimplementedError
from meshflow.environment.jax_internals import (
    make_exported,
    mlir,
    mlir_ir,
    read_portable_artifact,
    write_portable_artifact,
)
from meshflow.environment.types import Array
from meshflow.files.crc32c import crc32c
from meshflow.saved_model.graph.format.node_attributes import GraphNode, to_numpy_dtype
from meshflow.saved_model.graph.format.nodes import CHECKSUM_ATTRIBUTE
from meshflow.saved_model.programs.custom_calls import check_module, secure_calls
from meshflow.saved_model.programs.foreign_modules import rewrite_module
from meshflow.saved_model.programs.module_refinement import read_result_shapes, refine_module

# Names of platforms in the op's attributes. Programs have dynamic shapes since version 5 of the
# calling convention; in older ones the op computes the sizes.
_PLATFORMS = {"cpu": ("CPU",), "gpu": ("CUDA", "ROCM"), "tpu": ("TPU",)}
_MIN_VERSION = 5


def _call_module(node: GraphNode, *inputs: Array) -> list[Any]:
    arrays = [np.asarray(x) if np.isscalar(x) else x for x in inputs]
    key = tuple((tuple(np.shape(a)), np.dtype(a.dtype)) for a in arrays)
    if key not in node.cache:
        node.cache[key] = _specialize(node, key)
    return list(node.cache[key].call(*arrays))


def _specialize(node: GraphNode, specs: Sequence[Any]) -> jax.export.Exported:
    """Specialize the program for arguments of known shapes."""
    _check_supported(node)
    data, dtypes = node["module"], [to_numpy_dtype(t) for t in node["Tout"] or ()]
    platforms = [p.decode().upper() for p in node["platforms"]]
    platform_names = _PLATFORMS.get(jax.default_backend(), ())
    index = next((platforms.index(p) for p in platform_names if p in platforms), 0)
    if platforms and not set(platform_names) & set(platforms):
        raise UnimplementedError(
            f"node {node.name}: the program is for {platforms}, but JAX runs on {jax.default_backend()}."
        )
    arguments = [jax.core.ShapedArray(shape, dtype) for shape, dtype in specs]
    label = f"node {node.name}"
    with mlir.make_ir_context(), mlir_ir.Location.unknown():
        module = _read_module(node, data)
        check_module(module)
        platform = index if len(platforms) > 1 else None
        refined = refine_module(module, arguments, platform, label)
    with refined.context, mlir_ir.Location.unknown():
        check_module(refined, is_static=True)
        secure_calls(refined)
        content = write_portable_artifact(refined)
    shapes = read_result_shapes(refined)
    if len(shapes) != len(dtypes):
        raise DataLossError(
            f"{label}: its attributes declare {len(dtypes)} results, but its program returns {len(shapes)}."
        )
    return _make_exported(node, content, arguments, shapes, dtypes)


def _check_supported(node: GraphNode) -> None:
    reason = None
    if node["version"] < _MIN_VERSION or node["dim_args_spec"]:
        reason = f"its calling convention is version {node['version']}, older than {_MIN_VERSION}"
    elif node["function_list"]:
        reason = f"its program calls back into TensorFlow's functions {node['function_list']}"
    elif node["has_token_input_output"]:
        reason = "its program has ordered effects"
    if reason is not None:
        raise UnimplementedError(f"node {node.name} of op XlaCallModule cannot be read: {reason}.")


def _read_module(node: GraphNode, data: bytes) -> Any:
    checksum = node[CHECKSUM_ATTRIBUTE]
    if checksum not in (None, crc32c(data)):
        raise DataLossError(
            f"node {node.name}: its module is damaged: the checksum does not match that of the file."
        )
    try:
        return read_portable_artifact(rewrite_module(data))
    except UnimplementedError:
        raise
    except Exception as error:  # MLIR raises several types of exceptions for damaged bytes.
        first = (str(error).splitlines() or [repr(error)])[0]
        raise DataLossError(f"node {node.name}: its module is not StableHLO: {first}") from None


def _make_exported(
    node: GraphNode,
    content: bytes,
    arguments: Sequence[Any],
    shapes: Sequence[Any],
    dtypes: Sequence[Any],
) -> jax.export.Exported:
    outs = tuple(jax.core.ShapedArray(s, k) for s, k in zip(shapes, dtypes, strict=True))
    no_inputs, no_outputs = (None,) * len(arguments), (None,) * len(outs)
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in node.name)
    return make_exported(
        fun_name=name,
        in_tree=jax.tree.structure((tuple(arguments), {})),
        in_avals=tuple(arguments),
        out_tree=jax.tree.structure(outs),
        out_avals=outs,
        _in_named_shardings=no_inputs,
        _out_named_shardings=no_outputs,
        in_shardings_hlo=no_inputs,
        out_shardings_hlo=no_outputs,
        nr_devices=1,
        platforms=({"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend()),),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=(),
        mlir_module_serialized=content,
        calling_convention_version=jax.export.maximum_supported_calling_convention_version,
        module_kept_var_idx=tuple(range(len(arguments))),
        uses_global_constants=False,
        _get_vjp=_make_vjp_error(node.name),
    )


def _make_vjp_error(name: str) -> Callable[[object], jax.export.Exported]:
    """Return a function that raises an error in place of the gradient."""

    def refuse(_: object) -> jax.export.Exported:
        raise UnimplementedError(
            f"node {name} of op XlaCallModule has no gradient here: programs that are read from a graph can only predict."
        )

    return refuse


MODULE_OPS: dict[str, Callable[..., Any]] = {"XlaCallModule": _call_module}
