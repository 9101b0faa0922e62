"""Reader of StableHLO programs that returns jaxprs, so that saved programs are converted like others.

Sizes that a program computes (by `get_dimension_size`, sums, products and concatenations) are
integers and symbols while it is read, as when it was traced. So are the branches of platforms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.export import Exported

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment.jax_internals import make_reading_context, mlir_ir
from meshflow.environment.types import Array, ClosedJaxpr
from meshflow.kernels.recurrent import read_export_name

# Integer tensors of at most this many elements are evaluated while a program is read.
_MAX_STATIC_ELEMENTS = 64
_LOCATION = re.compile(r'loc\("([^"]+)"')


class UnsupportedOpError(Exception):
    """Error of an op that cannot be read; the message states the reason."""


@dataclasses.dataclass(frozen=True)
class StaticValue:
    """Integers, Booleans or symbolic sizes that are known while a program is read.

    Attributes:
      values: an object array of the elements.
      dtype: element type in the program.
    """

    values: np.ndarray
    dtype: np.dtype

    def as_array(self) -> Array:
        """Return the values as an array of the traced program."""
        if all(map(_is_plain, self.values.flat)):
            return self.values.astype(self.dtype)
        scalars = [v if _is_plain(v) else jnp.asarray(v) for v in self.values.flat]
        parts = [jnp.asarray(v, self.dtype) for v in scalars]
        return jnp.stack(parts).reshape(self.values.shape) if self.values.shape else parts[0]


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, bool, np.integer, np.bool_))


Operand: TypeAlias = StaticValue | Array
_Environment: TypeAlias = Mapping[Any, Operand]
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


# Functions of an op and its operands that return its results, by name of the op.
_OPS: dict[str, Callable[[Any, list[Any]], Any]] = {}


def register_op(*names: str) -> Callable[[_FunctionT], _FunctionT]:
    """Return a decorator that registers the function of ops.

    Args:
      *names: names without the dialect.
    """

    def register(function: _FunctionT) -> _FunctionT:
        _OPS.update(dict.fromkeys((f"stablehlo.{name}" for name in names), function))
        return function

    return register


def read_jaxpr(exported: Exported, avals: Sequence[Any]) -> ClosedJaxpr:
    """Return the closed jaxpr of a saved program.

    Args:
      exported: the saved program.
      avals: shapes and dtypes of its arguments, with symbolic sizes where they are unknown.

    Raises:
      UnimplementedError: if an op cannot be read; names the op and its location.
    """
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    return jax.make_jaxpr(lambda *arrays: trace_program(exported, arrays))(*specs)


def trace_program(exported: Exported, arrays: Sequence[Array]) -> list[Array]:
    """Trace the ops of a saved program on arrays, and return its results.

    Args:
      exported: the saved program.
      arrays: its arguments.

    Raises:
      UnimplementedError: if an op cannot be read; names the op and its location.
    """
    with make_reading_context(), mlir_ir.Location.unknown():
        module: Any = exported.mlir_module(serialized=False)
        reader = ModuleReader(module)
        platform = [StaticValue(np.array(0, object), np.dtype(np.int32))] * (
            len(exported.platforms) > 1
        )
        arguments = [*platform, *(arrays[i] for i in exported.module_kept_var_idx)]
        return [as_array(v) for v in reader.call_function("main", arguments)]


def as_array(value: Operand) -> Any:
    """Return an operand as an array of the traced program."""
    return value.as_array() if isinstance(value, StaticValue) else value


class ModuleReader:
    """Interpreter of the functions of an MLIR module.

    Args:
      module: the module.
    """

    def __init__(self, module: Any) -> None:
        self._functions = mlir_ir.SymbolTable(module.operation)

    def call_function(self, name: str, arguments: Sequence[Operand]) -> list[Any]:
        """Trace a function of the module and return its results."""
        function: Any = self._functions[name]
        return self.run_block(function.entry_block, arguments, {})

    def run_block(self, block: Any, arguments: Sequence[Operand], outer: _Environment) -> list[Any]:
        """Trace a block and return its results.

        Args:
          block: the MLIR block.
          arguments: values of its arguments.
          outer: values of the enclosing blocks.
        """
        values = {**outer, **dict(zip(block.arguments, arguments, strict=True))}
        for op in block:
            operation = op.operation
            operands = [values[v] for v in operation.operands]
            if operation.name in ("func.return", "stablehlo.return"):
                return operands
            results = self._run_op(operation, operands, values)
            values.update(zip(operation.results, results, strict=True))
        raise AssertionError("a block ends in a return")

    def _run_op(self, operation: Any, operands: list[Any], values: _Environment) -> list[Any]:
        name = operation.name
        if name == "func.call":
            callee = _get_symbol_name(operation.attributes["callee"])
            return (
                _divide_sizes(callee, operands)
                or _run_recurrent_layer(operation, callee, operands)
                or self.call_function(callee, operands)
            )
        evaluate = _STATIC_OPS.get(name.removeprefix("stablehlo."))
        if evaluate is not None and all(isinstance(v, StaticValue) for v in operands):
            with contextlib.suppress(UnsupportedOpError):
                return [self._evaluate_statically(evaluate, operation, operands)]
        try:
            if name in _CONTEXTUAL_OPS:
                return _CONTEXTUAL_OPS[name](self, operation, operands, values)
            if name not in _OPS:
                raise UnsupportedOpError("it is not among the supported ops")
            with _name_scope(operation):
                results = _OPS[name](operation, operands)
        except UnsupportedOpError as error:
            raise UnimplementedError(
                f"The op {name} of a saved program, at {_get_location(operation) or 'an unknown location'}, cannot be converted: "
                f"{error}. Convert the model before it is saved."
            ) from None
        return results if isinstance(results, list) else [results]

    def _evaluate_statically(
        self, evaluate: Callable[..., Any], operation: Any, operands: list[StaticValue]
    ) -> StaticValue:
        dtype, shape = (
            get_element_type(operation.results[0]),
            get_static_shape(operation.results[0]),
        )
        if dtype.kind not in "biu" or shape is None or math.prod(shape) > _MAX_STATIC_ELEMENTS:
            raise UnsupportedOpError("its elements are not static")
        try:
            values = evaluate(operation, *(v.values for v in operands))
        except (ValueError, TypeError, ZeroDivisionError, jax.errors.JAXTypeError) as error:
            raise UnsupportedOpError(str(error)) from None
        return StaticValue(np.asarray(values, object).reshape(shape), dtype)


# ---- types and attributes --------------------------------------------------------------------


def get_element_type(value: Any) -> np.dtype:
    """Return the dtype of an MLIR value."""
    return np.dtype(_DTYPES[str(mlir_ir.RankedTensorType(value.type).element_type)])


_DTYPES: dict[str, Any] = {
    **{"i1": np.bool_, "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": jnp.bfloat16},
    **{f"i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"ui{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    **{"complex<f32>": np.complex64, "complex<f64>": np.complex128},
    **{"f8E4M3FN": jnp.float8_e4m3fn, "f8E5M2": jnp.float8_e5m2},
}  # fmt: skip


def get_static_shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an MLIR value, or None if it is dynamic."""
    tensor_type = mlir_ir.RankedTensorType(value.type)
    return tuple(tensor_type.shape) if tensor_type.has_static_shape else None


