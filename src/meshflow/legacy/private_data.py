"""Names of TensorFlow's private modules below `tensorflow.python.data`, which tests of pipelines and libraries use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorValue
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.data import structure
from meshflow.data.dataset import Dataset
from meshflow.data.execution.map_function import DEBUG
from meshflow.data.options import OptionGroup
from meshflow.environment.types import PyTree

tf: Any = get_public_package()

are_compatible = structure.are_compatible
OptionsBase = OptionGroup

COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_SNAPPY = None, "GZIP", "SNAPPY"


def toggle_test_mode(test_mode: bool) -> None:
    """Accept TensorFlow's switch of warnings about private options, which Meshflow does not have."""


def toggle_debug_mode(debug_mode: bool) -> None:
    """Start or end `tf.data.experimental.enable_debug_mode`."""
    DEBUG["eager"] = debug_mode


def merge_options(*options_list: OptionGroup) -> OptionGroup:
    """Return settings in which those of later arguments override those of earlier ones.

    Raises:
      ValueError: If there are no arguments.
      TypeError: If an argument has no settings, or the arguments have different classes.
    """
    if not options_list:
        raise ValueError("At least one options should be provided")
    merged, *others = options_list
    for options in others:
        if not isinstance(options, type(merged)):
            raise TypeError(
                f"Could not merge incompatible options of type {type(options)} and {type(merged)}."
            )
    if not isinstance(merged, OptionGroup):
        raise TypeError(
            f"All options to be merged should inherit from `OptionsBase` but found {type(merged)}."
        )
    for options in others:
        merged = merged.merge(options)
    return merged


def rebatch(dataset: Dataset, batch_sizes: TensorLike, drop_remainder: bool = False) -> Dataset:
    """Return `dataset.rebatch(batch_sizes, drop_remainder)`."""
    return dataset.rebatch(batch_sizes, drop_remainder)


# ---- structures of dtypes, shapes and classes ---------------------------------------------------


def get_classes(tensors: PyTree) -> PyTree:
    """Return the classes of the leaves of an element: `tf.SparseTensor` or `tf.Tensor`."""
    return structure.map_leaves(
        tensors, lambda leaf: SparseTensor if isinstance(leaf, SparseTensor) else Tensor
    )


def any_sparse(classes: PyTree) -> bool:
    """Return whether a structure of classes contains `tf.SparseTensor`."""
    return any(leaf is SparseTensor for leaf in nest.flatten(classes))


def as_dense_shapes(shapes: PyTree, classes: PyTree) -> PyTree:
    """Return shapes, with an unknown one in place of that of each sparse tensor."""
    return _replace_sparse(shapes, classes, tf.TensorShape(None))


def as_dense_types(types: PyTree, classes: PyTree) -> PyTree:
    """Return dtypes, with `tf.variant` in place of that of each sparse tensor."""
    return _replace_sparse(types, classes, tf.variant)


def _replace_sparse(values: PyTree, classes: PyTree, replacement: object) -> PyTree:
    return structure.map_specs(
        lambda cls, value: replacement if cls is SparseTensor else value, classes, values
    )


def convert_legacy_structure(
    output_types: PyTree, output_shapes: PyTree, output_classes: PyTree
) -> PyTree:
    """Return the specs of dtypes, shapes and classes of elements.

    Raises:
      TypeError: If there is no spec for a class.
    """

    def make_spec(cls: PyTree, dtype: DTypeLike, shape: PyTree) -> TypeSpec:
        if isinstance(cls, tf.TypeSpec):
            return cls
        if issubclass(cls, SparseTensor):
            return tf.SparseTensorSpec(shape, dtype)
        if issubclass(cls, tf.TensorArray):
            # The first two sizes of this shape are the options of the tensor array.
            return tf.TensorArraySpec(shape[2:], dtype, shape[0], shape[1])
        if issubclass(cls, Tensor):
            return tf.TensorSpec(shape, dtype)
        raise TypeError(
            f"Could not build a structure for output class {cls.__name__}. Use `tf.Tensor`, `tf.SparseTensor`, "
            "`tf.TensorArray` or a `tf.TypeSpec`."
        )

    return structure.map_specs(make_spec, output_classes, output_types, output_shapes)


