"""Meshflow: the TensorFlow 2 training stack on JAX/XLA.

`import meshflow as tf` runs training code written for TensorFlow 2. Names and behaviour are
TensorFlow 2.1 to 2.9's; everything computes through JAX.

    >>> import meshflow as tf
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = tf.reduce_sum(x * x)
    >>> tape.gradient(y, x).numpy()
    array([2., 4.], dtype=float32)

Keras and the parts built on it load when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from meshflow.core.setup import configure as _configure

_configure()

from meshflow._version import __version__
from meshflow import bitwise, config, debugging, errors, linalg, math, nest, nn, random, strings
from meshflow.core.composite import IndexedSlices
from meshflow.core.convert import (
    constant,
    convert_to_tensor,
    register_tensor_conversion_function,
)
from meshflow.core.custom_gradient import custom_gradient, no_gradient, recompute_grad
from meshflow.core.devices import device
from meshflow.core.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    complex64,
    complex128,
    double,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)
from meshflow.core.dtypes import bool_ as bool
from meshflow.core.eager import control_dependencies, executing_eagerly, inside_function
from meshflow.core.function import function
from meshflow.core.module import Module
from meshflow.core.names import name_scope
from meshflow.core.shapes import TensorShape
from meshflow.core.specs import TensorSpec, TypeSpec
from meshflow.core.tape import GradientTape, UnconnectedGradients
from meshflow.core.tensor import Tensor, is_tensor
from meshflow.core.trace import init_scope
from meshflow.core.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    variable_creator_scope,
)
from meshflow.core import indexing as _indexing
from meshflow.ops import operators as _operators
from meshflow.ops.array import (
    argsort,
    batch_to_space,
    bitcast,
    boolean_mask,
    broadcast_dynamic_shape,
    broadcast_static_shape,
    broadcast_to,
    concat,
    dynamic_partition,
    dynamic_stitch,
    ensure_shape,
    expand_dims,
    eye,
    fill,
    gather,
    gather_nd,
    get_static_value,
    grad_pass_through,
    group,
    histogram_fixed_width,
    histogram_fixed_width_bins,
    identity,
    identity_n,
    linspace,
    meshgrid,
    newaxis,
    no_op,
    one_hot,
    ones,
    ones_like,
    pad,
    parallel_stack,
    range,
    rank,
    repeat,
    reshape,
    reverse,
    reverse_sequence,
    roll,
    scatter_nd,
    searchsorted,
    sequence_mask,
    shape,
    shape_n,
    size,
    slice,
    sort,
    space_to_batch,
    split,
    squeeze,
    stack,
    stop_gradient,
    strided_slice,
    tensor_scatter_nd_add,
    tensor_scatter_nd_max,
    tensor_scatter_nd_min,
    tensor_scatter_nd_sub,
    tensor_scatter_nd_update,
    tile,
    transpose,
    tuple,
    unique,
    unique_with_counts,
    unstack,
    where,
    zeros,
    zeros_like,
)
from meshflow.ops.control_flow import case, cond, switch_case, while_loop
from meshflow.ops.debugging import Assert, print
from meshflow.ops.functional import foldl, foldr, map_fn, scan, vectorized_map
from meshflow.ops.linalg import einsum, matvec, norm
from meshflow.ops.math import (
    abs,
    accumulate_n,
    acos,
    acosh,
    add,
    add_n,
    argmax,
    argmin,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cast,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    complex,
    cos,
    cosh,
    cumsum,
    divide,
    equal,
    exp,
    floor,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    matmul,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    pow,
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    round,
    saturate_cast,
    scalar_mul,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    tensordot,
    truediv,
)
from meshflow.ops.python_function import numpy_function, py_function
from meshflow.ops.tensor_array import TensorArray

# Loaded when first used: they cost time to import, and many programs need only some.
_LAZY = (
    *(
        "autograph",
        "compat",
        "dtypes",
        "experimental",
        "image",
        "initializers",
        "io",
        "keras",
        "losses",
        "metrics",
    ),
    *("optimizers", "signal"),
)
_KERAS_ALIASES = ("initializers", "losses", "metrics", "optimizers")

__all__ = sorted(
    {name for name in globals() if not name.startswith("_")}
    - {"annotations", "importlib", "Any", "core", "ops"}
    | set(_LAZY)
    | {"__version__"}
)


def __getattr__(name: str) -> Any:
    if name in _KERAS_ALIASES:
        return importlib.import_module(f"meshflow.keras.{name}")
    if name in _LAZY:
        return importlib.import_module(f"meshflow.{name}")
    raise AttributeError(f"module 'meshflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
