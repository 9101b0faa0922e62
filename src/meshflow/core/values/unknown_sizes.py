"""Results with sizes that depend on values, such as the indices of true elements.

In eager mode, NumPy computes such a result. In a traced function, it is the result of the primitive
`host_computation`, with a new symbol for each unknown size. Only the interpreter runs programs that
contain this primitive ([decision 40](docs/decisions/40-data-dependent-shapes.md)). If the program must
be compiled, the trace raises a `ValueNeededError`, and the function runs as Python.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim
from jax.typing import DTypeLike

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError, ValueNeededError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.jax_internals import ad, dce_rules, jex_core, list_dimensions
from meshflow.environment.types import Array, PyTree
from meshflow.interpreter.symbolic_sizes import SizeGuardError

F = TypeVar("F", bound=Callable[..., Any])

# The shape of a result, with None for sizes that depend on values, and its dtype.
Result = tuple[Sequence[Any], DTypeLike]
Sizes = tuple[Any, ...]

# Number of elements up to which results in eager mode remain on the host.
_MAX_HOST_RESULT_SIZE = 4096

# Functions of `compute_on_host` that saved functions refer to by their names.
HOST_FUNCTIONS: dict[str, Callable[..., Any]] = {}
# Primitives that only the interpreter runs.
SIZE_PRIMITIVES = frozenset(["host_computation", "set_sizes", "write_row"])

host_computation = jex_core.Primitive("host_computation")
host_computation.multiple_results = True


@host_computation.def_abstract_eval
def _get_types(
    *_: jax.core.ShapedArray, function: Callable[..., Any], results: Sequence[Result], use: str
) -> list[jax.core.ShapedArray]:
    return [jax.core.ShapedArray(tuple(shape), dtype) for shape, dtype in results]


def _keep_equation(_: list[bool], *arguments: Any) -> tuple[list[bool], Any]:
    # JAX 0.12 passes the used inputs before the equation.
    equation = arguments[-1]
    # Other equations may have its sizes, without an operand from it.
    return [True] * len(equation.invars), equation


dce_rules[host_computation] = _keep_equation


def _differentiate(
    primals: Sequence[Any], _: Sequence[Any], **parameters: Any
) -> tuple[list[Any], list[Any]]:
    results = host_computation.bind(*primals, **parameters)
    return results, [ad.Zero(jax.typeof(r).to_tangent_aval()) for r in results]


ad.primitive_jvps[host_computation] = _differentiate


def host_function(function: F) -> F:
    """Add a function to `HOST_FUNCTIONS`, by its name without underscores at the start.

    Its settings come first, so that `functools.partial` binds them: plain values that JSON can represent.
    """
    name = function.__name__.lstrip("_")
    assert name not in HOST_FUNCTIONS, name
    HOST_FUNCTIONS[name] = function
    return function


def find_host_name(function: Callable[..., Any]) -> str | None:
    """Return the name of a `host_function`, possibly with settings; None for another function."""
    if isinstance(function, functools.partial) and not function.keywords:
        function = function.func
    name = getattr(function, "__name__", "").lstrip("_")
    return name if HOST_FUNCTIONS.get(name) is function else None


# Operand: an array. Parameter: `shape`, its shape with other symbols. Result: the same array.
set_sizes_p = jex_core.Primitive("set_sizes")


@set_sizes_p.def_abstract_eval
def _get_type(array: Any, *, shape: tuple[Any, ...]) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(shape, array.dtype)


def _transpose(cotangent: Any, array: Any, *, shape: tuple[Any, ...]) -> list[Any]:
    if any(map(is_varying, shape)):
        raise ValueNeededError(
            "a loop variable changes its shape, and the gradient of the loop needs the shapes in all iterations"
        )
    return [set_sizes(cotangent, array.aval.shape)]


ad.deflinear2(set_sizes_p, _transpose)


# Operands: an array, a row and an index. Parameter: `shape`, with a symbol. Result: the array with the row at
# the index, and zeros before it if the array is shorter.
write_row_p = jex_core.Primitive("write_row")
dce_rules[write_row_p] = _keep_equation


@write_row_p.def_abstract_eval
def _get_written_type(
    array: jax.core.ShapedArray, *_: jax.core.ShapedArray, shape: Sizes
) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(shape, array.dtype)


def _differentiate_write(
    primals: Sequence[PyTree], tangents: Sequence[PyTree], *, shape: Sizes
) -> tuple[PyTree, PyTree]:
    array, row, index = primals
    changes = [ad.instantiate_zeros(t) for t in tangents[:2]]
    write = lambda *operands: write_row_p.bind(*operands, index, shape=shape)
    return write(array, row), write(*changes)


def _transpose_write(
    cotangent: PyTree, array: PyTree, row: PyTree, index: PyTree, *, shape: Sizes
) -> list[PyTree]:
    if type(cotangent) is ad.Zero:
        return [None, None, None]
    blank = jnp.zeros(shape[1:], cotangent.dtype)
    others = jax.lax.dynamic_update_index_in_dim(cotangent, blank, index, 0)
    gradients = (
        jax.lax.slice_in_dim(others, 0, array.aval.shape[0])
        if ad.is_undefined_primal(array)
        else None,
        jax.lax.dynamic_index_in_dim(cotangent, index, 0, False)
        if ad.is_undefined_primal(row)
        else None,
    )
    return [*gradients, None]


ad.primitive_jvps[write_row_p] = _differentiate_write
ad.primitive_transposes[write_row_p] = _transpose_write


def write_row(array: Array, row: Array, index: Array) -> Array:
    """Write a row to a traced array, which grows up to the index, in a program that runs op by op."""
    sizes = context.unknown_sizes
    assert sizes is not None
    result = write_row_p.bind(array, row, index, shape=(sizes.add_unknown(), *array.shape[1:]))
    sizes.anchors.append(result)
    return result


def set_sizes(array: Any, shape: Sequence[Any]) -> Any:
    """Return an array with other symbols for its sizes, in a program that runs op by op."""
    if all(map(is_same_size, array.shape, shape)):
        return array
    return set_sizes_p.bind(array, shape=tuple(shape))


def is_same_size(size: Any, other: Any) -> bool:
    """Check whether two sizes are the same integer or expression; nothing is assumed about symbols."""
    difference = size - other
    return not is_symbolic_dim(difference) and difference == 0


def is_unknown_size(size: Any) -> bool:
    """Check whether a size depends on values."""
    return any(name[0] in "uv" for name in list_dimensions(size))


def is_varying(size: Any) -> bool:
    """Check whether a size may differ between the iterations of a loop."""
    return any(name[0] == "v" for name in list_dimensions(size))


def can_have_unknown_sizes() -> bool:
    """Check whether the function that is being traced may have sizes that depend on values."""
    return context.unknown_sizes is not None


def compute_on_host(
    function: Callable[..., Sequence[Any]],
    operands: Sequence[TensorLike],
    results: Sequence[Result],
    use: str,
) -> list[Tensor]:
    """Compute tensors with NumPy; their sizes may depend on the values of the operands.

    Args:
      function: A function of host arrays without side effects, which returns host arrays. A function that
        is saved calls it if it is a `host_function`, possibly with settings; otherwise it contains it, so it must
        accept traced arrays.
      operands: Operands, which have no gradients.
      results: Shape and dtype of each result. A None in the shapes is a size that depends on values;
        equal strings are equal ones.
      use: Purpose of the values, for the error in a program that is compiled.

    Raises:
      ValueNeededError: If an operand is traced, and the program is compiled.

    Example:
      >>> import numpy as np
      >>> @tf.function
      ... def find_positive(x):
      ...     find = lambda x: [np.flatnonzero(x > 0)]
      ...     return compute_on_host(find, [x], [((None,), np.int64)], "values")[0]
      >>> find_positive(tf.constant([3.0, -1.0, 2.0])).numpy().tolist()
      [0, 2]
    """
    tensors = [o if type(o) is Tensor else convert_to_tensor(o) for o in operands]
    if is_recorded(tensors) or (is_staged(tensors) and find_host_name(function) is None):
        traced = _call_on_tracers(function, tensors)
        return [
            Tensor(jnp.asarray(a, dtype)) for a, (_, dtype) in zip(traced, results, strict=True)
        ]
    if not is_unknown(tensors):
        arrays = function(*[t.require_value(use) for t in tensors])
        host_arrays = [np.asarray(a, dtype) for a, (_, dtype) in zip(arrays, results, strict=True)]
        return [
            Tensor(a) if a.size <= _MAX_HOST_RESULT_SIZE else convert_to_tensor(a)
            for a in host_arrays
        ]
    sizes = context.unknown_sizes
    assert sizes is not None
    symbols: dict[Any, Any] = {}

    def make_size(size: Any) -> Any:
        if size is None:
            return sizes.add_unknown()
        if isinstance(size, str):
            if size not in symbols:
                symbols[size] = sizes.add_unknown()
            return symbols[size]
        return size

    types = tuple([(tuple(map(make_size, shape)), np.dtype(dtype)) for shape, dtype in results])
    trace = context.trace
    assert trace is not None
    arrays = [trace.lookup(t) for t in tensors]
    outputs = host_computation.bind(*arrays, function=function, results=types, use=use)
    sizes.anchors.extend(outputs)
    return list(map(Tensor, outputs))


def is_unknown(tensors: Sequence[Tensor]) -> bool:
    """Check whether sizes that depend on these tensors become symbols."""
    return can_have_unknown_sizes() and not all(
        not isinstance(t.array, jax.core.Tracer) or t.find_known_value() is not None
        for t in tensors
    )


def is_recorded(tensors: Sequence[Any]) -> bool:
    """Check whether a function is being saved that computes sizes from these tensors on the host."""
    recorder = context.host_recorder
    return recorder is not None and context.exporting and recorder.should_record_values(tensors)


def is_staged(tensors: Sequence[Tensor]) -> bool:
    """Check whether a function is being divided into stages, and sizes that depend on these tensors become symbols."""
    return context.exporting and is_unknown(tensors)


def _call_on_tracers(function: Callable[..., Any], tensors: Sequence[Tensor]) -> PyTree:
    scope = context.trace
    assert scope is not None
    return function(*[scope.lookup(t) for t in tensors])


def compute_size(function: Callable[..., Any], operands: Sequence[TensorLike], use: str) -> Any:
    """Return a size that depends on values: an integer, or a symbol if an operand is traced.

    Args:
      function: A function of host arrays that returns the size.
      operands: The operands.
      use: Purpose of the values, for the error in a program that is compiled.

    Raises:
      ValueNeededError: If an operand is traced, and the program is compiled.
    """
    tensors = [convert_to_tensor(o) for o in operands]
    if is_recorded(tensors):
        return context.host_recorder.record_sizes(Tensor(_call_on_tracers(function, tensors)))[0]
    if not is_unknown(tensors):
        return int(function(*[t.require_value(use) for t in tensors]))
    if context.exporting:
        tensors = [Tensor(jnp.asarray(_call_on_tracers(function, tensors), np.int64))]
        make_rows: Callable[..., list[np.ndarray]] = make_size_rows
    else:
        make_rows = functools.partial(_make_positive_rows, function)
    return compute_on_host(make_rows, tensors, [((None,), np.int8)], use)[0].array.shape[0]


# The memory of all arrays that only have a size.
_ZERO = bytes(1)


@host_function
def make_size_rows(size: np.ndarray) -> list[np.ndarray]:
    """Return an array without memory that has a size."""
    if size < 0:
        raise InvalidValueError(f"a computed size must not be negative, got {size}.")
    return [np.ndarray((int(size),), np.int8, _ZERO, strides=(0,))]


def _make_positive_rows(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    size = int(function(*arrays))
    if size < 1:
        # JAX assumes that sizes are positive, so checks of the op may be missing in the trace.
        raise SizeGuardError({})
    return make_size_rows(np.asarray(size))


def read_sizes(value: Tensor, use: str) -> Any:
    """Return the integers of a scalar or vector as sizes: integers, or symbols if they are traced.

    Args:
      value: The tensor.
      use: Purpose of the sizes, for the error in a program that is compiled.

    Returns:
      A size, or a tuple of sizes.

    Raises:
      ValueNeededError: If the value is traced, and the program is compiled.
    """
    sizes: Any = getattr(value, "_sizes", None)
    if sizes is not None:
        return sizes
    if is_recorded([value]) and value.ndim < 2 and value.dtype.is_integer:
        recorded = context.host_recorder.record_sizes(value)
        return recorded if value.ndim else recorded[0]
    if not is_unknown([value]) or value.ndim > 1 or not value.dtype.is_integer:
        known = value.require_value(use).tolist()
        return tuple(known) if isinstance(known, list) else known
    if value.ndim:
        indices = range(value.array.shape[0])
        sizes = tuple([compute_size(operator.itemgetter(i), [value], use) for i in indices])
    else:
        sizes = compute_size(lambda size: size, [value], use)
    if value._owner is context.trace:
        value._sizes = sizes
    return sizes