# ---- structures, in which lists and `SparseTensorValue`s are leaves --------------------------------------


class _OpaqueLeaf:
    """A leaf that `tf.nest` would divide."""

    def __init__(self, value: PyTree) -> None:
        self.value = value


def _wrap(structure: PyTree) -> PyTree:
    """Hide the leaves that `tf.nest` would divide."""
    if isinstance(structure, (list, SparseTensorValue)):
        return _OpaqueLeaf(structure)
    if isinstance(structure, tuple):
        items = map(_wrap, structure)
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    if isinstance(structure, Mapping):
        return nest.rebuild_mapping(structure, {k: _wrap(v) for k, v in structure.items()})
    return structure


def _unwrap(leaf: PyTree) -> PyTree:
    return leaf.value if isinstance(leaf, _OpaqueLeaf) else leaf


def is_nested(structure: PyTree) -> bool:
    """Return whether a value is a tuple or a mapping."""
    return isinstance(structure, (tuple, Mapping)) and not isinstance(structure, SparseTensorValue)


def flatten(structure: PyTree) -> list[PyTree]:
    """Return the leaves of a structure."""
    return [_unwrap(leaf) for leaf in tf.nest.flatten(_wrap(structure))]


def pack_sequence_as(structure: PyTree, flat_sequence: Sequence[PyTree]) -> PyTree:
    """Return leaves in a structure."""
    return tf.nest.pack_sequence_as(_wrap(structure), list(flat_sequence))


def assert_same_structure(nest1: PyTree, nest2: PyTree, check_types: bool = True) -> None:
    """Check that two structures are the same."""
    tf.nest.assert_same_structure(_wrap(nest1), _wrap(nest2), check_types)


def map_structure(
    func: Callable[..., Any], *structures: PyTree, check_types: bool = True
) -> PyTree:
    """Apply a function to the corresponding leaves of structures."""
    call = lambda *leaves: func(*map(_unwrap, leaves))
    return tf.nest.map_structure(call, *map(_wrap, structures), check_types=check_types)


# ---- arguments ----------------------------------------------------------------------------------


def optional_param_to_tensor(
    argument_name: str,
    argument_value: TensorLike | None,
    argument_default: TensorLike = 0,
    argument_dtype: DTypeLike = "int64",
) -> Tensor:
    """Return an argument as a tensor, or its default if it is None."""
    value = argument_default if argument_value is None else argument_value
    return tf.convert_to_tensor(value, argument_dtype, name=argument_name)


def partial_shape_to_tensor(shape_like: ShapeLike | TensorLike) -> Tensor:
    """Return a shape as an int64 vector, with -1 for unknown sizes.

    Raises:
      ValueError: If a tensor is no vector.
      TypeError: If a tensor is not of int64.
    """
    try:
        sizes = tf.TensorShape(shape_like).as_list()
    except (TypeError, ValueError):
        vector = tf.convert_to_tensor(shape_like, dtype_hint=tf.int64)
    else:
        return tf.constant([-1 if size is None else size for size in sizes], tf.int64)
    expected = f"The given shape {shape_like} must be a 1-D tensor of `tf.int64` values, but the "
    if vector.shape.rank not in (1, None):
        raise ValueError(f"{expected}shape was {vector.shape}.")
    if vector.dtype != tf.int64:
        raise TypeError(f"{expected}element type was {vector.dtype.name}.")
    return vector


def get_seed(seed: TensorLike | None) -> tuple[Tensor, Tensor]:
    """Return the two int64 seeds of a dataset for the seed of its constructor; 0 and 0 without seeds."""
    seeds = tf.compat.v1.random.get_seed(seed)
    first, second = (tf.cast(0 if s is None else s, tf.int64) for s in seeds)
    if seeds[0] is None:
        return first, second
    are_zero = tf.logical_and(tf.equal(first, 0), tf.equal(second, 0))
    return first, tf.where(are_zero, tf.constant(2**31 - 1, tf.int64), second)


def legacy_snapshot(
    path: str, compression: str | None = None, **_: object
) -> Callable[[Dataset], Dataset]:
    """Return a function for `Dataset.apply` that calls `Dataset.snapshot`."""
    return lambda dataset: dataset.snapshot(path, compression or "AUTO")
