"""`tf.TensorArray`: a list of tensors that loops write one by one.

While indices are static, an array is a Python list of tensors. In a staged loop with traced indices
it is one tensor with a leading axis, and `write` replaces one of its rows. The size must then be
static; an array with `dynamic_size=True` takes it from a loop `for i in tf.range(n)` that writes
element `i` in every iteration. In other programs its size depends on values: it *grows*, and the program
runs op by op. With strings, the function runs as Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import errors
from meshflow.core.runtime.bounds_checks import BoundsCheck, check_bounds
from meshflow.core.runtime.context import context
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.staging.growing_accumulators import ArrayGrowth, get_index_count
from meshflow.core.staging.scalar_logic import is_symbolic
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, string
from meshflow.core.values.shapes import ShapeLike, TensorShape, as_shape
from meshflow.core.values.specs import ElementLeaf, TypeSpec
from meshflow.core.values.symbolic_sizes import as_size, make_sizes_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import can_have_unknown_sizes, compute_size, write_row

_write = Op(
    "tensor_array_write",
    lambda o, _: lax.dynamic_update_index_in_dim(jnp.asarray(o[0]), o[1], o[2], 0),
    heavy=True,
    strings="moves",
)
_write_row = Op("tensor_array_write", lambda o, _: write_row(*map(jnp.asarray, o)))
_read = Op(
    "tensor_array_read",
    lambda o, _: lax.dynamic_index_in_dim(jnp.asarray(o[0]), o[1], 0, False),
    heavy=True,
    strings="moves",
)
_gather = Op(
    "tensor_array_gather",
    lambda o, _: jnp.take(jnp.asarray(o[0]), o[1], axis=0),
    heavy=True,
    strings="moves",
)
_scatter = Op(
    "tensor_array_scatter",
    lambda o, _: jnp.asarray(o[0]).at[o[1]].set(o[2]),
    heavy=True,
    strings="moves",
)
_stack = Op("tensor_array_stack", lambda o, _: jnp.stack(o[0]), heavy=True, strings="moves")
_concat = Op("tensor_array_concat", lambda o, _: jnp.concatenate(o[0]), heavy=True, strings="moves")
_flatten = Op(
    "tensor_array_concat",
    lambda o, _: jnp.reshape(o[0], (-1, *jnp.shape(o[0])[2:])),
    strings="moves",
)
_split_rows = Op(
    "tensor_array_split",
    lambda o, bounds: [o[0][a:b] for a, b in bounds],
    heavy=True,
    strings="moves",
)
_zeros = Op("zeros", lambda o, static: jnp.zeros(static[0], static[1]), differentiable=False)


def _make_zeros(shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Return zeros, or empty strings."""
    if dtype is string:
        return Tensor(np.full(shape, b"", object))
    zeros: Tensor = apply(_zeros, (), (shape, dtype.dtype))
    return zeros


class _SharedState:
    """State that all versions of an array share; the first write determines the element shape."""

    def __init__(
        self,
        dtype: DType,
        size: int,
        dynamic: bool,
        infer_shape: bool,
        element_shape: TensorShape,
        clears: bool,
    ) -> None:
        self.dtype = dtype
        self.size = size
        self.dynamic = dynamic
        # Whether the size depends on values.
        self.grows = False
        # Whether the caller chose a size. Writes at traced indices are then within this size.
        self.has_initial_size = size > 0
        self.infer_shape = infer_shape
        self.element_shape = element_shape
        # Whether reading an element removes it, and the indices of the elements that were removed.
        self.clears_after_read = clears
        self.cleared: set[int] = set()


def _check_index(index: TensorLike, buffer: Tensor, action: str) -> Tensor:
    """Return the index of an element after checking that it exists."""
    size = buffer.array.shape[:1]
    message = f"Trying to {action} element {{value}} in a list with {{sizes}} elements."
    check = BoundsCheck(message, (0,), size, sizes=size)
    checked: Tensor = check_bounds(convert_to_tensor(index), check)
    return checked


