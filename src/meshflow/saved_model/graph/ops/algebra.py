"""Special functions, linear algebra, Fourier transforms, complex numbers and segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshflow.environment.types import Array
from meshflow.ops import array, linalg, signal
from meshflow.ops import math as _math
from meshflow.saved_model.graph.attributes import Node, numbers, on_host
from meshflow.saved_model.graph.ops.public import by, tensor_of

__all__ = ["ALGEBRA"]


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an op that calls a function of JAX arrays."""
    return lambda node, *values: function(*map(jnp.asarray, values))


def _bits(node: Node, x: Array) -> Array:
    """Reinterpret the bytes of an array as another dtype. A narrower dtype adds an axis."""
    dtype = node.dtype("type")
    x = jnp.asarray(x)
    result = lax.bitcast_convert_type(x, dtype)
    if x.dtype.itemsize <= dtype.itemsize:
        return result
    return result.reshape(*x.shape, x.dtype.itemsize // dtype.itemsize)


def _magnitudes(node: Node, x: Array, axes: Array) -> Array:
    squares = jnp.sum(jnp.square(x), tuple(numbers(axes)), keepdims=node["keep_dims"])
    return jnp.sqrt(squares).astype(x.dtype)


def _log_sums(node: Node, x: Array, axis: Array) -> Array:
    result = _math.cumulative_logsumexp(
        tensor_of(x), int(on_host(axis)), node["exclusive"], node["reverse"]
    )
    return result._value


def _rows_found(side: str) -> Callable[..., Any]:
    def run(node: Node, rows: Array, values: Array) -> Array:
        kind = "int64" if node["out_type"] == 9 else "int32"
        return array.searchsorted(tensor_of(rows), tensor_of(values), side, kind)._value

    return run


def _in_top(node: Node, predictions: Array, targets: Array, k: Array) -> Array:
    return _math.in_top_k(tensor_of(targets), tensor_of(predictions), int(on_host(k)))._value


def _histogram(node: Node, values: Array, limits: Array, count: Array) -> Array:
    counts = array.histogram_fixed_width(
        tensor_of(values), tensor_of(limits), int(on_host(count)), node.dtype("dtype").name
    )
    return counts._value


def _scattered(method: str) -> Callable[..., Any]:
    def run(node: Node, x: Array, indices: Array, updates: Array) -> Array:
        index = tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))
        if method == "subtract":
            return jnp.asarray(x).at[index].add(-updates)
        return getattr(jnp.asarray(x).at[index], method)(updates)

    return run


