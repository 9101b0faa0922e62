"""Small functions of Keras's private modules that programs call, mostly in code copied from Keras."""

from __future__ import annotations

import enum
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, PyTree, StrPath
from meshflow.keras import settings
from meshflow.keras.engine.saving import hdf5
from meshflow.keras.engine.saving.older_weights import convert_weights
from meshflow.keras.layers.recurrent_cells import make_zero_states
from meshflow.keras.registry import to_snake_case as to_snake_case
from meshflow.shims.private_helpers import smart_constant_value

if TYPE_CHECKING:
    from h5py import Group as HDF5Group

    from meshflow.keras.engine.layer.base_layer import Layer
    from meshflow.keras.engine.models.model import Model

tf: Any = get_public_package()
constant_value = smart_constant_value
load_attributes_from_hdf5_group, save_attributes_to_hdf5_group = hdf5.read_names, hdf5.write_names
is_symbolic_tensor = tf.is_symbolic_tensor
# The attributes of `AUC` are strings, which are equal to the members.
AUCCurve = enum.Enum("AUCCurve", {"ROC": "ROC", "PR": "PR"}, type=str)
AUCSummationMethod = enum.Enum(
    "AUCSummationMethod",
    {"INTERPOLATION": "interpolation", "MAJORING": "majoring", "MINORING": "minoring"},
    type=str,
)


def _current_graph(op_input_list: object, graph: object = None) -> Any:
    """Return the default graph, which is empty."""
    return tf.compat.v1.get_default_graph()


# ---- shapes and sizes -----------------------------------------------------------------------


def normalize_tuple(
    value: int | Iterable[int], n: int, name: str, allow_zero: bool = False
) -> tuple[int, ...]:
    """Return a tuple of `n` integers from an integer or a sequence."""
    try:
        sizes = (value,) * n if isinstance(value, int) else tuple(int(v) for v in value)
    except (TypeError, ValueError):
        sizes = ()
    if len(sizes) != n or any(v < 0 or (v == 0 and not allow_zero) for v in sizes):
        required = "non-negative" if allow_zero else "positive"
        raise ValueError(f"{name} must be {n} {required} integers, got {value!r}.")
    return sizes


def normalize_padding(value: str) -> str:
    """Return the name of a padding mode in lower case."""
    if value.lower() not in ("valid", "same", "causal"):
        raise ValueError(f"padding must be 'valid', 'same' or 'causal', got {value!r}.")
    return value.lower()


def normalize_data_format(value: str | None) -> str:
    """Return a data format, by default that of `tf.keras.backend.image_data_format()`."""
    return tf.keras.backend.normalize_data_format(value)


