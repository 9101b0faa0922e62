"""Public names of `meshflow`; the package loads this module on first use of one of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from meshflow.core.runtime.setup import enable_64_bit_types as _allow_64_bits
from meshflow.core.runtime.tracebacks import hide_frames_of_functions as _hide_frames

_allow_64_bits()

from meshflow import bitwise, config, debugging, errors, linalg, math, nest, nn, random, strings
from meshflow.core.runtime.unavailable_names import raise_if_unavailable as _raise_for
from meshflow.core.dispatch.composite import (
    IndexedSlices,
    IndexedSlicesSpec,
    SparseTensor,
    SparseTensorSpec,
)
from meshflow.core.values.convert import (
    constant,
    convert_to_tensor,
    register_tensor_conversion_function,
)
from meshflow.core.variables.critical_section import CriticalSection
from meshflow.core.gradients.custom_gradients import custom_gradient
from meshflow.core.gradients.rematerialization import recompute_grad
from meshflow.core.runtime.device_spec import DeviceSpec
from meshflow.core.runtime.devices import device
from meshflow.core.values.dtypes import (
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
    qint8,
    qint16,
    qint32,
    quint8,
    quint16,
    resource,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
    variant,
)
from meshflow.core.values.dtypes import bool_ as bool
from meshflow.core.runtime.eager import control_dependencies, executing_eagerly, inside_function
from meshflow.core.functions.decorator import function
from meshflow.core.config.graph_mode import (
    AggregationMethod,
    Operation,
    RegisterGradient,
    get_logger,
    no_gradient,
    timestamp,
)
from meshflow.core.variables.module import Module
from meshflow.core.runtime.name_scopes import get_current_name_scope, name_scope
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec, TypeSpec, type_spec_from_value
from meshflow.core.gradients.symbolic_gradients import gradients, hessians
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.gradients.gradient_targets import UnconnectedGradients
from meshflow.core.values.tensor import Tensor, is_symbolic_tensor, is_tensor
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.variable import Variable, VariableAggregation, VariableSynchronization
from meshflow.core.variables.variable_creation import variable_creator_scope
from meshflow.core.variables import indexing as _indexing
from meshflow.ops import host as _host
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
    guarantee_const,
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
    required_space_to_batch_paddings,
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
    space_to_batch_nd,
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
    unravel_index,
    unstack,
    where,
    zeros,
    zeros_like,
)
from meshflow.ops.control_flow import case, cond, switch_case, while_loop
from meshflow.ops.debugging import Assert, assert_equal, assert_greater, assert_less, assert_rank
from meshflow.ops.edit_distance import edit_distance
from meshflow.ops.functional import foldl, foldr, map_fn, scan, vectorized_map
from meshflow.ops.hashing import fingerprint
from meshflow.ops.linalg import eig, eigvals, einsum, matvec, norm
from meshflow.ops.linalg import sqrtm as matrix_square_root
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
    realdiv,
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
    truncatediv,
    truncatemod,
)
from meshflow.ops.printing import print
from meshflow.ops.python_function import numpy_function, py_function
from meshflow.ops.strings import as_string
from meshflow.ops.ragged import RaggedTensor, RaggedTensorSpec
from meshflow.ops.tensor_array import TensorArray, TensorArraySpec
from meshflow import version
from meshflow.version import COMPILER_VERSION as __compiler_version__
from meshflow.version import GIT_VERSION as __git_version__
from meshflow.version import VERSION as __version__

# TensorFlow defines these names, too.
__cxx11_abi_flag__, __monolithic_build__ = 1, 0

if TYPE_CHECKING:
    # Editors and type checkers need the names that `load_name` loads on first use.
    from meshflow import (
        audio,
        autodiff,
        data,
        distribute,
        dtypes,
        experimental,
        graph_util,
        image,
        io,
        keras,
        lite,
        lookup,
        mixed_precision,
        profiler,
        quantization,
        queue,
        ragged,
        raw_ops,
        saved_model,
        sets,
        signal,
        sparse,
        summary,
        sysconfig,
        test,
        tpu,
        train,
        types,
        xla,
    )
    from meshflow import autograph
    from meshflow.legacy import compat, feature_column
    from meshflow.legacy.graph.graph import Graph
    from meshflow.data.optional import OptionalSpec
    from meshflow.io.tensors import make_ndarray, make_tensor_proto
    from meshflow.saved_model.graph.reading.imported_graphs import import_graph_def
    from meshflow.keras import initializers, losses, metrics, optimizers
    from meshflow.keras.initializers import Constant as constant_initializer
    from meshflow.keras.initializers import Ones as ones_initializer
    from meshflow.keras.initializers import RandomNormal as random_normal_initializer
    from meshflow.keras.initializers import RandomUniform as random_uniform_initializer
    from meshflow.keras.initializers import Zeros as zeros_initializer

for _module in (bitwise, config, debugging, errors, linalg, math, nest, nn, random, strings):
    _hide_frames(vars(_module))
_hide_frames(globals())

# These modules are loaded on first use, because their imports take time and many programs need few
# of them.
_LAZY_MODULES = (
    *(
        "audio",
        "autodiff",
        "autograph",
        "data",
        "distribute",
        "dtypes",
        "experimental",
        "graph_util",
        "image",
        "io",
        "keras",
        "lite",
        "lookup",
        "mixed_precision",
        "profiler",
        "quantization",
        "queue",
        "ragged",
        "raw_ops",
        "signal",
    ),
    *(
        "saved_model",
        "sets",
        "sparse",
        "summary",
        "sysconfig",
        "test",
        "tpu",
        "train",
        "types",
        "xla",
    ),
)
# Names in modules that are loaded on first use.
_LAZY_NAMES = {
    "Graph": "meshflow.legacy.graph.graph",
    "OptionalSpec": "meshflow.data.optional",
    "import_graph_def": "meshflow.saved_model.graph.reading.imported_graphs",
    "make_ndarray": "meshflow.io.tensors",
    "make_tensor_proto": "meshflow.io.tensors",
}
# Paths of modules that differ from their public names.
_MODULE_PATHS = {
    **{n: f"meshflow.legacy.{n}" for n in ("compat", "feature_column")},
    **{n: f"meshflow.keras.{n}" for n in ("initializers", "losses", "metrics", "optimizers")},
}
_INTERNAL_NAMES = {"__internal__": "names", "__operators__": "operators"}
# Raw ops that are public functions, too.
_RAW_OPS = {
    "approx_top_k": "ApproxTopK",
    "conv": "Conv",
    "conv2d_backprop_filter_v2": "Conv2DBackpropFilterV2",
    "conv2d_backprop_input_v2": "Conv2DBackpropInputV2",
    "extract_volume_patches": "ExtractVolumePatches",
    "random_index_shuffle": "RandomIndexShuffle",
    **{name: name.upper() for name in ("fftnd", "ifftnd", "irfftnd", "rfftnd")},
}
# TensorFlow 1 names of Keras initializers.
_KERAS_INITIALIZERS = {
    "constant_initializer": "Constant",
    "ones_initializer": "Ones",
    "random_normal_initializer": "RandomNormal",
    "random_uniform_initializer": "RandomUniform",
    "zeros_initializer": "Zeros",
}

__all__ = sorted(
    {name for name in globals() if not name.startswith("_")}
    - {"annotations", "load_name", "importlib", "Any", "TYPE_CHECKING", "core", "ops"}
    | {*_LAZY_MODULES, *_MODULE_PATHS, *_KERAS_INITIALIZERS, *_LAZY_NAMES, "__version__"}
)


def load_name(name: str) -> Any:
    """Load a public name on first use."""
    if name in _MODULE_PATHS:
        return importlib.import_module(_MODULE_PATHS[name])
    if name in _KERAS_INITIALIZERS:
        initializers = importlib.import_module("meshflow.keras.initializers")
        return getattr(initializers, _KERAS_INITIALIZERS[name])
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    if name in _LAZY_MODULES:
        return importlib.import_module(f"meshflow.{name}")
    if name in _INTERNAL_NAMES:
        return getattr(importlib.import_module("meshflow.legacy.internal"), _INTERNAL_NAMES[name])
    if name in _RAW_OPS:
        return importlib.import_module("meshflow.raw_ops.operations").bind_positional(
            _RAW_OPS[name]
        )
    _raise_for(name)
    raise AttributeError(f"module 'meshflow' has no attribute {name!r}")
