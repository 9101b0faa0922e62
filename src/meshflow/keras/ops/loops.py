"""Loops, branches, function transformations, and conversions of tensors to and from arrays.

Example:
  >>> int(ops.fori_loop(0, 4, lambda i, total: total + i, 0))
  6
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from meshflow.core.dispatch.symbolic_calls import accept_symbolic_unnamed
from meshflow.core.gradients import custom_gradients as gradients
from meshflow.core.runtime.context import context
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor as to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.tensor import is_tensor as _is_tensor
from meshflow.environment.types import PyTree
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.ops.promotion import as_tensor
from meshflow.ops import array as array_ops
from meshflow.ops import casting, control_flow, functional
from meshflow.sparse import to_dense

__all__ = [
    "associative_scan",
    "cond",
    "convert_to_numpy",
    "convert_to_tensor",
    "custom_gradient",
    "dtype",
    "fori_loop",
    "is_tensor",
    "map",
    "scan",
    "shape",
    "stop_gradient",
    "switch",
    "vectorize",
    "vectorized_map",
    "while_loop",
]

T = TypeVar("T")


def convert_to_tensor(
    x: TensorLike,
    dtype: DTypeLike | None = None,
    sparse: bool | None = None,
    ragged: bool | None = None,
) -> Tensor:
    """Convert a value to a tensor.

    Args:
      x: A tensor, variable, array, number or nested list.
      dtype: Dtype; default the dtype of the value.
      sparse: False converts sparse tensors to dense ones.
      ragged: False converts ragged tensors to dense ones.

    Example:
      >>> ops.convert_to_tensor([1.0]).dtype
      tf.float32
    """
    if sparse is False and hasattr(x, "dense_shape") and hasattr(x, "indices"):
        x = to_dense(x, validate_indices=False)
    if ragged is False and hasattr(x, "row_splits"):
        x = x.to_tensor()
    if dtype is None:
        return as_tensor(x)
    if _is_tensor(x) or isinstance(x, KerasTensor):
        return casting.cast(x, dtypes.as_dtype(dtype))
    if dtypes.as_dtype(dtype) == dtypes.bool_:
        return casting.cast(as_tensor(x), dtypes.bool_)
    return to_tensor(x, dtype)


def convert_to_numpy(x: TensorLike) -> np.ndarray:
    """Convert a tensor to a NumPy array.

    Args:
      x: A tensor, or a value that NumPy can convert.

    Example:
      >>> ops.convert_to_numpy(ops.array([1, 2]))
      array([1, 2], dtype=int32)
    """
    is_array = isinstance(x, (np.ndarray, np.generic)) or not hasattr(x, "dtype")
    return np.asarray(x if is_array else convert_to_tensor(x, sparse=False, ragged=False))


def is_tensor(x: object) -> bool:
    """Check whether a value is a tensor.

    Args:
      x: Any value.

    Example:
      >>> ops.is_tensor(ops.zeros([1])), ops.is_tensor([0.0])
      (True, False)
    """
    return bool(_is_tensor(x)) or isinstance(x, KerasTensor)


def shape(x: TensorLike) -> tuple[Any, ...]:
    """Return the sizes of a tensor's axes: integers, or scalar tensors where they are dynamic.

    Args:
      x: A tensor.

    Example:
      >>> ops.shape(ops.zeros([2, 3]))
      (2, 3)
    """
    x = as_tensor(x)
    sizes = tuple(x.shape)
    if isinstance(x, KerasTensor) or None not in sizes:
        return sizes
    dynamic_sizes = array_ops.shape(x)
    return tuple(dynamic_sizes[i] if size is None else size for i, size in enumerate(sizes))


def dtype(x: TensorLike) -> str:
    """Return the name of a tensor's dtype.

    Args:
      x: A tensor.

    Example:
      >>> ops.dtype(ops.zeros([2]))
      'float32'
    """
    return dtypes.as_dtype(as_tensor(x).dtype).name


def stop_gradient(variable: TensorLike) -> Tensor:
    """Return the value, which gradients treat as a constant.

    Args:
      variable: A tensor or variable.

    Example:
      >>> float(ops.stop_gradient(2.0))
      2.0
    """
    return array_ops.stop_gradient(as_tensor(variable))


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Define the gradient of a function; see `tf.custom_gradient`.

    Args:
      f: A function that returns its value and the function of its gradient.

    Example:
      >>> double = ops.custom_gradient(lambda x: (x * 1.0, lambda upstream: upstream * 2.0))
      >>> x = tf.constant(1.0)
      >>> with tf.GradientTape() as tape:
      ...     tape.watch(x)
      ...     y = double(x)
      >>> float(tape.gradient(y, x))
      2.0
    """

    def call_with_upstream(*args: Any, **kwargs: Any) -> Any:
        value, gradient = f(*args, **kwargs)
        return (
            value,
            lambda *up, **_: (
                gradient(*up, upstream=up[0]) if _takes_upstream(gradient) else gradient(*up)
            ),
        )

    return gradients.custom_gradient(call_with_upstream)