def get_sizes(value: Operand | None) -> list[Any]:
    """Return the sizes in a static operand.

    Raises:
      UnsupportedOpError: if the operand is computed from elements of arrays.
    """
    if not isinstance(value, StaticValue):
        raise UnsupportedOpError("sizes depend on values")
    return [int(v) if isinstance(v, (bool, np.integer)) else v for v in value.values.reshape(-1)]


def get_integers(operation: Any, name: str, default: Sequence[int] = ()) -> list[int]:
    """Return an attribute that is a list of integers."""
    if name not in operation.attributes:
        return list(default)
    attribute = operation.attributes[name]
    if isinstance(attribute, mlir_ir.DenseI64ArrayAttr):
        return list(attribute)
    return [int(v) for v in np.array(attribute).reshape(-1)]


def get_integer(operation: Any, name: str, default: int = 0) -> int:
    """Return an attribute that is an integer."""
    if name not in operation.attributes:
        return default
    return int(mlir_ir.IntegerAttr(operation.attributes[name]).value)


def _get_symbol_name(attribute: Any) -> str:
    return str(mlir_ir.FlatSymbolRefAttr(attribute).value)


def _get_location(operation: Any) -> str:
    """Return the location in the model at which an op was traced, as "model/layer/primitive"."""
    match = _LOCATION.match(str(operation.location))
    return "" if match is None else "/".join(p for p in match[1].split("/") if "(" not in p)


@contextlib.contextmanager
def _name_scope(operation: Any) -> Iterator[None]:
    scope = _get_location(operation).rpartition("/")[0]
    with jax.named_scope(scope) if scope else contextlib.nullcontext():
        yield


# ---- static evaluation -----------------------------------------------------------------------


