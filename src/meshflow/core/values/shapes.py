"""Static shapes: `TensorShape`, in which the rank or some sizes may be unknown."""

from __future__ import annotations

import functools
import importlib
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, overload

import jax.export
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.values.dimensions import Dimension


def assume_equal(size: Any, other: Any) -> bool:
    """Assume that a size that depends on values is equal to another one; return False for known sizes.

    If the assumption is wrong, the function runs as Python, which raises TensorFlow's error.
    """
    sizes, difference = context.unknown_sizes, size - other
    return (
        sizes is not None
        and jax.export.is_symbolic_dim(difference)
        and sizes.assume_zero(difference)
    )


def can_be_equal(size: int, other: int) -> bool:
    """Check whether two sizes are equal; see `assume_equal` for those that depend on values."""
    return size == other or assume_equal(size, other)


def are_different(size: Any, other: Any) -> bool:
    """Check whether two sizes differ; return False if one depends on values, or a saved function has unknown ones."""
    return is_smaller(size, other) or is_smaller(other, size)


def is_smaller(size: Any, other: Any) -> bool:
    """Check whether a size is smaller than another one, with the exceptions of `are_different`."""
    difference = size - other
    if jax.export.is_symbolic_dim(difference):
        scope = None if context.exporting else context.unknown_sizes
        if scope is None or not scope.is_known(difference):
            return False
    return bool(difference < 0)


# Packages that compute with the symbols of unknown sizes.
_PACKAGES_WITH_SYMBOLS = frozenset({"jax", "meshflow", "optax"})


