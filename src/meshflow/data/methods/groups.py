"""Methods of datasets that combine elements into batches, windows and groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from meshflow.core.iterators.iterator_captures import Element
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.arguments import IntLike
from meshflow.data.execution import padding
from meshflow.data.methods import constructors
from meshflow.data.node import DatasetNode
from meshflow.environment.types import PyTree
from meshflow.ops import math
from meshflow.ops.ragged import RaggedRow, RaggedTensor, RaggedTensorSpec

if TYPE_CHECKING:
    from meshflow.data.methods.constructors import Dataset

First = TypeVar("First")
Second = TypeVar("Second")
Result = TypeVar("Result")


@hide_frames_of_methods
class GroupingMethods(DatasetNode, Generic[Element]):
    """Methods that combine elements, or split them; a base class of `Dataset`."""

    def batch(
        self,
        batch_size: IntLike,
        drop_remainder: bool = False,
        num_parallel_calls: IntLike | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset[Element]:
        """Stack consecutive elements into batches.

        Args:
          batch_size: Number of elements in a batch.
          drop_remainder: Whether to drop the last batch if it is smaller than `batch_size`.
          num_parallel_calls: Ignored.
          deterministic: Ignored.
          name: Ignored.

        Raises:
          InvalidArgumentError: While iterating, if the elements of a batch have different shapes.

        Example:
          >>> [batch.tolist() for batch in tf.data.Dataset.range(5).batch(2).as_numpy_iterator()]
          [[0, 1], [2, 3], [4]]
          >>> [batch.tolist() for batch in tf.data.Dataset.range(5).batch(2, True).as_numpy_iterator()]
          [[0, 1], [2, 3]]
        """
        return constructors.Batch(self, batch_size, drop_remainder)

    def padded_batch(
        self,
        batch_size: IntLike,
        padded_shapes: PyTree = None,
        padding_values: PyTree = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset[Element]:
        """Pad consecutive elements to one shape and stack them into batches.

        Args:
          batch_size: Number of elements in a batch.
          padded_shapes: Shape for each component, where None (or -1) means the largest size in the
            batch; by default all sizes are None.
          padding_values: Scalar for each component, or one for all; by default 0, or an empty
            string.
          drop_remainder: Whether to drop the last batch if it is smaller than `batch_size`.
          name: Ignored.

        Example:
          >>> rows = tf.data.Dataset.range(1, 3).map(lambda x: tf.fill([x], x))
          >>> rows.padded_batch(2).get_single_element().numpy().tolist()
          [[1, 0], [2, 2]]
        """
        return constructors.PaddedBatch(
            self, batch_size, padded_shapes, padding_values, drop_remainder
        )

    def ragged_batch(
        self,
        batch_size: IntLike,
        drop_remainder: bool = False,
        row_splits_dtype: DTypeLike = "int64",
        name: str | None = None,
    ) -> Dataset:
        """Combine consecutive elements; tensors of different sizes become a `tf.RaggedTensor`.

        Args:
          batch_size: Number of elements per batch.
          drop_remainder: Whether to drop a smaller last batch.
          row_splits_dtype: Dtype of the row splits, int32 or int64.
          name: Ignored.

        Example:
          >>> rows = tf.data.Dataset.range(3).map(lambda n: tf.range(n))
          >>> [batch.to_list() for batch in rows.ragged_batch(3)]
          [[[], [0], [0, 1]]]
        """

        def to_row(spec: TypeSpec, value: Any) -> Any:
            is_dense = isinstance(spec, TensorSpec) or (
                isinstance(spec, RaggedTensorSpec) and not spec.ragged_rank
            )
            if not is_dense or spec.shape.rank is None:
                return value
            ragged_axes = [a for a, size in enumerate(spec.shape) if size is None]
            if not ragged_axes:
                return value
            # Rows of a ragged tensor keep the dtype of its row splits.
            splits_dtype = getattr(spec, "row_splits_dtype", row_splits_dtype)
            if ragged_axes[-1] == 0:
                return RaggedRow(value.require_value("a row"), splits_dtype)
            return RaggedTensor.from_tensor(
                value, ragged_rank=ragged_axes[-1], row_splits_dtype=splits_dtype
            )

        def to_host_row(spec: TensorSpec, value: Any) -> Any:
            if spec.shape.is_fully_defined():
                return value
            if isinstance(value, TensorSpec):
                return RaggedTensorSpec(spec.shape, spec.dtype, 0, row_splits_dtype)
            return RaggedRow(value, row_splits_dtype)

        specs = self.element_spec
        leaves = nest.flatten(specs)
        if all(isinstance(s, TensorSpec) and s.shape.is_fully_defined() for s in leaves):
            return self.batch(batch_size, drop_remainder)
        if all(
            isinstance(s, TensorSpec)
            and s.shape.rank is not None
            and None not in s.shape.as_list()[1:]
            for s in leaves
        ):
            arrange = functools.partial(structure.map_specs, to_host_row, specs)
            return constructors.Rearrange(self, arrange).batch(batch_size, drop_remainder)

        def to_rows(*element: Any) -> PyTree:
            return structure.map_specs(to_row, specs, element if len(element) > 1 else element[0])

        rows = self.map(to_rows)  # type: ignore[attr-defined]
        return rows.batch(batch_size, drop_remainder)

    def sparse_batch(
        self, batch_size: IntLike, row_shape: ShapeLike, name: str | None = None
    ) -> Dataset:
        """Combine consecutive tensors of different sizes into `tf.SparseTensor`s, one row per element.

        Args:
          batch_size: Number of elements in a batch.
          row_shape: Dense shape of a row; None (or -1) means the largest size in the batch.
          name: Ignored.

        Raises:
          TypeError: If an element consists of more than one tensor.
          DataLossError: While iterating, if an element is larger than `row_shape`.

        Example:
          >>> rows = tf.data.Dataset.range(1, 3).map(lambda x: tf.fill([x], x))
          >>> tf.sparse.to_dense(rows.sparse_batch(2, [3]).get_single_element()).numpy().tolist()
          [[1, 0, 0], [2, 2, 0]]
        """
        return constructors.SparseBatch(self, batch_size, row_shape)

    def unbatch(self, name: str | None = None) -> Dataset[Element]:
        """Split every element into its rows along the first axis.

        Args:
          name: Ignored.

        Example:
          >>> pairs = tf.data.Dataset.from_tensor_slices([[1, 2], [3, 4]])
          >>> [int(x) for x in pairs.unbatch()]
          [1, 2, 3, 4]
        """
        return constructors.Unbatch(self)

    def rebatch(
        self,
        batch_size: IntLike | Sequence[int],
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset[Element]:
        """Change the size of the batches of a batched dataset.

        Args:
          batch_size: New batch size, or several sizes that are used cyclically.
          drop_remainder: Whether to drop the last batch if it is too small.
          name: Ignored.

        Raises:
          ValueError: If the elements have no batch axis.

        Example:
          >>> batches = tf.data.Dataset.range(6).batch(6).rebatch([1, 2])
          >>> [batch.numpy().tolist() for batch in batches]
          [[0], [1, 2], [3], [4, 5]]
        """
        return constructors.Rebatch(self, batch_size, drop_remainder)

    @overload
    def window(  # type: ignore[overload-overlap]
        self: GroupingMethods[tuple[First, Second]],
        size: IntLike,
        shift: IntLike | None = None,
        stride: IntLike = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset[tuple[Dataset[First], Dataset[Second]]]: ...
    @overload
    def window(
        self,
        size: IntLike,
        shift: IntLike | None = None,
        stride: IntLike = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset[Dataset[Element]]: ...
    def window(
        self,
        size: IntLike,
        shift: IntLike | None = None,
        stride: IntLike = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Split the elements into windows, each a dataset.

        Args:
          size: Number of elements in a window.
          shift: Number of elements between the starts of consecutive windows, by default `size`.
          stride: Distance between consecutive elements of a window.
          drop_remainder: Whether to drop windows at the end that have fewer than `size` elements.
          name: Ignored.

        Example:
          >>> windows = tf.data.Dataset.range(5).window(3, shift=1, drop_remainder=True)
          >>> [[int(x) for x in w] for w in windows]
          [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        return constructors.Window(self, size, shift, stride, drop_remainder)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Tensor, Dataset[Element]], Dataset[Result]],
        window_size: int | None = None,
        window_size_func: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> Dataset[Result]:
        """Group elements by key, and reduce every full group to a dataset.

        Args:
          key_func: Function from an element to an int64 scalar.
          reduce_func: Function from (key, dataset of the group) to a dataset.
          window_size: Number of elements in a group.
          window_size_func: Function from a key to the number of elements in a group.
          name: Ignored.

        Raises:
          ValueError: Unless exactly one of `window_size` and `window_size_func` is passed.

        Example:
          >>> windows = tf.data.Dataset.range(6).group_by_window(
          ...     lambda x: x % 2, lambda key, group: group.batch(3), window_size=3)
          >>> [batch.tolist() for batch in windows.as_numpy_iterator()]
          [[0, 2, 4], [1, 3, 5]]
        """
        if (window_size is None) == (window_size_func is None):
            raise ValueError(
                "Must pass either the `window_size` argument or the `window_size_func` argument."
            )
        size: Callable[..., Any] = window_size_func or (lambda key: window_size)
        return constructors.GroupByWindow(
            self, key_func, reduce_func, lambda key: int(size(np.int64(key)))
        )

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: PyTree = None,
        padding_values: PyTree = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset[Element]:
        """Batch elements of similar length.

        Args:
          element_length_func: Function from an element to its length.
          bucket_boundaries: Ascending lengths; each is the smallest length of the next bucket.
          bucket_batch_sizes: Batch size of each bucket, one more than there are boundaries.
          padded_shapes: As for `padded_batch`.
          padding_values: As for `padded_batch`.
          pad_to_bucket_boundary: Whether to pad unknown sizes to the largest length of the bucket.
          no_padding: Whether to stack elements without padding.
          drop_remainder: Whether to drop the last batch of a bucket if it is too small.
          name: Ignored.

        Raises:
          ValueError: If the number of batch sizes is not the number of boundaries + 1.

        Example:
          >>> rows = tf.data.Dataset.range(1, 5).map(lambda n: tf.fill([n], n))
          >>> buckets = rows.bucket_by_sequence_length(tf.size, [3], [2, 2])
          >>> [batch.tolist() for batch in buckets.as_numpy_iterator()]
          [[[1, 0], [2, 2]], [[3, 3, 3, 0], [4, 4, 4, 4]]]
        """
        if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
            raise ValueError(
                f"`len(bucket_batch_sizes)` must equal `len(bucket_boundaries) + 1` but `len(bucket_batch_sizes)="
                f"{len(bucket_batch_sizes)}` and `len(bucket_boundaries)={len(bucket_boundaries)}`."
            )
        boundaries = [int(b) for b in bucket_boundaries]

        def find_bucket(*element: PyTree) -> Tensor:
            length = math.cast(element_length_func(*element), "int64")
            return math.reduce_sum(
                math.cast(math.greater_equal(length, np.array(boundaries, np.int64)), "int64")
            )

        def batch_bucket(key: Tensor, group: Dataset) -> Dataset:
            size = int(bucket_batch_sizes[int(key)])
            if no_padding:
                return group.batch(size, drop_remainder)
            shapes = padded_shapes
            if pad_to_bucket_boundary:
                if int(key) >= len(boundaries):
                    raise InvalidValueError(
                        "When pad_to_bucket_boundary=True, elements must have length < max(bucket_boundaries)."
                    )
                limit = boundaries[int(key)] - 1
                spec = group.element_spec
                open_shapes = (
                    [s.shape.as_list() for s in nest.flatten(spec)]
                    if shapes is None
                    else [padding.parse_shape(s) for s in padding.flatten_shapes(spec, shapes)]
                )
                full_shapes = [
                    [limit if n in (None, -1) else n for n in shape or ()] for shape in open_shapes
                ]
                shapes = (
                    nest.pack_sequence_as(spec, [tuple(shape) for shape in full_shapes])
                    if nest.is_nested(spec)
                    else full_shapes[0]
                )
            return group.padded_batch(size, shapes, padding_values, drop_remainder)

        # No element is in the last bucket if all are padded to boundaries.
        num_keys = len(bucket_batch_sizes) - bool(pad_to_bucket_boundary and boundaries)
        return constructors.GroupByWindow(
            self, find_bucket, batch_bucket, lambda key: int(bucket_batch_sizes[key]), num_keys
        )
