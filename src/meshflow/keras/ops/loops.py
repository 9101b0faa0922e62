"""Loops, branches and functions of functions, and values from and to the host.

Example:
  >>> from meshflow.keras import ops
  >>> int(ops.fori_loop(0, 4, lambda i, total: total + i, 0))
  6
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from meshflow.core.dispatch.symbolic import in_graphs
from meshflow.core.gradients import custom_gradient as gradients
from meshflow.core.runtime.context import context
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor as to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.tensor import is_tensor as _is_tensor
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.ops.promotion import tensor
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


def convert_to_tensor(x: Any, dtype: Any = None, sparse: Any = None, ragged: Any = None) -> Tensor:
    """A tensor of a value.

    Args:
      x: a tensor, variable, array, number, or nested list.
      dtype: the dtype; default the value's own.
      sparse: False makes a sparse tensor dense.
      ragged: False makes a ragged tensor dense.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.convert_to_tensor([1.0]).dtype
      tf.float32
    """
    if sparse is False and hasattr(x, "dense_shape") and hasattr(x, "indices"):
        x = to_dense(x, validate_indices=False)
    if ragged is False and hasattr(x, "row_splits"):
        x = x.to_tensor()
    if dtype is None:
        return tensor(x)
    if _is_tensor(x) or isinstance(x, KerasTensor):
        return casting.cast(x, dtypes.as_dtype(dtype))
    if dtypes.as_dtype(dtype) == dtypes.bool_:
        return casting.cast(tensor(x), dtypes.bool_)
    return to_tensor(x, dtype)


def convert_to_numpy(x: Any) -> np.ndarray:
    """A tensor as an array.

    Args:
      x: a tensor, or what NumPy makes an array of.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.convert_to_numpy(ops.array([1, 2]))
      array([1, 2], dtype=int32)
    """
    plain = isinstance(x, (np.ndarray, np.generic)) or not hasattr(x, "dtype")
    return np.asarray(x if plain else convert_to_tensor(x, sparse=False, ragged=False))


def is_tensor(x: Any) -> bool:
    """Whether a value is a tensor.

    Args:
      x: any value.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.is_tensor(ops.zeros([1])), ops.is_tensor([0.0])
      (True, False)
    """
    return bool(_is_tensor(x)) or isinstance(x, KerasTensor)


def shape(x: TensorLike) -> tuple[Any, ...]:
    """The sizes of a tensor's dimensions: numbers, and scalar tensors where they are known when it runs.

    Args:
      x: a tensor.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.shape(ops.zeros([2, 3]))
      (2, 3)
    """
    x = tensor(x)
    known = tuple(x.shape)
    if isinstance(x, KerasTensor) or None not in known:
        return known
    found = array_ops.shape(x)
    return tuple(found[i] if size is None else size for i, size in enumerate(known))


def dtype(x: Any) -> str:
    """The name of a tensor's dtype.

    Args:
      x: a tensor.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.dtype(ops.zeros([2]))
      'float32'
    """
    return dtypes.as_dtype(tensor(x).dtype).name


def stop_gradient(variable: TensorLike) -> Tensor:
    """The value, which gradients take for a constant.

    Args:
      variable: a tensor or variable.

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.stop_gradient(2.0))
      2.0
    """
    return array_ops.stop_gradient(tensor(variable))


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a gradient of its own; see `tf.custom_gradient`.

    Args:
      f: a function that returns its value and a function of the gradient of it.

    Example:
      >>> import meshflow as tf
      >>> from meshflow.keras import ops
      >>> double = ops.custom_gradient(lambda x: (x * 1.0, lambda upstream: upstream * 2.0))
      >>> x = tf.constant(1.0)
      >>> with tf.GradientTape() as tape:
      ...     tape.watch(x)
      ...     y = double(x)
      >>> float(tape.gradient(y, x))
      2.0
    """

    def ignoring_keywords(*args: Any, **kwargs: Any) -> Any:
        value, gradient = f(*args, **kwargs)
        return (
            value,
            lambda *up, **more: (
                gradient(*up, upstream=up[0]) if _wants_upstream(gradient) else gradient(*up)
            ),
        )

    return gradients.custom_gradient(ignoring_keywords)


def _wants_upstream(gradient: Any) -> bool:
    code = getattr(gradient, "__code__", None)
    return code is not None and code.co_argcount == 0 and "upstream" in code.co_varnames


