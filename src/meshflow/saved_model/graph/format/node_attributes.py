"""Nodes of graphs that are read, with the default values of attributes that files omit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.dtypes import as_dtype
from meshflow.environment.types import Array
from meshflow.io.tensors import make_ndarray
from meshflow.saved_model.graph.format.messages import Message


class HostRequired(BaseException):
    """Signal that a traced function uses strings, tables, or a value that is computed at run time."""


# TensorFlow uses these defaults for every op that has the attribute.
_DEFAULT_ATTRIBUTES: dict[str, Any] = {
    "T_threshold": 0,
    "_module_crc32c": None,
    "adj_x": False,
    "adj_y": False,
    "adjoint_a": False,
    "adjoint_b": False,
    "align_corners": False,
    "use_nesterov": False,
    "resize_if_index_out_of_bounds": False,
    "minlength": -1,
    "maxlength": -1,
    "batched_input": False,
    "dense_shapes": [],
    "Tdense": [],
    "sparse_types": [],
    "rates": [1, 1, 1, 1],
    "use_quote_delim": True,
    "summarize": 3,
    "signed_input": True,
    "select_cols": [],
    "round_mode": b"HALF_TO_EVEN",
    "replacement_char": 65533,
    "replace_control_characters": False,
    "ratio": 1,
    "forget_bias": 1.0,
    "cell_clip": 3.0,
    "use_peephole": False,
    "rnn_mode": b"lstm",
    "input_mode": b"linear_input",
    "direction": b"unidirectional",
    "dropout": 0.0,
    "num_proj": 0,
    "time_major": True,
    "range_given": False,
    "quality": 95,
    "pad_to_max_output_size": False,
    "pad_per_class": False,
    "output_stream": b"stderr",
    "output_encoding": b"UTF-8",
    "out_idx": 3,
    "Tsplits": 9,
    "num_sparse": 0,
    "na_value": b"",
    "method": b"bilinear",
    "merge_repeated": False,
    "little_endian": True,
    "kernel_type": b"lanczos3",
    "input_encoding": b"UTF-8",
    "include_batch_in_index": False,
    "full_matrices": False,
    "format": b"",
    "field_delim": b",",
    "extrapolation_value": 0.0,
    "expand_animations": True,
    "errors": b"replace",
    "end": b"\n",
    "desired_samples": -1,
    "desired_channels": -1,
    "beta": 0.5,
    "bias": 1.0,
    "depth_radius": 5,
    "compute_v": True,
    "compute_uv": True,
    "compression": -1,
    "channels": 0,
    "clip_boxes": True,
    "blank_index": -1,
    "antialias": True,
    "adjoint": False,
    "alpha": 0.2,
    "approximate": False,
    "axis": 0,
    "batch_dim": 0,
    "batch_dims": 0,
    "begin_mask": 0,
    "binary_output": False,
    "data_format": b"NHWC",
    "dim_args_spec": [],
    "disabled_checks": [],
    "function_list": [],
    "has_token_input_output": False,
    "platforms": [],
    "precision": -1,
    "scientific": False,
    "shortest": False,
    "width": -1,
    "fill": b"",
    "default_value": b"",
    "delimiter": b"\t",
    "dilations": [1, 1, 1, 1, 1],
    "ellipsis_mask": 0,
    "encoding": b"",
    "end_mask": 0,
    "epsilon": 1e-4,
    "exclusive": False,
    "explicit_paddings": [],
    "exponential_avg_factor": 1.0,
    "half_pixel_centers": False,
    "is_training": True,
    "keep_dims": False,
    "lower": True,
    "maxsplit": -1,
    "new_axis_mask": 0,
    "num_bits": 8,
    "narrow_range": False,
    "out_type": 3,
    "output_type": 9,
    "replace_global": True,
    "reverse": False,
    "separator": b"",
    "shared_name": b"",
    "shrink_axis_mask": 0,
    "skip_empty": True,
    "sorted": True,
    "squeeze_dims": [],
    "transpose_a": False,
    "transpose_b": False,
    "unit": b"BYTE",
    "validate_shape": False,
    "vocab_size": -1,
}
# The defaults of these ops differ from the ones above.
_OP_DEFAULT_ATTRIBUTES: dict[tuple[str, str], Any] = {
    ("BlockLSTMV2", "cell_clip"): 0.0,
    ("OneHot", "axis"): -1,
    ("Assert", "summarize"): 3,
    ("StringFormat", "placeholder"): b"%s",
    ("Conv3D", "data_format"): b"NDHWC",
    ("MaxPool3D", "data_format"): b"NDHWC",
    ("AvgPool3D", "data_format"): b"NDHWC",
    ("Conv3DBackpropInputV2", "data_format"): b"NDHWC",
    ("Bucketize", "boundaries"): [],
    ("Where", "T"): 1,
    ("StringToNumber", "out_type"): 1,
    ("MatrixDiagV3", "align"): b"RIGHT_LEFT",
    ("MatrixDiagPartV3", "align"): b"RIGHT_LEFT",
    ("MatrixSetDiagV3", "align"): b"RIGHT_LEFT",
    ("MatrixDiagV2", "align"): b"LEFT_LEFT",
    ("MatrixDiagPartV2", "align"): b"LEFT_LEFT",
    ("MatrixSetDiagV2", "align"): b"LEFT_LEFT",
    ("LRN", "alpha"): 1.0,
    ("HistogramFixedWidth", "dtype"): 3,
    ("MaxPoolWithArgmax", "Targmax"): 9,
    ("UnicodeDecode", "Tsplits"): 9,
    ("UnicodeDecodeWithOffsets", "Tsplits"): 9,
    ("DecodePng", "dtype"): 4,
    ("DecodeImage", "dtype"): 4,
    ("FakeQuantWithMinMaxArgs", "min"): -6.0,
    ("FakeQuantWithMinMaxArgs", "max"): 6.0,
    ("QuantizeAndDequantizeV2", "axis"): -1,
    ("QuantizeAndDequantizeV3", "axis"): -1,
    ("QuantizeAndDequantizeV3", "range_given"): True,
    ("QuantizeAndDequantizeV4", "axis"): -1,
    ("StringFormat", "template"): b"%s",
}


class GraphNode:
    """Node of a graph.

    Args:
      proto: The `NodeDef`.

    Attributes:
      name, op: Name of the node, and TensorFlow's op.
      inputs: (node, output name, index) of each tensor that the node takes.
      control_inputs: Names of the nodes that must run first.
      cache: Results of the op that do not depend on values, by their keys.
    """

    def __init__(self, proto: Message) -> None:
        self.name, self.op = proto.name, proto.op
        self.proto = proto
        self._attributes: dict[str, Any] = {}
        self.inputs = [parse_reference(i) for i in proto.input if not i.startswith("^")]
        self.control_inputs = [i[1:] for i in proto.input if i.startswith("^")]
        self.cache: dict[Any, Any] = {}

    def __getitem__(self, key: str) -> Any:
        """Return an attribute: a number, bytes, a list, an array, or the name of a function."""
        if key not in self._attributes:
            if key in self.proto.attr:
                value = _decode_attribute(self.proto.attr[key])
            elif (self.op, key) in _OP_DEFAULT_ATTRIBUTES:
                value = _OP_DEFAULT_ATTRIBUTES[self.op, key]
            elif key in _DEFAULT_ATTRIBUTES:
                value = _DEFAULT_ATTRIBUTES[key]
            else:
                raise DataLossError(f"node {self.name} of op {self.op} has no attribute {key}.")
            self._attributes[key] = value
        return self._attributes[key]

    def dtype(self, key: str) -> np.dtype:
        """Return the NumPy dtype that an attribute holds."""
        return to_numpy_dtype(self[key])

    def text(self, key: str) -> str:
        """Return the text that an attribute holds."""
        return self[key].decode()


# TensorFlow's value for the dtype of variants, which hold rows of ragged tensors.
_VARIANT = 21


def to_numpy_dtype(enum: int) -> np.dtype:
    """Convert a dtype enum to a NumPy dtype, which is `object` for strings and variants.

    Args:
      enum: TensorFlow's value for the dtype.
    """
    if enum == _VARIANT:
        return np.dtype(object)
    dtype = as_dtype(enum)
    return np.dtype(object) if dtype.name == "string" else np.dtype(dtype.as_numpy_dtype)


def parse_reference(text: str) -> tuple[str, str, int]:
    """Parse an input, `node`, `node:1` or `node:output:0`, into node, output name and index."""
    name, *rest = text.split(":")
    if len(rest) == 2:
        return name, rest[0], int(rest[1])
    return name, "", int(rest[0]) if rest else 0


def _decode_attribute(attr: Message) -> Any:
    kind = attr.WhichOneof("kind")
    if kind == "list":
        for field in ("s", "i", "f", "b", "type"):
            values = getattr(attr.list, field)
            if len(values):
                return list(values)
        if attr.list.func:
            return [f.name for f in attr.list.func]
        return [parse_shape(s) for s in attr.list.shape]
    if kind == "func":
        return attr.func.name
    if kind == "shape":
        return parse_shape(attr.shape)
    if kind == "tensor":
        return make_ndarray(attr.tensor)
    return getattr(attr, kind) if kind else None


def parse_shape(proto: Message) -> list[int | None] | None:
    """Convert a `TensorShapeProto` to a list of sizes.

    Returns:
      The sizes, with None for each unknown size, or None if the rank is unknown.
    """
    return None if proto.unknown_rank else [None if d.size < 0 else d.size for d in proto.dim]


def is_static(*values: object) -> bool:
    """Check whether all values are NumPy arrays, which have known values while a program is traced."""
    return all(isinstance(v, (np.ndarray, np.generic)) for v in values)


class SymbolicSizes(np.ndarray):
    """Array of objects with sizes, some of them symbolic dimensions of a shape-polymorphic program."""


def as_sizes_array(values: object, dtype: np.dtype | type) -> np.ndarray:
    """Convert sizes to an array.

    Args:
      values: Nested integers and symbolic dimensions.
      dtype: Dtype of the result if all sizes are integers. Otherwise it is `SymbolicSizes`.
    """
    array = np.array(values, object)
    if any(map(is_symbolic_dim, array.reshape(-1))):
        return array.view(SymbolicSizes)
    return array.astype(dtype)


def materialize_sizes(value: Array) -> Array:
    """Convert `SymbolicSizes` to an array that a program computes; return other values unchanged."""
    if not isinstance(value, SymbolicSizes):
        return value
    flat = [jnp.asarray(v, np.int32) for v in np.asarray(value).reshape(-1)]
    return jnp.stack(flat).reshape(value.shape)


def as_static_ints(value: Array) -> list[Any]:
    """Return integers that determine a program, such as sizes and axes, as a flat list.

    Returns:
      Integers, and symbolic dimensions where the value is `SymbolicSizes`.

    Raises:
      HostRequired: If the array is computed at run time.
    """
    return [v if is_symbolic_dim(v) else int(v) for v in as_host_array(value).reshape(-1)]


def as_host_array(value: Array) -> np.ndarray:
    """Return an array that must be known while the program is traced.

    Raises:
      HostRequired: If the array is computed at run time.
    """
    if isinstance(value, jax.core.Tracer):
        raise HostRequired
    return np.asarray(value)


def is_string_array(value: object) -> bool:
    """Check whether a value is an array of strings, which only the host can process."""
    return getattr(value, "dtype", None) == np.dtype(object) and not isinstance(
        value, SymbolicSizes
    )
