"""Where datasets come from, and how they get to disk and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

import numpy as np

from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.data import sparse_leaves, structure
from meshflow.data.arguments import integer
from meshflow.data.execution import padding
from meshflow.data.methods.constructors import DatasetT, make
from meshflow.data.structure import to_array


class Sources(Generic[DatasetT]):
    """Methods that make datasets of something else."""

    @staticmethod
    def from_tensor_slices(tensors: Any, name: str | None = None) -> DatasetT:
        """The rows of tensors.

        Args:
          tensors: a tensor, or tuples and dictionaries of tensors of the same first size; `tf.SparseTensor`s too.
          name: ignored.

        Raises:
          ValueError: for scalars or unequal first sizes.

        Example:
          >>> import meshflow as tf
          >>> data = tf.data.Dataset.from_tensor_slices({"x": [1, 2], "y": [3.0, 4.0]})
          >>> [{k: v.numpy().item() for k, v in row.items()} for row in data]
          [{'x': 1, 'y': 3.0}, {'x': 2, 'y': 4.0}]
        """
        element = structure.to_arrays(tensors)
        if any(map(sparse_leaves.is_sparse, nest.flatten(element))):
            return make.Fixed([element], structure.spec_of(element)).unbatch()
        return make.TensorSlices(tensors)

    @staticmethod
    def from_tensors(tensors: Any, name: str | None = None) -> DatasetT:
        """One element.

        Args:
          tensors: the element.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> tf.data.Dataset.from_tensors([1, 2, 3]).element_spec.shape
          TensorShape([3])
        """
        return make.Tensors(tensors)

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Any = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> DatasetT:
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
                shapes = padding.flat_up_to(
                    types, _tuples(output_shapes) if nest.is_nested(types) else output_shapes
                )
            specs = [TensorSpec(s, dtypes.as_dtype(t)) for s, t in zip(shapes, kinds, strict=True)]
            signature = nest.pack_sequence_as(types, specs)
        return make.Generator(generator, _tuples(signature), tuple(args or ()))

    @staticmethod
    def range(*args: Any, output_type: Any = "int64", name: str | None = None) -> DatasetT:
        """Numbers at equal distances.

        Args:
          *args: stop; start and stop; or start, stop and step.
          output_type: their dtype; default int64.
          name: ignored.

        Raises:
          ValueError: for another number of arguments.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.range(10, 0, -3)]
          [10, 7, 4, 1]
        """
        numbers = [integer(a, "range") for a in args]
        if not 1 <= len(numbers) <= 3:
            raise ValueError(f"Invalid `args`. `args` must have 1 to 3 values, got {len(numbers)}.")
        start, stop = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
        step = numbers[2] if len(numbers) == 3 else 1
        return make.Range(start, stop, step, output_type)

    @staticmethod
    def counter(
        start: Any = 0, step: Any = 1, dtype: Any = "int64", name: str | None = None
    ) -> DatasetT:
        """Numbers without end.

        Args:
          start: the first.
          step: their distance.
          dtype: their dtype; default int64.
          name: ignored.

        Example:
          >>> import meshflow as tf
          >>> [int(x) for x in tf.data.Dataset.counter(5, -2).take(3)]
          [5, 3, 1]
        """
        first, distance = integer(start, "start"), integer(step, "step")
        return make.Range(first, first + distance * (1 << 62), distance, dtype, endless=True)

    @staticmethod
    def random(
        seed: int | None = None,
        rerandomize_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> DatasetT:
        """Uniform int64 numbers in [0, 2**32) without end.

        Args:
          seed: makes every pass the same.
          rerandomize_each_iteration: whether later passes differ.
          name: ignored.
        """
        return make.Random(seed, rerandomize_each_iteration)

    @staticmethod
    def list_files(
        file_pattern: Any,
        shuffle: bool | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> DatasetT:
        """Names of files.

        Args:
          file_pattern: a pattern with wildcards, or several.
          shuffle: whether in random order; True by default.
          seed: of the order.
          name: ignored.

        Raises:
          InvalidArgumentError: when no file matches.

        Example:
          >>> import meshflow as tf
          >>> import os, tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     for name in ("b.txt", "a.txt", "c.csv"):
          ...         _ = tf.io.write_file(os.path.join(folder, name), "")
          ...     names = tf.data.Dataset.list_files(os.path.join(folder, "*.txt"), shuffle=False)
          ...     [os.path.basename(name) for name in names.as_numpy_iterator()]
          [b'a.txt', b'b.txt']
        """
        found = make.list_files(file_pattern)
        dataset = make.TensorSlices(np.array([f.encode() for f in found], object))
        return dataset if shuffle is False else dataset.shuffle(len(found), seed=seed)

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> DatasetT:
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
        return make.Zip(datasets)

    @staticmethod
    def sample_from_datasets(
        datasets: Any,
        weights: Any = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> DatasetT:
        """Elements of several datasets in random turns.

        Args:
          datasets: a list of datasets.
          weights: how often each is taken, or a dataset of such vectors, one for each turn; default alike.
          seed: of the turns.
          stop_on_empty_dataset: whether the end of one is the end.
          rerandomize_each_iteration: whether later passes differ; not by default.

        Raises:
          ValueError: when there are no datasets, or another number of weights.
          TypeError: for weights that are no floating-point numbers.

        Example:
          >>> import meshflow as tf
          >>> never, always = tf.data.Dataset.range(3), tf.data.Dataset.range(10, 13)
          >>> sampled = tf.data.Dataset.sample_from_datasets([never, always], [0.0, 1.0])
          >>> [int(x) for x in sampled]
          [10, 11, 12]
        """
        datasets = list(datasets)
        if not datasets:
            raise ValueError("Invalid `datasets`. `datasets` should not be empty.")
        reshuffles = bool(rerandomize_each_iteration)
        if hasattr(weights, "_elements"):
            choices = make.Drawn(weights, seed, reshuffles)
            return make.Choose(datasets, choices, stop_on_empty_dataset)
        shares = np.ones(len(datasets)) if weights is None else to_array(weights)
        if shares.dtype.kind != "f":
            raise TypeError(
                f"Invalid `weights`. They must be floating-point numbers, got {shares.dtype}."
            )
        if shares.shape != (len(datasets),):
            raise ValueError(
                f"Invalid `weights`. `weights` must have the same length as `datasets` ({len(datasets)}), got {shares.shape}."
            )
        # What is never taken would be waited for when all others have ended.
        datasets = [d for d, share in zip(datasets, shares, strict=True) if share > 0]
        choices = make.Drawn(shares[shares > 0].astype(np.float64), seed, reshuffles)
        return make.Choose(datasets, choices, stop_on_empty_dataset)

    @staticmethod
    def choose_from_datasets(
        datasets: Any, choice_dataset: DatasetT, stop_on_empty_dataset: bool = True
    ) -> DatasetT:
        """Elements of several datasets, in turns that a dataset of int64 numbers gives.

        Args:
          datasets: a list of datasets.
          choice_dataset: which is next.
          stop_on_empty_dataset: whether the end of one is the end.

        Raises:
          ValueError: when there are no datasets.

        Example:
          >>> import meshflow as tf
          >>> letters = [tf.data.Dataset.from_tensors(letter).repeat() for letter in "ab"]
          >>> turns = tf.data.Dataset.from_tensor_slices(tf.constant([0, 0, 1], tf.int64))
          >>> list(tf.data.Dataset.choose_from_datasets(letters, turns).as_numpy_iterator())
          [b'a', b'a', b'b']
        """
        if not list(datasets):
            raise ValueError("Invalid `datasets`. `datasets` should not be empty.")
        return make.Choose(list(datasets), choice_dataset, stop_on_empty_dataset)

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
        make.save(self, path, compression, shard_func)

    @staticmethod
    def load(
        path: Any,
        element_spec: Any = None,
        compression: str | None = None,
        reader_func: Callable[[DatasetT], DatasetT] | None = None,
        wait: bool = False,
    ) -> DatasetT:
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

        Example:
          >>> import meshflow as tf
          >>> import os, tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     tf.data.Dataset.range(3).save(os.path.join(folder, "saved"))
          ...     [int(x) for x in tf.data.Dataset.load(os.path.join(folder, "saved"))]
          [0, 1, 2]
        """
        return make.load(path, element_spec, compression, reader_func)


def _tuples(structure: Any) -> Any:
    """Lists in a structure of types or specs as tuples."""
    if isinstance(structure, dict):
        return {k: _tuples(v) for k, v in structure.items()}
    if isinstance(structure, (list, tuple)):
        items = [_tuples(v) for v in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return structure
