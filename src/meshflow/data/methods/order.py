"""Methods of datasets that select, reorder, cache and prefetch elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from meshflow.core.iterators.iterator_captures import Element
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.data.arguments import SHARD_HINT, IntLike, to_int
from meshflow.data.methods import constructors
from meshflow.data.node import DatasetNode
from meshflow.data.options import Options
from meshflow.data.structure import to_array
from meshflow.environment.types import StrPath

if TYPE_CHECKING:
    from meshflow.data.methods.constructors import Dataset


@hide_frames_of_methods
class OrderMethods(DatasetNode, Generic[Element]):
    """Methods that change the order, the number or the execution of elements; a base class of `Dataset`."""

    def shuffle(
        self,
        buffer_size: IntLike,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset[Element]:
        """Shuffle elements with a buffer: draw each element from the buffer, and refill it with the next one.

        Args:
          buffer_size: Number of elements in the buffer. The size of the dataset, or
            `tf.data.UNKNOWN_CARDINALITY` for all elements, results in a perfect shuffle.
          seed: Seed of the order, combined with the seed of `tf.random.set_seed`.
          reshuffle_each_iteration: Whether every pass has another order, by default True.
          name: Ignored.

        Example:
          >>> data = tf.data.Dataset.range(100).shuffle(100, seed=1, reshuffle_each_iteration=False)
          >>> first, second = [int(x) for x in data], [int(x) for x in data]
          >>> first == second, first == sorted(first), sorted(first) == list(range(100))
          (True, False, True)
        """
        return constructors.Shuffle(self, buffer_size, seed, reshuffle_each_iteration)

    def repeat(self, count: IntLike | None = None, name: str | None = None) -> Dataset[Element]:
        """Repeat the elements.

        Args:
          count: Number of repetitions; None or -1 repeats the elements indefinitely.
          name: Ignored.

        Example:
          >>> [int(x) for x in tf.data.Dataset.range(3).repeat(2)]
          [0, 1, 2, 0, 1, 2]
        """
        return constructors.Repeat(self, count)

    def take(self, count: IntLike, name: str | None = None) -> Dataset[Element]:
        """Keep only the first elements.

        Args:
          count: Number of elements to keep; -1 keeps all.
          name: Ignored.

        Example:
          >>> [int(x) for x in tf.data.Dataset.range(5).take(3)]
          [0, 1, 2]
        """
        stop = to_int(count, "count")
        return constructors.Slice(self, 0, None if stop < 0 else stop)

    def skip(self, count: IntLike, name: str | None = None) -> Dataset[Element]:
        """Drop the first elements.

        Args:
          count: Number of elements to drop; -1 drops all.
          name: Ignored.

        Example:
          >>> [int(x) for x in tf.data.Dataset.range(5).skip(3)]
          [3, 4]
        """
        start = to_int(count, "count")
        if start < 0:
            return constructors.Slice(self, 0, 0)
        return constructors.Slice(self, start, None)

    def shard(
        self, num_shards: IntLike, index: IntLike, name: str | None = None
    ) -> Dataset[Element]:
        """Keep every `num_shards`-th element, starting at `index`.

        Args:
          num_shards: Number of shards; `tf.data.experimental.SHARD_HINT` means the number of
            workers, under the auto-shard policy HINT.
          index: Index of the shard to keep; `SHARD_HINT` means the index of the worker.
          name: Ignored.

        Raises:
          InvalidArgumentError: Unless 0 <= `index` < `num_shards`.

        Example:
          >>> [int(x) for x in tf.data.Dataset.range(7).shard(num_shards=3, index=1)]
          [1, 4]
        """
        count, start = to_int(num_shards, "num_shards"), to_int(index, "index")
        if count == start == SHARD_HINT:
            return constructors.ShardHint(self)
        if count < 1 or not 0 <= start < count:
            raise InvalidArgumentError(
                f"Index must be between 0 and {count - 1}, got index={start}."
            )
        return constructors.Slice(self, start, None, count)

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset[Element]:
        """Append the elements of another dataset.

        Args:
          dataset: Dataset of elements with the same structure and dtypes.
          name: Ignored.

        Raises:
          TypeError: If the structures or dtypes differ.

        Example:
          >>> data = tf.data.Dataset.range(2).concatenate(tf.data.Dataset.range(10, 12))
          >>> [int(x) for x in data]
          [0, 1, 10, 11]
        """
        return constructors.Concatenate(self, dataset)

    def unique(self, name: str | None = None) -> Dataset[Element]:
        """Drop elements that are equal to an earlier one.

        Args:
          name: Ignored.

        Example:
          >>> [int(x) for x in tf.data.Dataset.from_tensor_slices([3, 1, 3, 2, 1]).unique()]
          [3, 1, 2]
        """
        return constructors.Unique(self)

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: TensorLike,
        initial_dist: TensorLike | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset[tuple[Tensor, Element]]:
        """Drop elements at random, such that the classes have a target distribution.

        Args:
          class_func: Function from an element to its class, an int32 or int64 scalar.
          target_dist: Target probability of each class.
          initial_dist: Probability of each class in this dataset; by default estimated while
            iterating.
          seed: Seed of the random choices.
          name: Ignored.

        Returns:
          A dataset of (class, element).
        """
        return constructors.Resample(self, class_func, target_dist, initial_dist, seed)

    def cache(self, filename: TensorLike = "", name: str | None = None) -> Dataset[Element]:
        """Store the elements of the first complete pass, and read them in later passes.

        Args:
          filename: File that stores the elements; an empty name stores them in memory.
          name: Ignored.

        Example:
          >>> data = tf.data.Dataset.range(3).map(lambda x: tf.random.uniform([])).cache()
          >>> [float(x) for x in data] == [float(x) for x in data]
          True
        """
        path = to_array(filename)[()] if not isinstance(filename, str) else filename
        return constructors.Cache(self, path.decode() if isinstance(path, bytes) else str(path))

    def snapshot(
        self,
        path: StrPath,
        compression: str | None = "AUTO",
        reader_func: Callable[[Dataset], Dataset] | None = None,
        shard_func: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> Dataset[Element]:
        """Store the elements of the first complete pass in a folder; later passes and programs read them.

        A snapshot belongs to the transformations before it: if they change, another snapshot is
        written.

        Args:
          path: Folder, which several datasets may share.
          compression: 'AUTO' and 'SNAPPY' compress fast, 'GZIP' compresses well, None does not
            compress.
          reader_func: Function from a dataset of shards, which are datasets, to a dataset of
            elements; by default the shards are interleaved.
          shard_func: Function from the components of an element to the index of its shard; by
            default elements are distributed cyclically over as many shards as there are processors.
          name: Ignored.

        Raises:
          TypeError: If `shard_func` does not return an integer, or `reader_func` does not return a
            dataset.
          ValueError: If the compression is unknown.

        Example:
          >>> import tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     dataset = tf.data.Dataset.range(4).map(lambda x: x * x).snapshot(folder)
          ...     [int(x) for x in dataset], [int(x) for x in dataset]
          ([0, 1, 4, 9], [0, 1, 4, 9])
        """
        return constructors.Snapshot(self, path, compression, reader_func, shard_func)

    def prefetch(self, buffer_size: IntLike | None, name: str | None = None) -> Dataset[Element]:
        """Produce elements in a background thread before they are requested.

        Args:
          buffer_size: Number of elements to produce ahead; AUTOTUNE means two.
          name: Ignored.

        Example:
          >>> [int(x) for x in tf.data.Dataset.range(3).prefetch(tf.data.AUTOTUNE)]
          [0, 1, 2]
        """
        return constructors.Prefetch(self, buffer_size)

    def with_options(self, options: Options, name: str | None = None) -> Dataset[Element]:
        """Return a dataset with the same elements and additional options.

        Args:
          options: A `tf.data.Options`; its settings override those of this dataset.
          name: Ignored.

        Example:
          >>> options = tf.data.Options()
          >>> options.deterministic = False
          >>> tf.data.Dataset.range(3).with_options(options).options().deterministic
          False
        """
        return constructors.WithOptions(self, options)

    def ignore_errors(self, log_warning: bool = False, name: str | None = None) -> Dataset[Element]:
        """Drop elements that raise an error when they are computed.

        Args:
          log_warning: Whether to log a warning for each of them.
          name: Ignored.

        Example:
          >>> data = tf.data.Dataset.from_tensor_slices([1.0, 0.0, 4.0])
          >>> checked = data.map(lambda x: tf.debugging.check_numerics(1.0 / x, "no inverse"))
          >>> [float(x) for x in checked.ignore_errors()]
          [1.0, 0.25]
        """
        return constructors.IgnoreErrors(self, log_warning)
