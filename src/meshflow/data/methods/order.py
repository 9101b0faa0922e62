"""Methods about order and number of elements, and how they are kept and made ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.data.arguments import SHARD_HINT, integer
from meshflow.data.methods.constructors import DatasetT, make
from meshflow.data.structure import to_array


class Order(Generic[DatasetT]):
    """Methods about order and number, and about running."""

    def shuffle(
        self,
        buffer_size: Any,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> DatasetT:
        """Elements in random order: each drawn from a buffer that is filled again from the front.

        Args:
          buffer_size: elements in the buffer; the dataset's size, or `tf.data.UNKNOWN_CARDINALITY` for all
            elements, for a perfect shuffle.
          seed: of the order, together with `tf.random.set_seed`.
          reshuffle_each_iteration: whether every pass has another order; True by default.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> data = tf.data.Dataset.range(100).shuffle(100, seed=1, reshuffle_each_iteration=False)
          >>> first, second = [int(x) for x in data], [int(x) for x in data]
          >>> first == second, first == sorted(first), sorted(first) == list(range(100))
          (True, False, True)
        """
        return make.Shuffle(self, buffer_size, seed, reshuffle_each_iteration)

    def repeat(self, count: Any = None, name: str | None = None) -> DatasetT:
        """Elements again and again.

        Args:
          count: how often; None or -1 for ever.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.range(3).repeat(2)]
          [0, 1, 2, 0, 1, 2]
        """
        return make.Repeat(self, count)

    def take(self, count: Any, name: str | None = None) -> DatasetT:
        """The first elements.

        Args:
          count: how many; -1 for all.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.range(5).take(3)]
          [0, 1, 2]
        """
        number = integer(count, "count")
        return make.Slice(self, 0, None if number < 0 else number)

    def skip(self, count: Any, name: str | None = None) -> DatasetT:
        """All but the first elements.

        Args:
          count: how many are left out; -1 for all.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.range(5).skip(3)]
          [3, 4]
        """
        number = integer(count, "count")
        return make.Slice(self, 0, 0) if number < 0 else make.Slice(self, number, None)

    def shard(self, num_shards: Any, index: Any, name: str | None = None) -> DatasetT:
        """Every `num_shards`-th element, from number `index` on.

        Args:
          num_shards: among how many the elements are divided; `tf.data.experimental.SHARD_HINT` for
            the number of workers, under the auto-shard policy HINT.
          index: which part; `SHARD_HINT` for a worker's own.
          name: ignored.

        Raises:
          InvalidArgumentError: for numbers that do not fit.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.range(7).shard(num_shards=3, index=1)]
          [1, 4]
        """
        number, at = integer(num_shards, "num_shards"), integer(index, "index")
        if number == at == SHARD_HINT:
            return make.ShardHint(self)
        if number < 1 or not 0 <= at < number:
            raise InvalidArgumentError(f"Index must be between 0 and {number - 1}, got index={at}.")
        return make.Slice(self, at, None, number)

    def concatenate(self, dataset: DatasetT, name: str | None = None) -> DatasetT:
        """These elements, then those of another dataset.

        Args:
          dataset: the other, of the same structure and dtypes.
          name: ignored.

        Raises:
          TypeError: when they do not fit together.

        Example:
          >>> import meshflow as tf
          >>> data = tf.data.Dataset.range(2).concatenate(tf.data.Dataset.range(10, 12))
          >>> [int(x) for x in data]
          [0, 1, 10, 11]
        """
        return make.Concatenate(self, dataset)

    def unique(self, name: str | None = None) -> DatasetT:
        """Each element once.

        Args:
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.from_tensor_slices([3, 1, 3, 2, 1]).unique()]
          [3, 1, 2]
        """
        return make.Unique(self)

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: Any,
        initial_dist: Any = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> DatasetT:
        """Leaves out elements at random so that classes come in given shares.

        Args:
          class_func: from an element to its class, an int32 or int64 scalar.
          target_dist: the wanted share of each class.
          initial_dist: the present shares; default counted while iterating.
          seed: of the choice.
          name: ignored.

        Returns:
          A dataset of (class, element).
        """
        return make.Resample(self, class_func, target_dist, initial_dist, seed)

    def cache(self, filename: Any = "", name: str | None = None) -> DatasetT:
        """Keeps the elements of the first whole pass.

        Args:
          filename: a file to keep them in; memory without one.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> data = tf.data.Dataset.range(3).map(lambda x: tf.random.uniform([])).cache()
          >>> [float(x) for x in data] == [float(x) for x in data]
          True
        """
        text = to_array(filename)[()] if not isinstance(filename, str) else filename
        return make.Cache(self, text.decode() if isinstance(text, bytes) else str(text))

    def snapshot(
        self,
        path: str,
        compression: str | None = "AUTO",
        reader_func: Any = None,
        shard_func: Any = None,
        name: str | None = None,
    ) -> DatasetT:
        """Keeps the elements of the first whole pass in a folder; later passes and programs read them.

        A snapshot belongs to the transformations before it: when they change, another is written.

        Args:
          path: the folder, which several datasets may share.
          compression: 'AUTO' and 'SNAPPY' compress fast, 'GZIP' well, None not at all.
          reader_func: from a dataset of shards, themselves datasets, to a dataset of elements;
            default one element of each shard in turn.
          shard_func: from the parts of an element to the number of the shard it is written to;
            default in turn, as many shards as there are processors.
          name: ignored.

        Raises:
          TypeError: when `shard_func` gives something other than an integer, or `reader_func` no dataset.
          ValueError: for another compression.

        Example:
          >>> import tempfile
          >>> import meshflow as tf
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     dataset = tf.data.Dataset.range(4).map(lambda x: x * x).snapshot(folder)
          ...     [int(x) for x in dataset], [int(x) for x in dataset]
          ([0, 1, 4, 9], [0, 1, 4, 9])
        """
        return make.Snapshot(self, path, compression, reader_func, shard_func)

    def prefetch(self, buffer_size: Any, name: str | None = None) -> DatasetT:
        """Elements made ahead by a thread.

        Args:
          buffer_size: how many; AUTOTUNE for two.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.range(3).prefetch(tf.data.AUTOTUNE)]
          [0, 1, 2]
        """
        return make.Prefetch(self, buffer_size)

    def with_options(self, options: Any, name: str | None = None) -> DatasetT:
        """A dataset with options.

        Args:
          options: a `tf.data.Options`.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> options = tf.data.Options()
          >>> options.deterministic = False
          >>> tf.data.Dataset.range(3).with_options(options).options().deterministic
          False
        """
        return make.WithOptions(self, options)

    def ignore_errors(self, log_warning: bool = False, name: str | None = None) -> DatasetT:
        """Leaves out elements whose making raises an error.

        Args:
          log_warning: whether each is reported.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> data = tf.data.Dataset.from_tensor_slices([1.0, 0.0, 4.0])
          >>> checked = data.map(lambda x: tf.debugging.check_numerics(1.0 / x, "no inverse"))
          >>> [float(x) for x in checked.ignore_errors()]
          [1.0, 0.25]
        """
        return make.IgnoreErrors(self, log_warning)
