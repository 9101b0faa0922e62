"""Programs of StableHLO as jaxprs again: what was saved compiled is converted like what was not.

Sizes that a program computes with (`get_dimension_size`, and sums, products and joins of them) are known numbers and
symbols while it is read, as they were when it was traced, and so are the branches of platforms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment.jax_internals import mlir, mlir_ir

__all__ = ["Known", "Reader", "Unread", "jaxpr_of", "reads"]

# Whole numbers of at most so many elements are known while a program is read.
_MOST_KNOWN = 64
_PLACE = re.compile(r'loc\("([^"]+)"')


class Unread(Exception):
    """An op cannot be read; the message says why."""


@dataclasses.dataclass(frozen=True)
class Known:
    """Whole numbers, truth values, or symbols of sizes, that are known while a program is read.

    Attributes:
      values: the numbers, as an array of objects.
      dtype: of the elements that they stand for.
    """

    values: np.ndarray
    dtype: np.dtype

    def as_array(self) -> Any:
        """The numbers as an array of the program."""
        if all(isinstance(v, (int, bool, np.integer, np.bool_)) for v in self.values.flat):
            return self.values.astype(self.dtype)
        parts = [jnp.asarray(_number(v), self.dtype) for v in self.values.flat]
        return jnp.stack(parts).reshape(self.values.shape) if self.values.shape else parts[0]


def _number(value: Any) -> Any:
    plain = isinstance(value, (int, bool, np.integer, np.bool_))
    return value if plain else jnp.asarray(value)


# What each op gives, as a function of the reader, the op and its operands.
_OPS: dict[str, Callable[[Reader, Any, list[Any]], Any]] = {}


def reads(*names: str) -> Callable[[Any], Any]:
    """Says which ops a function reads.

    Args:
      *names: without the dialect.
    """

    def remember(function: Any) -> Any:
        _OPS.update(dict.fromkeys((f"stablehlo.{name}" for name in names), function))
        return function

    return remember


def jaxpr_of(exported: Any, avals: Sequence[Any]) -> Any:
    """A saved program as a closed jaxpr.

    Args:
      exported: a `jax.export.Exported`.
      avals: shapes and dtypes of its arguments, with symbols for sizes that vary.

    Raises:
      UnimplementedError: for an op that is not read, naming it and where it is.
    """
    kept = exported.module_kept_var_idx

    def run(*arrays: Any) -> list[Any]:
        with mlir.make_ir_context():
            module = mlir_ir.Module.parse(exported.mlir_module())
            reader = Reader(module)
            platform = [Known(np.array(0, object), np.dtype(np.int32))] * (
                len(exported.platforms) > 1
            )
            return [
                as_array(v)
                for v in reader.function("main", [*platform, *(arrays[i] for i in kept)])
            ]

    return jax.make_jaxpr(run)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])


def as_array(value: Any) -> Any:
    """An operand as an array of the program."""
    return value.as_array() if isinstance(value, Known) else value


class Reader:
    """Reads the functions of a module.

    Args:
      module: the module.
    """

    def __init__(self, module: Any) -> None:
        self._functions = mlir_ir.SymbolTable(module.operation)

    def function(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """The results of a function.

        Args:
          name: its name.
          arguments: arrays and known numbers.
        """
        function: Any = self._functions[name]
        return self.block(function.entry_block, arguments, {})

    def block(self, block: Any, arguments: Sequence[Any], outer: dict[Any, Any]) -> list[Any]:
        """What a block returns.

        Args:
          block: the block.
          arguments: values of its arguments.
          outer: values of the blocks around it.
        """
        values = {**outer, **dict(zip(block.arguments, arguments, strict=True))}
        for op in block:
            operation = op.operation
            given = [values[v] for v in operation.operands]
            if operation.name in ("func.return", "stablehlo.return"):
                return given
            found = self._results(operation, given, values)
            values.update(zip(operation.results, found, strict=True))
        raise AssertionError("a block ends in a return")

    def _results(self, operation: Any, given: list[Any], values: dict[Any, Any]) -> list[Any]:
        name = operation.name
        if name == "func.call":
            return self.function(_symbol(operation.attributes["callee"]), given)
        known = _KNOWN.get(name.removeprefix("stablehlo."))
        if known is not None and all(isinstance(v, Known) for v in given):
            with contextlib.suppress(Unread):
                return [self._known(known, operation, given)]
        try:
            if name in _AMONG_OTHERS:
                return _AMONG_OTHERS[name](self, operation, given, values)
            if name not in _OPS:
                raise Unread("it is not among those that are read")
            with _named(operation):
                found = _OPS[name](self, operation, given)
        except Unread as error:
            raise UnimplementedError(
                f"The op {name} of a saved program, at {_place(operation) or 'no known place'}, cannot be converted: {error}. "
                "Convert the model before it is saved."
            ) from None
        return found if isinstance(found, list) else [found]

    def _known(self, function: Any, operation: Any, given: list[Known]) -> Known:
        dtype, shape = element_type(operation.results[0]), static_shape(operation.results[0])
        if dtype.kind not in "biu" or shape is None or np.prod(shape) > _MOST_KNOWN:
            raise Unread("its elements are not known")
        try:
            values = function(operation, *(v.values for v in given))
        except (ValueError, TypeError, ZeroDivisionError, jax.errors.JAXTypeError) as error:
            raise Unread(str(error)) from None
        return Known(np.asarray(values, object).reshape(shape), dtype)


# ---- types and attributes --------------------------------------------------------------------


def element_type(value: Any) -> np.dtype:
    """The dtype of a value's elements."""
    return np.dtype(_dtype(mlir_ir.RankedTensorType(value.type).element_type))