def _takes_upstream(gradient: Callable[..., Any]) -> bool:
    code = getattr(gradient, "__code__", None)
    return code is not None and code.co_argcount == 0 and "upstream" in code.co_varnames


@accept_symbolic_unnamed
def cond(pred: TensorLike, true_fn: Callable[[], T], false_fn: Callable[[], T]) -> T:
    """Call one of two functions, depending on a condition.

    Args:
      pred: A scalar boolean.
      true_fn: Function to call if `pred` is true.
      false_fn: Function to call if `pred` is false.

    Example:
      >>> int(ops.cond(ops.array(True), lambda: 1, lambda: 2))
      1
    """
    return control_flow.cond(pred, true_fn, false_fn)


@accept_symbolic_unnamed
def switch(index: TensorLike, branches: Sequence[Callable[..., T]], *operands: Any) -> T:
    """Call the function with an index.

    Args:
      index: Index of the function, clipped to the valid range.
      branches: Functions of the operands.
      *operands: Arguments of the functions.

    Example:
      >>> int(ops.switch(1, [lambda x: x, lambda x: x + 1], 5))
      6
    """
    last = len(branches) - 1
    index = casting.cast(as_tensor(index), "int32")
    index = array_ops.where(index < 0, 0, array_ops.where(index > last, last, index))
    calls = [
        lambda branch=branch: nest.map_structure(as_tensor, branch(*operands))
        for branch in branches
    ]
    return control_flow.switch_case(index, calls)


@accept_symbolic_unnamed
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: PyTree,
    maximum_iterations: int | None = None,
) -> PyTree:
    """Run `loop_vars = body(*loop_vars)` while `cond(*loop_vars)` is true.

    Args:
      cond: A function that returns a scalar boolean.
      body: A function that returns the next values.
      loop_vars: Initial values: a tuple, a list, or a single value.
      maximum_iterations: Maximum number of iterations.

    Example:
      >>> int(ops.while_loop(lambda i: i < 10, lambda i: (i + 3,), (0,))[0])
      12
    """
    is_sequence = isinstance(loop_vars, (tuple, list))
    first = tuple(loop_vars) if is_sequence else (loop_vars,)

    def step(*values: Any) -> tuple[Any, ...]:
        results = body(*values)
        return tuple(results) if isinstance(results, (tuple, list)) else (results,)

    last = control_flow.while_loop(cond, step, first, maximum_iterations=maximum_iterations)
    return last if is_sequence else last[0]


@accept_symbolic_unnamed
def fori_loop(
    lower: TensorLike, upper: TensorLike, body_fun: Callable[[Any, T], T], init_val: T
) -> T:
    """Run `value = body_fun(i, value)` for i from `lower` up to but not including `upper`.

    Args:
      lower: The first i.
      upper: The end.
      body_fun: A function (i, value). In eager mode with Python limits, i is an int, else an int32
        tensor.
      init_val: Initial value.

    Example:
      >>> int(ops.fori_loop(0, 3, lambda i, v: v + i, 0))
      3
    """
    if isinstance(lower, int) and isinstance(upper, int) and context.trace is None:
        # The initial values become tensors, but `i` remains a Python number, which adopts any
        # dtype.
        value = nest.map_structure(as_tensor, init_val)
        for i in range(lower, upper):
            value = body_fun(i, value)
        return value
    _, value = control_flow.while_loop(
        lambda i, _: i < upper, lambda i, v: (i + 1, body_fun(i, v)), (as_tensor(lower), init_val)
    )
    return value


