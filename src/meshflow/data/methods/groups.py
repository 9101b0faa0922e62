"""Methods that gather elements: batches, windows, groups by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

import numpy as np

from meshflow.core.dispatch.composite import RAGGED_HELP
from meshflow.core.values import nest
from meshflow.data.execution import padding
from meshflow.data.methods.constructors import DatasetT, make
from meshflow.ops import math


class Groups(Generic[DatasetT]):
    """Methods that gather elements."""

    def batch(
        self,
        batch_size: Any,
        drop_remainder: bool = False,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> DatasetT:
        """Consecutive elements, stacked.

        Args:
          batch_size: how many.
          drop_remainder: whether a smaller last batch is left out.
          num_parallel_calls: accepted.
          deterministic: accepted.
          name: ignored.

        Raises:
          InvalidArgumentError: while iterating, for elements of different shapes.

        Example:
          >>> import meshflow as tf
          >>> [batch.tolist() for batch in tf.data.Dataset.range(5).batch(2).as_numpy_iterator()]
          [[0, 1], [2, 3], [4]]
          >>> [batch.tolist() for batch in tf.data.Dataset.range(5).batch(2, True).as_numpy_iterator()]
          [[0, 1], [2, 3]]
        """
        return make.Batch(self, batch_size, drop_remainder)

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> DatasetT:
        """Consecutive elements, padded to one shape and stacked.

        Args:
          batch_size: how many.
          padded_shapes: a shape for each component, None for the largest size; default all None.
          padding_values: a number for each component, or one for all; default 0 or ''.
          drop_remainder: whether a smaller last batch is left out.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> rows = tf.data.Dataset.range(1, 3).map(lambda x: tf.fill([x], x))
          >>> rows.padded_batch(2).get_single_element().numpy().tolist()
          [[1, 0], [2, 2]]
        """
        return make.PaddedBatch(self, batch_size, padded_shapes, padding_values, drop_remainder)

    def ragged_batch(self, *args: Any, **kwargs: Any) -> DatasetT:
        """Not available.

        Raises:
          NotImplementedError: always: use `padded_batch`.
        """
        raise NotImplementedError(f"{RAGGED_HELP} Dataset.padded_batch does it for batches.")

    def sparse_batch(self, batch_size: Any, row_shape: Any, name: str | None = None) -> DatasetT:
        """Consecutive tensors of different sizes as `tf.SparseTensor`s, one row for each.

        Args:
          batch_size: how many.
          row_shape: the dense shape of a row; None (or -1) for the largest size of the batch.
          name: ignored.

        Raises:
          TypeError: when elements are more than one tensor.
          DataLossError: when iterating, for an element larger than `row_shape`.

        Example:
          >>> import meshflow as tf
          >>> rows = tf.data.Dataset.range(1, 3).map(lambda x: tf.fill([x], x))
          >>> tf.sparse.to_dense(rows.sparse_batch(2, [3]).get_single_element()).numpy().tolist()
          [[1, 0, 0], [2, 2, 0]]
        """
        return make.SparseBatch(self, batch_size, row_shape)

    def unbatch(self, name: str | None = None) -> DatasetT:
        """The rows of every element.

        Args:
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> pairs = tf.data.Dataset.from_tensor_slices([[1, 2], [3, 4]])
          >>> [int(x) for x in pairs.unbatch()]
          [1, 2, 3, 4]
        """
        return make.Unbatch(self)

    def rebatch(
        self, batch_size: Any, drop_remainder: bool = False, name: str | None = None
    ) -> DatasetT:
        """Batches of another size.

        Args:
          batch_size: how many elements; several numbers are used in turns.
          drop_remainder: whether a smaller last batch is left out.
          name: ignored.

        Raises:
          ValueError: when the elements are no batches.

        Example:
          >>> import meshflow as tf
          >>> batches = tf.data.Dataset.range(6).batch(6).rebatch([1, 2])
          >>> [batch.numpy().tolist() for batch in batches]
          [[0], [1, 2], [3], [4, 5]]
        """
        return make.Rebatch(self, batch_size, drop_remainder)

    def window(
        self,
        size: Any,
        shift: Any = None,
        stride: Any = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> DatasetT:
        """Datasets of consecutive elements.

        Args:
          size: elements per window.
          shift: elements between the starts of windows; default `size`.
          stride: distance of the elements in a window.
          drop_remainder: whether smaller last windows are left out.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> windows = tf.data.Dataset.range(5).window(3, shift=1, drop_remainder=True)
          >>> [[int(x) for x in w] for w in windows]
          [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        return make.Window(self, size, shift, stride, drop_remainder)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[..., Any],
        window_size: Any = None,
        window_size_func: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> DatasetT:
        """Gathers elements by key, and reduces every full group to a dataset.

        Args:
          key_func: from an element to an int64 scalar.
          reduce_func: from (key, dataset of the group) to a dataset.
          window_size: elements per group.
          window_size_func: from a key to it.
          name: ignored.

        Raises:
          ValueError: unless exactly one of the last two is given.

        Example:
          >>> import meshflow as tf
          >>> windows = tf.data.Dataset.range(6).group_by_window(
          ...     lambda x: x % 2, lambda key, group: group.batch(3), window_size=3)
          >>> [batch.tolist() for batch in windows.as_numpy_iterator()]
          [[0, 2, 4], [1, 3, 5]]
        """
        if (window_size is None) == (window_size_func is None):
            raise ValueError(
                "Must pass either the `window_size` argument or the `window_size_func` argument."
            )
        size = window_size_func or (lambda key: window_size)
        return make.GroupByWindow(self, key_func, reduce_func, lambda key: int(size(np.int64(key))))

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Any,
        bucket_batch_sizes: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> DatasetT:
        """Batches of elements of similar length.

        Args:
          element_length_func: from an element to its length.
          bucket_boundaries: where the next bucket begins.
          bucket_batch_sizes: batch size of each bucket, one more than boundaries.
          padded_shapes: as for `padded_batch`.
          padding_values: as for `padded_batch`.
          pad_to_bucket_boundary: whether unknown sizes become the bucket's largest.
          no_padding: whether elements are only stacked.
          drop_remainder: whether smaller last batches are left out.
          name: ignored.

        Raises:
          ValueError: for another number of batch sizes.

        Example:
          >>> import meshflow as tf
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

        def bucket(*element: Any) -> Any:
            length = math.cast(element_length_func(*element), "int64")
            return math.reduce_sum(
                math.cast(math.greater_equal(length, np.array(boundaries, np.int64)), "int64")
            )

        def reduced(key: Any, group: Any) -> Any:
            size = int(bucket_batch_sizes[int(key)])
            if no_padding:
                return group.batch(size, drop_remainder)
            shapes = padded_shapes
            if pad_to_bucket_boundary:
                if int(key) >= len(boundaries):
                    raise ValueError(
                        "When pad_to_bucket_boundary=True, elements must have length < max(bucket_boundaries)."
                    )
                limit = boundaries[int(key)] - 1
                spec = group.element_spec
                known = (
                    [s.shape.as_list() for s in nest.flatten(spec)]
                    if shapes is None
                    else [padding.sizes(s) for s in padding.flat_up_to(spec, shapes)]
                )
                full = [[limit if n in (None, -1) else n for n in shape or ()] for shape in known]
                shapes = (
                    nest.pack_sequence_as(spec, [tuple(f) for f in full])
                    if nest.is_nested(spec)
                    else full[0]
                )
            return group.padded_batch(size, shapes, padding_values, drop_remainder)

        return self.group_by_window(
            bucket, reduced, window_size_func=lambda key: int(bucket_batch_sizes[int(key)])
        )
