"""Values made of several tensors: `IndexedSlices`, gradients of a few rows, and `SparseTensor`."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import CAST, Op
from meshflow.core.runtime.errors import InvalidArgumentError, NotAvailableError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape, as_shape
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])

# Rows with one number add up; negative numbers have no row.
_summed_rows = Op(
    "unsorted_segment_sum", lambda o, static: jax.ops.segment_sum(o[0], o[1], static[0])
)
_picked_rows = Op(
    "reshape",
    lambda o, count: (
        jnp.reshape(o[0], (count, *o[0].shape[o[1].ndim :])),
        jnp.reshape(o[1], (count,)),
    ),
)
_joined = Op("concat", lambda o, _: jnp.concatenate(o[0]))
_elements = Op("gather_nd", lambda o, shape: jnp.broadcast_to(o[0], shape)[tuple(o[1].T)])


class IndexedSlices:
    """Rows of a tensor by number; rows given twice add up.

    Args:
      values: tensor of shape [n, ...].
      indices: n row numbers.
      dense_shape: shape of the whole tensor.

    Example:
      >>> import meshflow as tf
      >>> s = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 0]), dense_shape=[2, 1])
      >>> tf.convert_to_tensor(s).numpy()
      array([[3.],
             [0.]], dtype=float32)
    """

    _is_tensor_like = True

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self._values, self._indices = convert_to_tensor(values), convert_to_tensor(indices)
        self._dense_shape = None if dense_shape is None else convert_to_tensor(dense_shape)

    @property
    def values(self) -> Tensor:
        """The rows."""
        return self._values

    @property
    def indices(self) -> Tensor:
        """Their numbers."""
        return self._indices

    @property
    def dense_shape(self) -> Tensor | None:
        """Shape of the whole tensor, or None."""
        return self._dense_shape

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self._values.dtype

    @property
    def shape(self) -> Any:
        """Shape of the whole tensor."""
        known = None if self._dense_shape is None else self._dense_shape._value
        if isinstance(known, jax.core.Tracer):
            return TensorShape([None, *self._values.shape[1:]])
        return TensorShape(None if known is None else np.asarray(known).tolist())

    @property
    def device(self) -> str:
        """Where the rows are."""
        return str(self._values.device)

    @property
    def _type_spec(self) -> IndexedSlicesSpec:
        return IndexedSlicesSpec.from_value(self)

    def consumers(self) -> list[Any]:
        """The operations that use it, which are not recorded: none."""
        return []

    def _components(self) -> list[Tensor]:
        return [self._values]

    def _state_parts(self) -> list[Tensor]:
        parts = [self._values, self._indices]
        return parts if self._dense_shape is None else [*parts, self._dense_shape]

    @classmethod
    def _with_state_parts(cls, parts: Sequence[Any]) -> IndexedSlices:
        made = cls.__new__(cls)
        made._values, made._indices, made._dense_shape = (*parts, None)[:3]
        return made

    def _as_tensor(self) -> Tensor:
        if self._dense_shape is None:
            raise ValueError("Tensor conversion requested for IndexedSlices without dense_shape.")
        rows, numbers = self.shape[0], self._indices._value
        if isinstance(numbers, np.ndarray) and numbers.size and numbers.max() >= rows:
            raise InvalidArgumentError(
                f"IndexedSlices: row {numbers.max()} is out of range for dense_shape {self.shape}."
            )
        return apply(_summed_rows, (self._values, self._indices), (rows,))

    def with_values(self, new_values: Any) -> IndexedSlices:
        """Other values for the same rows."""
        return IndexedSlices(new_values, self._indices, self._dense_shape)

    def followed_by(self, other: IndexedSlices) -> IndexedSlices:
        """The rows of both, these first."""
        values = apply(_joined, ([self._values, other._values],))
        indices = apply(_joined, ([self._indices, other._indices],))
        return IndexedSlices(values, indices, self._dense_shape)

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self._values, self._indices, self._dense_shape)

    def __repr__(self) -> str:
        shape = "" if self._dense_shape is None else f", dense_shape={self._dense_shape!s}"
        return f"IndexedSlices(indices={self._indices!s}, values={self._values!s}{shape})"


class IndexedSlicesSpec(TypeSpec):
    """Shapes and dtypes of `tf.IndexedSlices`.

    Args:
      shape: shape of the whole tensor, possibly with None sizes; None for any.
      dtype: dtype of the rows; default `tf.float32`.
      indices_dtype: dtype of the row numbers.
      dense_shape_dtype: dtype of `dense_shape`, or None where there is none.
      indices_shape: shape of the row numbers; None for any.

    Example:
      >>> import meshflow as tf
      >>> spec = tf.IndexedSlicesSpec([None, 2], indices_dtype=tf.int32)
      >>> spec.is_compatible_with(tf.IndexedSlices(tf.zeros([1, 2]), tf.constant([3]), tf.constant([9, 2])))
      True
    """

    def __init__(
        self,
        shape: Any = None,
        dtype: Any = dtypes.float32,
        indices_dtype: Any = dtypes.int64,
        dense_shape_dtype: Any = None,
        indices_shape: Any = None,
    ) -> None:
        self._shape, self._indices_shape = as_shape(shape), as_shape(indices_shape)
        self._dtypes = (
            dtypes.as_dtype(dtype),
            dtypes.as_dtype(indices_dtype),
            None if dense_shape_dtype is None else dtypes.as_dtype(dense_shape_dtype),
        )

    @classmethod
    def from_value(cls, value: IndexedSlices) -> IndexedSlicesSpec:
        """The spec of some rows."""
        whole = None if value.dense_shape is None else value.dense_shape.dtype
        return cls(value.shape, value.dtype, value.indices.dtype, whole, value.indices.shape)

    @property
    def shape(self) -> TensorShape:
        """Shape of the whole tensor."""
        return self._shape

    @property
    def dtype(self) -> dtypes.DType:
        """Dtype of the rows."""
        return self._dtypes[0]

    @property
    def value_type(self) -> type:
        """The class of what it describes."""
        return IndexedSlices

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
        return [value.values, value.indices, value.dense_shape][: len(self._component_specs())]

    def is_compatible_with(self, value: Any) -> bool:
        """Whether rows, or the spec of some, have these dtypes and shapes that fit."""
        other = value._type_spec if isinstance(value, IndexedSlices) else value
        return (
            isinstance(other, IndexedSlicesSpec)
            and self._dtypes[:2] == other._dtypes[:2]
            and self._shape.is_compatible_with(other._shape)
            and self._indices_shape.is_compatible_with(other._indices_shape)
        )

    def _parts(self) -> tuple[Any, ...]:
        return self._shape, *self._dtypes, self._indices_shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexedSlicesSpec) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __repr__(self) -> str:
        return f"IndexedSlicesSpec{self._parts()!r}"


def picked_rows(table: Any, numbers: Any, gradient: Tensor) -> IndexedSlices:
    """The gradient of a table whose rows of some numbers were picked.

    Args:
      table: the table, a tensor [rows, ...].
      numbers: row numbers, a tensor of any shape.
      gradient: the gradient of the rows, [*numbers.shape, ...].
    """
    values, indices = apply(_picked_rows, (gradient, numbers), numbers.shape.num_elements())
    return IndexedSlices(values, indices, np.array(table._value.shape, np.int32))


def on_rows(public: F) -> F:
    """A public op that takes `tf.IndexedSlices` too, as its first argument, and computes on their rows."""
    first = next(iter(inspect.signature(public).parameters))

    @functools.wraps(public)
    def function(*args: Any, **kwargs: Any) -> Any:
        rows = args[0] if args else kwargs.get(first)
        if isinstance(rows, IndexedSlices):
            kwargs.pop(first, None)
            return rows.with_values(public(rows.values, *args[1:], **kwargs))
        return public(*args, **kwargs)

    return function  # type: ignore[return-value]


def passes_rows(give: Callable[[Tensor, IndexedSlices], IndexedSlices]) -> Callable[..., Any]:
    """A rule for `Op.by_rows` of an op on each element alone, whose gradient is given by rows when its result's is.

    Args:
      give: the gradient of the operand, from that and the gradient of the result.
    """

    def by_rows(operands: Any, static: Any, gradient: Any) -> Any:
        return give(operands[0], gradient) if isinstance(gradient, IndexedSlices) else None

    return by_rows


CAST.by_rows = passes_rows(
    lambda operand, rows: rows.with_values(apply(CAST, (rows.values,), (operand.dtype.dtype,)))
)


class SparseTensorSpec(TypeSpec):
    """Shape and dtype of a sparse tensor, as in the `element_spec` of a dataset.

    Args:
      shape: a shape, possibly with None sizes; None for any.
      dtype: the element type; default `tf.float32`.

    Example:
      >>> import meshflow as tf
      >>> tf.SparseTensorSpec([None, 3]).is_compatible_with(tf.SparseTensor([[0, 1]], [5.0], [1, 3]))
      True
    """

    def __init__(self, shape: Any = None, dtype: Any = dtypes.float32) -> None:
        self._shape, self._dtype = as_shape(shape), dtypes.as_dtype(dtype)

    @classmethod
    def from_value(cls, value: Any) -> SparseTensorSpec:
        """The spec of a sparse tensor."""
        return cls(value.shape, value.dtype)

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return self._shape

    @property
    def dtype(self) -> dtypes.DType:
        """The element type."""
        return self._dtype

    @property
    def value_type(self) -> type:
        """The class of sparse tensors."""
        return SparseTensor

    def _component_specs(self) -> list[TensorSpec]:
        rank = self._shape.rank
        return [
            TensorSpec([None, rank], dtypes.int64),
            TensorSpec([None], self._dtype),
            TensorSpec([rank], dtypes.int64),
        ]

    def _to_components(self, value: SparseTensor) -> list[Tensor]:
        return [value.indices, value.values, value.dense_shape]

    def is_compatible_with(self, value: Any) -> bool:
        """Whether a sparse tensor, or the spec of one, has this dtype and a shape that fits."""
        return (
            isinstance(value, (SparseTensor, SparseTensorSpec))
            and self._dtype == value.dtype
            and self._shape.is_compatible_with(value.shape)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparseTensorSpec) and (self._shape, self._dtype) == (
            other._shape,
            other._dtype,
        )

    def __hash__(self) -> int:
        return hash((self._shape, self._dtype))

    def __repr__(self) -> str:
        return f"SparseTensorSpec({self._shape!r}, {self._dtype!r})"


class SparseTensor:
    """The nonzero elements of a tensor, for host-side data; layers and ops take `to_dense(...)`.

    Args:
      indices: int64 coordinates, shape [n, rank].
      values: the n elements.
      dense_shape: shape of the whole tensor.

    Raises:
      ValueError: when the shapes do not fit.

    Example:
      >>> import meshflow as tf
      >>> s = tf.SparseTensor([[0, 1]], [5.0], [1, 3])
      >>> tf.sparse.to_dense(s).numpy()
      array([[0., 5., 0.]], dtype=float32)
    """

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        self._indices = _as_int64(indices)
        self._values = convert_to_tensor(values)
        self._dense_shape = _as_int64(dense_shape)
        rank = self._dense_shape.shape[0]
        if self._indices.shape.as_list() != [self._values.shape[0], rank]:
            raise ValueError(
                f"SparseTensor: indices must have shape [{self._values.shape[0]}, {rank}] for these values and "
                f"this dense_shape, got {self._indices.shape.as_list()}."
            )

    @classmethod
    def from_value(cls, sparse_tensor_value: Any) -> SparseTensor:
        """A sparse tensor from anything with indices, values and dense_shape."""
        value = sparse_tensor_value
        return cls(value.indices, value.values, value.dense_shape)

    @property
    def indices(self) -> Tensor:
        """Coordinates of the elements, int64 [n, rank]."""
        return self._indices

    @property
    def values(self) -> Tensor:
        """The elements."""
        return self._values

    @property
    def dense_shape(self) -> Tensor:
        """Shape of the whole tensor, an int64 vector."""
        return self._dense_shape

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self._values.dtype

    @property
    def shape(self) -> Any:
        """Shape of the whole tensor."""
        return TensorShape(self._dense_shape.numpy().tolist())

    @property
    def _type_spec(self) -> SparseTensorSpec:
        return SparseTensorSpec.from_value(self)

    def get_shape(self) -> Any:
        """Shape of the whole tensor."""
        return self.shape

    def with_values(self, new_values: Any) -> SparseTensor:
        """Other elements at the same places."""
        return SparseTensor(self._indices, new_values, self._dense_shape)

    def _components(self) -> list[Tensor]:
        return [self._values]

    def _scaled(self, other: Any, combine: Callable[[Tensor, Tensor], Tensor]) -> SparseTensor:
        dense = convert_to_tensor(other, dtype_hint=self.dtype)
        factors = apply(_elements, (dense, self._indices), tuple(self.shape.as_list()))
        return self.with_values(combine(self._values, factors))

    def __mul__(self, other: Any) -> SparseTensor:
        return self._scaled(other, operator.mul)

    def __truediv__(self, other: Any) -> SparseTensor:
        return self._scaled(other, operator.truediv)

    def _as_tensor(self) -> Tensor:
        raise TypeError(
            "A SparseTensor is no tensor: convert it with tf.sparse.to_dense. Sparse computation is not "
            "available (XLA has dense arrays only)."
        )

    def __repr__(self) -> str:
        return (
            f"SparseTensor(indices={self._indices!s}, values={self._values!s}, "
            f"dense_shape={self._dense_shape!s})"
        )


def _as_int64(value: Any) -> Tensor:
    tensor = convert_to_tensor(value, dtype_hint=dtypes.int64)
    return tensor if tensor.dtype is dtypes.int64 else apply(CAST, (tensor,), (np.dtype(np.int64),))


class _NotAvailable(type):
    def __getattr__(cls, name: str) -> Any:
        raise NotAvailableError(f"tf.{cls.__name__}.{name}: {RAGGED_HELP}")


class RaggedTensor(metaclass=_NotAvailable):
    """Rows of different lengths, which XLA does not have: the class exists for `isinstance` checks.

    Raises:
      NotImplementedError: when one is made, saying what to use instead.

    Example:
      >>> import meshflow as tf
      >>> isinstance(tf.constant([1, 2]), tf.RaggedTensor)
      False
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(RAGGED_HELP)


RAGGED_HELP = (
    "Ragged tensors are not available: XLA compiles dense arrays of fixed shapes. Pad the rows to one "
    "length (tf.keras.utils.pad_sequences) and keep a mask (tf.sequence_mask)."
)