@accept_symbolic_unnamed
def scan(
    f: Callable[[Any, Any], Any],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[PyTree, PyTree]:
    """Run `carry, y = f(carry, x)` over slices, and return the last carry and all y.

    Args:
      f: A function (carry, x).
      init: Initial carry.
      xs: Tensors to slice along the first axis, or None.
      length: Number of iterations if `xs` is None.
      reverse: Whether to start at the end.
      unroll: Accepted and ignored: XLA decides about unrolling.

    Returns:
      (carry, ys).

    Example:
      >>> carry, ys = ops.scan(lambda c, x: (c + x, c), 0, ops.array([1, 2, 3]))
      >>> int(carry), ys.numpy().tolist()
      (6, [0, 1, 3])
    """
    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    if not isinstance(unroll, bool) and not (isinstance(unroll, int) and unroll > 0):
        raise ValueError(
            f"`unroll` must be a positive integer or boolean. Received: unroll={unroll}"
        )
    init = nest.map_structure(as_tensor, init)
    if xs is None:
        if length is None:
            raise ValueError("Got no `xs` to scan over and `length` not provided.")
        elems: Any = array_ops.range(int(length))
        step = lambda carry, _: f(carry, None)
    else:
        elems, step = nest.map_structure(as_tensor, xs), f
    if nest.flatten(elems)[0].shape[0] == 0:
        return init, None

    def step_with_output(state: tuple[Any, ...], x: PyTree) -> tuple[PyTree, PyTree]:
        carry, y = step(state[0], x)
        return carry, nest.map_structure(as_tensor, y)

    first = step(init, nest.map_structure(lambda e: e[-1 if reverse else 0], elems))
    if first[1] is None:
        step_carry = lambda carry, x: step(carry, x)[0]
        carries = functional.scan(step_carry, elems, init, reverse=reverse)
        return nest.map_structure(lambda c: c[0 if reverse else -1], carries), None
    zero_output = nest.map_structure(lambda y: array_ops.zeros_like(as_tensor(y)), first[1])
    carries, ys = functional.scan(step_with_output, elems, (init, zero_output), reverse=reverse)
    return nest.map_structure(lambda c: c[0 if reverse else -1], carries), ys


@accept_symbolic_unnamed
def associative_scan(
    f: Callable[[Any, Any], Any], elems: T, reverse: bool = False, axis: int = 0
) -> T:
    """Compute a parallel prefix scan of an associative function, in a logarithmic number of steps.

    Args:
      f: A function of two structures of slices.
      elems: Tensors to slice along `axis`.
      reverse: Whether to start at the end.
      axis: The axis.

    Example:
      >>> ops.associative_scan(lambda a, b: a + b, ops.arange(4)).numpy().tolist()
      [0, 1, 3, 6]
    """
    flat = [as_tensor(e) for e in nest.flatten(elems)]
    slices = [_move_axis_to_front(_reverse(e, axis) if reverse else e, axis) for e in flat]
    pack = lambda values: nest.pack_sequence_as(elems, values)
    combine = lambda a, b: nest.flatten(f(pack(a), pack(b)))
    # Each round combines the results that end at i with those that end at `i - distance`.
    distance, count = 1, int(slices[0].shape[0])
    while distance < count:
        combined = combine([e[:-distance] for e in slices], [e[distance:] for e in slices])
        slices = [
            array_ops.concat([e[:distance], j], 0) for e, j in zip(slices, combined, strict=True)
        ]
        distance *= 2
    results = [_move_front_to_axis(e, axis) for e in slices]
    return pack([_reverse(e, axis) if reverse else e for e in results])


def _reverse(x: Tensor, axis: int) -> Tensor:
    return array_ops.reverse(x, [axis])


def _move_axis_to_front(x: Tensor, axis: int) -> Tensor:
    order = list(range(len(x.shape)))
    return array_ops.transpose(x, [order.pop(axis), *order])


def _move_front_to_axis(x: Tensor, axis: int) -> Tensor:
    order = list(range(1, len(x.shape)))
    order.insert(axis % len(x.shape), 0)
    return array_ops.transpose(x, order)


@accept_symbolic_unnamed
def map(f: Callable[[Any], T], xs: PyTree) -> T:
    """Apply a function to each slice along the first axis, sequentially.

    Args:
      f: A function of a structure of slices.
      xs: Tensors.

    Example:
      >>> ops.map(lambda x: x * 2, ops.arange(3)).numpy().tolist()
      [0, 2, 4]
    """
    xs = nest.map_structure(as_tensor, xs)
    first_result = nest.map_structure(as_tensor, f(nest.map_structure(lambda x: x[0], xs)))
    output_dtypes = nest.map_structure(lambda y: y.dtype, first_result)
    return functional.map_fn(f, xs, fn_output_signature=output_dtypes)


@accept_symbolic_unnamed
def vectorized_map(function: Callable[[Any], T], elements: PyTree) -> T:
    """Apply a function to all slices along the first axis at once.

    Args:
      function: A function of a structure of slices.
      elements: Tensors.

    Example:
      >>> ops.vectorized_map(lambda x: x * 2, ops.arange(3)).numpy().tolist()
      [0, 2, 4]
    """
    return functional.vectorized_map(function, nest.map_structure(as_tensor, elements))


def vectorize(
    pyfunc: Callable[..., Any],
    *,
    excluded: Iterable[int | str] | None = None,
    signature: str | None = None,
) -> Callable[..., Any]:
    """Convert a function of elements to a function of tensors, with broadcasting.

    Args:
      pyfunc: The function.
      excluded: Positions or names of arguments that are passed unchanged.
      signature: Core axes of each argument and result, for example '(n),(n)->()'.

    Example:
      >>> ops.vectorize(lambda a, b: a * b)([1, 2], 3).numpy().tolist()
      [3, 6]
    """
    if not callable(pyfunc):
        raise ValueError(f"Expected argument `pyfunc` to be a callable. Received: pyfunc={pyfunc}")
    excluded_arguments = set(excluded or ())
    if signature is None:
        ranks: list[int] | None = None
    else:
        ranks = [
            len([n for n in part.split(",") if n.strip()])
            for part in signature.split("->")[0].replace(" ", "").strip("()").split("),(")
        ]

    def public(*args: Any, **kwargs: Any) -> PyTree:
        indices = [i for i in range(len(args)) if i not in excluded_arguments]
        names = [n for n in kwargs if n not in excluded_arguments]
        operands = [as_tensor(args[i]) for i in indices] + [as_tensor(kwargs[n]) for n in names]
        core_ranks = ranks if ranks is not None else [0] * len(operands)
        shapes = [list(x.shape) for x in operands]
        cores = [s[len(s) - r :] for s, r in zip(shapes, core_ranks, strict=True)]
        outer = [tuple(s[: len(s) - r]) for s, r in zip(shapes, core_ranks, strict=True)]
        outer_shape = list(np.broadcast_shapes(*outer))
        flat = [
            array_ops.reshape(array_ops.broadcast_to(x, [*outer_shape, *core]), [-1, *core])
            for x, core in zip(operands, cores, strict=True)
        ]

        def call(values: Sequence[Any]) -> PyTree:
            new_args = list(args)
            for i, value in zip(indices, values, strict=False):
                new_args[i] = value
            new_kwargs = dict(zip(names, values[len(indices) :], strict=True))
            return pyfunc(*new_args, **{**kwargs, **new_kwargs})

        results = functional.vectorized_map(call, tuple(flat))
        unflatten = lambda y: array_ops.reshape(y, [*outer_shape, *list(y.shape)[1:]])
        return nest.map_structure(unflatten, results)

    return public