def _evaluate_constant(operation: Any) -> np.ndarray:
    return np.array(mlir_ir.DenseElementsAttr(operation.attributes["value"]), object)


def _apply_elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of elements to object arrays."""
    apply = np.frompyfunc(function, function.__code__.co_argcount, 1)
    return lambda operation, *arrays: apply(*arrays)


def _divide_toward_zero(a: Any, b: Any) -> Any:
    # Symbolic sizes are not negative, and they have no division that rounds toward zero.
    is_integer = isinstance(a, (int, np.integer)) and isinstance(b, (int, np.integer))
    return int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if is_integer else a // b


# JAX's functions of integer division, which compare signs and remainders.
_DIVISIONS: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "divmod": lambda a, b: (a // b, a % b),
    "floor_divide": lambda a, b: (a // b,),
    "remainder": lambda a, b: (a % b,),
}


def _divide_sizes(callee: str, operands: Sequence[Any]) -> list[Any] | None:
    """Return the results of a call that divides a size by a positive integer, or None for other calls."""
    divide = _DIVISIONS.get(callee)
    if divide is None or not all(
        isinstance(v, StaticValue) and v.values.size == 1 for v in operands[-2:]
    ):
        return None
    a, b = (v.values.item() for v in operands[-2:])
    if not _is_plain(b) or b < 1:
        return None
    return [StaticValue(np.array(v, object), operands[-1].dtype) for v in divide(a, int(b))]


def _run_recurrent_layer(operation: Any, callee: str, operands: list[Any]) -> list[Any] | None:
    """Return the results of a function of a recurrent layer, as one primitive, or None for other calls.

    The interpreter has a kernel for all steps.
    """
    found = read_export_name(callee)
    if found is None:
        return None
    primitive, parameters, count = found
    arrays = [as_array(v) for v in operands[len(operands) - count :]]
    get_rank = lambda result: mlir_ir.RankedTensorType(result.type).rank
    expected = [(get_element_type(v), get_rank(v)) for v in operation.results]
    # The name belongs to another function if its arguments do not fit.
    with contextlib.suppress(TypeError, ValueError):
        results = primitive.bind(*arrays, **parameters)
        if [(r.dtype, r.ndim) for r in results] == expected:
            return list(results)
    return None


def _evaluate_compare(operation: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    direction = get_comparison_direction(operation)
    functions = {
        "EQ": lambda x, y: x == y, "NE": lambda x, y: x != y, "LT": lambda x, y: x < y,
        "LE": lambda x, y: x <= y, "GT": lambda x, y: x > y, "GE": lambda x, y: x >= y,
    }  # fmt: skip
    return np.frompyfunc(lambda x, y: bool(functions[direction](x, y)), 2, 1)(a, b)


def get_comparison_direction(operation: Any) -> str:
    """Return the direction of a comparison: 'EQ', 'NE', 'LT', 'LE', 'GT' or 'GE'."""
    return str(operation.attributes["comparison_direction"]).rpartition(" ")[2].rstrip(">")


def _evaluate_slice(operation: Any, a: np.ndarray) -> np.ndarray:
    bounds = (get_integers(operation, n) for n in ("start_indices", "limit_indices", "strides"))
    return a[tuple(slice(*b) for b in zip(*bounds, strict=True))]


def _evaluate_broadcast(operation: Any, a: np.ndarray) -> np.ndarray:
    shape = get_static_shape(operation.results[0])
    assert shape is not None
    aligned_shape = [1] * len(shape)
    for axis, size in zip(get_integers(operation, "broadcast_dimensions"), a.shape, strict=True):
        aligned_shape[axis] = size
    return np.broadcast_to(a.reshape(aligned_shape), shape)


def _evaluate_concatenate(operation: Any, *arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays, get_integer(operation, "dimension"))


_STATIC_OPS: dict[str, Callable[..., Any]] = {
    "constant": _evaluate_constant,
    "convert": lambda operation, a: a,
    "reshape": lambda operation, a: a,
    "concatenate": _evaluate_concatenate,
    "slice": _evaluate_slice,
    "broadcast_in_dim": _evaluate_broadcast,
    "compare": _evaluate_compare,
    "select": lambda operation, c, a, b: np.where(c.astype(bool), a, b),
    "add": _apply_elementwise(lambda a, b: a + b),
    "subtract": _apply_elementwise(lambda a, b: a - b),
    "multiply": _apply_elementwise(lambda a, b: a * b),
    "divide": _apply_elementwise(_divide_toward_zero),
    "remainder": _apply_elementwise(lambda a, b: a - b * _divide_toward_zero(a, b)),
    "negate": _apply_elementwise(lambda a: -a),
    "maximum": _apply_elementwise(lambda a, b: a if a == b else core.max_dim(a, b)),
    "minimum": _apply_elementwise(lambda a, b: a if a == b else core.min_dim(a, b)),
    "and": _apply_elementwise(lambda a, b: a & b),
    "or": _apply_elementwise(lambda a, b: a | b),
}


# ---- loops, branches, computed bounds ---------------------------------------------------------


def _read_while(
    reader: ModuleReader, operation: Any, operands: list[Any], outer: _Environment
) -> list[Any]:
    condition, body = (region.blocks[0] for region in operation.regions)

    def run(block: Any) -> Callable[[Any], list[Any]]:
        return lambda carry: [as_array(v) for v in reader.run_block(block, carry, outer)]

    carried = [as_array(v) for v in operands]
    return list(jax.lax.while_loop(lambda c: run(condition)(c)[0], run(body), carried))


def _read_case(
    reader: ModuleReader, operation: Any, operands: list[Any], outer: _Environment
) -> list[Any]:
    blocks = [region.blocks[0] for region in operation.regions]
    if operation.name == "stablehlo.if":
        blocks.reverse()
    if isinstance(operands[0], StaticValue):
        index = int(operands[0].values.item())
        chosen = blocks[index if 0 <= index < len(blocks) else -1]
        return reader.run_block(chosen, (), outer)
    branches = [
        lambda _, b=b: [as_array(v) for v in reader.run_block(b, (), outer)] for b in blocks
    ]
    return list(jax.lax.switch(operands[0].astype(jnp.int32), branches, None))


def _read_composite(reader: ModuleReader, operation: Any, operands: list[Any], outer: _Environment) -> list[Any]:  # fmt: skip
    name = str(mlir_ir.StringAttr(operation.attributes["name"]).value)
    if name == "chlo.top_k":
        settings = mlir_ir.DictAttr(operation.attributes["composite_attributes"])
        count = int(mlir_ir.IntegerAttr(settings["k"]).value)
        return list(jax.lax.top_k(as_array(operands[0]), count))
    return reader.call_function(_get_symbol_name(operation.attributes["decomposition"]), operands)


def _read_dynamic_slice(
    reader: ModuleReader, operation: Any, operands: list[Any], values: _Environment
) -> list[Any]:
    """Slice between bounds; computed limits must be the computed starts plus static sizes."""
    if all(isinstance(v, StaticValue) for v in operands[1:]):
        return [jax.lax.slice(as_array(operands[0]), *map(get_sizes, operands[1:]))]
    starts, limits, strides = list(operation.operands)[1:]
    terms = _get_producer_operands(limits, "add")
    if terms is None or starts not in terms or set(get_sizes(values[strides])) != {1}:
        raise UnsupportedOpError("sizes depend on values")
    extent = next((values[v] for v in terms if v != starts), None)
    # `jax.lax.dynamic_slice` clamps the starts again.
    clamped = _get_producer_operands(starts, "clamp")
    parts = _get_producer_operands(starts if clamped is None else clamped[1], "concatenate")
    if parts is None or len(parts) != len(operands[0].shape):
        raise UnsupportedOpError("its starts are not a list of scalars")
    scalars = [
        as_array(values[(_get_producer_operands(v, "reshape") or [v])[0]]).reshape(())
        for v in parts
    ]
    return [slice_rows(as_array(operands[0]), scalars, get_sizes(extent))]


def slice_rows(operand: Array, starts: Sequence[Array], sizes: Sequence[Any]) -> Array:
    """Slice an array from computed starts; zeros if it is empty, as a loop over no rows reads none."""
    if any(n == 0 and size != 0 for n, size in zip(operand.shape, sizes, strict=True)):
        return jnp.zeros(sizes, operand.dtype)
    return jax.lax.dynamic_slice(operand, starts, sizes)


def _get_producer_operands(value: Any, name: str) -> list[Any] | None:
    """Return the operands of the op that produces a value if it has this name, else None."""
    owner = value.owner
    if not isinstance(owner, mlir_ir.Block) and owner.name == f"stablehlo.{name}":
        return list(owner.operands)
    return None


# Ops that have blocks, or that depend on the producers of their operands.
_CONTEXTUAL_OPS: dict[str, Callable[..., list[Any]]] = {
    "stablehlo.real_dynamic_slice": _read_dynamic_slice,
    "stablehlo.while": _read_while,
    "stablehlo.case": _read_case,
    "stablehlo.if": _read_case,
    "stablehlo.composite": _read_composite,
}
