"""Families of `keras.ops` that differ in one function only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.promotion import as_float, as_sum, common, tensor, wide_float

__all__ = [
    "Binary",
    "Bits",
    "Extreme",
    "Reduction",
    "Running",
    "Segments",
    "Unary",
    "Window",
    "binary",
    "bits",
    "named",
    "reduction",
    "unary",
]


class Unary(Protocol):
    """A function of each element."""

    def __call__(self, x: TensorLike) -> Tensor: ...


class Binary(Protocol):
    """A function of pairs of elements, which broadcasts."""

    def __call__(self, x1: TensorLike, x2: TensorLike) -> Tensor: ...


class Bits(Protocol):
    """A function of the bits of pairs of integers, which broadcasts."""

    def __call__(self, x: TensorLike, y: TensorLike) -> Tensor: ...


class Reduction(Protocol):
    """A function of what lies along some dimensions."""

    def __call__(self, x: TensorLike, axis: Any = None, keepdims: bool = False) -> Tensor: ...


class Extreme(Protocol):
    """The greatest or least element along some dimensions."""

    def __call__(
        self, x: TensorLike, axis: Any = None, keepdims: bool = False, initial: Any = None
    ) -> Tensor: ...


class Running(Protocol):
    """A function of all elements up to each one."""

    def __call__(self, x: TensorLike, axis: Any = None, dtype: Any = None) -> Tensor: ...


class Segments(Protocol):
    """A function of rows that have one number."""

    def __call__(
        self,
        data: TensorLike,
        segment_ids: TensorLike,
        num_segments: int | None = None,
        sorted: bool = False,
    ) -> Tensor: ...


class Window(Protocol):
    """A window of some points."""

    def __call__(self, x: Any) -> Tensor: ...


def named(function: Any, name: str, doc: str = "") -> Any:
    """A function with a name of its own, by which files name it, and a docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def made_op(name: str, function: Callable[..., Any], count: int, **settings: Any) -> Any:
    """An op of one or two arrays, which need not share a dtype."""
    if count == 1:

        def one(x: TensorLike) -> Any:
            return function(x)

        return op(named(one, name), name=name, same=(), **settings)

    def two(x1: TensorLike, x2: TensorLike) -> Any:
        return function(x1, x2)

    return op(named(two, name), name=name, same=(), **settings)


def unary(
    name: str,
    function: Callable[..., Any],
    doc: str,
    *,
    keeps: bool = False,
    wide: bool = False,
    array: bool = False,
    differentiable: bool = True,
) -> Unary:
    """A function of each element.

    Args:
      name: its name.
      function: an op, or with `array` a function of arrays.
      doc: what it computes.
      keeps: whether integers stay integers; else they become `floatx()`.
      wide: whether 64-bit integers become float64.
      array: whether `function` is one of arrays.
      differentiable: whether it has a gradient.
    """
    run = made_op(name, function, 1, differentiable=differentiable) if array else function
    ready = tensor if keeps else wide_float if wide else as_float

    def public(x: TensorLike) -> Tensor:
        return run(ready(x))

    return named(
        public,
        name,
        f"{doc}\n\nArgs:\n  x: a tensor of any shape.\n\nReturns:\n  A tensor of the shape of `x`.\n",
    )


def binary(
    name: str,
    function: Callable[..., Any],
    doc: str,
    *,
    floats: bool = False,
    wide: bool = False,
    weak: bool = True,
    array: bool = False,
    differentiable: bool = True,
) -> Binary:
    """A function of pairs of elements.

    Args:
      name: its name.
      function: an op, or with `array` a function of arrays.
      doc: what it computes.
      floats: whether integers become `floatx()`.
      wide: whether 64-bit integers become float64, and others `floatx()`.
      weak: whether Python numbers take the dtype of the other operand; else they are int32 or `floatx()`.
      array: whether `function` is one of arrays.
      differentiable: whether it has a gradient.
    """
    run = made_op(name, function, 2, differentiable=differentiable) if array else function

    def public(x1: TensorLike, x2: TensorLike) -> Tensor:
        if not weak:
            x1, x2 = tensor(x1), tensor(x2)
        held = common(x1, x2, also=float if floats else None)
        return run(*map(wide_float, held)) if wide else run(*held)

    return named(
        public,
        name,
        f"{doc}\n\nArgs:\n  x1: a tensor.\n  x2: a tensor whose shape broadcasts with that of `x1`.\n\nReturns:\n  A tensor of the broadcast shape.\n",
    )


def bits(name: str, function: Callable[..., Any], doc: str) -> Bits:
    """A function of the bits of integers."""
    run = made_op(name, function, 2, differentiable=False)

    def public(x: TensorLike, y: TensorLike) -> Tensor:
        return run(*common(x, y))

    return named(
        public,
        name,
        f"{doc}\n\nArgs:\n  x: a tensor of integers.\n  y: a tensor of integers.\n\nReturns:\n  A tensor of the broadcast shape.\n",
    )


def reduction(
    name: str, function: Callable[..., Any], doc: str, *, how: str = "keeps"
) -> Reduction:
    """A function of what lies along some dimensions.

    Args:
      name: its name.
      function: a function (tensor, axis, keepdims).
      doc: what it computes.
      how: "keeps" the dtype, "sums" in 32 bits at least, or makes "floats" of integers.
    """
    ready = {"keeps": tensor, "sums": as_sum, "floats": as_float}[how]

    def public(x: TensorLike, axis: Any = None, keepdims: bool = False) -> Tensor:
        return function(ready(x), axis, keepdims)

    return named(
        public,
        name,
        f"{doc}\n\nArgs:\n  x: a tensor.\n  axis: a dimension, several of them, or None for all.\n"
        "  keepdims: whether reduced dimensions stay, of size 1.\n\nReturns:\n  A tensor without the reduced dimensions.\n",
    )