def conv_output_length(input_length: int | None, filter_size: int, padding: str, stride: int, dilation: int = 1) -> int | None:  # fmt: skip
    """Return the output size of a convolution along one axis."""
    if input_length is None:
        return None
    assert padding in {"same", "valid", "full", "causal"}
    extent = (filter_size - 1) * dilation + 1
    length = input_length - extent + 1 if padding == "valid" else input_length
    if padding == "full":
        length = input_length + extent - 1
    return -(-length // stride)


def deconv_output_length(
    input_length: int | None, filter_size: int, padding: str, output_padding: int | None = None, stride: int = 0,
    dilation: int = 1,
) -> int | None:  # fmt: skip
    """Return the output size of a transposed convolution along one axis."""
    if input_length is None:
        return None
    extent = (filter_size - 1) * dilation + 1
    if output_padding is not None:
        pad = {"same": extent // 2, "valid": 0, "full": extent - 1}[padding]
        return (input_length - 1) * stride + extent - 2 * pad + output_padding
    added = {"same": 0, "valid": max(extent - stride, 0), "full": 2 - stride - extent}[padding]
    return input_length * stride + added


def conv_input_length(output_length: int | None, filter_size: int, padding: str, stride: int) -> int | None:  # fmt: skip
    """Return the input size of a convolution along one axis."""
    if output_length is None:
        return None
    assert padding in {"same", "valid", "full"}
    pad = {"same": filter_size // 2, "valid": 0, "full": filter_size - 1}[padding]
    return (output_length - 1) * stride - 2 * pad + filter_size


def convert_data_format(data_format: str, ndim: int) -> str:
    """Return the name of a data format for ops, for example `NHWC`."""
    spatial = {3: "W", 4: "HW", 5: "DHW"}[ndim]
    return {"channels_last": f"N{spatial}C", "channels_first": f"NC{spatial}"}[data_format]


def get_shapes(tensors: PyTree) -> PyTree:
    """Return the shapes of a structure of tensors."""
    return nest.map_structure(lambda x: x.shape, tensors)


def count_params(weights: Iterable[Any]) -> int:
    """Return the total number of elements of weights, each counted once."""
    return sum(int(np.prod(w.shape.as_list())) for w in {id(w): w for w in weights}.values())


def to_list(x: object) -> list[Any]:
    """Return a list with a value, or a sequence as a list."""
    return list(x) if isinstance(x, list | tuple) else [x]


def is_tensor_or_tensor_list(v: object) -> bool:
    """Return whether a value is a tensor or a list of tensors."""
    return tf.is_tensor(to_list(v)[0])


def to_numpy_or_python_type(tensors: PyTree) -> PyTree:
    """Return a structure with numbers instead of scalar tensors, and arrays instead of others."""

    def convert(value: object) -> object:
        array = value.numpy() if isinstance(value, Tensor) else value
        if isinstance(array, np.ndarray | np.generic) and array.ndim == 0:
            return array.item()
        return array

    return nest.map_structure(convert, tensors)


sync_to_numpy_or_python_type = to_numpy_or_python_type


def shape_type_conversion(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Wrap a method of a layer, so that it takes shapes as tuples and returns `TensorShape`."""

    def to_tuple(shape: ShapeLike) -> ShapeLike:
        return tuple(shape.as_list()) if isinstance(shape, TensorShape) else shape

    def to_shape(value: PyTree) -> PyTree:
        is_shape = isinstance(value, tuple) and all(isinstance(s, int | None) for s in value)
        return TensorShape(value) if is_shape else value

    @functools.wraps(function)
    def wrapper(instance: object, input_shape: PyTree) -> PyTree:
        is_list = isinstance(input_shape, list)
        shape = [to_tuple(s) for s in input_shape] if is_list else to_tuple(input_shape)
        result = function(instance, shape)
        return [to_shape(s) for s in result] if isinstance(result, list) else to_shape(result)

    return wrapper


# ---- functions and lists --------------------------------------------------------------------


def has_arg(fn: Callable[..., Any], name: str, accept_all: bool = False) -> bool:
    """Return whether a function accepts an argument by keyword."""
    parameters = inspect.signature(fn).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    by_keyword = name in parameters and parameters[name].kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    )  # fmt: skip
    return by_keyword or (accept_all and takes_all)


def is_all_none(structure: PyTree) -> bool:
    """Return whether all leaves of a structure are None."""
    return all(leaf is None for leaf in nest.flatten(structure))


def unpack_singleton(x: PyTree) -> PyTree:
    """Return the element of a list with one element, and other values unchanged."""
    return x[0] if isinstance(x, list | tuple) and len(x) == 1 else x


def make_batches(size: int, batch_size: int) -> list[tuple[int, int]]:
    """Return the first index and the end of each batch."""
    return [(i, min(size, i + batch_size)) for i in range(0, size, batch_size)]


def slice_arrays(arrays: PyTree, start: int | Sequence[int] | np.ndarray | None = None, stop: int | None = None) -> PyTree:  # fmt: skip
    """Return a part of an array or of each array in a list, by a range or a list of indices."""
    part = start if hasattr(start, "__len__") else slice(start, stop)
    if isinstance(arrays, list):
        return [None if x is None else x[part] for x in arrays]
    return [None] if arrays is None else arrays[part]


def print_msg(message: str, line_break: bool = True) -> None:
    """Print a message."""
    print(message, end="\n" if line_break else "", flush=True)


def unique_object_name(
    name: str, name_uid_map: object = None, avoid_names: Iterable[str] = (), namespace: str = "",
    zero_based: bool = False, avoid_observed_names: bool = False,
) -> str:  # fmt: skip
    """Return a name with a number that no other object has."""
    while True:
        unique = settings.make_unique_name(name, zero_based)
        if unique not in (avoid_names or ()):
            return unique


def path_to_string(path: object) -> object:
    """Return a path object as text, and other values unchanged."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


# ---- training -------------------------------------------------------------------------------


def expand_1d(data: PyTree) -> PyTree:
    """Return the parts of a batch; those with one axis get a second one of size 1."""

    def expand(x: object) -> object:
        return tf.expand_dims(x, -1) if isinstance(x, Tensor) and x.shape.rank == 1 else x

    return nest.map_structure(expand, data)


def squeeze_or_expand_dimensions(y_pred: Tensor, y_true: Tensor | None = None, sample_weight: Tensor | None = None) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Remove or add a last axis of size 1, so that ranks of outputs, targets and weights fit together."""
    if y_true is not None:
        difference = len(y_pred.shape) - len(y_true.shape)
        if difference == 1 and y_pred.shape[-1] == 1:
            y_pred = tf.squeeze(y_pred, -1)
        elif difference == -1 and y_true.shape[-1] == 1:
            y_true = tf.squeeze(y_true, -1)
    if sample_weight is None:
        return y_pred, y_true
    difference = len(sample_weight.shape) - len(y_pred.shape)
    if len(sample_weight.shape) and difference == 1:
        sample_weight = tf.squeeze(sample_weight, -1)
    elif len(sample_weight.shape) and difference == -1:
        sample_weight = tf.expand_dims(sample_weight, -1)
    return y_pred, y_true, sample_weight


def compute_weighted_loss(
    losses: TensorLike, sample_weight: TensorLike = None, reduction: str = "sum_over_batch_size", name: str | None = None
) -> Tensor:  # fmt: skip
    """Return losses times weights, reduced like those of `tf.keras.losses.Loss`."""
    loss = tf.keras.losses.Loss(reduction, name)
    loss.call = lambda y_true, y_pred: y_pred
    return loss(losses, losses, sample_weight)


# ---- recurrent layers -----------------------------------------------------------------------


_is_multiple_state = nest.is_nested


def _caching_device(rnn_cell: object) -> None:
    """Return None: variables are read once anyway."""


def _config_for_enable_caching_device(rnn_cell: object) -> Config:
    """Return no configuration."""
    return {}


def _generate_zero_filled_state(
    batch_size: TensorLike, state_size: PyTree, dtype: DTypeLike
) -> PyTree:
    """Return zeros for each size of a state."""
    return make_zero_states(state_size, batch_size, dtype)


def _generate_zero_filled_state_for_cell(cell: Any, inputs: Tensor | None, batch_size: TensorLike, dtype: DTypeLike) -> PyTree:  # fmt: skip
    """Return the zero states of a cell."""
    if inputs is not None:
        batch_size, dtype = tf.shape(inputs)[0], inputs.dtype
    return make_zero_states(cell.state_size, batch_size, dtype)


# ---- files ----------------------------------------------------------------------------------

# Names of the parts of a `.keras` file.
_CONFIG_FILENAME, _METADATA_FILENAME = "config.json", "metadata.json"
_VARS_FNAME, _ASSETS_DIRNAME = "model.weights", "assets"


def save_weights_only(model: Model, filepath: StrPath, **_: object) -> None:
    """Save the weights of a model to a file `*.weights.h5`."""
    if not os.fspath(filepath).endswith(".weights.h5"):
        raise ValueError(
            f"Invalid `filepath` argument: expected a `.weights.h5` extension. Received: filepath={filepath}"
        )
    model.save_weights(filepath)


def load_weights_only(model: Model, filepath: StrPath, skip_mismatch: bool = False, **_: object) -> None:  # fmt: skip
    """Load the weights of a model from a file of weights or of a model."""
    model.load_weights(filepath, skip_mismatch=skip_mismatch)


def load_weights_from_hdf5_group(
    f: HDF5Group, model: Model | list[Layer] | tuple[Layer, ...]
) -> None:
    """Read the weights of a model, or of a list of layers, in their order."""
    hdf5.read_model(_as_model(model), f)


def load_weights_from_hdf5_group_by_name(
    f: HDF5Group, model: Model | list[Layer] | tuple[Layer, ...], skip_mismatch: bool = False
) -> None:
    """Read the weights of the layers of a model, or of a list of layers, by their names."""
    hdf5.read_model(_as_model(model), f, by_name=True, skip_mismatch=skip_mismatch)


def preprocess_weights_for_loading(layer: Layer, weights: list[np.ndarray], original_keras_version: str | None = None, original_backend: str | None = None) -> list[np.ndarray]:  # fmt: skip
    """Convert the weights of a layer in a file of Keras 1, or of a layer of cuDNN, to those of Keras 2."""
    return convert_weights(layer, weights, original_keras_version or "2")


def save_weights_to_hdf5_group(
    f: HDF5Group, model: Model | list[Layer] | tuple[Layer, ...]
) -> None:
    """Write the weights of a model, or of a list of layers."""
    hdf5.write_model(_as_model(model), f)


def _as_model(model: Model | list[Layer] | tuple[Layer, ...]) -> Model | SimpleNamespace:
    if isinstance(model, list | tuple):
        return SimpleNamespace(name="layers", layers=model, _saved_weights=[])
    return model


# ---- clones ---------------------------------------------------------------------------------


def share_weights(layer: Layer) -> Layer:
    """Return a layer unchanged, so that a clone of a model has the same layer."""
    return layer


def _clone_functional_model(model: object, input_tensors: PyTree = None, layer_fn: Callable[[Layer], Layer] | None = None) -> Model:  # fmt: skip
    """Clone a Functional model."""
    return _clone_graph(tf.keras.models.Functional, model, input_tensors, layer_fn)


def _clone_sequential_model(model: object, input_tensors: PyTree = None, layer_fn: Callable[[Layer], Layer] | None = None) -> Model:  # fmt: skip
    """Clone a Sequential model."""
    return _clone_graph(tf.keras.Sequential, model, input_tensors, layer_fn)


def _clone_graph(cls: type, model: object, input_tensors: PyTree, layer_fn: Callable[[Layer], Layer] | None) -> Model:  # fmt: skip
    if not isinstance(model, cls):
        raise ValueError(
            f"Expected `model` argument to be a `{cls.__name__}` instance. Received: model={model}"
        )
    clone: Model = tf.keras.models.clone_model(model, input_tensors, layer_fn)
    return clone
