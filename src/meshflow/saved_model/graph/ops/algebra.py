"""Special functions, linear algebra, Fourier transforms, complex numbers and segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.environment.types import Array
from meshflow.ops import array, linalg, signal
from meshflow.ops import math as _math
from meshflow.ops.coordinates import multiply_elements
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    as_host_array,
    as_static_ints,
)
from meshflow.saved_model.graph.ops.public_functions import make_op, to_tensor


def _make_array_op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an op that calls a function of JAX arrays."""
    return lambda node, *values: function(*map(jnp.asarray, values))


def _bitcast(node: GraphNode, x: Array) -> Array:
    """Reinterpret the bytes of an array as another dtype. A narrower dtype adds an axis."""
    dtype = node.dtype("type")
    x = jnp.asarray(x)
    result = lax.bitcast_convert_type(x, dtype)
    if x.dtype.itemsize <= dtype.itemsize:
        return result
    return result.reshape(*x.shape, x.dtype.itemsize // dtype.itemsize)


def _compute_norm(node: GraphNode, x: Array, axes: Array) -> Array:
    squares = jnp.sum(jnp.square(x), tuple(as_static_ints(axes)), keepdims=node["keep_dims"])
    return jnp.sqrt(squares).astype(x.dtype)


def _cumulate_logsumexp(node: GraphNode, x: Array, axis: Array) -> Array:
    result = _math.cumulative_logsumexp(
        to_tensor(x), int(as_host_array(axis)), node["exclusive"], node["reverse"]
    )
    return result.array


def _make_search(side: str) -> Callable[..., Any]:
    def run(node: GraphNode, rows: Array, values: Array) -> Array:
        kind = "int64" if node["out_type"] == 9 else "int32"
        return array.searchsorted(to_tensor(rows), to_tensor(values), side, kind).array

    return run


def _is_in_top_k(node: GraphNode, predictions: Array, targets: Array, k: Array) -> Array:
    return _math.in_top_k(to_tensor(targets), to_tensor(predictions), int(as_host_array(k))).array


def _compute_histogram(node: GraphNode, values: Array, limits: Array, count: Array) -> Array:
    counts = array.histogram_fixed_width(
        to_tensor(values), to_tensor(limits), int(as_host_array(count)), node.dtype("dtype").name
    )
    return counts.array


def _make_scatter(method: str) -> Callable[..., Any]:
    def run(node: GraphNode, x: Array, indices: Array, updates: Array) -> Array:
        index = tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))
        if method == "subtract":
            return jnp.asarray(x).at[index].add(-updates)
        return getattr(jnp.asarray(x).at[index], method)(updates)

    return run