class TensorShape:
    """The static shape of a tensor: a tuple of sizes, with `None` for unknown sizes.

    Args:
      dims: An iterable of sizes, a single size, another `TensorShape`, or None for an unknown rank.

    Example:
      >>> tf.TensorShape([None, 3]).is_compatible_with([8, 3])
      True
      >>> tf.TensorShape([2, 3]) == (2, 3), tf.TensorShape(None).rank
      (True, None)
    """

    __slots__ = ("_dims",)

    def __init__(self, dims: ShapeLike | Iterable[Any]) -> None:
        self._dims = _as_dims(dims)

    def show(self) -> TensorShape:
        """Return the shape for the caller of the calling function, such as the reader of `x.shape`.

        Users' code reads None for sizes that only the running program knows, as in TensorFlow.
        """
        if context.trace is None or not _has_symbols(self._dims):
            return self
        package = sys._getframe(2).f_globals.get("__name__", "").partition(".")[0]
        return self if package in _PACKAGES_WITH_SYMBOLS else StaticShape(self)

    @property
    def rank(self) -> int | None:
        """Return the number of dimensions, or None if it is unknown."""
        return None if self._dims is None else len(self._dims)

    ndims = rank

    @property
    def dims(self) -> list[Dimension] | None:
        """Return the sizes as a list of objects with a `value`, or None if the rank is unknown."""
        return None if self._dims is None else [Dimension(size) for size in self._dims]

    def as_proto(self) -> Any:
        """Return the shape as a protocol buffer."""
        # The module needs an optional package.
        make = importlib.import_module("meshflow.io.messages").TensorShapeProto

        if self._dims is None:
            return make(unknown_rank=True)
        return make(dim=[{"size": -1 if d is None else d} for d in self._dims])

    # The type of a size is `int | Any`, because sizes are usually known. So type checkers do not
    # require a test for None.
    def as_list(self) -> list[int]:
        """Return the sizes as a list.

        Raises:
          ValueError: If the rank is unknown.
        """
        return list(self._require_dims())

    def _require_dims(self) -> tuple[int | Any, ...]:
        if self._dims is None:
            raise ValueError("as_list() is not defined on an unknown TensorShape.")
        return self._dims

    def num_elements(self) -> int | None:
        """Return the number of elements, or None if the shape is not fully defined."""
        if not self.is_fully_defined():
            return None
        return functools.reduce(operator.mul, self._require_dims(), 1)

    def is_fully_defined(self) -> bool:
        """Check whether the rank and all sizes are known."""
        return self._dims is not None and None not in self._dims

    def assert_is_fully_defined(self) -> None:
        """Raise a ValueError unless the rank and all sizes are known."""
        if not self.is_fully_defined():
            raise ValueError(f"Shape {self} is not fully defined.")

    def is_compatible_with(self, other: ShapeLike) -> bool:
        """Check whether a tensor could have both shapes; assume it of sizes that depend on values."""
        other_dims = _as_dims(other)
        if self._dims is None or other_dims is None:
            return True
        return len(self._dims) == len(other_dims) and all(
            a is None or b is None or a == b or assume_equal(a, b)
            for a, b in zip(self._dims, other_dims, strict=True)
        )

    def is_subtype_of(self, other: ShapeLike) -> bool:
        """Check whether every tensor of this shape also has the shape `other`."""
        other_dims = _as_dims(other)
        if other_dims is None:
            return True
        return self.rank == len(other_dims) and all(
            b is None or a == b for a, b in zip(self._require_dims(), other_dims, strict=True)
        )

    def assert_is_compatible_with(self, other: ShapeLike) -> None:
        """Raise a ValueError unless the shapes are compatible."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {as_shape(other)} are incompatible")

    def assert_has_rank(self, rank: int) -> None:
        """Raise a ValueError if the rank is known and differs from `rank`."""
        if self.rank not in (None, rank):
            raise ValueError(f"Shape {self} must have rank {rank}")

    def assert_same_rank(self, other: ShapeLike) -> None:
        """Raise a ValueError if both ranks are known and differ."""
        other = as_shape(other)
        if None not in (self.rank, other.rank) and self.rank != other.rank:
            raise ValueError(f"Shapes {self} and {other} must have the same rank")

    def with_rank(self, rank: int) -> TensorShape:
        """Return this shape with the given rank.

        Raises:
          ValueError: If the rank is known and differs from `rank`.
        """
        return self.merge_with(TensorShape([None] * rank))

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """Return this shape, which must have at least `rank` dimensions.

        Raises:
          ValueError: If the shape has fewer dimensions.
        """
        if self._dims is not None and len(self._dims) < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """Return this shape, which must have at most `rank` dimensions.

        Raises:
          ValueError: If the shape has more dimensions.
        """
        if self._dims is not None and len(self._dims) > rank:
            raise ValueError(f"Shape {self} must have rank at most {rank}")
        return self

    def merge_with(self, other: ShapeLike) -> TensorShape:
        """Combine the known sizes of both shapes.

        Raises:
          ValueError: If the shapes are incompatible.
        """
        other = as_shape(other)
        self.assert_is_compatible_with(other)
        if self._dims is None or other.rank is None:
            return other if self._dims is None else self
        return TensorShape(b if a is None else a for a, b in zip(self._dims, other, strict=True))

    def most_specific_compatible_shape(self, other: ShapeLike) -> TensorShape:
        """Return the most specific shape that covers both shapes."""
        other_dims = _as_dims(other)
        if self._dims is None or other_dims is None or len(self._dims) != len(other_dims):
            return TensorShape(None)
        return TensorShape(
            a if a == b else None for a, b in zip(self._dims, other_dims, strict=True)
        )

    def most_specific_common_supertype(self, others: Sequence[Any]) -> TensorShape | None:
        """Return the most specific shape that covers this and other shapes, or None if a value is no shape."""
        if not all(isinstance(other, TensorShape) for other in others):
            return None
        return functools.reduce(TensorShape.most_specific_compatible_shape, others, self)

    def concatenate(self, other: ShapeLike) -> TensorShape:
        """Return this shape followed by the dimensions of `other`."""
        other_dims = _as_dims(other)
        if self._dims is None or other_dims is None:
            return TensorShape(None)
        hides_symbols = isinstance(self, StaticShape) or isinstance(other, StaticShape)
        joined = TensorShape(self._dims + other_dims)
        return hide_symbols(joined) if hides_symbols else joined

    # A size may be None, but the type would then reject correct arithmetic on known sizes.
    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> TensorShape: ...
    def __getitem__(self, key: Any) -> Any:
        if self._dims is None:
            return TensorShape(None) if isinstance(key, slice) else None
        return TensorShape(self._dims[key]) if isinstance(key, slice) else self._dims[key]

    def __iter__(self) -> Iterator[int]:
        if self._dims is None:
            raise ValueError("Cannot iterate over a shape with unknown rank.")
        return iter(self._dims)  # type: ignore[arg-type]

    def __len__(self) -> int:
        if self._dims is None:
            raise ValueError("Cannot take the length of shape with unknown rank.")
        return len(self._dims)

    def __bool__(self) -> bool:
        return self._dims is not None

    def __add__(self, other: Any) -> TensorShape:
        return self.concatenate(other)

    def __radd__(self, other: Any) -> TensorShape:
        return as_shape(other).concatenate(self)

    def __eq__(self, other: object) -> bool:
        try:
            return self._dims == _as_dims(other)
        except (TypeError, ValueError):
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self._dims)

    def __repr__(self) -> str:
        return f"TensorShape({None if self._dims is None else self._list_known()})"

    def _list_known(self) -> list[int | None]:
        """Return the sizes, with None for symbols."""
        dims: Sequence[Any] = self._dims or ()
        return [None if jax.export.is_symbolic_dim(d) else d for d in dims]

    def __str__(self) -> str:
        if self._dims is None:
            return "<unknown>"
        inner = ", ".join(map(str, self._list_known()))
        return f"({inner},)" if len(self._dims) == 1 else f"({inner})"

    def __reduce__(self) -> Any:
        return TensorShape, (self._dims,)


class StaticShape(TensorShape):
    """A shape as users' code reads it: sizes that only the running program knows are None.

    Ops that take it still use the symbols of these sizes.
    """

    __slots__ = ()

    @property
    def dims(self) -> list[Dimension] | None:
        """Return the sizes as a list of objects with a `value`, or None if the rank is unknown."""
        return TensorShape(self._list_known()).dims

    def as_list(self) -> list[Any]:
        """Return the sizes as a list."""
        return self._list_known()

    def is_fully_defined(self) -> bool:
        """Check whether all sizes are known."""
        return False

    def is_compatible_with(self, other: ShapeLike) -> bool:
        """Check whether a tensor could have both shapes, whose sizes are unknown to converted code."""
        return TensorShape(self._list_known()).is_compatible_with(other)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, TensorShape):
            return hide_symbols(found)
        return None if jax.export.is_symbolic_dim(found) else found

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list_known())

    def __eq__(self, other: object) -> bool:
        try:
            dims = _as_dims(other)
        except (TypeError, ValueError):
            return NotImplemented
        # Two shapes with symbols are equal if their symbols are.
        known = self._dims if _has_symbols(dims) else tuple(self._list_known())
        return known == dims

    __hash__ = TensorShape.__hash__


def hide_symbols(shape: Any) -> Any:
    """Return a shape with symbols as a `StaticShape`, and any other value unchanged.

    Args:
      shape: A `TensorShape`, or the attribute `shape` of another object.
    """
    if isinstance(shape, TensorShape) and _has_symbols(shape._dims):
        return StaticShape(shape)
    return shape


def _has_symbols(dims: Iterable[Any] | None) -> bool:
    return any(type(n) is not int and jax.export.is_symbolic_dim(n) for n in dims or ())


def _as_dims(dims: Any) -> tuple[int | None, ...] | None:
    if dims is None:
        return None
    if isinstance(dims, TensorShape):
        return dims._dims
    if isinstance(dims, (int, np.integer, Dimension)):
        return (_as_size(dims),)
    if hasattr(dims, "unknown_rank"):  # A message of a file.
        return None if dims.unknown_rank else tuple(_as_size(_from_message(d)) for d in dims.dim)
    if isinstance(dims, str) or not isinstance(dims, Iterable):
        raise TypeError(f"Expected a shape: an iterable of sizes, a size, or None; got {dims!r}.")
    return tuple(_as_size(d) for d in dims)


def _from_message(dim: Any) -> int | None:
    return None if dim.size == -1 else dim.size


def _as_size(size: Any) -> int | None:
    if size is None or (type(size) is int and size >= 0):
        return size
    if jax.export.is_symbolic_dim(size):
        # The size of a program that is exported for any size.
        return size  # type: ignore[return-value]
    if isinstance(size, Dimension):
        return size.value
    try:
        value = operator.index(size)
    except TypeError:
        raise TypeError(
            f"Dimension value must be integer or None or have an __index__ method, got value {size!r} of type {type(size)}."
        ) from None
    if value < 0:
        raise ValueError(f"Dimension {value} must be >= 0")
    return value


# A value that `as_shape` converts: a shape, its sizes (None for unknown ones), or None for an
# unknown rank.
ShapeLike: TypeAlias = TensorShape | Sequence[int | None] | int | None


def as_shape(value: ShapeLike | Iterable[Any]) -> TensorShape:
    """Convert a value to a `TensorShape`; a shape is returned unchanged, with its symbols."""
    if isinstance(value, TensorShape) and not isinstance(value, StaticShape):
        return value
    return TensorShape(value)
