"""Rules of decompositions, linear solvers and Fourier transforms.

A matrix that LAPACK rejects has a result of NaN, as in XLA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.interpreter.table import Compute, Equation, HostArray, UnsupportedPrimitive, rule


@functools.cache
def _load_scipy() -> Any:
    import scipy.linalg  # noqa: PLC0415  # The import takes 0.2 seconds.

    return scipy.linalg


def _get_lapack(name: str, *arrays: HostArray) -> Any:
    return _load_scipy().lapack.get_lapack_funcs(name, arrays)


def _map_matrices(equation: Equation, function: Callable[..., Any]) -> Compute:
    """Return a function that applies `function` to each matrix of a batch."""
    outputs, num_batch = equation.outputs, equation.inputs[0].ndim - 2

    def run(*arrays: HostArray) -> list[HostArray]:
        results = [np.empty(shape, dtype) for shape, dtype in outputs]
        if any(0 in a.shape for a in arrays):
            return [np.zeros(shape, dtype) for shape, dtype in outputs]
        for index in np.ndindex(*arrays[0].shape[:num_batch]):
            try:
                parts = function(*[a[index] for a in arrays])
            except (np.linalg.LinAlgError, ValueError):
                parts = [np.nan] * len(results)
            for result, part in zip(results, parts, strict=True):
                result[index] = part
        return results

    return run


def _take_first(run: Compute) -> Compute:
    return lambda *arrays: run(*arrays)[0]


@rule("cholesky")
def _factor_cholesky(equation: Equation) -> Compute:
    def factor(a: HostArray) -> Sequence[HostArray | float]:
        result, info = _get_lapack("potrf", a)(a, lower=1, clean=1)
        return [result if info == 0 else np.nan]

    return _take_first(_map_matrices(equation, factor))


@rule("qr")
def _factor_qr(equation: Equation) -> Compute:
    if equation.params.get("pivoting"):
        raise UnsupportedPrimitive(["qr"])
    mode = "full" if equation.params["full_matrices"] else "economic"
    return _map_matrices(equation, lambda a: _load_scipy().qr(a, mode=mode, check_finite=False))


@rule("householder_product")
def _multiply_reflectors(equation: Equation) -> Compute:
    name = "ungqr" if equation.inputs[0].dtype.kind == "c" else "orgqr"
    multiply = lambda a, taus: [_get_lapack(name, a)(a, taus)[0]]
    return _take_first(_map_matrices(equation, multiply))


@rule("lu")
def _factor_lu(equation: Equation) -> Compute:
    def factor(a: HostArray) -> Sequence[HostArray | float]:
        lu, pivots, _ = _get_lapack("getrf", a)(a)
        order = np.arange(a.shape[0])
        for i, j in enumerate(pivots):
            order[[i, j]] = order[[j, i]]
        return [lu, pivots, order]

    return _map_matrices(equation, factor)


@rule("lu_pivots_to_permutation")
def _make_permutation(equation: Equation) -> Compute:
    shape, dtype = equation.outputs[0]

    def run(pivots: HostArray) -> HostArray:
        out = np.broadcast_to(np.arange(shape[-1], dtype=dtype), shape).copy()
        for index in np.ndindex(*shape[:-1]):
            for i, j in enumerate(pivots[index]):
                out[index][[i, j]] = out[index][[j, i]]
        return out

    return run


@rule("eigh")
def _decompose_symmetric(equation: Equation) -> Compute:
    if equation.params.get("subset_by_index") not in (None, (0, equation.inputs[0].shape[-1])):
        raise UnsupportedPrimitive(["eigh"])
    name = "heevd" if equation.inputs[0].dtype.kind == "c" else "syevd"

    def decompose(a: HostArray) -> Sequence[HostArray | float]:
        values, vectors, info = _get_lapack(name, a)(a, lower=equation.params["lower"])
        return [vectors, values] if info == 0 else [np.nan, np.nan]

    return _map_matrices(equation, decompose)


@rule("eig")
def _decompose(equation: Equation) -> Compute:
    left = equation.params["compute_left_eigenvectors"]
    right = equation.params["compute_right_eigenvectors"]

    def decompose(a: HostArray) -> Sequence[HostArray | float]:
        parts = _load_scipy().eig(a, None, left, right, check_finite=False)
        return parts if left or right else [parts]

    return _map_matrices(equation, decompose)


@rule("schur")
def _decompose_schur(equation: Equation) -> Compute:
    if equation.params["sort_eig_vals"]:
        raise UnsupportedPrimitive(["schur"])
    output = "complex" if equation.inputs[0].dtype.kind == "c" else "real"
    return _map_matrices(equation, lambda a: _load_scipy().schur(a, output, check_finite=False))


@rule("svd")
def _decompose_singular(equation: Equation) -> Compute:
    p = equation.params
    if p.get("subset_by_index") not in (None, (0, min(equation.inputs[0].shape[-2:]))):
        raise UnsupportedPrimitive(["svd"])

    def decompose(a: HostArray) -> Sequence[HostArray | float]:
        options = {"compute_uv": p["compute_uv"], "check_finite": False}
        parts = _load_scipy().svd(a, p["full_matrices"], **options)
        return [parts[1], parts[0], parts[2]] if p["compute_uv"] else [parts]

    return _map_matrices(equation, decompose)


@rule("triangular_solve")
def _solve_triangular(equation: Equation) -> Compute:
    p = equation.params
    transposition = (2 if p["conjugate_a"] else 1) if p["transpose_a"] else 0

    def solve(a: HostArray, b: HostArray) -> Sequence[HostArray | float]:
        trsm = _load_scipy().blas.get_blas_funcs("trsm", (a, b))
        if p["conjugate_a"] and not p["transpose_a"]:
            a = a.conj()
        one = a.dtype.type(1)
        options = {"side": not p["left_side"], "lower": p["lower"], "diag": p["unit_diagonal"]}
        return [trsm(one, a, b, trans_a=transposition, **options)]

    return _take_first(_map_matrices(equation, solve))


@rule("tridiagonal_solve")
def _solve_tridiagonal(equation: Equation) -> Compute:
    if equation.params.get("perturb_singular"):
        raise UnsupportedPrimitive(["tridiagonal_solve"])

    def run(lower: HostArray, diagonal: HostArray, upper: HostArray, b: HostArray) -> HostArray:
        x = np.array(b)
        if diagonal.shape[-1] == 1:
            return x / diagonal[..., None]
        solve = _get_lapack("gtsv", diagonal, b)
        for index in np.ndindex(diagonal.shape[:-1] if b.size else (0,)):
            *_, x[index], info = solve(
                lower[index][1:], diagonal[index], upper[index][:-1], b[index]
            )
            if info:
                x[index] = np.nan
        return x

    return run


@rule("custom_linear_solve")
def _solve(equation: Equation) -> Compute:
    counts, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    solve = equation.bind(jaxprs.solve, ()).run
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
    transforms: dict[str, Callable[..., HostArray]] = {
        "FFT": np.fft.fftn,
        "IFFT": np.fft.ifftn,
        "RFFT": np.fft.rfftn,
        "IRFFT": np.fft.irfftn,
    }
    transform = transforms[name]
    return lambda x: transform(x, lengths, axes).astype(dtype, copy=False)