@in_graphs
def cond(pred: Any, true_fn: Callable[[], T], false_fn: Callable[[], T]) -> T:
    """What one of two functions returns.

    Args:
      pred: which: a scalar boolean.
      true_fn: called for True.
      false_fn: called for False.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.cond(ops.array(True), lambda: 1, lambda: 2))
      1
    """
    return control_flow.cond(pred, true_fn, false_fn)


@in_graphs
def switch(index: Any, branches: Sequence[Callable[..., T]], *operands: Any) -> T:
    """What the function chosen by a number returns.

    Args:
      index: which one; brought into the range of them.
      branches: functions of the operands.
      *operands: their arguments.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.switch(1, [lambda x: x, lambda x: x + 1], 5))
      6
    """
    last = len(branches) - 1
    index = casting.cast(tensor(index), "int32")
    index = array_ops.where(index < 0, 0, array_ops.where(index > last, last, index))
    calls = [
        lambda branch=branch: nest.map_structure(tensor, branch(*operands)) for branch in branches
    ]
    return control_flow.switch_case(index, calls)


@in_graphs
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    maximum_iterations: Any = None,
) -> Any:
    """Runs `loop_vars = body(*loop_vars)` while `cond(*loop_vars)` holds.

    Args:
      cond: a function that returns a scalar boolean.
      body: a function that returns the next values.
      loop_vars: the first values: a tuple, list, or one of them.
      maximum_iterations: after how many times it ends in any case.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.while_loop(lambda i: i < 10, lambda i: (i + 3,), (0,))[0])
      12
    """
    several = isinstance(loop_vars, (tuple, list))
    first = tuple(loop_vars) if several else (loop_vars,)

    def step(*values: Any) -> Any:
        found = body(*values)
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    last = control_flow.while_loop(cond, step, first, maximum_iterations=maximum_iterations)
    return last if several else last[0]


@in_graphs
def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, T], T], init_val: T) -> T:
    """Runs `value = body_fun(i, value)` for i from `lower` to `upper`, which is left out.

    Args:
      lower: the first i.
      upper: where it ends.
      body_fun: a function (i, value); i is an int eagerly with numbers as limits, else an int32 tensor.
      init_val: the first value.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.fori_loop(0, 3, lambda i, v: v + i, 0))
      3
    """
    if isinstance(lower, int) and isinstance(upper, int) and context.trace is None:
        # Python's numbers meet tensors of any dtype.
        value = nest.map_structure(tensor, init_val)
        for i in range(lower, upper):
            value = body_fun(i, value)
        return value
    _, value = control_flow.while_loop(
        lambda i, _: i < upper, lambda i, v: (i + 1, body_fun(i, v)), (tensor(lower), init_val)
    )
    return value