class TensorArraySpec(TypeSpec):
    """Spec of a `tf.TensorArray`.

    Args:
      element_shape: Shape of the elements.
      dtype: Their dtype.
      dynamic_size: Whether writing beyond the end extends the array.
      infer_shape: Whether all elements must have the shape of the first.

    Example:
      >>> arrays = tf.data.Dataset.range(1).map(lambda x: tf.TensorArray(tf.int64, 1).write(0, x))
      >>> arrays.element_spec.dtype, [array.stack().numpy() for array in arrays]
      (tf.int64, [array([0])])
    """

    _has_components, _is_element = False, True

    def __init__(
        self,
        element_shape: ShapeLike = None,
        dtype: DTypeLike = "float32",
        dynamic_size: bool = False,
        infer_shape: bool = True,
    ) -> None:
        self._element_shape, self._element_dtype = as_shape(element_shape), as_dtype(dtype)
        self._dynamic_size, self._infer_shape = dynamic_size, infer_shape

    @property
    def shape(self) -> TensorShape:
        """Return the shape of the object, a scalar."""
        return TensorShape([])

    @property
    def dtype(self) -> DType:
        """Return the dtype of the elements."""
        return self._element_dtype

    @property
    def value_type(self) -> type:
        """Return the class of the values."""
        return TensorArray

    @staticmethod
    def from_value(value: TensorArray) -> TensorArraySpec:
        """Return the spec of an array."""
        return value._type_spec

    def make_array(self, elements: Sequence[Tensor | None]) -> TensorArray:
        """Return an array of elements, with None for those that are not written."""
        result = TensorArray(
            self._element_dtype,
            len(elements),
            self._dynamic_size,
            infer_shape=self._infer_shape,
            element_shape=self._element_shape,
        )
        result._elements = list(elements)
        return result

    def is_compatible_with(self, value: Any) -> bool:
        """Check the dtype and the shape of an array or of another spec."""
        spec = value._type_spec if isinstance(value, TensorArray) else value
        return (
            isinstance(spec, TensorArraySpec)
            and spec.dtype == self._element_dtype
            and spec._dynamic_size == self._dynamic_size
            and spec._element_shape.is_compatible_with(self._element_shape)
        )

    def _get_key(self) -> tuple[object, ...]:
        sizes = None if self._element_shape.rank is None else tuple(self._element_shape)
        return sizes, self._element_dtype, self._dynamic_size, self._infer_shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorArraySpec) and self._get_key() == other._get_key()

    def __hash__(self) -> int:
        return hash(self._get_key())

    def __repr__(self) -> str:
        return f"TensorArraySpec({self._element_shape}, {self._element_dtype!r}, {self._dynamic_size}, {self._infer_shape})"


