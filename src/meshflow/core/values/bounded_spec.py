"""Specs of tensors with bounds."""

from __future__ import annotations

import numpy as np

from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import ArrayLike, PyTree


class BoundedTensorSpec(TensorSpec):
    """Spec of a tensor with bounds, which reinforcement learning describes actions by.

    Args:
      shape: A shape; sizes may be None.
      dtype: Dtype of the elements.
      minimum: Lower bound, which broadcasts to the shape.
      maximum: Upper bound, which broadcasts to the shape.
      name: An optional name.
    """

    def __init__(
        self, shape: ShapeLike, dtype: DTypeLike, minimum: ArrayLike, maximum: ArrayLike, name: str | None = None
    ) -> None:  # fmt: skip
        super().__init__(shape, dtype, name)
        self.minimum: np.ndarray = np.array(minimum, self.dtype.as_numpy_dtype)
        self.maximum: np.ndarray = np.array(maximum, self.dtype.as_numpy_dtype)
        for bound in (self.minimum, self.maximum):
            bound.setflags(write=False)
            if self.shape.is_fully_defined():
                np.broadcast_shapes(bound.shape, self.shape.as_list())

    @classmethod
    def from_spec(cls, spec: PyTree, name: str | None = None) -> BoundedTensorSpec:
        """Return a copy of a spec, with the range of the dtype as its bounds by default."""
        dtype = as_dtype(spec.dtype)
        bounds = getattr(spec, "minimum", dtype.min), getattr(spec, "maximum", dtype.max)
        return cls(spec.shape, dtype, *bounds, name or spec.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundedTensorSpec) and self.__reduce__() == other.__reduce__()

    __hash__ = TensorSpec.__hash__

    def __repr__(self) -> str:
        names = ("shape", "dtype", "minimum", "maximum", "name")
        parts = zip(names, map(repr, self.__reduce__()[1]), strict=True)
        return f"BoundedTensorSpec({', '.join(f'{n}={v}' for n, v in parts)})"

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        bounds = self.minimum.tolist(), self.maximum.tolist()
        return BoundedTensorSpec, (self.shape, self.dtype, *bounds, self.name)