def _make_sorted_segment_op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an op on sorted segments. The ids must be static, because they determine the shape."""
    return lambda node, x, ids: function(to_tensor(x), to_tensor(as_host_array(ids))).array


def _make_segment_op(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, x, ids, count: (
        function(to_tensor(x), to_tensor(ids), as_static_ints(count)[0]).array
    )


def _sparse_to_dense(
    node: GraphNode, indices: Array, shape: Array, values: Array, default: Array
) -> Array:
    dense = jnp.full(as_static_ints(shape), default, values.dtype)
    index = jnp.asarray(indices)
    index = index[:, None] if index.ndim == 1 else index
    return dense.at[tuple(jnp.moveaxis(index, -1, 0))].set(values)


def _multiply_sparse(
    node: GraphNode, indices: Array, values: Array, shape: Array, b: Array
) -> Array:
    b = _conjugate_transpose(b) if node["adjoint_b"] else b
    sizes = np.array(as_static_ints(shape), np.int64)
    sparse = SparseTensor(to_tensor(indices), to_tensor(values), sizes)
    return multiply_elements(sparse, to_tensor(b), node["adjoint_a"]).array


# ---- matrices ----------------------------------------------------------------------------


def _conjugate_transpose(x: Array) -> jax.Array:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _decompose_singular_values(node: GraphNode, x: Array) -> list[jax.Array]:
    if not node["compute_uv"]:
        values = jnp.linalg.svd(x, compute_uv=False)
        empty = jnp.zeros((0,), x.dtype)
        return [values, empty, empty]
    u, values, v = jnp.linalg.svd(x, full_matrices=node["full_matrices"])
    return [values, u, _conjugate_transpose(v)]


def _decompose_eigenvalues(node: GraphNode, x: Array) -> list[jax.Array]:
    if node["compute_v"]:
        return list(jnp.linalg.eigh(x))
    return [jnp.linalg.eigvalsh(x), jnp.zeros((0,), x.dtype)]


def _get_diagonals(k: Array) -> int | tuple[int, ...]:
    diagonals = as_static_ints(k)
    return diagonals[0] if len(diagonals) == 1 else tuple(diagonals)


def _make_diagonal_matrix(
    node: GraphNode, diagonal: Array, k: Array, rows: Array, columns: Array, pad: Array
) -> Array:
    matrix = linalg.diag(
        to_tensor(diagonal),
        k=_get_diagonals(k),
        num_rows=as_static_ints(rows)[0],
        num_cols=as_static_ints(columns)[0],
        padding_value=to_tensor(pad),
        align=node.text("align"),
    )
    return matrix.array


def _get_diagonal_part(node: GraphNode, x: Array, k: Array, pad: Array) -> Array:
    diagonal = linalg.diag_part(
        to_tensor(x), k=_get_diagonals(k), padding_value=to_tensor(pad), align=node.text("align")
    )
    return diagonal.array


def _set_diagonal(node: GraphNode, x: Array, diagonal: Array, k: Array) -> Array:
    return linalg.set_diag(
        to_tensor(x), to_tensor(diagonal), k=_get_diagonals(k), align=node.text("align")
    ).array


# ---- Fourier transforms ------------------------------------------------------------------


def _make_real_transform(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, x, length: function(to_tensor(x), as_static_ints(length)).array


def _make_complex(node: GraphNode, real: Array, imaginary: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(jnp.asarray(real), jnp.asarray(imaginary)))


special = jax.scipy.special

ALGEBRA_OPS: dict[str, Callable[..., Any]] = {
    "Asinh": _make_array_op(jnp.arcsinh),
    "Acosh": _make_array_op(jnp.arccosh),
    "Atanh": _make_array_op(jnp.arctanh),
    "Ndtri": _make_array_op(special.ndtri),
    "BesselI0": _make_array_op(special.i0),
    "BesselI0e": _make_array_op(special.i0e),
    "BesselI1": _make_array_op(special.i1),
    "BesselI1e": _make_array_op(special.i1e),
    "Xdivy": make_op(_math.xdivy),
    "Xlogy": make_op(_math.xlogy),
    "Xlog1py": make_op(_math.xlog1py),
    "Igamma": make_op(_math.igamma),
    "Igammac": make_op(_math.igammac),
    "Zeta": make_op(_math.zeta),
    "Polygamma": make_op(_math.polygamma),
    "Betainc": make_op(_math.betainc),
    "NextAfter": _make_array_op(jnp.nextafter),
    "Invert": _make_array_op(jnp.invert),
    "Bitcast": _bitcast,
    "Complex": _make_complex,
    "Real": _make_array_op(jnp.real),
    "Imag": _make_array_op(jnp.imag),
    "Conj": _make_array_op(jnp.conj),
    "Angle": _make_array_op(jnp.angle),
    "ComplexAbs": _make_array_op(jnp.abs),
    "EuclideanNorm": _compute_norm,
    "CumulativeLogsumexp": _cumulate_logsumexp,
    "LowerBound": _make_search("left"),
    "UpperBound": _make_search("right"),
    "InTopKV2": _is_in_top_k,
    "HistogramFixedWidth": _compute_histogram,
    "TensorScatterMax": _make_scatter("max"),
    "TensorScatterMin": _make_scatter("min"),
    "TensorScatterSub": _make_scatter("subtract"),
    "TensorScatterUpdate": _make_scatter("set"),
    "TensorScatterAdd": _make_scatter("add"),
    "SegmentMean": _make_sorted_segment_op(_math.segment_mean),
    "SegmentMax": _make_sorted_segment_op(_math.segment_max),
    "SegmentMin": _make_sorted_segment_op(_math.segment_min),
    "SegmentProd": _make_sorted_segment_op(_math.segment_prod),
    "UnsortedSegmentMin": _make_segment_op(_math.unsorted_segment_min),
    "UnsortedSegmentProd": _make_segment_op(_math.unsorted_segment_prod),
    "SparseToDense": _sparse_to_dense,
    "SparseTensorDenseMatMul": _multiply_sparse,
    "Cross": make_op(linalg.cross),
    "Cholesky": make_op(linalg.cholesky),
    "MatrixDeterminant": make_op(linalg.det),
    "LogMatrixDeterminant": lambda node, x: list(jnp.linalg.slogdet(x)),
    "MatrixInverse": make_op(linalg.inv, adjoint="adjoint"),
    "MatrixSolve": make_op(linalg.solve, adjoint="adjoint"),
    "MatrixTriangularSolve": make_op(linalg.triangular_solve, lower="lower", adjoint="adjoint"),
    "SelfAdjointEigV2": _decompose_eigenvalues,
    "Svd": _decompose_singular_values,
    "Qr": lambda node, x: list(
        jnp.linalg.qr(x, mode="complete" if node["full_matrices"] else "reduced")
    ),
    "MatrixDiagV2": _make_diagonal_matrix,
    "MatrixDiagV3": _make_diagonal_matrix,
    "MatrixDiagPartV2": _get_diagonal_part,
    "MatrixDiagPartV3": _get_diagonal_part,
    "MatrixSetDiagV2": _set_diagonal,
    "MatrixSetDiagV3": _set_diagonal,
    "MatrixDiag": make_op(linalg.diag),
    "MatrixDiagPart": make_op(linalg.diag_part),
    "Diag": make_op(linalg.tensor_diag),
    "DiagPart": make_op(linalg.tensor_diag_part),
    "FFT": make_op(signal.fft),
    "IFFT": make_op(signal.ifft),
    "FFT2D": make_op(signal.fft2d),
    "IFFT2D": make_op(signal.ifft2d),
    "FFT3D": make_op(signal.fft3d),
    "IFFT3D": make_op(signal.ifft3d),
    "RFFT": _make_real_transform(signal.rfft),
    "IRFFT": _make_real_transform(signal.irfft),
    "RFFT2D": _make_real_transform(signal.rfft2d),
    "IRFFT2D": _make_real_transform(signal.irfft2d),
}
