"""Rules of decompositions, linear solvers and Fourier transforms.

A matrix that LAPACK rejects has a result of NaN, as in XLA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.interpreter.table import Compute, Equation, UnsupportedPrimitive, rule


@functools.cache
def _load_lapack() -> tuple[Any, Any]:
    from scipy.linalg import blas, lapack  # noqa: PLC0415  # The import takes 0.2 seconds.

    return blas, lapack


def _map_matrices(equation: Equation, function: Callable[..., Any]) -> Compute:
    """Return a function that applies `function` to each matrix of a batch."""
    outputs = equation.outputs
    num_batch = equation.inputs[0].ndim - 2
    is_multiple = equation.name != "cholesky" and len(outputs) > 1 or equation.name in ("svd", "eig")

    def run(*arrays: Any) -> Any:
        batch = arrays[0].shape[:num_batch]
        results = [np.empty(shape, dtype) for shape, dtype in outputs]
        for index in np.ndindex(*batch):
            try:
                parts = function(*[a[index] for a in arrays])
            except np.linalg.LinAlgError:
                parts = [np.nan] * len(results)
            for result, part in zip(results, parts, strict=True):
                result[index] = part
        return results if is_multiple else results[0]

    return run


@rule("cholesky")
def _factor_cholesky(equation: Equation) -> Compute:
    def factor(a: Any) -> list[Any]:
        factor = np.linalg.cholesky(a)
        if not np.isfinite(factor).all():
            raise np.linalg.LinAlgError
        return [factor]

    return _map_matrices(equation, factor)


@rule("qr")
def _factor_qr(equation: Equation) -> Compute:
    if equation.params.get("pivoting"):
        raise UnsupportedPrimitive(["qr"])
    mode = "complete" if equation.params["full_matrices"] else "reduced"
    return lambda a: list(np.linalg.qr(a, mode))


@rule("lu")
def _factor_lu(equation: Equation) -> Compute:
    def factor(a: Any) -> list[Any]:
        blas, lapack = _load_lapack()
        (getrf,) = lapack.get_lapack_funcs(("getrf",), (a,))
        lu, pivots, _ = getrf(a)
        order = np.arange(a.shape[0])
        for i, j in enumerate(pivots):
            order[[i, j]] = order[[j, i]]
        return [lu, pivots, order]

    return _map_matrices(equation, factor)


@rule("lu_pivots_to_permutation")
def _make_permutation(equation: Equation) -> Compute:
    shape, dtype = equation.outputs[0]

    def run(pivots: Any) -> Any:
        out = np.broadcast_to(np.arange(shape[-1], dtype=dtype), shape).copy()
        for index in np.ndindex(*shape[:-1]):
            for i, j in enumerate(pivots[index]):
                out[index][[i, j]] = out[index][[j, i]]
        return out

    return run


@rule("eigh")
def _decompose_symmetric(equation: Equation) -> Compute:
    if equation.params["subset_by_index"] is not None:
        raise UnsupportedPrimitive(["eigh"])
    triangle = "L" if equation.params["lower"] else "U"

    def decompose(a: Any) -> list[Any]:
        if not np.isfinite(a).all():
            raise np.linalg.LinAlgError
        values, vectors = np.linalg.eigh(a, triangle)
        return [vectors, values]

    return _map_matrices(equation, decompose)


@rule("eig")
def _decompose(equation: Equation) -> Compute:
    if equation.params["compute_left_eigenvectors"]:
        raise UnsupportedPrimitive(["eig"])
    if not equation.params["compute_right_eigenvectors"]:
        return _map_matrices(equation, lambda a: [np.linalg.eigvals(a)])
    return _map_matrices(equation, lambda a: list(np.linalg.eig(a)))


@rule("svd")
def _decompose_singular(equation: Equation) -> Compute:
    p = equation.params
    if p["subset_by_index"] is not None:
        raise UnsupportedPrimitive(["svd"])
    if not p["compute_uv"]:
        return _map_matrices(equation, lambda a: [np.linalg.svd(a, compute_uv=False)])

    def decompose(a: Any) -> list[Any]:
        u, s, v = np.linalg.svd(a, p["full_matrices"])
        return [s, u, v]

    return _map_matrices(equation, decompose)


@rule("triangular_solve")
def _solve_triangular(equation: Equation) -> Compute:
    p = equation.params
    transposition = (2 if p["conjugate_a"] else 1) if p["transpose_a"] else 0

    def solve(a: Any, b: Any) -> list[Any]:
        blas, _ = _load_lapack()
        (trsm,) = blas.get_blas_funcs(("trsm",), (a, b))
        if p["conjugate_a"] and not p["transpose_a"]:
            a = a.conj()
        one = a.dtype.type(1)
        options = {"side": not p["left_side"], "lower": p["lower"], "diag": p["unit_diagonal"]}
        return [trsm(one, a, b, trans_a=transposition, **options)]

    return _map_matrices(equation, solve)


@rule("tridiagonal_solve")
def _solve_tridiagonal(equation: Equation) -> Compute:
    def run(lower: Any, diagonal: Any, upper: Any, b: Any) -> Any:
        n = diagonal.shape[-1]
        x, c = np.array(b), np.array(upper)
        for i in range(n):
            scale = diagonal[..., i] - (lower[..., i] * c[..., i - 1] if i else 0)
            c[..., i] = upper[..., i] / scale
            previous = lower[..., i, None] * x[..., i - 1, :] if i else 0
            x[..., i, :] = (x[..., i, :] - previous) / scale[..., None]
        for i in range(n - 2, -1, -1):
            x[..., i, :] -= c[..., i, None] * x[..., i + 1, :]
        return x

    return run


@rule("custom_linear_solve")
def _solve(equation: Equation) -> Compute:
    counts, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    assert equation.bind is not None
    solve = equation.bind(jaxprs.solve).run
    start = counts.matvec + counts.vecmat
    stop, end = start + counts.solve, sum(counts)
    return lambda *xs: [np.array(r) for r in solve([*xs[start:stop], *xs[end:]])]


@rule("fft")
def _transform(equation: Equation) -> Compute:
    kind, lengths = equation.params["fft_type"], equation.params["fft_lengths"]
    name = str(getattr(kind, "name", kind)).upper()
    axes, dtype = tuple(range(-len(lengths), 0)), equation.outputs[0].dtype
    if 0 in equation.inputs[0].shape:
        return lambda x: np.zeros(*equation.outputs[0])
    transform = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}[name]
    return lambda x: transform(x, lengths, axes).astype(dtype, copy=False)