@hide_frames_of_methods
class TensorArray(ElementLeaf):
    """List of tensors of the same dtype; loops can write and read its elements.

    Args:
      dtype: The dtype of the elements.
      size: Number of elements; 0 by default.
      dynamic_size: Whether writing beyond the end extends the array.
      clear_after_read: Whether an eager read removes the element, so that it cannot be read again;
        True by default. In traced functions elements can be read repeatedly, as in TensorFlow.
      tensor_array_name: Ignored.
      handle: Must be None.
      flow: Ignored.
      infer_shape: Whether all elements must have the shape of the first.
      element_shape: Shape of the elements, which may have unknown sizes.
      colocate_with_first_write_call: Ignored.
      name: Ignored.

    Raises:
      ValueError: If `handle` is not None.

    Example:
      >>> ta = tf.TensorArray(tf.float32, size=3)
      >>> for i in range(3):
      ...     ta = ta.write(i, float(i))
      >>> ta.stack().numpy()
      array([0., 1., 2.], dtype=float32)
    """

    def __init__(
        self,
        dtype: DTypeLike,
        size: TensorLike | None = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: None = None,
        flow: Tensor | None = None,
        infer_shape: bool = True,
        element_shape: ShapeLike = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        del tensor_array_name, flow, colocate_with_first_write_call, name
        if handle is not None:
            raise ValueError(
                "TensorArray: `handle` is not supported; create a new TensorArray instead."
            )
        count = 0 if size is None else as_size(to_static_value(size, "size"))
        self._spec = _SharedState(
            as_dtype(dtype),
            count,
            bool(dynamic_size),
            infer_shape,
            as_shape(element_shape),
            clears=clear_after_read is None or bool(clear_after_read),
        )
        # At most one of `_elements` and `_buffer` is used; none in an array of symbolic size without elements.
        self._elements: list[Tensor | None] | None
        self._elements = None if is_symbolic_dim(count) else [None] * count
        self._buffer: Tensor | None = None
        # Whether a loop changes the array, so that its size differs between iterations.
        self._is_loop_state = False

    def _replace_contents(
        self, elements: list[Tensor | None] | None, buffer: Tensor | None
    ) -> TensorArray:
        """Return an array with other contents; eagerly the array itself, as in TensorFlow."""
        if context.trace is not None:
            return self._copy_with(elements, buffer)
        self._elements, self._buffer = elements, buffer
        return self

    def _copy_with(
        self, elements: list[Tensor | None] | None, buffer: Tensor | None
    ) -> TensorArray:
        result = object.__new__(TensorArray)
        result._spec, result._elements, result._buffer = self._spec, elements, buffer
        result._is_loop_state = self._is_loop_state
        return result

    # ---- properties -------------------------------------------------------------------------

    @property
    def _type_spec(self) -> TensorArraySpec:
        spec = self._spec
        return TensorArraySpec(self.element_shape, spec.dtype, self.dynamic_size, spec.infer_shape)

    @property
    def dtype(self) -> DType:
        """Return the dtype of the elements."""
        return self._spec.dtype

    @property
    def element_shape(self) -> TensorShape:
        """Return the shape of the elements, as far as it is known."""
        return self._spec.element_shape

    @property
    def dynamic_size(self) -> bool:
        """Return whether writing beyond the end extends the array."""
        return self._spec.dynamic

    @property
    def flow(self) -> None:
        """Return None: the data dependencies determine the order."""
        return None

    @property
    def handle(self) -> None:
        """Return None."""
        return None

    def size(self, name: str | None = None) -> Tensor:
        """Return the number of elements, an int32 scalar."""
        self._check_size("size")
        count = self._get_count()
        return (
            make_sizes_tensor(count, np.int32)
            if is_symbolic_dim(count)
            else convert_to_tensor(np.int32(count))
        )

    def _check_size(self, method: str) -> None:
        """Make the array grow if its number of elements differs between iterations of a loop.

        Raises:
          ValueNeededError: If the program is compiled.
        """
        if self._is_loop_state and self._spec.dynamic and not self._spec.grows:
            if can_have_unknown_sizes():
                self._spec.grows, self._spec.size = True, 0
                raise ArrayGrowth
            raise errors.ValueNeededError(
                f"TensorArray.{method} depends on the iteration of a loop, because dynamic_size=True. Pass "
                "`size=` without dynamic_size to keep the function compiled."
            )

    def __len__(self) -> int:
        count: int = self._get_count()
        return count

    def _get_count(self) -> Any:
        """Return the number of elements, which may be a symbolic size."""
        if self._elements is not None:
            return len(self._elements)
        return self._spec.size if self._buffer is None else self._buffer.array.shape[0]

    # ---- single elements --------------------------------------------------------------------

    def write(self, index: TensorLike, value: TensorLike, name: str | None = None) -> TensorArray:
        """Write an element.

        Returns:
          The array with that element, which must be used instead of this one.

        Raises:
          ValueError: If the dtype or shape does not match.
          OutOfRangeError: If the index is outside of an array of fixed size.

        Example:
          >>> tf.TensorArray(tf.int32, size=1).write(0, 5).read(0).numpy()
          np.int32(5)
        """
        tensor = self._convert_element(value)
        if is_symbolic(index):
            return self._write_row(index, tensor)
        position = int(to_static_value(index, "index"))
        if self._elements is None and context.trace is not None:
            count = self._get_count()
            if is_symbolic_dim(count) or 0 <= position < count:
                return self._write_row(index, tensor)
        elements = self._list_elements()
        if position < 0 or (position >= len(elements) and not self._spec.dynamic):
            raise errors.OutOfRangeError(
                f"Tried to write to index {position} but array is not resizeable and size is: {len(elements)}"
            )
        elements += [None] * (position + 1 - len(elements))
        elements[position] = tensor
        self._spec.cleared.discard(position)
        return self._replace_contents(elements, None)

    def read(self, index: TensorLike, name: str | None = None) -> Tensor:
        """Read an element.

        Raises:
          OutOfRangeError: If the index is outside of the array.
          InvalidArgumentError: If an earlier read has removed the element.
          ValueError: If the element was not written and the element shape is unknown.
        """
        if is_symbolic(index):
            buffer = self._to_buffer()
            result: Tensor = apply(_read, (buffer, _check_index(index, buffer, "access")))
            return result
        position = int(to_static_value(index, "index"))
        if not 0 <= position < self._get_count():
            raise errors.OutOfRangeError(
                f"Tried to read from index {position} but array size is: {len(self)}"
            )
        if (
            self._spec.clears_after_read
            and context.trace is None
            and not (context.emulates_graph or context.computes_on_host)
        ):
            self._mark_as_read(position)
        return self._get_element(position)

    def _get_element(self, position: int) -> Tensor:
        if self._elements is None:
            return (self._to_buffer() if self._buffer is None else self._buffer)[position]
        element = self._elements[position]
        return self._make_zeros() if element is None else element

    def _mark_as_read(self, position: int) -> None:
        """Mark an element as read, which is only allowed once."""
        if position in self._spec.cleared:
            raise errors.InvalidArgumentError(
                f"Could not read index {position} twice because it was cleared after a previous read (perhaps try "
                "setting clear_after_read = false?)"
            )
        self._spec.cleared.add(position)

    def _remove_cleared(self) -> None:
        """Replace the elements that were read by zeros, for methods that use all elements."""
        if self._spec.cleared:
            self._elements, self._buffer = self._list_elements(), None

    def _convert_element(self, value: TensorLike) -> Tensor:
        spec = self._spec
        tensor = convert_to_tensor(value, dtype_hint=spec.dtype)
        if tensor.dtype is not spec.dtype:
            raise ValueError(
                f"TensorArray dtype is {spec.dtype.name} but the value written has dtype {tensor.dtype.name}. "
                "Use tf.cast."
            )
        self._check_shape(tensor.shape)
        return tensor

    def _check_shape(self, shape: TensorShape) -> None:
        spec = self._spec
        if not spec.element_shape.is_compatible_with(shape):
            raise ValueError(
                f"Incompatible shape for value {shape}, expected {spec.element_shape}: all elements of a "
                "TensorArray have the same shape unless it is created with infer_shape=False."
            )
        if spec.infer_shape and not spec.element_shape.is_fully_defined():
            spec.element_shape = shape

    def _write_row(self, index: TensorLike, value: Tensor) -> TensorArray:
        spec = self._spec
        if not spec.element_shape.is_fully_defined():
            # This also applies with infer_shape=False, because all rows of a tensor have the same
            # shape.
            spec.element_shape = value.shape
        position = convert_to_tensor(index)
        if spec.dynamic:
            self._grow(position)
        elif spec.size == 0:
            raise errors.OutOfRangeError(
                "TensorArray: tried to write at an index that is only known when the function runs, but the "
                "array has size 0. Pass `size=` or dynamic_size=True."
            )
        buffer = self._to_buffer()
        if spec.dynamic and (spec.grows or is_symbolic_dim(buffer.array.shape[0])):
            if context.trace is not None and can_have_unknown_sizes():
                return self._replace_contents(None, apply(_write_row, (buffer, value, position)))
            buffer = self._extend(buffer, position)
        if not spec.dynamic:
            position = _check_index(position, buffer, "modify")
        return self._replace_contents(None, apply(_write, (buffer, value, position)))

    def _grow(self, index: Tensor) -> None:
        """Set the size to n in a loop over 0 ... n-1 that writes element i in each iteration.

        Raises:
          ValueNeededError: If the size depends on the index.
        """
        count = get_index_count(index)
        if self._spec.grows:
            return
        if count is not None:
            self._spec.size = max(self._spec.size, count)
        elif can_have_unknown_sizes():
            self._spec.grows, self._spec.size = True, 0
        elif not self._spec.has_initial_size:
            raise errors.ValueNeededError(
                "The size of a TensorArray depends on an index that is only known when the function runs. To "
                "keep the function compiled, pass `size=`, or write element `i` in every iteration of a loop "
                "`for i in tf.range(n)`."
            )

    def _extend(self, buffer: Tensor, index: Tensor) -> Tensor:
        """Return the elements with zeros after them up to an index."""
        size = buffer.array.shape[0]
        count_missing = lambda size, index: (index + 1 - size).clip(0)
        operands = [make_sizes_tensor(size, np.int64), index]
        missing = compute_size(count_missing, operands, "an index of a TensorArray")
        extended: Tensor = apply(_concat, ([buffer, self._make_zeros(missing)],))
        return extended

    # ---- the two representations ------------------------------------------------------------

    def _list_elements(self) -> list[Tensor | None]:
        """Return a new list of the elements that were not removed."""
        rows: list[Tensor | None] = list(self._elements if self._buffer is None else self._buffer)  # type: ignore[arg-type]
        for position in self._spec.cleared:
            rows[position] = None
        return rows

    def _to_buffer(self) -> Tensor:
        """Return all elements as one tensor, with zeros for missing elements."""
        self._remove_cleared()
        spec = self._spec
        if self._buffer is not None:
            missing = spec.size - self._get_count()
            if spec.grows or missing <= 0:
                return self._buffer
            joined: Tensor = apply(_concat, ([self._buffer, self._make_zeros(missing)],))
            return joined
        elements = self._elements or []
        if not elements or all(e is None for e in elements):
            return self._make_zeros(max(len(elements), spec.size))
        blank = None if all(e is not None for e in elements) else self._make_zeros()
        rows = [blank if e is None else e for e in elements]
        rows += [self._make_zeros()] * (spec.size - len(rows))
        stacked: Tensor = apply(_stack, (rows,))
        return stacked

    def _make_zeros(self, count: int | None = None) -> Tensor:
        spec = self._spec
        if not spec.element_shape.is_fully_defined():
            raise ValueError(
                "TensorArray: the shape of the elements is not known yet. Pass `element_shape=`, or write an "
                "element first."
            )
        shape = tuple(spec.element_shape.as_list())
        return _make_zeros(shape if count is None else (count, *shape), spec.dtype)

    def _state_parts(self) -> list[Tensor]:
        """Return the tensors that a staged block carries; none while the element shape is unknown.

        Raises:
          ValueNeededError: If the elements are strings, which no program can carry.
        """
        if self._spec.dtype is string and context.trace is not None:
            raise errors.ValueNeededError(
                "A TensorArray of strings is changed in a loop or branch, and XLA has no strings."
            )
        if self._buffer is None and not self._spec.element_shape.is_fully_defined():
            return []
        if (
            self._spec.size == 0
            and self._buffer is None
            and not (self._elements or self._spec.grows)
        ):
            return []
        return [self._to_buffer()]

    def _with_state_parts(self, parts: Sequence[Tensor]) -> TensorArray:
        if parts:
            result = self._copy_with(None, parts[0])
        else:
            result = self.identity()
        result._is_loop_state = context.trace is not None and context.trace.is_loop_body
        return result

    # ---- all elements -----------------------------------------------------------------------

    def stack(self, name: str | None = None) -> Tensor:
        """Stack all elements along a new first axis, with zeros for missing elements.

        Raises:
          ValueError: If no element was written and `element_shape` is unknown.

        Example:
          >>> tf.TensorArray(tf.int32, size=0, dynamic_size=True).write(0, [1, 2]).stack().numpy()
          array([[1, 2]], dtype=int32)
        """
        self._check_size("stack")
        if (
            self._buffer is None
            and not self._elements
            and self._spec.size == 0
            and self._spec.element_shape.rank is None
        ):
            return _make_zeros((0,), self._spec.dtype)
        return self._to_buffer()

    def gather(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Stack the elements with the given indices along a new first axis."""
        result: Tensor = apply(_gather, (self._to_buffer(), convert_to_tensor(indices)))
        return result

    def concat(self, name: str | None = None) -> Tensor:
        """Concatenate all elements along their first axis."""
        self._check_size("concat")
        self._remove_cleared()
        if self._elements is None:
            joined: Tensor = apply(_flatten, (self._to_buffer(),))
            return joined
        elements = [self._get_element(i) for i in range(len(self))]
        if not elements:
            return self._make_zeros(0)
        result: Tensor = apply(_concat, (elements,))
        return result

    def unstack(self, value: TensorLike, name: str | None = None) -> TensorArray:
        """Use the rows of a tensor as elements.

        Raises:
          ValueError: If `value` is a scalar, or has more rows than an array of fixed size.
        """
        tensor = convert_to_tensor(value, dtype_hint=self._spec.dtype)
        if not tensor.ndim:
            raise ValueError(
                "TensorArray.unstack needs a tensor with at least one dimension, got a scalar."
            )
        self._resize(tensor.array.shape[0], "unstack")
        if tensor.dtype is not self._spec.dtype:
            raise ValueError(
                f"TensorArray dtype is {self._spec.dtype.name} but unstack got {tensor.dtype.name}."
            )
        self._check_shape(tensor.shape[1:])
        return self._replace_contents(None, tensor)

    def scatter(
        self, indices: TensorLike, value: TensorLike, name: str | None = None
    ) -> TensorArray:
        """Write the rows of a tensor to the elements with the given indices."""
        rows = convert_to_tensor(value, dtype_hint=self._spec.dtype)
        if is_symbolic(indices):
            self._check_shape(rows.shape[1:])
            return self._replace_contents(
                None, apply(_scatter, (self._to_buffer(), convert_to_tensor(indices), rows))
            )
        result = self
        for position, row in zip(
            np.asarray(convert_to_tensor(indices).array).tolist(), rows, strict=True
        ):
            result = result.write(position, row)
        return result

    def split(self, value: TensorLike, lengths: TensorLike, name: str | None = None) -> TensorArray:
        """Split a tensor into consecutive parts with the given lengths, and use them as elements.

        Raises:
          ValueError: If the sum of the lengths is not the number of rows.
        """
        tensor = convert_to_tensor(value, dtype_hint=self._spec.dtype)
        sizes = to_static_value(lengths, "lengths")
        ends = np.cumsum(sizes).tolist()
        if not ends or ends[-1] != len(tensor):
            raise ValueError(
                f"TensorArray.split: lengths {list(sizes)} do not sum to {len(tensor)} rows."
            )
        self._resize(len(ends), "split")
        bounds = tuple(zip([0, *ends[:-1]], ends, strict=True))
        pieces = apply(_split_rows, (tensor,), bounds)
        for piece in pieces:
            self._check_shape(piece.shape)
        return self._replace_contents(list(pieces), None)

    def _resize(self, count: int, method: str) -> None:
        present = self._get_count()
        if not self._spec.dynamic and present and count > present:
            raise ValueError(
                f"TensorArray.{method}: {count} elements exceed the fixed size {present} of the array. Create it "
                "with dynamic_size=True."
            )
        self._spec.size = count
        self._spec.cleared.clear()

    def identity(self) -> TensorArray:
        """Return a second array with the same elements."""
        elements = None if self._elements is None else list(self._elements)
        return self._copy_with(elements, self._buffer)

    def close(self, name: str | None = None) -> None:
        """Do nothing: memory is released with the array."""

    def __repr__(self) -> str:
        return f"<tf.TensorArray size={self._get_count()} dtype={self._spec.dtype.name} element_shape={self.element_shape}>"
