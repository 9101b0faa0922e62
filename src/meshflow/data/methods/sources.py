"""Methods of datasets that create datasets from other data, or save and load them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, overload

import jax
import numpy as np

from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values import dtypes, nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.data import sparse_leaves, structure
from meshflow.data.arguments import IntLike, to_int
from meshflow.data.execution import padding, slice_recording
from meshflow.data.methods import constructors
from meshflow.data.node import DatasetNode
from meshflow.data.structure import to_array
from meshflow.environment.types import PyTree, StrPath

if TYPE_CHECKING:
    from meshflow.data.methods.constructors import Dataset

# An array, or a value that becomes one. Lists are not distinguished by their elements.
Leaf: TypeAlias = (
    "Tensor | jax.Array | np.ndarray | np.generic | list[Any] | float | str | bytes | range"
)
Key = TypeVar("Key")
First = TypeVar("First")
Second = TypeVar("Second")
Third = TypeVar("Third")


@hide_frames_of_methods
class SourceMethods(DatasetNode):
    """Methods that create datasets, save and load them; a base class of `Dataset`."""

    @overload
    @staticmethod
    def from_tensor_slices(tensors: Leaf, name: str | None = None) -> Dataset[Tensor]: ...
    @overload
    @staticmethod
    def from_tensor_slices(
        tensors: tuple[Leaf], name: str | None = None
    ) -> Dataset[tuple[Tensor]]: ...
    @overload
    @staticmethod
    def from_tensor_slices(
        tensors: tuple[Leaf, Leaf], name: str | None = None
    ) -> Dataset[tuple[Tensor, Tensor]]: ...
    @overload
    @staticmethod
    def from_tensor_slices(
        tensors: tuple[Leaf, Leaf, Leaf], name: str | None = None
    ) -> Dataset[tuple[Tensor, Tensor, Tensor]]: ...
    @overload
    @staticmethod
    def from_tensor_slices(
        tensors: Mapping[Key, Leaf], name: str | None = None
    ) -> Dataset[dict[Key, Tensor]]: ...
    @overload
    @staticmethod
    def from_tensor_slices(
        tensors: tuple[Mapping[Key, Leaf], Leaf], name: str | None = None
    ) -> Dataset[tuple[dict[Key, Tensor], Tensor]]: ...
    @overload
    @staticmethod
    def from_tensor_slices(tensors: PyTree, name: str | None = None) -> Dataset[Any]: ...
    @staticmethod
    def from_tensor_slices(tensors: PyTree, name: str | None = None) -> Dataset:
        """Create a dataset of the slices of tensors along their first axis.

        Args:
          tensors: Tensor, or nested tuples and dictionaries of tensors that have the same size in
            their first axis, or a list of datasets. `tf.SparseTensor`s are supported.
          name: Ignored.

        Raises:
          ValueError: If a tensor is a scalar, or the sizes differ.

        Example:
          >>> data = tf.data.Dataset.from_tensor_slices({"x": [1, 2], "y": [3.0, 4.0]})
          >>> [{k: v.numpy().item() for k, v in row.items()} for row in data]
          [{'x': 1, 'y': 3.0}, {'x': 2, 'y': 4.0}]
        """
        if slice_recording.is_recording():
            return cast(Any, slice_recording.RecordedSlices(tensors, _slice_tensors))
        return _slice_tensors(structure.copy_arrays(tensors))

    @overload
    @staticmethod
    def from_tensors(tensors: Leaf, name: str | None = None) -> Dataset[Tensor]: ...
    @overload
    @staticmethod
    def from_tensors(tensors: tuple[Leaf], name: str | None = None) -> Dataset[tuple[Tensor]]: ...
    @overload
    @staticmethod
    def from_tensors(
        tensors: tuple[Leaf, Leaf], name: str | None = None
    ) -> Dataset[tuple[Tensor, Tensor]]: ...
    @overload
    @staticmethod
    def from_tensors(
        tensors: tuple[Leaf, Leaf, Leaf], name: str | None = None
    ) -> Dataset[tuple[Tensor, Tensor, Tensor]]: ...
    @overload
    @staticmethod
    def from_tensors(
        tensors: Mapping[Key, Leaf], name: str | None = None
    ) -> Dataset[dict[Key, Tensor]]: ...
    @overload
    @staticmethod
    def from_tensors(
        tensors: tuple[Mapping[Key, Leaf], Leaf], name: str | None = None
    ) -> Dataset[tuple[dict[Key, Tensor], Tensor]]: ...
    @overload
    @staticmethod
    def from_tensors(tensors: PyTree, name: str | None = None) -> Dataset[Any]: ...
    @staticmethod
    def from_tensors(tensors: PyTree, name: str | None = None) -> Dataset:
        """Create a dataset of a single element.

        Args:
          tensors: The element: nested tuples and dictionaries of tensors.
          name: Ignored.

        Example:
          >>> tf.data.Dataset.from_tensors([1, 2, 3]).element_spec.shape
          TensorShape([3])
        """
        return constructors.Tensors(structure.copy_arrays(tensors))

    @overload
    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        *,
        args: Iterable[TensorLike] | None = None,
        output_signature: TensorSpec,
        name: str | None = None,
    ) -> Dataset[Tensor]: ...
    @overload
    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        *,
        args: Iterable[TensorLike] | None = None,
        output_signature: tuple[TensorSpec, TensorSpec],
        name: str | None = None,
    ) -> Dataset[tuple[Tensor, Tensor]]: ...
    @overload
    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        *,
        args: Iterable[TensorLike] | None = None,
        output_signature: Mapping[Key, TensorSpec],
        name: str | None = None,
    ) -> Dataset[dict[Key, Tensor]]: ...
    @overload
    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: PyTree = None,
        output_shapes: PyTree = None,
        args: Iterable[TensorLike] | None = None,
        output_signature: PyTree = None,
        name: str | None = None,
    ) -> Dataset: ...
    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: PyTree = None,
        output_shapes: PyTree = None,
        args: Iterable[TensorLike] | None = None,
        output_signature: PyTree = None,
        name: str | None = None,
    ) -> Dataset:
        """Create a dataset of the values that a Python generator yields.

        Args:
          generator: Function that returns an iterable; called at the start of every pass.
          output_types: Dtypes of the elements, in their structure; an alternative to
            `output_signature`.
          output_shapes: Shapes of the elements, by default unknown.
          args: Arguments of the function, which receives them as NumPy values.
          output_signature: `tf.TensorSpec`s of the elements, in their structure.
          name: Ignored.

        Raises:
          TypeError: Unless exactly one of `output_types` and `output_signature` is passed.

        Example:
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
            types = _lists_to_tuples(output_types)
            flat_types = nest.flatten(types)
            shapes: list[Any] = [None] * len(flat_types)
            if output_shapes is not None:
                shapes = padding.flatten_shapes(
                    types,
                    _lists_to_tuples(output_shapes) if nest.is_nested(types) else output_shapes,
                )
            specs = [
                TensorSpec(s, dtypes.as_dtype(t)) for s, t in zip(shapes, flat_types, strict=True)
            ]
            signature = nest.pack_sequence_as(types, specs)
        return constructors.Generator(generator, _lists_to_tuples(signature), tuple(args or ()))

    @overload
    @staticmethod
    def range(
        stop: IntLike, /, *, output_type: DTypeLike = "int64", name: str | None = None
    ) -> Dataset[Tensor]: ...
    @overload
    @staticmethod
    def range(
        start: IntLike,
        stop: IntLike,
        step: IntLike = 1,
        /,
        *,
        output_type: DTypeLike = "int64",
        name: str | None = None,
    ) -> Dataset[Tensor]: ...
    @staticmethod
    def range(
        *args: IntLike, output_type: DTypeLike = "int64", name: str | None = None
    ) -> Dataset[Tensor]:
        """Create a dataset of equally spaced integers.

        Args:
          *args: `stop`; `start` and `stop`; or `start`, `stop` and `step`.
          output_type: Dtype of the elements, by default int64.
          name: Ignored.

        Raises:
          ValueError: If the number of arguments is not 1 to 3.

        Example:
          >>> [int(x) for x in tf.data.Dataset.range(10, 0, -3)]
          [10, 7, 4, 1]
        """
        values = [to_int(a, "range") for a in args]
        if not 1 <= len(values) <= 3:
            raise ValueError(f"Invalid `args`. `args` must have 1 to 3 values, got {len(values)}.")
        start, stop = (0, values[0]) if len(values) == 1 else values[:2]
        step = values[2] if len(values) == 3 else 1
        return constructors.Range(start, stop, step, output_type)

    @staticmethod
    def counter(
        start: IntLike = 0,
        step: IntLike = 1,
        dtype: DTypeLike = "int64",
        name: str | None = None,
    ) -> Dataset[Tensor]:
        """Create an infinite dataset of equally spaced integers.

        Args:
          start: The first element.
          step: Difference between consecutive elements.
          dtype: Dtype of the elements, by default int64.
          name: Ignored.

        Example:
          >>> [int(x) for x in tf.data.Dataset.counter(5, -2).take(3)]
          [5, 3, 1]
        """
        first, difference = to_int(start, "start"), to_int(step, "step")
        stop = first + difference * (1 << 62)
        return constructors.Range(first, stop, difference, dtype, endless=True)

    @staticmethod
    def random(
        seed: int | None = None,
        rerandomize_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset[Tensor]:
        """Create an infinite dataset of uniform random int64 scalars in [0, 2**32).

        Args:
          seed: Seed; every pass yields the same numbers.
          rerandomize_each_iteration: Whether later passes yield other numbers.
          name: Ignored.
        """
        return constructors.Random(seed, rerandomize_each_iteration)

    @staticmethod
    def list_files(
        file_pattern: TensorLike,
        shuffle: bool | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Dataset[Tensor]:
        """Create a dataset of the names of files that match a pattern.

        Args:
          file_pattern: Pattern with wildcards, or several patterns.
          shuffle: Whether to return the names in random order, by default True.
          seed: Seed of the order.
          name: Ignored.

        Raises:
          InvalidArgumentError: If no file matches.

        Example:
          >>> import os, tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     for name in ("b.txt", "a.txt", "c.csv"):
          ...         _ = tf.io.write_file(os.path.join(folder, name), "")
          ...     names = tf.data.Dataset.list_files(os.path.join(folder, "*.txt"), shuffle=False)
          ...     [os.path.basename(name) for name in names.as_numpy_iterator()]
          [b'a.txt', b'b.txt']
        """
        names = constructors.list_files(file_pattern)
        dataset = constructors.TensorSlices(np.array([n.encode() for n in names], object))
        return dataset if shuffle is False else dataset.shuffle(len(names), seed=seed)

    @overload
    @staticmethod
    def zip(
        datasets: tuple[Dataset[First], Dataset[Second]], /, *, name: str | None = None
    ) -> Dataset[tuple[First, Second]]: ...
    @overload
    @staticmethod
    def zip(
        datasets: tuple[Dataset[First], Dataset[Second], Dataset[Third]],
        /,
        *,
        name: str | None = None,
    ) -> Dataset[tuple[First, Second, Third]]: ...
    @overload
    @staticmethod
    def zip(
        first: Dataset[First], second: Dataset[Second], /, *, name: str | None = None
    ) -> Dataset[tuple[First, Second]]: ...
    @overload
    @staticmethod
    def zip(
        first: Dataset[First],
        second: Dataset[Second],
        third: Dataset[Third],
        /,
        *,
        name: str | None = None,
    ) -> Dataset[tuple[First, Second, Third]]: ...
    @overload
    @staticmethod
    def zip(
        datasets: Mapping[Key, Dataset[First]], /, *, name: str | None = None
    ) -> Dataset[dict[Key, First]]: ...
    @overload
    @staticmethod
    def zip(*args: PyTree, datasets: PyTree = None, name: str | None = None) -> Dataset: ...
    @staticmethod
    def zip(*args: PyTree, datasets: PyTree = None, name: str | None = None) -> Dataset:
        """Combine the elements of several datasets, until the shortest one ends.

        Args:
          *args: Datasets, or one nested tuple or dictionary of datasets.
          datasets: The same as a keyword argument.
          name: Ignored.

        Returns:
          A dataset of elements that have the structure of the argument.

        Example:
          >>> a, b = tf.data.Dataset.range(2), tf.data.Dataset.range(5, 9)
          >>> [(int(x), int(y)) for x, y in tf.data.Dataset.zip((a, b))]
          [(0, 5), (1, 6)]
        """
        if args and datasets is not None:
            raise TypeError(
                "Both `*args` and `datasets` cannot be set. Pass all datasets in one of them."
            )
        if datasets is None:
            if not args:
                raise TypeError("Must pass at least one dataset to `zip`.")
            datasets = args[0] if len(args) == 1 else tuple(args)
        return constructors.Zip(datasets)

    @staticmethod
    def sample_from_datasets(
        datasets: Iterable[Dataset[First]],
        weights: TensorLike | Dataset | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset[First]:
        """Interleave several datasets at random.

        Args:
          datasets: Datasets to sample from.
          weights: Probability of each dataset, or a dataset of such vectors, one for each element;
            by default uniform.
          seed: Seed of the random choices.
          stop_on_empty_dataset: Whether to stop as soon as one dataset ends, instead of when all
            have ended.
          rerandomize_each_iteration: Whether later passes make other choices, by default False.

        Raises:
          ValueError: If there are no datasets, or the number of weights differs from that of the
            datasets.
          TypeError: If the weights are not floating-point numbers.

        Example:
          >>> never, always = tf.data.Dataset.range(3), tf.data.Dataset.range(10, 13)
          >>> sampled = tf.data.Dataset.sample_from_datasets([never, always], [0.0, 1.0])
          >>> [int(x) for x in sampled]
          [10, 11, 12]
        """
        datasets = list(datasets)
        if not datasets:
            raise ValueError("Invalid `datasets`. `datasets` should not be empty.")
        reshuffles = bool(rerandomize_each_iteration)
        if isinstance(weights, DatasetNode):
            choices = constructors.RandomChoice(weights, seed, reshuffles)
            return constructors.Choose(datasets, choices, stop_on_empty_dataset)
        shares = np.ones(len(datasets)) if weights is None else to_array(weights)
        if shares.dtype.kind != "f":
            raise TypeError(
                f"Invalid `weights`. They must be `tf.float32` or `tf.float64` numbers, got {shares.dtype}."
            )
        if shares.shape != (len(datasets),):
            raise ValueError(
                f"Invalid `weights`. `weights` should have the same length as `datasets` ({len(datasets)}), got {shares.shape}."
            )
        if not shares.any():
            return constructors.ElementList([], datasets[0].element_spec)
        # A dataset with weight 0 is never drawn, so it would keep the result from ending.
        datasets = [d for d, share in zip(datasets, shares, strict=True) if share > 0]
        choices = constructors.RandomChoice(shares[shares > 0].astype(np.float64), seed, reshuffles)
        return constructors.Choose(datasets, choices, stop_on_empty_dataset)

    @staticmethod
    def choose_from_datasets(
        datasets: Iterable[Dataset[First]],
        choice_dataset: Dataset,
        stop_on_empty_dataset: bool = True,
    ) -> Dataset[First]:
        """Interleave several datasets in the order that a dataset of indices determines.

        Args:
          datasets: Datasets to take elements from.
          choice_dataset: Dataset of int64 scalars, each the index of the dataset that provides the
            next element.
          stop_on_empty_dataset: Whether to stop as soon as one dataset ends, instead of when all
            have ended.

        Raises:
          ValueError: If there are no datasets.

        Example:
          >>> letters = [tf.data.Dataset.from_tensors(letter).repeat() for letter in "ab"]
          >>> turns = tf.data.Dataset.from_tensor_slices(tf.constant([0, 0, 1], tf.int64))
          >>> list(tf.data.Dataset.choose_from_datasets(letters, turns).as_numpy_iterator())
          [b'a', b'a', b'b']
        """
        inputs: Sequence[Dataset] = list(datasets)
        if not inputs:
            raise ValueError("Invalid `datasets`. `datasets` should not be empty.")
        if not isinstance(choice_dataset, DatasetNode):
            raise TypeError(
                f"Invalid `choice_dataset`. `choice_dataset` should be a `tf.data.Dataset`, got {type(choice_dataset)}."
            )
        return constructors.Choose(inputs, choice_dataset, stop_on_empty_dataset)

    def save(
        self,
        path: StrPath,
        compression: str | None = None,
        shard_func: Callable[..., Any] | None = None,
        checkpoint_args: Any = None,
    ) -> None:
        """Write all elements to a folder that `load` can read.

        Args:
          path: Folder; a dataset that it contains is replaced.
          compression: 'GZIP' or None.
          shard_func: Function from an element to the index of the file that stores it; by default
            there is one file.
          checkpoint_args: Ignored.

        Raises:
          ValueError: If the dataset is infinite, or its elements are not tensors.

        Example:
          >>> import tempfile
          >>> folder = tempfile.mkdtemp()
          >>> tf.data.Dataset.range(3).save(folder)
          >>> [int(x) for x in tf.data.Dataset.load(folder)]
          [0, 1, 2]
        """
        constructors.save_dataset(self, path, compression, shard_func)

    @staticmethod
    def load(
        path: StrPath,
        element_spec: PyTree = None,
        compression: str | None = None,
        reader_func: Callable[[Dataset], Dataset] | None = None,
        wait: bool = False,
    ) -> Dataset:
        """Load a dataset that `save` wrote.

        Args:
          path: Folder.
          element_spec: Expected spec of the elements; only checked.
          compression: The value that was passed to `save`.
          reader_func: Function from a dataset of datasets, one for each file, to a dataset of
            elements; by default the files are interleaved.
          wait: Ignored.

        Raises:
          NotFoundError: If the folder does not contain a saved dataset.
          DataLossError: While iterating, if a file is damaged.

        Example:
          >>> import os, tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     tf.data.Dataset.range(3).save(os.path.join(folder, "saved"))
          ...     [int(x) for x in tf.data.Dataset.load(os.path.join(folder, "saved"))]
          [0, 1, 2]
        """
        return constructors.load_dataset(path, element_spec, compression, reader_func)


def _lists_to_tuples(structure: PyTree) -> PyTree:
    """Replace the lists in a structure of dtypes, shapes or specs by tuples."""
    if isinstance(structure, dict):
        return {k: _lists_to_tuples(v) for k, v in structure.items()}
    if isinstance(structure, (list, tuple)):
        items = [_lists_to_tuples(v) for v in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return structure


def _slice_tensors(tensors: PyTree) -> Dataset:
    """Return the dataset of `from_tensor_slices`."""
    if isinstance(tensors, list) and tensors and all(isinstance(t, DatasetNode) for t in tensors):
        specs = [dataset._type_spec for dataset in tensors]
        for spec in specs:
            if not spec.is_compatible_with(specs[0]):
                raise TypeError(
                    f"Datasets in a list must have compatible elements, got {specs[0]} and {spec}."
                )
        return constructors.ElementList(tensors, specs[0])
    element = structure.to_arrays(tensors)
    if any(leaf is None or sparse_leaves.is_sparse(leaf) for leaf in nest.flatten(element)):
        return constructors.ElementList([element], structure.infer_spec(element)).unbatch()
    return constructors.TensorSlices(tensors)