def _sorted_segments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an op on sorted segments. The ids must be static, because they determine the shape."""
    return lambda node, x, ids: function(tensor_of(x), tensor_of(on_host(ids)))._value


def _segments(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, x, ids, count: (
        function(tensor_of(x), tensor_of(ids), numbers(count)[0])._value
    )


def _dense(node: Node, indices: Array, shape: Array, values: Array, default: Array) -> Array:
    dense = jnp.full(numbers(shape), default, values.dtype)
    index = jnp.asarray(indices)
    index = index[:, None] if index.ndim == 1 else index
    return dense.at[tuple(jnp.moveaxis(index, -1, 0))].set(values)


def _sparse_product(node: Node, indices: Array, values: Array, shape: Array, b: Array) -> Array:
    matrix = jnp.zeros(numbers(shape), values.dtype)
    matrix = matrix.at[tuple(jnp.moveaxis(jnp.asarray(indices), -1, 0))].add(values)
    matrix = _conjugate_transposed(matrix) if node["adjoint_a"] else matrix
    return jnp.matmul(matrix, _conjugate_transposed(b) if node["adjoint_b"] else b)


# ---- matrices ----------------------------------------------------------------------------


def _conjugate_transposed(x: Array) -> jax.Array:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _singular(node: Node, x: Array) -> list[jax.Array]:
    if not node["compute_uv"]:
        values = jnp.linalg.svd(x, compute_uv=False)
        empty = jnp.zeros((0,), x.dtype)
        return [values, empty, empty]
    u, values, v = jnp.linalg.svd(x, full_matrices=node["full_matrices"])
    return [values, u, _conjugate_transposed(v)]


def _eigen(node: Node, x: Array) -> list[jax.Array]:
    if node["compute_v"]:
        return list(jnp.linalg.eigh(x))
    return [jnp.linalg.eigvalsh(x), jnp.zeros((0,), x.dtype)]


def _diagonals(k: Array) -> int | tuple[int, ...]:
    diagonals = numbers(k)
    return diagonals[0] if len(diagonals) == 1 else tuple(diagonals)


def _diagonal_matrix(
    node: Node, diagonal: Array, k: Array, rows: Array, columns: Array, pad: Array
) -> Array:
    matrix = linalg.diag(
        tensor_of(diagonal),
        k=_diagonals(k),
        num_rows=numbers(rows)[0],
        num_cols=numbers(columns)[0],
        padding_value=tensor_of(pad),
        align=node.text("align"),
    )
    return matrix._value


def _diagonal_part(node: Node, x: Array, k: Array, pad: Array) -> Array:
    diagonal = linalg.diag_part(
        tensor_of(x), k=_diagonals(k), padding_value=tensor_of(pad), align=node.text("align")
    )
    return diagonal._value


def _with_diagonal(node: Node, x: Array, diagonal: Array, k: Array) -> Array:
    return linalg.set_diag(
        tensor_of(x), tensor_of(diagonal), k=_diagonals(k), align=node.text("align")
    )._value


# ---- Fourier transforms ------------------------------------------------------------------


def _with_length(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, x, length: function(tensor_of(x), numbers(length))._value


def _complex(node: Node, real: Array, imaginary: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(jnp.asarray(real), jnp.asarray(imaginary)))


special = jax.scipy.special

ALGEBRA: dict[str, Callable[..., Any]] = {
    "Asinh": _each(jnp.arcsinh),
    "Acosh": _each(jnp.arccosh),
    "Atanh": _each(jnp.arctanh),
    "Ndtri": _each(special.ndtri),
    "BesselI0": _each(special.i0),
    "BesselI0e": _each(special.i0e),
    "BesselI1": _each(special.i1),
    "BesselI1e": _each(special.i1e),
    "Xdivy": by(_math.xdivy),
    "Xlogy": by(_math.xlogy),
    "Xlog1py": by(_math.xlog1py),
    "Igamma": by(_math.igamma),
    "Igammac": by(_math.igammac),
    "Zeta": by(_math.zeta),
    "Polygamma": by(_math.polygamma),
    "Betainc": by(_math.betainc),
    "NextAfter": _each(jnp.nextafter),
    "Invert": _each(jnp.invert),
    "Bitcast": _bits,
    "Complex": _complex,
    "Real": _each(jnp.real),
    "Imag": _each(jnp.imag),
    "Conj": _each(jnp.conj),
    "Angle": _each(jnp.angle),
    "ComplexAbs": _each(jnp.abs),
    "EuclideanNorm": _magnitudes,
    "CumulativeLogsumexp": _log_sums,
    "LowerBound": _rows_found("left"),
    "UpperBound": _rows_found("right"),
    "InTopKV2": _in_top,
    "HistogramFixedWidth": _histogram,
    "TensorScatterMax": _scattered("max"),
    "TensorScatterMin": _scattered("min"),
    "TensorScatterSub": _scattered("subtract"),
    "TensorScatterUpdate": _scattered("set"),
    "TensorScatterAdd": _scattered("add"),
    "SegmentMean": _sorted_segments(_math.segment_mean),
    "SegmentMax": _sorted_segments(_math.segment_max),
    "SegmentMin": _sorted_segments(_math.segment_min),
    "SegmentProd": _sorted_segments(_math.segment_prod),
    "UnsortedSegmentMin": _segments(_math.unsorted_segment_min),
    "UnsortedSegmentProd": _segments(_math.unsorted_segment_prod),
    "SparseToDense": _dense,
    "SparseTensorDenseMatMul": _sparse_product,
    "Cross": by(linalg.cross),
    "Cholesky": by(linalg.cholesky),
    "MatrixDeterminant": by(linalg.det),
    "LogMatrixDeterminant": lambda node, x: list(jnp.linalg.slogdet(x)),
    "MatrixInverse": by(linalg.inv, adjoint="adjoint"),
    "MatrixSolve": by(linalg.solve, adjoint="adjoint"),
    "MatrixTriangularSolve": by(linalg.triangular_solve, lower="lower", adjoint="adjoint"),
    "SelfAdjointEigV2": _eigen,
    "Svd": _singular,
    "Qr": lambda node, x: list(
        jnp.linalg.qr(x, mode="complete" if node["full_matrices"] else "reduced")
    ),
    "MatrixDiagV2": _diagonal_matrix,
    "MatrixDiagV3": _diagonal_matrix,
    "MatrixDiagPartV2": _diagonal_part,
    "MatrixDiagPartV3": _diagonal_part,
    "MatrixSetDiagV2": _with_diagonal,
    "MatrixSetDiagV3": _with_diagonal,
    "MatrixDiag": by(linalg.diag),
    "MatrixDiagPart": by(linalg.diag_part),
    "Diag": by(linalg.tensor_diag),
    "DiagPart": by(linalg.tensor_diag_part),
    "FFT": by(signal.fft),
    "IFFT": by(signal.ifft),
    "FFT2D": by(signal.fft2d),
    "IFFT2D": by(signal.ifft2d),
    "FFT3D": by(signal.fft3d),
    "IFFT3D": by(signal.ifft3d),
    "RFFT": _with_length(signal.rfft),
    "IRFFT": _with_length(signal.irfft),
    "RFFT2D": _with_length(signal.rfft2d),
    "IRFFT2D": _with_length(signal.irfft2d),
}
