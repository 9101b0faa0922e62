"""Calls of functions of `tf.linalg` with linear operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.dispatch import symbolic_calls
from meshflow.core.values.tensor import TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import linalg, math
from meshflow.ops.linear_operators.linear_operator import LinearOperator


def _matmul(
    a: TensorLike | LinearOperator,
    b: TensorLike | LinearOperator,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    **options: object,
) -> PyTree:
    if transpose_a or transpose_b or any(options.values()):
        raise ValueError(
            "tf.linalg.matmul of a LinearOperator has only the options adjoint_a and adjoint_b, got "
            f"transpose_a={transpose_a}, transpose_b={transpose_b} and {options}."
        )
    if isinstance(a, LinearOperator):
        return a.matmul(b, adjoint=adjoint_a, adjoint_arg=adjoint_b)
    # A B = (Bᴴ Aᴴ)ᴴ
    return linalg.adjoint(b.matmul(a, adjoint=not adjoint_b, adjoint_arg=not adjoint_a))


def _solve(
    matrix: TensorLike | LinearOperator, rhs: TensorLike | LinearOperator, adjoint: bool = False
) -> PyTree:
    if not isinstance(matrix, LinearOperator):
        raise ValueError(
            "tf.linalg.solve: a LinearOperator as `rhs` requires one as `matrix`, got "
            f"{type(matrix).__name__}. Use LinearOperatorFullMatrix(matrix)."
        )
    return matrix.solve(rhs, adjoint=adjoint)


def _invert(input: LinearOperator, adjoint: bool = False) -> LinearOperator:
    inverse = input.inverse()
    return inverse.adjoint() if adjoint else inverse


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "adjoint": lambda matrix: matrix.adjoint(),
    "cholesky": lambda input: input.cholesky(),
    "det": lambda input: input.determinant(),
    "diag_part": lambda input: input.diag_part(),
    "inv": _invert,
    "logdet": lambda matrix: (
        2.0 * math.reduce_sum(math.log(math.real(matrix.cholesky().diag_part())), axis=-1)
    ),
    "matmul": _matmul,
    "solve": _solve,
    "trace": lambda x: x.trace(),
}


def _call(public: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    if public.__name__ not in _FUNCTIONS:
        return NotImplemented
    return _FUNCTIONS[public.__name__](*args, **{k: v for k, v in kwargs.items() if k != "name"})


symbolic_calls.register_composite_type(LinearOperator, _call)
