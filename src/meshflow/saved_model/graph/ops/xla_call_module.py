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
    mlir_func,
    mlir_hlo,
    mlir_ir,
    read_portable_artifact,
    refine_polymorphic_shapes,
    write_portable_artifact,
)
from meshflow.environment.types import Array
from meshflow.files.crc32c import crc32c
from meshflow.saved_model.graph.format.node_attributes import Node, to_numpy_dtype
from meshflow.saved_model.graph.format.nodes import CHECKSUM_ATTRIBUTE
from meshflow.saved_model.graph.ops.foreign_modules import rewrite_in_child_process
from meshflow.saved_model.programs.stablehlo import check_custom_calls

__all__ = ["MODULE_OPS"]

# Names of platforms in the op's attributes. Programs have dynamic shapes since version 5 of the
# calling convention; in older ones the op computes the sizes.
_PLATFORMS = {"cpu": ("CPU",), "gpu": ("CUDA", "ROCM"), "tpu": ("TPU",)}
_MIN_VERSION = 5
_MAIN, _INNER = "main", "inner_main"


def _call_module(node: Node, *inputs: Array) -> list[Any]:
    arrays = [np.asarray(x) if np.isscalar(x) else x for x in inputs]
    key = tuple((tuple(np.shape(a)), np.dtype(a.dtype)) for a in arrays)
    if key not in node.cache:
        node.cache[key] = _specialize(node, key)
    return list(node.cache[key].call(*arrays))


def _specialize(node: Node, specs: Sequence[Any]) -> jax.export.Exported:
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
    with mlir.make_ir_context(), mlir_ir.Location.unknown():
        module = _read_module(node, data)
        check_custom_calls(str(module))
        _wrap_main(node, module, arguments, index if len(platforms) > 1 else None)
        try:
            refined = refine_polymorphic_shapes(module)
        except ValueError:
            shapes = [a.shape for a in arguments]
            raise DataLossError(
                f"node {node.name}: the program does not accept arguments of the shapes {shapes}."
            ) from None
    with refined.context:
        main: Any = mlir_ir.SymbolTable(refined.operation)[_MAIN]
        results = main.type.results
        shapes = [tuple(mlir_ir.RankedTensorType(t).shape) for t in results]
        if len(shapes) != len(dtypes):
            raise DataLossError(
                f"node {node.name}: its attributes declare {len(dtypes)} results, but its program returns {len(shapes)}."
            )
        content = write_portable_artifact(refined)
    return _make_exported(node, content, arguments, shapes, dtypes)


def _check_supported(node: Node) -> None:
    reason = None
    if node["version"] < _MIN_VERSION or node["dim_args_spec"]:
        reason = f"its calling convention is version {node['version']}, older than {_MIN_VERSION}"
    elif node["function_list"]:
        reason = f"its program calls back into TensorFlow's functions {node['function_list']}"
    elif node["has_token_input_output"]:
        reason = "its program has ordered effects"
    if reason is not None:
        raise UnimplementedError(f"node {node.name} of op XlaCallModule cannot be read: {reason}.")


def _read_module(node: Node, data: bytes) -> Any:
    checksum = node[CHECKSUM_ATTRIBUTE]
    if checksum not in (None, crc32c(data)):
        raise DataLossError(
            f"node {node.name}: its module is damaged: the checksum does not match that of the file."
        )
    try:
        return read_portable_artifact(
            data if checksum is not None else rewrite_in_child_process(data)
        )
    except UnimplementedError:
        raise
    except Exception as error:  # MLIR raises several types of exceptions for damaged bytes.
        first = (str(error).splitlines() or [repr(error)])[0]
        raise DataLossError(f"node {node.name}: its module is not StableHLO: {first}") from None


def _wrap_main(node: Node, module: Any, arguments: Sequence[Any], platform: int | None) -> None:
    """Wrap the main function in a main function of known shapes."""
    symbols = mlir_ir.SymbolTable(module.operation)
    if _MAIN not in symbols:
        raise DataLossError(f"node {node.name}: its module has no function {_MAIN!r}.")
    inner: Any = symbols[_MAIN]
    input_types = list(inner.type.inputs)
    count = len(arguments) + (platform is not None)
    if count != len(input_types):
        raise DataLossError(
            f"node {node.name}: its program takes {len(input_types)} arguments, but the node has {count}."
        )
    symbols.set_symbol_name(inner, _INNER)
    inner.attributes["sym_visibility"] = mlir_ir.StringAttr.get("private")
    types = [
        mlir_ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype)) for a in arguments
    ]
    with mlir_ir.InsertionPoint.at_block_begin(module.body):
        function = mlir_ir.FunctionType.get(types, list(inner.type.results))
        outer: Any = mlir_func.FuncOp(_MAIN, function)
    outer.attributes["sym_visibility"] = mlir_ir.StringAttr.get("public")
    block = outer.add_entry_block()
    with mlir_ir.InsertionPoint(block):
        values = list(block.arguments)
        if platform is not None:
            element = mlir_ir.RankedTensorType(input_types[0]).element_type
            platform_index = np.array(platform, f"int{mlir_ir.IntegerType(element).width}")
            values.insert(0, mlir.ir_constant(platform_index))
        converted = [
            v if v.type == t else mlir_hlo.convert(t, v)
            for v, t in zip(values, input_types, strict=True)
        ]
        call = mlir_func.CallOp(
            list(inner.type.results), mlir_ir.FlatSymbolRefAttr.get(_INNER), converted
        )
        mlir_func.ReturnOp(call.results)


def _make_exported(
    node: Node,
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
