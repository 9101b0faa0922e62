"""Signatures of ops that are created from tables, for editors and type checkers."""

# The docstrings of the classes describe their `__call__` methods.
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree


class ElementwiseOp(Protocol):
    """Op on each element of a tensor."""

    def __call__(self, x: TensorLike, name: str | None = None) -> Tensor: ...


class ReductionOp(Protocol):
    """Op that reduces axes of a tensor."""

    def __call__(
        self,
        input_tensor: TensorLike,
        axis: int | Sequence[int] | None = None,
        keepdims: bool = False,
        name: str | None = None,
    ) -> Tensor: ...


class ComplexTransform(Protocol):
    """Transform of complex numbers."""

    def __call__(self, input: TensorLike, name: str | None = None) -> Tensor: ...


class RealTransform(Protocol):
    """Transform between real numbers and half of their spectrum."""

    def __call__(
        self,
        input_tensor: TensorLike,
        fft_length: int | Sequence[int] | None = None,
        name: str | None = None,
    ) -> Tensor: ...


class AxesTransform(Protocol):
    """Transform over any axes."""

    def __call__(
        self,
        input_tensor: TensorLike,
        fft_length: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str | None = None,
        name: str | None = None,
    ) -> Tensor: ...


class Segments(Protocol):
    """Op on segments of rows, with sorted ids."""

    def __call__(
        self, data: TensorLike, segment_ids: TensorLike, name: str | None = None
    ) -> Tensor: ...


class UnsortedSegments(Protocol):
    """Op on segments of rows, with ids in any order."""

    def __call__(
        self,
        data: TensorLike,
        segment_ids: TensorLike,
        num_segments: int | Tensor,
        name: str | None = None,
    ) -> Tensor: ...


class RowSegments(Protocol):
    """Op on segments of selected rows."""

    def __call__(
        self,
        data: TensorLike,
        indices: TensorLike,
        segment_ids: TensorLike,
        num_segments: int | Tensor | None = None,
        sparse_gradient: bool = False,
        name: str | None = None,
    ) -> Tensor: ...


class ColorConversion(Protocol):
    """Conversion between color spaces."""

    def __call__(self, images: TensorLike) -> Tensor: ...


class TensorScatter(Protocol):
    """Op that returns a tensor with some slices replaced or updated."""

    def __call__(
        self, tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
    ) -> Tensor: ...


class ComparisonCheck(Protocol):
    """Assertion about the elements of two tensors; returns an operation in a version 1 graph, else None."""

    def __call__(
        self,
        x: TensorLike,
        y: TensorLike,
        message: str | None = None,
        summarize: int | None = None,
        name: str | None = None,
    ) -> PyTree: ...


class SignCheck(Protocol):
    """Assertion about the signs of the elements of a tensor; returns the same as `ComparisonCheck`."""

    def __call__(
        self,
        x: TensorLike,
        message: str | None = None,
        summarize: int | None = None,
        name: str | None = None,
    ) -> PyTree: ...
