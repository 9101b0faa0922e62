"""Rules of special functions: XLA's approximations of erf and erfc for float32, SciPy for the others."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshflow.interpreter.elementwise import define, get_compute_dtype
from meshflow.interpreter.table import Compute, Equation, HostArray

# XLA's rational approximation of erf for float32: coefficients of x * P(x^2) / Q(x^2).
_ERF_LIMIT = np.float32(3.832506856900711)
_ERF_NUMERATOR = np.array(
    [-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05]
    + [-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02],
    np.float32,
)
_ERF_DENOMINATOR = np.array(
    [-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03]
    + [-1.42647390514189e-02],
    np.float32,
)
# XLA's approximations of erfc, for |x| < 2 and for larger numbers: coefficients of exp(-x^2) / |x| * P(1 / x^2). They
# are those of ndtrf in the Cephes library.
_ERFC_NEAR = np.array(
    [2.326819970068386e-2, -1.387039388740657e-1, 3.687424674597105e-1, -5.824733027278666e-1]
    + [6.210004621745983e-1, -4.944515323274145e-1, 3.404879937665872e-1, -2.741127028184656e-1]
    + [5.638259427386472e-1],
    np.float32,
)
_ERFC_FAR = np.array(
    [-1.047766399936249e1, 1.297719955372516e1, -7.495518717768503, 2.921019019210786]
    + [-1.015265279202700, 4.218463358204948e-1, -2.820767439740514e-1, 5.641895067754075e-1],
    np.float32,
)


@functools.cache
def _load_scipy() -> Any:
    from scipy import special  # noqa: PLC0415  # Its import takes 0.2 seconds.

    return special


def _evaluate_polynomial(x: HostArray, coefficients: np.ndarray) -> HostArray:
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y *= x
        y += c
    return y


def compute_erf(x: HostArray) -> HostArray:
    """Compute the error function of float32 numbers."""
    x = np.clip(np.asarray(x), -_ERF_LIMIT, _ERF_LIMIT)
    square = x * x
    y = _evaluate_polynomial(square, _ERF_NUMERATOR)
    y *= x
    y /= _evaluate_polynomial(square, _ERF_DENOMINATOR)
    return y


def compute_erfc(x: HostArray) -> HostArray:
    """Compute the complementary error function of float32 numbers."""
    x = np.asarray(x)
    y = np.asarray(1 - compute_erf(x))
    is_large = ~(np.abs(x) < 1)
    if is_large.any():
        y[is_large] = _compute_large_erfc(x[is_large])
    return y


def _compute_large_erfc(x: HostArray) -> HostArray:
    """Compute `compute_erfc` of numbers with a magnitude of at least 1."""
    size = np.abs(x)
    inverse = 1 / size
    square = inverse * inverse
    y = np.where(
        size < 2,
        _evaluate_polynomial(square, _ERFC_NEAR),
        _evaluate_polynomial(square, _ERFC_FAR),
    )
    y *= np.exp(-size * size)
    y *= inverse
    return np.where(x < 0, 2 - y, y)


@define("erf", "erfc")
def _choose_erf(equation: Equation) -> Compute:
    if equation.inputs[0].dtype.itemsize <= 4:
        return compute_erf if equation.name == "erf" else compute_erfc
    return lambda x: getattr(_load_scipy(), equation.name)(x)


_NAMES = {
    "erf_inv": "erfinv",
    "lgamma": "gammaln",
    "digamma": "psi",
    "zeta": "zeta",
    "igamma": "gammainc",
    "igammac": "gammaincc",
    "regularized_incomplete_beta": "betainc",
    "bessel_i0e": "i0e",
    "bessel_i1e": "i1e",
}


@define(*_NAMES)
def _choose_function(equation: Equation) -> Compute:
    name, result = _NAMES[equation.name], get_compute_dtype(equation.outputs[0].dtype)

    def run(*arrays: HostArray) -> HostArray:
        values = getattr(_load_scipy(), name)(*arrays)
        # XLA's values at poles and limits differ from SciPy's.
        if equation.name == "digamma":
            values = np.where(arrays[0] == 0, np.nan, values)
        elif equation.name == "lgamma":
            values = np.where(np.isinf(arrays[0]), np.inf, values)
        return np.asarray(values, result)

    return run


@define("polygamma")
def _choose_polygamma(equation: Equation) -> Compute:
    result = get_compute_dtype(equation.outputs[0].dtype)

    def run(order: HostArray, x: HostArray) -> HostArray:
        special, order = _load_scipy(), np.asarray(order, np.float64)
        sign = np.where(np.remainder(order, 2) == 0, -1.0, 1.0)
        values = (
            sign * special.gamma(order + 1) * special.zeta(order + 1, np.asarray(x, np.float64))
        )
        return np.where(order == 0, special.psi(x), values).astype(result)

    return run