@in_graphs
def scan(
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: Any = 1,
) -> tuple[Any, Any]:
    """Runs `carry, y = f(carry, x)` over slices and returns the last carry and all y.

    Args:
      f: a function (carry, x).
      init: the first carry.
      xs: what is cut into slices along the first dimension; None for none.
      length: how many slices, where `xs` is None.
      reverse: whether it begins at the end.
      unroll: accepted: how the loop is written is the compiler's affair.

    Returns:
      (carry, ys).

    Example:
      >>> from meshflow.keras import ops
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
    init = nest.map_structure(tensor, init)
    if xs is None:
        if length is None:
            raise ValueError("Got no `xs` to scan over and `length` not provided.")
        elems: Any = array_ops.range(int(length))
        step = lambda carry, _: f(carry, None)
    else:
        elems, step = nest.map_structure(tensor, xs), f
    if nest.flatten(elems)[0].shape[0] == 0:
        return init, None

    def pair(held: Any, x: Any) -> Any:
        carry, y = step(held[0], x)
        return carry, nest.map_structure(tensor, y)

    first = step(init, nest.map_structure(lambda e: e[-1 if reverse else 0], elems))
    if first[1] is None:
        only = lambda carry, x: step(carry, x)[0]
        carries = functional.scan(only, elems, init, reverse=reverse)
        return nest.map_structure(lambda c: c[0 if reverse else -1], carries), None
    blank = nest.map_structure(lambda y: array_ops.zeros_like(tensor(y)), first[1])
    carries, ys = functional.scan(pair, elems, (init, blank), reverse=reverse)
    return nest.map_structure(lambda c: c[0 if reverse else -1], carries), ys


@in_graphs
def associative_scan(
    f: Callable[[Any, Any], Any], elems: T, reverse: bool = False, axis: int = 0
) -> T:
    """All beginnings of a chain of an associative function, in a number of steps that grows as a logarithm.

    Args:
      f: a function of two structures of slices.
      elems: tensors, whose slices along `axis` are the links.
      reverse: whether the chain begins at the end.
      axis: the dimension.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.associative_scan(lambda a, b: a + b, ops.arange(4)).numpy().tolist()
      [0, 1, 3, 6]
    """
    flat = [tensor(e) for e in nest.flatten(elems)]
    front = [_to_front(_reversed(e, axis) if reverse else e, axis) for e in flat]
    structured = lambda values: nest.pack_sequence_as(elems, values)
    combine = lambda a, b: nest.flatten(f(structured(a), structured(b)))
    # Each round joins what ends at i with what ends `distance` before it.
    distance, count = 1, int(front[0].shape[0])
    while distance < count:
        joined = combine([e[:-distance] for e in front], [e[distance:] for e in front])
        front = [array_ops.concat([e[:distance], j], 0) for e, j in zip(front, joined, strict=True)]
        distance *= 2
    back = [_from_front(e, axis) for e in front]
    return structured([_reversed(e, axis) if reverse else e for e in back])


def _reversed(x: Any, axis: int) -> Any:
    return array_ops.reverse(x, [axis])


def _to_front(x: Any, axis: int) -> Any:
    order = list(range(len(x.shape)))
    return array_ops.transpose(x, [order.pop(axis), *order])


def _from_front(x: Any, axis: int) -> Any:
    order = list(range(1, len(x.shape)))
    order.insert(axis % len(x.shape), 0)
    return array_ops.transpose(x, order)


@in_graphs
def map(f: Callable[[Any], T], xs: Any) -> T:
    """A function of each slice along the first dimension, one after the other.

    Args:
      f: a function of a structure of slices.
      xs: tensors.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.map(lambda x: x * 2, ops.arange(3)).numpy().tolist()
      [0, 2, 4]
    """
    xs = nest.map_structure(tensor, xs)
    one = nest.map_structure(tensor, f(nest.map_structure(lambda x: x[0], xs)))
    kinds = nest.map_structure(lambda y: y.dtype, one)
    return functional.map_fn(f, xs, fn_output_signature=kinds)


@in_graphs
def vectorized_map(function: Callable[[Any], T], elements: Any) -> T:
    """A function of all slices along the first dimension at once.

    Args:
      function: a function of a structure of slices.
      elements: tensors.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.vectorized_map(lambda x: x * 2, ops.arange(3)).numpy().tolist()
      [0, 2, 4]
    """
    return functional.vectorized_map(function, nest.map_structure(tensor, elements))


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Any = None, signature: str | None = None
) -> Callable[..., Any]:
    """A function of elements as one of tensors, which broadcasts.

    Args:
      pyfunc: the function.
      excluded: positions or names of arguments that are passed as they are.
      signature: dimensions that each argument and result has, such as '(n),(n)->()'.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.vectorize(lambda a, b: a * b)([1, 2], 3).numpy().tolist()
      [3, 6]
    """
    if not callable(pyfunc):
        raise ValueError(f"Expected argument `pyfunc` to be a callable. Received: pyfunc={pyfunc}")
    apart = set(excluded or ())
    if signature is None:
        ranks: list[int] | None = None
    else:
        ranks = [
            len([n for n in part.split(",") if n.strip()])
            for part in signature.split("->")[0].replace(" ", "").strip("()").split("),(")
        ]

    def public(*args: Any, **kwargs: Any) -> Any:
        places = [i for i in range(len(args)) if i not in apart]
        names = [n for n in kwargs if n not in apart]
        held = [tensor(args[i]) for i in places] + [tensor(kwargs[n]) for n in names]
        own = ranks if ranks is not None else [0] * len(held)
        outer = [list(x.shape)[: len(x.shape) - r] for x, r in zip(held, own, strict=True)]
        whole = list(np.broadcast_shapes(*[tuple(s) for s in outer]))
        flat = [
            array_ops.reshape(
                array_ops.broadcast_to(x, [*whole, *list(x.shape)[len(x.shape) - r :]]),
                [-1, *list(x.shape)[len(x.shape) - r :]],
            )
            for x, r in zip(held, own, strict=True)
        ]

        def one(values: Any) -> Any:
            given = list(args)
            for i, value in zip(places, values, strict=False):
                given[i] = value
            return pyfunc(
                *given, **{**kwargs, **dict(zip(names, values[len(places) :], strict=True))}
            )

        found = functional.vectorized_map(one, tuple(flat))
        return nest.map_structure(
            lambda y: array_ops.reshape(y, [*whole, *list(y.shape)[1:]]), found
        )

    return public
