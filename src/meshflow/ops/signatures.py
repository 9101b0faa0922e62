"""The signatures of ops that a table makes, which editors and type checkers could not see otherwise."""

from __future__ import annotations

from typing import Any, Protocol

from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = [
    "ColorConversion",
    "ComparisonCheck",
    "ComplexTransform",
    "Elementwise",
    "RealTransform",
    "Reduction",
    "RowSegments",
    "Segments",
    "SignCheck",
    "TensorScatter",
    "UnsortedSegments",
]


class Elementwise(Protocol):
    """An op on each element of one tensor."""

    def __call__(self, x: TensorLike, name: str | None = None) -> Tensor: ...


class Reduction(Protocol):
    """An op over some dimensions of a tensor."""

    def __call__(
        self,
        input_tensor: TensorLike,
        axis: Any = None,
        keepdims: bool = False,
        name: str | None = None,
    ) -> Tensor: ...


class ComplexTransform(Protocol):
    """A transform of complex numbers."""

    def __call__(self, input: TensorLike, name: str | None = None) -> Tensor: ...


class RealTransform(Protocol):
    """A transform between real numbers and half of their spectrum."""

    def __call__(
        self, input_tensor: TensorLike, fft_length: Any = None, name: str | None = None
    ) -> Tensor: ...


class Segments(Protocol):
    """An op over rows with sorted ids."""

    def __call__(
        self, data: TensorLike, segment_ids: TensorLike, name: str | None = None
    ) -> Tensor: ...


class UnsortedSegments(Protocol):
    """An op over rows with ids in any order."""

    def __call__(
        self,
        data: TensorLike,
        segment_ids: TensorLike,
        num_segments: Any,
        name: str | None = None,
    ) -> Tensor: ...


class RowSegments(Protocol):
    """An op over chosen rows of a tensor."""

    def __call__(
        self,
        data: TensorLike,
        indices: TensorLike,
        segment_ids: TensorLike,
        num_segments: Any = None,
        sparse_gradient: bool = False,
        name: str | None = None,
    ) -> Tensor: ...


class ColorConversion(Protocol):
    """An op from one colour space to another."""

    def __call__(self, images: TensorLike) -> Tensor: ...


class TensorScatter(Protocol):
    """An op that gives a tensor in which some parts are others."""

    def __call__(
        self,
        tensor: TensorLike,
        indices: TensorLike,
        updates: TensorLike,
        name: str | None = None,
    ) -> Tensor: ...


class ComparisonCheck(Protocol):
    """A check of two tensors, element by element."""

    def __call__(
        self,
        x: TensorLike,
        y: TensorLike,
        message: Any = None,
        summarize: int | None = None,
        name: str | None = None,
    ) -> None: ...


class SignCheck(Protocol):
    """A check of the signs of a tensor's elements."""

    def __call__(
        self,
        x: TensorLike,
        message: Any = None,
        summarize: int | None = None,
        name: str | None = None,
    ) -> None: ...
