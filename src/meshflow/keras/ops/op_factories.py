"""Factories of `keras.ops` functions that differ in a single array function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.promotion import Axis, as_float, as_sum, as_tensor, as_wide_float, promote

F = TypeVar("F", bound=Callable[..., Any])


class UnaryOp(Protocol):
    """Function of each element."""

    def __call__(self, x: TensorLike) -> Tensor:
        """Return the result."""


class BinaryOp(Protocol):
    """Function of pairs of elements, with broadcasting."""

    def __call__(self, x1: TensorLike, x2: TensorLike) -> Tensor:
        """Return the result."""


class BitwiseOp(Protocol):
    """Function of the bits of pairs of integers, with broadcasting."""

    def __call__(self, x: TensorLike, y: TensorLike) -> Tensor:
        """Return the result."""


class ReductionOp(Protocol):
    """Reduction over some axes."""

    def __call__(self, x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return the result."""


class ExtremumOp(Protocol):
    """Maximum or minimum over some axes."""

    def __call__(
        self,
        x: TensorLike,
        axis: Axis = None,
        keepdims: bool = False,
        initial: TensorLike | None = None,
    ) -> Tensor:
        """Return the result."""


class CumulativeOp(Protocol):
    """Cumulative function along an axis."""

    def __call__(
        self, x: TensorLike, axis: int | None = None, dtype: DTypeLike | None = None
    ) -> Tensor:
        """Return the result."""


class SegmentOp(Protocol):
    """Reduction of the rows of each segment."""

    def __call__(
        self,
        data: TensorLike,
        segment_ids: TensorLike,
        num_segments: int | None = None,
        sorted: bool = False,
    ) -> Tensor:
        """Return the result."""


class WindowFunction(Protocol):
    """Window function of a number of points."""

    def __call__(self, x: TensorLike) -> Tensor:
        """Return the result."""


def set_name(function: F, name: str, doc: str = "") -> F:
    """Set the name of a function, by which files refer to it, and its docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def array_op(
    convert: Callable[[TensorLike], Tensor] = as_tensor, *, differentiable: bool = True
) -> Callable[[F], F]:
    """Create a decorator that makes a function of a JAX array a function of `keras.ops`.

    A call with a symbolic tensor becomes one layer.

    Args:
      convert: Conversion of the array, the first argument; the other arguments are static.
      differentiable: Whether the op has a gradient.
    """

    def decorate(function: F) -> F:
        run = op(function, same=(), name=function.__name__, differentiable=differentiable)
        operand = next(iter(inspect.signature(function).parameters))

        @functools.wraps(function)
        def public(*args: Any, **kwargs: Any) -> Any:
            if args:
                args = (convert(args[0]), *args[1:])
            elif operand in kwargs:
                kwargs[operand] = convert(kwargs[operand])
            return run(*args, **kwargs)

        return cast(F, as_single_layer()(public))

    return decorate


def make_op(name: str, function: Callable[..., Any], count: int, **settings: Any) -> Any:
    """Create an op of one or two arrays, which may have different dtypes."""
    if count == 1:

        def unary_op(x: TensorLike) -> Any:
            return function(x)

        return op(set_name(unary_op, name), name=name, same=(), **settings)

    def binary_op(x1: TensorLike, x2: TensorLike) -> Any:
        return function(x1, x2)

    return op(set_name(binary_op, name), name=name, same=(), **settings)


def make_unary(
    name: str,
    function: Callable[..., Any],
    doc: str,
    *,
    keeps: bool = False,
    wide: bool = False,
    array: bool = False,
    differentiable: bool = True,
) -> UnaryOp:
    """Create a function of each element.

    Args:
      name: Name of the function.
      function: An op, or with `array` a function of JAX arrays.
      doc: Phrase that completes the summary "Compute ... for each element."
      keeps: Whether integers remain integers; otherwise they become `floatx()`.
      wide: Whether 64-bit integers become float64.
      array: Whether `function` is a function of JAX arrays.
      differentiable: Whether the op has a gradient.
    """
    run = make_op(name, function, 1, differentiable=differentiable) if array else function
    convert = as_tensor if keeps else as_wide_float if wide else as_float

    def public(x: TensorLike) -> Tensor:
        return run(convert(x))

    return set_name(
        public,
        name,
        f"Compute {doc} for each element.\n\nArgs:\n  x: A tensor of any shape.\n\nReturns:\n  A tensor of the shape of `x`.\n",
    )


def make_binary(
    name: str,
    function: Callable[..., Any],
    doc: str,
    *,
    floats: bool = False,
    wide: bool = False,
    weak: bool = True,
    array: bool = False,
    differentiable: bool = True,
) -> BinaryOp:
    """Create a function of pairs of elements.

    Args:
      name: Name of the function.
      function: An op, or with `array` a function of JAX arrays.
      doc: Phrase that completes the summary "Compute ...".
      floats: Whether integers become `floatx()`.
      wide: Whether 64-bit integers become float64, and others `floatx()`.
      weak: Whether Python numbers adopt the dtype of the other operand; otherwise they are int32 or
        `floatx()`.
      array: Whether `function` is a function of JAX arrays.
      differentiable: Whether the op has a gradient.
    """
    run = make_op(name, function, 2, differentiable=differentiable) if array else function

    def public(x1: TensorLike, x2: TensorLike) -> Tensor:
        if not weak:
            x1, x2 = as_tensor(x1), as_tensor(x2)
        operands = promote(x1, x2, also=float if floats else None)
        return run(*map(as_wide_float, operands)) if wide else run(*operands)

    return set_name(
        public,
        name,
        f"Compute {doc}.\n\nArgs:\n  x1: A tensor.\n  x2: A tensor with a shape that broadcasts with the shape of `x1`.\n\nReturns:\n  A tensor of the broadcast shape.\n",
    )


def make_bitwise(name: str, function: Callable[..., Any], doc: str) -> BitwiseOp:
    """Create a function of the bits of integers."""
    run = make_op(name, function, 2, differentiable=False)

    def public(x: TensorLike, y: TensorLike) -> Tensor:
        return run(*promote(x, y))

    return set_name(
        public,
        name,
        f"Compute {doc}.\n\nArgs:\n  x: An integer tensor.\n  y: An integer tensor.\n\nReturns:\n  A tensor of the broadcast shape.\n",
    )


def make_reduction(
    name: str, function: Callable[..., Any], doc: str, *, conversion: str = "keeps"
) -> ReductionOp:
    """Create a reduction over some axes.

    Args:
      name: Name of the function.
      function: A function (tensor, axis, keepdims).
      doc: Phrase that completes the summary "Compute ...".
      conversion: "keeps" the dtype, "sums" in at least 32 bits, or converts integers to "floats".
    """
    convert = {"keeps": as_tensor, "sums": as_sum, "floats": as_float}[conversion]

    def public(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return function(convert(x), axis, keepdims)

    return set_name(
        public,
        name,
        f"Compute {doc}.\n\nArgs:\n  x: A tensor.\n  axis: Axis or axes to reduce; None for all.\n"
        "  keepdims: Whether to keep reduced axes with size 1.\n\nReturns:\n  A tensor without the reduced axes.\n",
    )
