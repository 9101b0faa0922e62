"""Values that consist of several tensors: `IndexedSlices` and `SparseTensor`.

`IndexedSlices` are gradients of a few rows of a table.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch import symbolic_calls
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import CAST, Op
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.bounds_checks import (
    BoundsCheck,
    check_bounds,
    check_segment_ids,
    is_padding,
)
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.composite import (
    CompositeSpec,
    CompositeTensor,
    is_extension,
    split_value,
)
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape, as_shape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.symbolic_sizes import (
    as_size,
    get_sizes,
    has_symbolic_size,
    make_sizes_tensor,
)
from meshflow.core.values.tensor import Tensor, TensorLike, is_symbolic_tensor
from meshflow.environment.types import PyTree

F = TypeVar("F", bound=Callable[..., Any])

# Rows with the same index are added. Rows with a negative index are ignored.
sum_rows = Op(
    "unsorted_segment_sum",
    lambda o, static: jax.ops.segment_sum(o[0], o[1], static[0]),
    sizes=[0],
)
_flatten_rows = Op(
    "reshape",
    lambda o, _: (
        jnp.reshape(o[0], (math.prod(o[1].shape), *o[0].shape[o[1].ndim :])),
        jnp.reshape(o[1], (math.prod(o[1].shape),)),
    ),
)
_concatenate = Op("concat", lambda o, _: jnp.concatenate(o[0]))


def _gather_broadcast(operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
    """Gather elements of a tensor as if it were broadcast to the shape of the indices."""
    dense, indices = operands
    offset = indices.shape[1] - dense.ndim
    columns = [0 if n == 1 else indices[:, offset + k] for k, n in enumerate(dense.shape)]
    gathered = dense.at[tuple(columns)].get(mode="clip") if columns else dense
    return jnp.broadcast_to(gathered, indices.shape[:1])


_gather_elements = Op("gather_nd", _gather_broadcast)

# Attributes of `IndexedSlices` and `SparseTensor`.
_PART_NAMES = ("_values", "_indices", "_dense_shape")
_OUT_OF_BOUNDS = "indices[{index}] = [{values}] is out of bounds: need 0 <= index < [{sizes}]"


class IndexedSlices(CompositeTensor):
    """Some rows of a tensor, by index. Rows with the same index are added.

    Args:
      values: The rows, a tensor of shape [n, ...].
      indices: The n row indices.
      dense_shape: Shape of the full tensor.

    Example:
      >>> s = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 0]), dense_shape=[2, 1])
      >>> tf.convert_to_tensor(s).numpy()
      array([[3.],
             [0.]], dtype=float32)
    """

    _is_extension = False

    _is_tensor_like = True

    def __init__(
        self, values: TensorLike, indices: TensorLike, dense_shape: TensorLike = None
    ) -> None:
        self._values, self._indices = convert_to_tensor(values), convert_to_tensor(indices)
        self._dense_shape = None if dense_shape is None else convert_to_tensor(dense_shape)

    @property
    def values(self) -> Tensor:
        """Return the rows, a tensor of shape [n, ...]."""
        return self._values

    @property
    def indices(self) -> Tensor:
        """Return the row indices, a tensor of shape [n]."""
        return self._indices

    @property
    def dense_shape(self) -> Tensor | None:
        """Return the shape of the full tensor, or None."""
        return self._dense_shape

    @property
    def dtype(self) -> DType:
        """Return the dtype of the rows."""
        return self._values.dtype

    @property
    def shape(self) -> TensorShape:
        """Return the shape of the full tensor."""
        if self._dense_shape is None:
            return TensorShape(None)
        sizes = get_sizes(self._dense_shape)
        if sizes is None and is_symbolic_tensor(self._dense_shape):
            return TensorShape([None, *self._values.shape[1:]])
        sizes = np.asarray(self._dense_shape.array if sizes is None else sizes).tolist()
        return TensorShape(sizes).show()

    @property
    def device(self) -> str:
        """Return the name of the device that holds the rows."""
        return str(self._values.device)

    @property
    def _type_spec(self) -> IndexedSlicesSpec:
        return IndexedSlicesSpec.from_value(self)

    def consumers(self) -> list[Any]:
        """Return an empty list: the operations that use the rows are not recorded."""
        return []

    def _components(self) -> list[Tensor]:
        return [self._values]

    def _with_components(self, components: Sequence[Any]) -> IndexedSlices:
        return self.with_values(components[0])

    def _state_parts(self) -> list[Tensor]:
        parts = [self._values, self._indices]
        return parts if self._dense_shape is None else [*parts, self._dense_shape]

    def _get_state_builder(self) -> Callable[[Sequence[Any]], IndexedSlices]:
        return _build_rows

    def _split(self) -> tuple[list[Tensor], Hashable]:
        if self._dense_shape is None:
            return self._state_parts(), None
        return split_dense_shape([self._values, self._indices], self._dense_shape)

    @classmethod
    def _join(cls, parts: Sequence[Any], static: PyTree) -> IndexedSlices:
        values, indices, *rest = parts
        dense_shape = None if static is None else join_dense_shape(rest[0], static)
        return _build_rows([values, indices, dense_shape])

    @record_in_graph
    def _as_tensor(self) -> Tensor:
        if self._dense_shape is None:
            raise ValueError("Tensor conversion requested for IndexedSlices without dense_shape.")
        rows = self.shape[0]
        indices = check_segment_ids(self._indices, rows, allows_padding=True)
        return apply(sum_rows, (self._values, indices), (rows,))

    def with_values(self, new_values: TensorLike) -> IndexedSlices:
        """Return the same row indices with other values."""
        return IndexedSlices(new_values, self._indices, self._dense_shape)

    def concatenate(self, other: IndexedSlices) -> IndexedSlices:
        """Return the rows of both, those of `self` first."""
        values = apply(_concatenate, ([self._values, other.values],))
        parts = [self._indices, other.indices]
        indices = apply(_concatenate, (parts,))
        if all(hasattr(part, "_skips_bounds_check") for part in parts):
            indices._skips_bounds_check = True
        return IndexedSlices(values, indices, self._dense_shape)

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self._values, self._indices, self._dense_shape)

    def __repr__(self) -> str:
        shape = "" if self._dense_shape is None else f", dense_shape={self._dense_shape!s}"
        return f"IndexedSlices(indices={self._indices!s}, values={self._values!s}{shape})"


def split_dense_shape(
    parts: list[Tensor], dense_shape: Tensor
) -> tuple[list[Tensor], tuple[bool, np.dtype]]:
    """Return parts with an empty array of the dense shape, so that its sizes remain static."""
    if isinstance(dense_shape, _SizesSpec):
        return [*parts, dense_shape.empty], (True, dense_shape.dtype.dtype)
    if isinstance(dense_shape, TensorSpec):
        return [*parts, dense_shape], (False, dense_shape.dtype.dtype)
    sizes = get_sizes(dense_shape)
    if sizes is None and not is_symbolic_tensor(dense_shape):
        sizes = np.asarray(dense_shape.array)
    if sizes is None:
        return [*parts, dense_shape], (False, dense_shape.dtype.dtype)
    empty = (jnp if has_symbolic_size(sizes) else np).empty((*sizes.tolist(), 0), np.int8)
    return [*parts, Tensor(empty)], (True, dense_shape.dtype.dtype)


class _SizesSpec(TensorSpec):
    """Spec of a dense shape with symbols, from the spec of the empty array with this shape."""

    def __init__(self, empty: TensorSpec) -> None:
        self.sizes = tuple(empty.shape)[:-1]
        super().__init__([len(self.sizes)], dtypes.int64)
        self.empty = empty


def join_dense_shape(part: Tensor, static: tuple[bool, np.dtype]) -> Tensor:
    """Return the dense shape from the part that holds it."""
    holds_sizes, dtype = static
    if not holds_sizes:
        return part
    sizes = tuple(part.shape)[:-1]
    if context.graph is not None and context.trace is None and None in sizes:
        found: Tensor = context.graph.call(_read_dense_shape, (part, dtype), {})
        return found
    if not has_symbolic_size(sizes):
        return Tensor(np.array(sizes, dtype))
    return _SizesSpec(part) if isinstance(part, TensorSpec) else make_sizes_tensor(sizes, dtype)


def _read_dense_shape(part: Tensor, dtype: np.dtype) -> Tensor:
    return join_dense_shape(part, (True, dtype))


def _build_rows(parts: Sequence[Any]) -> IndexedSlices:
    rows = IndexedSlices.__new__(IndexedSlices)
    vars(rows).update(zip(_PART_NAMES, (*parts, None), strict=False))
    return rows


class IndexedSlicesSpec(CompositeSpec):
    """Shapes and dtypes of `tf.IndexedSlices`.

    Args:
      shape: Shape of the full tensor; sizes may be None. None for any shape.
      dtype: Dtype of the rows.
      indices_dtype: Dtype of the row indices.
      dense_shape_dtype: Dtype of `dense_shape`, or None if there is none.
      indices_shape: Shape of the row indices; None for any shape.

    Example:
      >>> spec = tf.IndexedSlicesSpec([None, 2], indices_dtype=tf.int32)
      >>> spec.is_compatible_with(tf.IndexedSlices(tf.zeros([1, 2]), tf.constant([3]), tf.constant([9, 2])))
      True
    """

    def __init__(
        self,
        shape: ShapeLike = None,
        dtype: DTypeLike = dtypes.float32,
        indices_dtype: DTypeLike = dtypes.int64,
        dense_shape_dtype: DTypeLike | None = None,
        indices_shape: ShapeLike = None,
    ) -> None:
        self._shape, self._indices_shape = as_shape(shape), as_shape(indices_shape)
        self._dtypes = (
            dtypes.as_dtype(dtype),
            dtypes.as_dtype(indices_dtype),
            None if dense_shape_dtype is None else dtypes.as_dtype(dense_shape_dtype),
        )

    @classmethod
    def from_value(cls, value: IndexedSlices) -> IndexedSlicesSpec:
        """Return the spec of a value."""
        dense_shape_dtype = None if value.dense_shape is None else value.dense_shape.dtype
        return cls(
            value.shape, value.dtype, value.indices.dtype, dense_shape_dtype, value.indices.shape
        )

    @property
    def shape(self) -> TensorShape:
        """Return the shape of the full tensor."""
        return self._shape

    @property
    def dtype(self) -> dtypes.DType:
        """Return the dtype of the rows."""
        return self._dtypes[0]

    @property
    def value_type(self) -> type:
        """Return the class that the spec describes."""
        return IndexedSlices

    @property
    def _component_specs(self) -> list[TensorSpec]:
        values, indices, dense_shape = self._dtypes
        rest = None if self._shape.rank is None else self._shape.as_list()[1:]
        specs = [
            TensorSpec(None if rest is None else [None, *rest], values),
            TensorSpec(self._indices_shape if self._indices_shape.rank else [None], indices),
        ]
        return (
            specs if dense_shape is None else [*specs, TensorSpec([self._shape.rank], dense_shape)]
        )

    def _to_components(self, value: IndexedSlices) -> list[Tensor | None]:
        return [value.values, value.indices, value.dense_shape][: len(self._component_specs)]

    def _from_components(self, components: Sequence[Any]) -> IndexedSlices:
        return _build_rows(components)

    def is_compatible_with(self, value: object) -> bool:
        """Check whether a value, or the spec of one, has these dtypes and compatible shapes."""
        other = IndexedSlicesSpec.from_value(value) if isinstance(value, IndexedSlices) else value
        if not isinstance(other, IndexedSlicesSpec):
            return False
        shape, *kinds, indices_shape = other._serialize()
        return (
            self._dtypes[:2] == tuple(kinds[:2])
            and self._shape.is_compatible_with(shape)
            and self._indices_shape.is_compatible_with(indices_shape)
        )

    def _serialize(self) -> tuple[Any, ...]:
        return self._shape, *self._dtypes, self._indices_shape


def make_gather_gradient(table: Tensor, indices: Tensor, gradient: Tensor) -> IndexedSlices:
    """Return the gradient of a table from the gradient of its gathered rows.

    Args:
      table: The table, a tensor of shape [rows, ...].
      indices: Indices of the gathered rows, a tensor of any shape.
      gradient: Gradient of the gathered rows, of shape [*indices.shape, ...].
    """
    values, flat_indices = apply(_flatten_rows, (gradient, indices))
    # The forward pass has checked the indices.
    flat_indices._skips_bounds_check = True
    shape = table.array.shape
    make_sizes = make_sizes_tensor if has_symbolic_size(shape) else np.array
    return IndexedSlices(values, flat_indices, make_sizes(shape, np.int32))


def accept_composites(public: F) -> F:
    """Make a public op accept `tf.IndexedSlices` and `tf.SparseTensor` as its first argument.

    The op is then applied to the rows or elements.
    """
    first = next(iter(inspect.signature(public).parameters))

    @functools.wraps(public)
    def function(*args: Any, **kwargs: Any) -> Any:
        rows = args[0] if args else kwargs.get(first)
        if isinstance(rows, (IndexedSlices, SparseTensor)):
            kwargs.pop(first, None)
            return rows.with_values(public(rows.values, *args[1:], **kwargs))
        return public(*args, **kwargs)

    return function  # type: ignore[return-value]


def accept_types_of_libraries(public: F) -> F:
    """Make a public op of one tensor accept extension types, by applying it to their parts.

    Types with a dispatcher of their own are passed to the op.
    """

    @functools.wraps(public)
    def function(input: Any, name: str | None = None) -> Any:
        if is_extension(input) and not isinstance(input, symbolic_calls.composite_types):
            return input.join_parts([public(part, name) for part in split_value(input)])
        return public(input, name)

    return function  # type: ignore[return-value]


def make_elementwise_row_rule(
    compute: Callable[[Tensor, IndexedSlices], IndexedSlices],
) -> Callable[..., Any]:
    """Return a rule for `Op.row_gradient` of an elementwise op.

    The gradient of the operand consists of rows if the gradient of the result does.

    Args:
      compute: Computes the gradient of the operand from the operand and the gradient of the result.
    """

    def by_rows(operands: Sequence[Any], static: tuple[Any, ...], gradient: Any) -> Any:
        return compute(operands[0], gradient) if isinstance(gradient, IndexedSlices) else None

    return by_rows


CAST.row_gradient = make_elementwise_row_rule(
    lambda operand, rows: rows.with_values(apply(CAST, (rows.values,), (operand.dtype.dtype,)))
)


class SparseTensorSpec(CompositeSpec):
    """Shape and dtype of a sparse tensor, for example in the `element_spec` of a dataset.

    Args:
      shape: The dense shape; sizes may be None. None for any shape.
      dtype: Dtype of the elements.

    Example:
      >>> tf.SparseTensorSpec([None, 3]).is_compatible_with(tf.SparseTensor([[0, 1]], [5.0], [1, 3]))
      True
    """

    def __init__(self, shape: ShapeLike = None, dtype: DTypeLike = dtypes.float32) -> None:
        self._shape, self._dtype = as_shape(shape), dtypes.as_dtype(dtype)

    @classmethod
    def from_value(cls, value: SparseTensor) -> SparseTensorSpec:
        """Return the spec of a sparse tensor."""
        return cls(value.shape, value.dtype)

    @property
    def shape(self) -> TensorShape:
        """Return the static dense shape."""
        return self._shape

    @property
    def dtype(self) -> dtypes.DType:
        """Return the dtype of the elements."""
        return self._dtype

    @property
    def value_type(self) -> type:
        """Return the class that the spec describes."""
        return SparseTensor

    @property
    def _component_specs(self) -> list[TensorSpec]:
        rank = self._shape.rank
        return [
            TensorSpec([None, rank], dtypes.int64),
            TensorSpec([None], self._dtype),
            TensorSpec([rank], dtypes.int64),
        ]

    def list_part_sizes(self) -> list[list[int | None] | None]:
        """List the shapes of the elements, their indices, and the empty array of the dense shape."""
        if self._shape.rank is None:
            return [[None], None, None]
        return [[None], [None, self._shape.rank], [*self._shape.as_list(), 0]]

    def set_sizes(self, size: int) -> SparseTensor:
        """Return a value of specs, in which a size replaces the number of elements and each unknown size."""
        sizes = [size if n is None else n for n in self._shape.as_list()]
        indices, values, _ = self._component_specs
        parts = [TensorSpec([size], values.dtype), TensorSpec([size, len(sizes)], indices.dtype)]
        return _build_sparse([*parts, _SizesSpec(TensorSpec([*sizes, 0], dtypes.int8))])

    def _to_components(self, value: SparseTensor) -> list[Tensor]:
        return [value.indices, value.values, value.dense_shape]

    def _from_components(self, components: Sequence[Any]) -> SparseTensor:
        indices, values, dense_shape = components
        return _build_sparse([values, indices, dense_shape])

    def _serialize(self) -> tuple[Any, ...]:
        return self._shape, self._dtype

    def to_batch_spec(self, size: int | None) -> SparseTensorSpec:
        """Return the spec of batches of such tensors."""
        return SparseTensorSpec([size, *self._shape.as_list()], self._dtype)

    def to_row_spec(self) -> SparseTensorSpec:
        """Return the spec of the rows of such tensors."""
        return SparseTensorSpec(self._shape.as_list()[1:], self._dtype)

    _batch, _unbatch = to_batch_spec, to_row_spec

    def is_compatible_with(self, value: object) -> bool:
        """Check whether a sparse tensor, or the spec of one, has this dtype and a compatible shape."""
        return (
            isinstance(value, (SparseTensor, SparseTensorSpec))
            and self._dtype == value.dtype
            and self._shape.is_compatible_with(value.shape)
        )


class SparseTensorValue(NamedTuple):
    """Indices, values and shape of a sparse tensor as arrays."""

    indices: Any
    values: Any
    dense_shape: Any


class SparseTensor(CompositeTensor):
    """The nonzero elements of a tensor.

    `tf.sparse`, `Dense` layers and `fit` compute with the elements only. Other layers and ops take
    the result of `tf.sparse.to_dense`. In a compiled function, the number of elements and the dense
    shape are static.

    Args:
      indices: Coordinates of the elements, int64 of shape [n, rank].
      values: The n elements.
      dense_shape: Shape of the full tensor.

    Raises:
      ValueError: If the shapes of the arguments do not match.

    Example:
      >>> s = tf.SparseTensor([[0, 1]], [5.0], [1, 3])
      >>> tf.sparse.to_dense(s).numpy()
      array([[0., 5., 0.]], dtype=float32)
    """

    _is_extension = False

    _is_tensor_like = True

    def __init__(self, indices: TensorLike, values: TensorLike, dense_shape: TensorLike) -> None:
        self._indices = _as_int64(indices, "indices")
        recorder = context.host_recorder if context.exporting else None
        # Strings of a function that is being saved are placeholders.
        is_placeholder = recorder is not None and recorder.should_record((values,), {})
        self._values: Tensor = values if is_placeholder else convert_to_tensor(values)
        self._dense_shape = _as_int64(dense_shape, "dense_shape")
        parts = ((self._indices, 2), (self._values, 1), (self._dense_shape, 1))
        for part, rank in parts:
            # A placeholder of a version 1 graph.
            if part.shape.rank is None:
                part.set_shape([None] * rank)
        counts, sizes = self._values.shape.as_list(), self._dense_shape.shape.as_list()
        if len(counts) != 1 or len(sizes) != 1:
            raise InvalidValueError(
                f"SparseTensor: values and dense_shape must be vectors, got shapes {counts} and {sizes}."
            )
        if not self._indices.shape.is_compatible_with([*counts, *sizes]):
            raise ValueError(
                f"SparseTensor: indices must have shape {[*counts, *sizes]} for these values and "
                f"this dense_shape, got {self._indices.shape.as_list()}."
            )
        # A symbolic tensor of a version 1 graph has no array.
        known = self._dense_shape.array if type(self._dense_shape) is Tensor else None
        if isinstance(known, np.ndarray) and (known < 0).any():
            raise ValueError(f"SparseTensor: dense_shape must not be negative, got {known}.")

    @classmethod
    def from_value(cls, sparse_tensor_value: Any) -> SparseTensor:
        """Convert an object with the attributes `indices`, `values` and `dense_shape`."""
        value = sparse_tensor_value
        return cls(value.indices, value.values, value.dense_shape)

    @classmethod
    def from_specs(cls, shape: tuple[int, ...], dtype: DType, count: int) -> SparseTensor:
        """Create a placeholder of specs, for traces that determine shapes."""
        parts = [
            TensorSpec([count], dtype),
            TensorSpec([count, len(shape)], dtypes.int64),
            np.empty((*shape, 0), np.int8),
        ]
        return cls._join(parts, (True, np.dtype(np.int64)))

    def set_shape(self, shape: ShapeLike) -> None:
        """Check that a shape is compatible with the static shape.

        Raises:
          ValueError: If the shapes are incompatible.
        """
        if not self.shape.is_compatible_with(shape):
            raise InvalidValueError(
                f"Shape {TensorShape(shape)} is not compatible with the shape {self.shape} of the SparseTensor."
            )

    @property
    def indices(self) -> Tensor:
        """Return the coordinates of the elements, int64 of shape [n, rank]."""
        return self._indices

    @property
    def values(self) -> Tensor:
        """Return the elements, a tensor of shape [n]."""
        return self._values

    @property
    def dense_shape(self) -> Tensor:
        """Return the shape of the full tensor, an int64 vector."""
        return self._dense_shape

    @property
    def dtype(self) -> DType:
        """Return the dtype of the elements."""
        return self._values.dtype

    @property
    def shape(self) -> TensorShape:
        """Return the shape of the full tensor; sizes are None if a program computes them."""
        known: TensorShape | None = vars(self).get("_known_shape")
        if known is not None:
            return known
        if isinstance(self._dense_shape, TensorSpec):
            unknown = [None] * self._dense_shape.shape[0]
            return TensorShape(getattr(self._dense_shape, "sizes", unknown))
        sizes = get_sizes(self._dense_shape)
        if sizes is None and is_symbolic_tensor(self._dense_shape):
            return TensorShape([None] * self._dense_shape.shape[0])
        sizes = np.asarray(self._dense_shape.array) if sizes is None else sizes
        shape = TensorShape([as_size(n) for n in sizes])
        if _is_host_constant(self._dense_shape) and not has_symbolic_size(sizes):
            vars(self)["_known_shape"] = shape
        return shape.show()

    @property
    def _type_spec(self) -> SparseTensorSpec:
        return SparseTensorSpec.from_value(self)

    def get_shape(self) -> TensorShape:
        """Return the shape of the full tensor."""
        return self.shape.show()

    def check_indices(self, message: str = _OUT_OF_BOUNDS, **options: Any) -> Tensor:
        """Check that the elements are within the dense shape, and return their indices.

        Args:
          message: The error message, see `BoundsCheck`.
          **options: Other fields of the check.

        Raises:
          InvalidArgumentError: An index is out of bounds.
        """
        sizes = tuple(self.shape.as_list())
        if not sizes or not all(isinstance(n, int) for n in sizes):
            return self._indices
        columns = tuple(map(str, range(len(sizes))))
        check = BoundsCheck(
            message, (0,) * len(sizes), sizes, sizes=sizes, is_replaced=False, names=columns
        )
        return check_bounds(self._indices, check._replace(**options), allows_padding=True)

    def with_values(self, new_values: TensorLike) -> SparseTensor:
        """Return the same coordinates with other elements."""
        return SparseTensor(self._indices, new_values, self._dense_shape)

    def with_dense_shape(self, dense_shape: Tensor) -> SparseTensor:
        """Return the same elements with another shape of the full tensor, which is not checked.

        The elements may be strings of a function that is being saved, which are no tensor.
        """
        result = copy.copy(self)
        for name in ("_known_shape", "_known_split"):
            vars(result).pop(name, None)
        result._dense_shape = dense_shape
        return result

    def _components(self) -> list[Tensor]:
        return [self._values]

    def _with_components(self, components: Sequence[Any]) -> SparseTensor:
        return self.with_values(components[0])

    def _state_parts(self) -> list[Tensor]:
        return [self._values, self._indices, self._dense_shape]

    def _get_state_builder(self) -> Callable[[Sequence[Any]], SparseTensor]:
        return _build_sparse

    def _split(self) -> tuple[list[Tensor], Hashable]:
        split: tuple[list[Tensor], Hashable] | None = vars(self).get("_known_split")
        if split is None:
            split = split_dense_shape([self._values, self._indices], self._dense_shape)
            if _is_host_constant(self._dense_shape):
                # A call of a function splits its arguments several times.
                vars(self)["_known_split"] = split
        return [*split[0]], split[1]

    @classmethod
    def _join(cls, parts: Sequence[Any], static: PyTree) -> SparseTensor:
        values, indices, shape = parts
        return _build_sparse([values, indices, join_dense_shape(shape, static)])

    def _combine_elements(
        self, other: TensorLike, combine: Callable[[Tensor, Tensor], Tensor]
    ) -> SparseTensor:
        dense = convert_to_tensor(other, dtype_hint=self.dtype)
        sizes = self.shape.as_list()[max(len(self.shape) - dense.ndim, 0) :]
        if len(sizes) != dense.ndim or any(
            size is not None and n not in (1, size)
            for n, size in zip(dense.array.shape, sizes, strict=True)
        ):
            raise InvalidArgumentError(
                f"SparseTensor: a dense operand of shape {dense.shape} does not broadcast to {self.shape}."
            )
        message = "Provided indices are out-of-bounds w.r.t. dense side with broadcasted shape"
        factors = apply(_gather_elements, (dense, self.check_indices(message)))
        return self.with_values(combine(self._values, factors))

    def __mul__(self, other: Any) -> SparseTensor:
        return self._combine_elements(other, operator.mul)

    def __rmul__(self, other: Any) -> SparseTensor:
        # As in TensorFlow, a number or array is not a factor on the left.
        return self * other if isinstance(other, Tensor) else NotImplemented

    def __truediv__(self, other: Any) -> SparseTensor:
        sizes = tuple(self.shape.as_list())
        return self._combine_elements(
            other, lambda v, d: v / apply(DIVISOR_CHECK, (d, self._indices), sizes)
        )

    def _as_tensor(self) -> Tensor:
        raise InvalidValueError(
            "A SparseTensor is no tensor: convert it with tf.sparse.to_dense, or use the ops of tf.sparse."
        )

    def __repr__(self) -> str:
        return (
            f"SparseTensor(indices={self._indices!s}, values={self._values!s}, "
            f"dense_shape={self._dense_shape!s})"
        )


def check_divisors(divisors: Any, ignored: Any = False) -> Any:
    """Check that no number that divides an element of a sparse tensor is 0, and return the array of numbers.

    Args:
      divisors: The array, of floats or integers.
      ignored: The elements that are padding, whose divisors may be 0. Default none.

    Raises:
      InvalidArgumentError: A divisor is 0. If JAX traces the array, the program raises it when it runs.
    """
    is_nonzero = check_bounds(((divisors != 0) | ignored).astype(np.int32), _ZERO_DIVISOR)
    return jnp.where(is_nonzero == 0, 1, divisors).astype(divisors.dtype)


def _check_elements(operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
    divisors, indices = operands
    return check_divisors(divisors, is_padding(indices, static)[:, 0])


_ZERO_DIVISOR = BoundsCheck("SparseTensor: a dense tensor with a zero divides an element.")
DIVISOR_CHECK = Op("check_divisors", _check_elements)


def _is_host_constant(tensor: Any) -> bool:
    return type(tensor) is Tensor and type(tensor.array) is np.ndarray


def _build_sparse(parts: Sequence[Any]) -> SparseTensor:
    sparse = SparseTensor.__new__(SparseTensor)
    vars(sparse).update(zip(_PART_NAMES, parts, strict=True))
    return sparse


def _as_int64(value: TensorLike, name: str) -> Tensor:
    tensor = convert_to_tensor(value, dtype_hint=dtypes.int64)
    # An empty list has a dtype of floats.
    if not tensor.dtype.is_integer and tensor.shape.num_elements() != 0:
        raise TypeError(f"SparseTensor: {name} must be integers, got {tensor.dtype.name}.")
    return tensor if tensor.dtype is dtypes.int64 else apply(CAST, (tensor,), (np.dtype(np.int64),))


RAGGED_HELP = (
    "Ragged tensors are not available here: XLA compiles dense arrays of fixed shapes. Pad the rows to one "
    "length (to_tensor, tf.keras.utils.pad_sequences) and keep a mask (tf.sequence_mask)."
)