def _dtype(kind: Any) -> Any:
    return _DTYPES[str(kind)]


_DTYPES: dict[str, Any] = {
    **{"i1": np.bool_, "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": jnp.bfloat16},
    **{f"i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"ui{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    **{"complex<f32>": np.complex64, "complex<f64>": np.complex128},
    **{"f8E4M3FN": jnp.float8_e4m3fn, "f8E5M2": jnp.float8_e5m2},
}  # fmt: skip


def static_shape(value: Any) -> tuple[int, ...] | None:
    """A value's shape where its type says all of it."""
    kind = mlir_ir.RankedTensorType(value.type)
    return tuple(kind.shape) if kind.has_static_shape else None


def sizes(value: Any) -> list[Any]:
    """The sizes that a known operand lists.

    Raises:
      Unread: for one that is computed from elements.
    """
    if not isinstance(value, Known):
        raise Unread("sizes depend on values")
    return [int(v) if isinstance(v, (bool, np.integer)) else v for v in value.values.reshape(-1)]


def numbers(operation: Any, name: str, default: Sequence[int] = ()) -> list[int]:
    """An attribute that is a list of whole numbers."""
    if name not in operation.attributes:
        return list(default)
    found = operation.attributes[name]
    if isinstance(found, mlir_ir.DenseI64ArrayAttr):
        return list(found)
    return [int(v) for v in np.array(found).reshape(-1)]


def number(operation: Any, name: str, default: int = 0) -> int:
    """An attribute that is a whole number."""
    if name not in operation.attributes:
        return default
    return int(mlir_ir.IntegerAttr(operation.attributes[name]).value)


def _symbol(attribute: Any) -> str:
    return str(mlir_ir.FlatSymbolRefAttr(attribute).value)


def _place(operation: Any) -> str:
    """Where in the model an op was traced, as "model/layer/primitive"."""
    found = _PLACE.match(str(operation.location))
    return "" if found is None else "/".join(p for p in found[1].split("/") if "(" not in p)


@contextlib.contextmanager
def _named(operation: Any) -> Iterator[None]:
    scope = _place(operation).rpartition("/")[0]
    with jax.named_scope(scope) if scope else contextlib.nullcontext():
        yield


# ---- known numbers ----------------------------------------------------------------------------


def _constant(operation: Any) -> Any:
    return np.array(mlir_ir.DenseElementsAttr(operation.attributes["value"]), object)


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of elements, for arrays of objects."""
    apply = np.frompyfunc(function, function.__code__.co_argcount, 1)
    return lambda operation, *arrays: apply(*arrays)


def _toward_zero(a: Any, b: Any) -> Any:
    # Sizes are not negative, and symbols have no other division.
    plain = isinstance(a, (int, np.integer)) and isinstance(b, (int, np.integer))
    return int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if plain else a // b


def _compared(operation: Any, a: Any, b: Any) -> Any:
    direction = direction_of(operation)
    functions = {
        "EQ": lambda x, y: x == y, "NE": lambda x, y: x != y, "LT": lambda x, y: x < y,
        "LE": lambda x, y: x <= y, "GT": lambda x, y: x > y, "GE": lambda x, y: x >= y,
    }  # fmt: skip
    return np.frompyfunc(lambda x, y: bool(functions[direction](x, y)), 2, 1)(a, b)


def direction_of(operation: Any) -> str:
    """What a comparison asks: 'EQ', 'LT' and so on."""
    return str(operation.attributes["comparison_direction"]).rpartition(" ")[2].rstrip(">")


def _sliced(operation: Any, a: np.ndarray) -> Any:
    bounds = (numbers(operation, n) for n in ("start_indices", "limit_indices", "strides"))
    return a[tuple(slice(*b) for b in zip(*bounds, strict=True))]


def _spread(operation: Any, a: np.ndarray) -> Any:
    shape = static_shape(operation.results[0])
    assert shape is not None
    places = numbers(operation, "broadcast_dimensions")
    apart = [1] * len(shape)
    for place, size in zip(places, a.shape, strict=True):
        apart[place] = size
    return np.broadcast_to(a.reshape(apart), shape)


def _joined(operation: Any, *arrays: np.ndarray) -> Any:
    return np.concatenate(arrays, number(operation, "dimension"))


_KNOWN: dict[str, Callable[..., Any]] = {
    "constant": _constant,
    "convert": lambda operation, a: a,
    "reshape": lambda operation, a: a,
    "concatenate": _joined,
    "slice": _sliced,
    "broadcast_in_dim": _spread,
    "compare": _compared,
    "select": lambda operation, c, a, b: np.where(c.astype(bool), a, b),
    "add": _each(lambda a, b: a + b),
    "subtract": _each(lambda a, b: a - b),
    "multiply": _each(lambda a, b: a * b),
    "divide": _each(_toward_zero),
    "remainder": _each(lambda a, b: a - b * _toward_zero(a, b)),
    "negate": _each(lambda a: -a),
    "maximum": _each(lambda a, b: a if a == b else core.max_dim(a, b)),
    "minimum": _each(lambda a, b: a if a == b else core.min_dim(a, b)),
    "and": _each(lambda a, b: a & b),
    "or": _each(lambda a, b: a | b),
}


# ---- loops, branches, computed bounds --------------------------------------------------------------------------


def _while(reader: Reader, operation: Any, given: list[Any], outer: dict[Any, Any]) -> list[Any]:
    condition, body = (region.blocks[0] for region in operation.regions)

    def run(block: Any) -> Callable[[Any], list[Any]]:
        return lambda carry: [as_array(v) for v in reader.block(block, carry, outer)]

    carried = [as_array(v) for v in given]
    return list(jax.lax.while_loop(lambda c: run(condition)(c)[0], run(body), carried))


def _case(reader: Reader, operation: Any, given: list[Any], outer: dict[Any, Any]) -> list[Any]:
    blocks = [region.blocks[0] for region in operation.regions]
    if operation.name == "stablehlo.if":
        blocks.reverse()
    if isinstance(given[0], Known):
        place = int(given[0].values.item())
        chosen = blocks[place if 0 <= place < len(blocks) else -1]
        return reader.block(chosen, (), outer)
    branches = [lambda _, b=b: [as_array(v) for v in reader.block(b, (), outer)] for b in blocks]
    return list(jax.lax.switch(given[0].astype(jnp.int32), branches, None))


def _composite(reader: Reader, operation: Any, given: list[Any], outer: dict[Any, Any]) -> list[Any]:  # fmt: skip
    name = str(mlir_ir.StringAttr(operation.attributes["name"]).value)
    if name == "chlo.top_k":
        settings = mlir_ir.DictAttr(operation.attributes["composite_attributes"])
        count = int(mlir_ir.IntegerAttr(settings["k"]).value)
        return list(jax.lax.top_k(as_array(given[0]), count))
    return reader.function(_symbol(operation.attributes["decomposition"]), given)


def _slice(reader: Reader, operation: Any, given: list[Any], values: dict[Any, Any]) -> list[Any]:
    """Elements between bounds; where these are computed, the limits are the starts and known sizes."""
    if all(isinstance(v, Known) for v in given[1:]):
        return [jax.lax.slice(as_array(given[0]), *map(sizes, given[1:]))]
    starts, limits, strides = list(operation.operands)[1:]
    added = _made_by(limits, "add")
    if added is None or starts not in added or set(sizes(values[strides])) != {1}:
        raise Unread("sizes depend on values")
    extent = next((values[v] for v in added if v != starts), None)
    # JAX's own op bounds them once more.
    bounded = _made_by(starts, "clamp")
    parts = _made_by(starts if bounded is None else bounded[1], "concatenate")
    if parts is None or len(parts) != len(given[0].shape):
        raise Unread("where it begins is no list of numbers")
    firsts = [as_array(values[(_made_by(v, "reshape") or [v])[0]]).reshape(()) for v in parts]
    return [jax.lax.dynamic_slice(as_array(given[0]), firsts, sizes(extent))]


def _made_by(value: Any, name: str) -> list[Any] | None:
    """The operands of the op that makes a value, if it is one of that name."""
    owner = value.owner
    if not isinstance(owner, mlir_ir.Block) and owner.name == f"stablehlo.{name}":
        return list(owner.operands)
    return None


# Those with blocks of their own, or that look at how their operands were made.
_AMONG_OTHERS: dict[str, Callable[..., list[Any]]] = {
    "stablehlo.real_dynamic_slice": _slice,
    "stablehlo.while": _while,
    "stablehlo.case": _case,
    "stablehlo.if": _case,
    "stablehlo.composite": _composite,
}
