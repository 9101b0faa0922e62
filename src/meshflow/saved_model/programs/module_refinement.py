"""Specialization of StableHLO modules of any size to arguments of known shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.environment.jax_internals import (
    mlir,
    mlir_func,
    mlir_hlo,
    mlir_ir,
    refine_polymorphic_shapes,
)

_MAIN, _INNER = "main", "inner_main"


def refine_module(module: Any, arguments: Sequence[Any], platform: int | None, label: str) -> Any:
    """Specialize a module to arguments of known shapes, in place, and return it in another context.

    Args:
      module: MLIR module with a function `main`; its context is the current one.
      arguments: Shapes and dtypes of the arguments of `main`; None for one that has a known shape.
      platform: Value of the first argument, the index of the platform; None if there is none.
      label: Name of the program in error messages.

    Raises:
      DataLossError: If `main` does not take these arguments.
    """
    _wrap_main(module, arguments, platform, label)
    try:
        return refine_polymorphic_shapes(module)
    except ValueError:
        shapes = [a.shape for a in arguments if a is not None]
        raise DataLossError(
            f"{label}: the program does not accept arguments of the shapes {shapes}."
        ) from None


def read_result_shapes(module: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the results of a refined module.

    Args:
      module: The MLIR module.
    """
    with module.context:
        main: Any = mlir_ir.SymbolTable(module.operation)[_MAIN]
        return [tuple(mlir_ir.RankedTensorType(t).shape) for t in main.type.results]


def check_signature(
    module: Any, arguments: Sequence[Any], results: Sequence[Any], has_platform: bool, label: str
) -> None:
    """Check that the main function of a module has the declared arguments and results.

    Args:
      module: MLIR module with a function `main`.
      arguments: Shapes and dtypes of the arguments of `main`, of which sizes may be unknown.
      results: Shapes and dtypes of its results.
      has_platform: Whether the first argument is the index of the platform.
      label: Name of the program in error messages.

    Raises:
      DataLossError: If the function has other arguments or results.
    """
    main = _find_main(module, label)
    types = [*list(main.type.inputs)[has_platform:], *main.type.results]
    avals = [*arguments, *results]
    if len(types) != len(avals) or not all(map(_is_compatible, types, avals)):
        raise DataLossError(
            f"{label}: its program has other arguments or results than it declares."
        )


def _is_compatible(kind: Any, aval: Any) -> bool:
    if not isinstance(aval.dtype, np.dtype):
        return True  # Keys of random numbers are several arrays.
    if not isinstance(kind, mlir_ir.RankedTensorType) or kind.rank != len(aval.shape):
        return False
    sizes = [None if kind.is_dynamic_dim(i) else size for i, size in enumerate(kind.shape)]
    return kind.element_type == mlir.dtype_to_ir_type(aval.dtype) and all(
        left == right or left is None or not isinstance(right, int)
        for left, right in zip(sizes, aval.shape, strict=True)
    )


def _find_main(module: Any, label: str) -> Any:
    symbols = mlir_ir.SymbolTable(module.operation)
    if _MAIN not in symbols or not isinstance(symbols[_MAIN], mlir_func.FuncOp):
        raise DataLossError(f"{label}: its module has no function {_MAIN!r}.")
    return symbols[_MAIN]


def _wrap_main(module: Any, arguments: Sequence[Any], platform: int | None, label: str) -> None:
    """Wrap the main function in a main function of known shapes."""
    inner = _find_main(module, label)
    input_types = list(inner.type.inputs)
    has_platform = platform is not None
    if len(arguments) + has_platform != len(input_types):
        raise DataLossError(
            f"{label}: its program takes {len(input_types)} arguments, but the node has {len(arguments) + has_platform}."
        )
    mlir_ir.SymbolTable(module.operation).set_symbol_name(inner, _INNER)
    inner.attributes["sym_visibility"] = mlir_ir.StringAttr.get("private")
    types = [
        t
        if a is None
        else mlir_ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(np.dtype(a.dtype)))
        for a, t in zip(arguments, input_types[has_platform:], strict=True)
    ]
    with mlir_ir.InsertionPoint.at_block_begin(module.body):
        function = mlir_ir.FunctionType.get(types, list(inner.type.results))
        outer: Any = mlir_func.FuncOp(_MAIN, function)
    outer.attributes["sym_visibility"] = mlir_ir.StringAttr.get("public")
    with mlir_ir.InsertionPoint(outer.add_entry_block()) as point:
        values: list[Any] = list(point.block.arguments)
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
