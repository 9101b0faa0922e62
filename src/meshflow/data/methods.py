"""The methods of `tf.data.Dataset` that make datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from meshflow.data.dataset import Dataset


def _nodes() -> Any:
    # Transformations are datasets, which have these methods.
    from meshflow.data import transformations

    return transformations


def _sources() -> Any:
    from meshflow.data import sources

    return sources


class Transformations:
    """What can be done with a dataset, and where datasets come from; a base class of `Dataset`."""

    # ---- sources ---------------------------------------------------------------------------

    @staticmethod
    def from_tensor_slices(tensors: Any, name: str | None = None) -> Dataset:
        """The rows of tensors.

        Args:
          tensors: a tensor, or tuples and dictionaries of tensors of the same first size.
          name: ignored.

        Raises:
          ValueError: for scalars or unequal first sizes.

        Example:
          >>> import meshflow as tf
          >>> data = tf.data.Dataset.from_tensor_slices({"x": [1, 2], "y": [3.0, 4.0]})
          >>> [{k: v.numpy().item() for k, v in row.items()} for row in data]
          [{'x': 1, 'y': 3.0}, {'x': 2, 'y': 4.0}]
        """
        return _sources().TensorSlices(tensors)

    @staticmethod
    def from_tensors(tensors: Any, name: str | None = None) -> Dataset:
        """One element.

        Args:
          tensors: the element.
          name: ignored.
        """
        return _sources().Tensors(tensors)

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Any = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> Dataset:
        """What a Python generator yields.

        Args:
          generator: a function that gives an iterable, called anew for every pass.
          output_types: dtypes of the elements, in their structure (or `output_signature`).
          output_shapes: their shapes; default unknown.
          args: arguments of the function, given as NumPy values.
          output_signature: `tf.TensorSpec`s of the elements, in their structure.
          name: ignored.

        Raises:
          TypeError: without types and without a signature, or with both.

        Example:
          >>> import meshflow as tf
          >>> squares = tf.data.Dataset.from_generator(
          ...     lambda: (i * i for i in range(3)), output_signature=tf.TensorSpec([], tf.int32))
          >>> [int(x) for x in squares]
          [0, 1, 4]
        """
        from meshflow.core import dtypes, nest
        from meshflow.core.specs import TensorSpec

        if output_signature is not None:
            if output_types is not None or output_shapes is not None:
                raise TypeError(
                    "The `output_types` and `output_shapes` arguments cannot be used together with `output_signature`."
                )
            signature = output_signature
        else:
            if output_types is None:
                raise TypeError(
                    "Either `output_types` or `output_signature` is required, got neither."
                )
            types = _tuples(output_types)
            kinds = nest.flatten(types)
            shapes: list[Any] = [None] * len(kinds)
            if output_shapes is not None:
                shapes = _nodes()._up_to(
                    types, _tuples(output_shapes) if nest.is_nested(types) else output_shapes
                )
            specs = [TensorSpec(s, dtypes.as_dtype(t)) for s, t in zip(shapes, kinds, strict=True)]
            signature = nest.pack_sequence_as(types, specs)
        return _sources().Generator(generator, _tuples(signature), tuple(args or ()))

    @staticmethod
    def range(*args: Any, output_type: Any = "int64", name: str | None = None) -> Dataset:
        """Numbers at equal distances.

        Args:
          *args: stop; start and stop; or start, stop and step.
          output_type: their dtype; default int64.
          name: ignored.

        Raises:
          ValueError: for another number of arguments.
        """
        from meshflow.data.dataset import integer

        numbers = [integer(a, "range") for a in args]
        if not 1 <= len(numbers) <= 3:
            raise ValueError(f"Invalid `args`. `args` must have 1 to 3 values, got {len(numbers)}.")
        start, stop = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
        step = numbers[2] if len(numbers) == 3 else 1
        return _sources().Range(start, stop, step, output_type)

    @staticmethod
    def random(
        seed: int | None = None,
        rerandomize_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Uniform int64 numbers in [0, 2**32) without end.

        Args:
          seed: makes every pass the same.
          rerandomize_each_iteration: whether later passes differ.
          name: ignored.
        """
        return _sources().Random(seed, rerandomize_each_iteration)

    @staticmethod
    def list_files(
        file_pattern: Any,
        shuffle: bool | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Names of files.

        Args:
          file_pattern: a pattern with wildcards, or several.
          shuffle: whether in random order; True by default.
          seed: of the order.
          name: ignored.

        Raises:
          InvalidArgumentError: when no file matches.
        """
        found = _sources().list_files(file_pattern)
        dataset = _sources().TensorSlices(np.array([f.encode() for f in found], object))
        return dataset if shuffle is False else dataset.shuffle(len(found), seed=seed)

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> Dataset:
        """Elements of several datasets side by side, up to the end of the shortest.

        Args:
          *args: datasets, or one tuple or dictionary of datasets.
          datasets: the same by keyword.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> a, b = tf.data.Dataset.range(2), tf.data.Dataset.range(5, 9)
          >>> [(int(x), int(y)) for x, y in tf.data.Dataset.zip((a, b))]
          [(0, 5), (1, 6)]
        """
        if datasets is None:
            if not args:
                raise TypeError("Must pass at least one dataset to `zip`.")
            datasets = args[0] if len(args) == 1 else tuple(args)
        return _nodes().Zip(datasets)

    @staticmethod
    def sample_from_datasets(
        datasets: Any,
        weights: Any = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Elements of several datasets in random turns.

        Args:
          datasets: a list of datasets.
          weights: how often each is taken; default alike.
          seed: of the turns.
          stop_on_empty_dataset: whether the end of one is the end.
          rerandomize_each_iteration: whether later passes differ; True by default.

        Raises:
          ValueError: when there are no datasets, or another number of weights.
        """
        datasets = list(datasets)
        if not datasets:
            raise ValueError("Invalid `datasets`. `datasets` should not be empty.")
        shares = np.ones(len(datasets)) if weights is None else np.asarray(weights, np.float64)
        if shares.shape != (len(datasets),):
            raise ValueError(
                f"Invalid `weights`. `weights` must have the same length as `datasets` ({len(datasets)}), got {shares.shape}."
            )
        choices = _nodes().Drawn(shares, seed, rerandomize_each_iteration is not False)
        return _nodes().Choose(datasets, choices, stop_on_empty_dataset)

    @staticmethod
    def choose_from_datasets(
        datasets: Any, choice_dataset: Dataset, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        """Elements of several datasets, in turns that a dataset of int64 numbers gives.

        Args:
          datasets: a list of datasets.
          choice_dataset: which is next.
          stop_on_empty_dataset: whether the end of one is the end.

        Raises:
          ValueError: when there are no datasets.
        """
        if not list(datasets):
            raise ValueError("Invalid `datasets`. `datasets` should not be empty.")
        return _nodes().Choose(list(datasets), choice_dataset, stop_on_empty_dataset)

    # ---- on disk -------------------------------------------------------------------------

    def save(
        self,
        path: Any,
        compression: str | None = None,
        shard_func: Callable[..., Any] | None = None,
        checkpoint_args: Any = None,
    ) -> None:
        """Writes all elements to a folder, from which `load` makes a dataset.

        Args:
          path: the folder; a dataset that is in it is replaced.
          compression: 'GZIP' or None.
          shard_func: from an element to the number of the file that it goes to; default one file.
          checkpoint_args: accepted.

        Raises:
          ValueError: for an infinite dataset, or elements that are not tensors.

        Example:
          >>> import tempfile
          >>> import meshflow as tf
          >>> folder = tempfile.mkdtemp()
          >>> tf.data.Dataset.range(3).save(folder)
          >>> [int(x) for x in tf.data.Dataset.load(folder)]
          [0, 1, 2]
        """
        from meshflow.data import saving

        saving.save(self, path, compression, shard_func)  # type: ignore[arg-type]

    @staticmethod
    def load(
        path: Any,
        element_spec: Any = None,
        compression: str | None = None,
        reader_func: Callable[[Dataset], Dataset] | None = None,
        wait: bool = False,
    ) -> Dataset:
        """The elements that `save` wrote.

        Args:
          path: the folder.
          element_spec: accepted when it fits.
          compression: as given to `save`.
          reader_func: from a dataset of datasets, one for each file, to one dataset; by default some
            of them in turn.
          wait: accepted.

        Raises:
          NotFoundError: when there is no saved dataset.
          DataLossError: while iterating, for a damaged file.
        """
        from meshflow.data import saving

        return saving.load(path, element_spec, compression, reader_func)

    # ---- element by element ----------------------------------------------------------------

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """A function of every element.

        The function is traced and compiled; it may use Python control flow on tensors. One that
        cannot be traced runs eagerly. Where it can, it runs on many elements at once; results are the same.

        Args:
          map_func: from the parts of an element to a new element.
          num_parallel_calls: how many threads run a function that cannot be compiled;
            `tf.data.AUTOTUNE` for one per processor. The order is always kept, and random ops draw
            by the element's number. A function that draws from `random` or `numpy.random`, or that
            refers to variables or layers, runs in one thread.
          deterministic: accepted.
          synchronous: accepted.
          name: ignored.
        """
        return _nodes().Map(self, map_func, num_parallel_calls)

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """The elements for which a function is true.

        Args:
          predicate: from the parts of an element to a bool scalar.
          name: ignored.
        """
        return _nodes().Filter(self, predicate)

    def take_while(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """The elements before the first for which a function is false.

        Args:
          predicate: from the parts of an element to a bool scalar.
          name: ignored.
        """
        return _nodes().TakeWhile(self, predicate)

    def scan(
        self, initial_state: Any, scan_func: Callable[..., Any], name: str | None = None
    ) -> Dataset:
        """A function of a state and every element.

        Args:
          initial_state: a structure of tensors.
          scan_func: from (state, element) to (next state, new element).
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> sums = tf.data.Dataset.range(1, 5).scan(
          ...     tf.constant(0, tf.int64), lambda s, x: (s + x, s + x))
          >>> [int(x) for x in sums]
          [1, 3, 6, 10]
        """
        return _nodes().Scan(self, initial_state, scan_func)

    def enumerate(self, start: Any = 0, name: str | None = None) -> Dataset:
        """Pairs of number and element.

        Args:
          start: the first number.
          name: ignored.
        """
        return _nodes().Enumerate(self, start)

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> Dataset:
        """The elements of the datasets that a function gives, one dataset after another.

        Args:
          map_func: from the parts of an element to a dataset.
          name: ignored.
        """
        return _nodes().FlatMap(self, map_func, 1, 1 << 62)

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """The elements of the datasets that a function gives, several datasets in turn.

        Args:
          map_func: from the parts of an element to a dataset.
          cycle_length: how many are open at a time; default (also AUTOTUNE) the number of cores.
          block_length: how many elements of each follow each other; default 1.
          num_parallel_calls: accepted.
          deterministic: accepted; the order is always the same.
          name: ignored.
        """
        import os

        cycle = cycle_length if cycle_length not in (None, -1) else (os.cpu_count() or 1)
        return _nodes().FlatMap(
            self, map_func, int(cycle), 1 if block_length is None else int(block_length)
        )

    # ---- groups ----------------------------------------------------------------------------

    def batch(
        self,
        batch_size: Any,
        drop_remainder: bool = False,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Consecutive elements, stacked.

        Args:
          batch_size: how many.
          drop_remainder: whether a smaller last batch is left out.
          num_parallel_calls: accepted.
          deterministic: accepted.
          name: ignored.

        Raises:
          InvalidArgumentError: while iterating, for elements of different shapes.
        """
        return _nodes().Batch(self, batch_size, drop_remainder)

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
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
        return _nodes().PaddedBatch(self, batch_size, padded_shapes, padding_values, drop_remainder)

    def ragged_batch(self, *args: Any, **kwargs: Any) -> Dataset:
        """Not available.

        Raises:
          NotImplementedError: always: use `padded_batch`.
        """
        from meshflow.core.composite import RAGGED_HELP

        raise NotImplementedError(f"{RAGGED_HELP} Dataset.padded_batch does it for batches.")

    def unbatch(self, name: str | None = None) -> Dataset:
        """The rows of every element.

        Args:
          name: ignored.
        """
        return _nodes().Unbatch(self)

    def rebatch(
        self, batch_size: Any, drop_remainder: bool = False, name: str | None = None
    ) -> Dataset:
        """Batches of another size.

        Args:
          batch_size: how many elements.
          drop_remainder: whether a smaller last batch is left out.
          name: ignored.
        """
        return self.unbatch().batch(batch_size, drop_remainder)

    def window(
        self,
        size: Any,
        shift: Any = None,
        stride: Any = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
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
        return _nodes().Window(self, size, shift, stride, drop_remainder)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[..., Any],
        window_size: Any = None,
        window_size_func: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Gathers elements by key, and reduces every full group to a dataset.

        Args:
          key_func: from an element to an int64 scalar.
          reduce_func: from (key, dataset of the group) to a dataset.
          window_size: elements per group.
          window_size_func: from a key to it.
          name: ignored.

        Raises:
          ValueError: unless exactly one of the last two is given.
        """
        if (window_size is None) == (window_size_func is None):
            raise ValueError(
                "Must pass either the `window_size` argument or the `window_size_func` argument."
            )
        size = window_size_func or (lambda key: window_size)
        return _nodes().GroupByWindow(
            self, key_func, reduce_func, lambda key: int(size(np.int64(key)))
        )

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
    ) -> Dataset:
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
        """
        from meshflow.core import nest

        if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
            raise ValueError(
                f"`len(bucket_batch_sizes)` must equal `len(bucket_boundaries) + 1` but `len(bucket_batch_sizes)="
                f"{len(bucket_batch_sizes)}` and `len(bucket_boundaries)={len(bucket_boundaries)}`."
            )
        boundaries = [int(b) for b in bucket_boundaries]

        def bucket(*element: Any) -> Any:
            from meshflow.ops import math

            length = math.cast(element_length_func(*element), "int64")
            return math.reduce_sum(
                math.cast(math.greater_equal(length, np.array(boundaries, np.int64)), "int64")
            )

        def reduced(key: Any, group: Dataset) -> Dataset:
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
                    else [_nodes()._sizes(s) for s in _nodes()._up_to(spec, shapes)]
                )
                full = [[limit if n in (None, -1) else n for n in shape] for shape in known]
                shapes = (
                    nest.pack_sequence_as(spec, [tuple(f) for f in full])
                    if nest.is_nested(spec)
                    else full[0]
                )
            return group.padded_batch(size, shapes, padding_values, drop_remainder)

        return self.group_by_window(
            bucket, reduced, window_size_func=lambda key: int(bucket_batch_sizes[int(key)])
        )

    # ---- order and number ------------------------------------------------------------------

    def shuffle(
        self,
        buffer_size: Any,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Elements in random order: each drawn from a buffer that is filled again from the front.

        Args:
          buffer_size: elements in the buffer; the dataset's size for a perfect shuffle.
          seed: of the order, together with `tf.random.set_seed`.
          reshuffle_each_iteration: whether every pass has another order; True by default.
          name: ignored.
        """
        return _nodes().Shuffle(self, buffer_size, seed, reshuffle_each_iteration)

    def repeat(self, count: Any = None, name: str | None = None) -> Dataset:
        """Elements again and again.

        Args:
          count: how often; None or -1 for ever.
          name: ignored.
        """
        return _nodes().Repeat(self, count)

    def take(self, count: Any, name: str | None = None) -> Dataset:
        """The first elements.

        Args:
          count: how many; -1 for all.
          name: ignored.
        """
        from meshflow.data.dataset import integer

        number = integer(count, "count")
        return _nodes().Slice(self, 0, None if number < 0 else number)

    def skip(self, count: Any, name: str | None = None) -> Dataset:
        """All but the first elements.

        Args:
          count: how many are left out; -1 for all.
          name: ignored.
        """
        from meshflow.data.dataset import integer

        number = integer(count, "count")
        return _nodes().Slice(self, 0, 0) if number < 0 else _nodes().Slice(self, number, None)

    def shard(self, num_shards: Any, index: Any, name: str | None = None) -> Dataset:
        """Every `num_shards`-th element, from number `index` on.

        Args:
          num_shards: among how many the elements are divided; `tf.data.experimental.SHARD_HINT` for
            the number of workers, under the auto-shard policy HINT.
          index: which part; `SHARD_HINT` for a worker's own.
          name: ignored.

        Raises:
          InvalidArgumentError: for numbers that do not fit.
        """
        from meshflow.core.errors import InvalidArgumentError
        from meshflow.data.dataset import SHARD_HINT, integer

        number, at = integer(num_shards, "num_shards"), integer(index, "index")
        if number == at == SHARD_HINT:
            return _nodes().ShardHint(self)
        if number < 1 or not 0 <= at < number:
            raise InvalidArgumentError(f"Index must be between 0 and {number - 1}, got index={at}.")
        return _nodes().Slice(self, at, None, number)

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """These elements, then those of another dataset.

        Args:
          dataset: the other, of the same structure and dtypes.
          name: ignored.

        Raises:
          TypeError: when they do not fit together.
        """
        return _nodes().Concatenate(self, dataset)

    def unique(self, name: str | None = None) -> Dataset:
        """Each element once.

        Args:
          name: ignored.
        """
        return _nodes().Unique(self)

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: Any,
        initial_dist: Any = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset:
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
        from meshflow.data.resampling import Resample

        # Only datasets have these methods.
        return Resample(self, class_func, target_dist, initial_dist, seed)  # type: ignore[arg-type]

    # ---- running ---------------------------------------------------------------------------

    def cache(self, filename: Any = "", name: str | None = None) -> Dataset:
        """Keeps the elements of the first whole pass.

        Args:
          filename: a file to keep them in; memory without one.
          name: ignored.
        """
        from meshflow.data.structure import to_array

        text = to_array(filename)[()] if not isinstance(filename, str) else filename
        return _nodes().Cache(self, text.decode() if isinstance(text, bytes) else str(text))

    def snapshot(
        self,
        path: str,
        compression: str = "AUTO",
        reader_func: Any = None,
        shard_func: Any = None,
        name: str | None = None,
    ) -> Dataset:
        """Keeps the elements of the first whole pass in a file; see `cache`.

        Args:
          path: a folder for it.
          compression: accepted.
          reader_func: accepted.
          shard_func: accepted.
          name: ignored.
        """
        import os

        return _nodes().Cache(self, os.path.join(path, "snapshot"))

    def prefetch(self, buffer_size: Any, name: str | None = None) -> Dataset:
        """Elements made ahead by a thread.

        Args:
          buffer_size: how many; AUTOTUNE for two.
          name: ignored.
        """
        return _nodes().Prefetch(self, buffer_size)

    def with_options(self, options: Any, name: str | None = None) -> Dataset:
        """A dataset with options.

        Args:
          options: a `tf.data.Options`.
          name: ignored.
        """
        return _nodes().WithOptions(self, options)

    def ignore_errors(self, log_warning: bool = False, name: str | None = None) -> Dataset:
        """Leaves out elements whose making raises an error.

        Args:
          log_warning: whether each is reported.
          name: ignored.
        """
        return _nodes().IgnoreErrors(self, log_warning)


def _tuples(structure: Any) -> Any:
    """Lists in a structure of types or specs as tuples."""
    if isinstance(structure, dict):
        return {k: _tuples(v) for k, v in structure.items()}
    if isinstance(structure, (list, tuple)):
        items = [_tuples(v) for v in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return structure
