"""Linear systems with tridiagonal and banded matrices, and eigenvalues of tridiagonal matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array
from meshflow.ops.linalg.diagonal import diag_part, set_diag
from meshflow.ops.linalg.products import check_system
from meshflow.ops.linalg.solving import check_invertible
from meshflow.ops.math import conj

__all__ = ["banded_triangular_solve", "eigh_tridiagonal", "tridiagonal_matmul", "tridiagonal_solve"]


def to_compact(diagonals: Any, diagonals_format: str, op_name: str) -> Tensor:
    """Return the diagonals as rows [..., 3, n]: above, on and below the main diagonal.

    The diagonal above has an unused element at its end, the one below at its start.
    """
    if diagonals_format == "compact":
        rows = convert_to_tensor(diagonals)
        if len(rows.shape) < 2 or rows.shape[-2] not in (3, None):
            raise ValueError(f"{op_name}: expected 3 diagonals, got shape {rows.shape}.")
        return rows
    if diagonals_format == "matrix":
        matrix = convert_to_tensor(diagonals)
        if len(matrix.shape) < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise ValueError(f"{op_name}: expected square matrices, got shape {matrix.shape}.")
        return diag_part(matrix, k=(-1, 1), padding_value=0, align="LEFT_RIGHT")
    if diagonals_format == "sequence":
        above, main, below = (convert_to_tensor(v) for v in diagonals)
        size, lead = main.shape[-1], [[0, 0]] * (len(main.shape) - 1)
        if above.shape[-1] == size - 1:
            above = array.pad(above, [*lead, [0, 1]])
        if below.shape[-1] == size - 1:
            below = array.pad(below, [*lead, [1, 0]])
        return array.stack([above, main, below], -2)
    raise ValueError(
        f"{op_name}: diagonals_format must be 'compact', 'matrix' or 'sequence', got {diagonals_format!r}."
    )


@op(kinds="fc", name="tridiagonal_solve")
def _tridiagonal_solve(diagonals: TensorLike, rhs: TensorLike) -> Tensor:
    size = diagonals.shape[-1]
    if size == 0:
        return rhs
    if rhs.shape[-2] != size:
        raise InvalidValueError(
            f"tridiagonal_solve: {size} equations, but the right side has shape {list(rhs.shape)}."
        )
    lead = jnp.broadcast_shapes(diagonals.shape[:-2], rhs.shape[:-2])
    rows = jnp.broadcast_to(diagonals, (*lead, 3, size))
    right = jnp.broadcast_to(rhs, (*lead, *rhs.shape[-2:]))
    # The unused elements may have any value, also NaN.
    above = rows[..., 0, :].at[..., -1].set(0)
    below = rows[..., 2, :].at[..., 0].set(0)
    return jax.lax.linalg.tridiagonal_solve(below, rows[..., 1, :], above, right)


def tridiagonal_solve(
    diagonals: Any,
    rhs: TensorLike,
    diagonals_format: str = "compact",
    transpose_rhs: bool = False,
    conjugate_rhs: bool = False,
    name: str | None = None,
    partial_pivoting: bool = True,
    perturb_singular: bool = False,
) -> Tensor:
    """Solve linear systems with tridiagonal matrices.

    Args:
      diagonals: [..., 3, n]: the elements above (the last is ignored), on and below (the first is
        ignored) the main diagonal; or another form, see `diagonals_format`.
      rhs: Right-hand sides [..., n, k], or [..., n].
      diagonals_format: 'compact', 'sequence' (a tuple of the three) or 'matrix' ([..., n, n]).
      transpose_rhs: Whether to swap the last two dimensions of `rhs` first.
      conjugate_rhs: Whether to conjugate `rhs` first.
      name: Ignored.
      partial_pivoting: Ignored; rows are always exchanged for stability, except on TPUs.
      perturb_singular: Not implemented.

    Returns:
      Solutions [..., n, k], also for a transposed `rhs`, or [..., n].

    Raises:
      ValueError: If the format is another one, or the shapes do not match.

    Example:
      >>> diagonals = [[1.0, 1.0, 0.0], [4.0, 4.0, 4.0], [0.0, 1.0, 1.0]]
      >>> print(tf.linalg.tridiagonal_solve(tf.constant(diagonals), [5.0, 6.0, 5.0]).numpy().round(3))
      [1. 1. 1.]
    """
    if perturb_singular:
        raise NotImplementedError("tridiagonal_solve: perturb_singular is not available.")
    rows, rhs_ = (
        to_compact(diagonals, diagonals_format, "tridiagonal_solve"),
        convert_to_tensor(rhs),
    )
    is_vector = len(rhs_.shape) == len(rows.shape) - 1
    if is_vector:
        rhs_ = array.expand_dims(rhs_, -1)
    elif transpose_rhs:
        rhs_ = _swap_last_axes(rhs_)
    if conjugate_rhs:
        rhs_ = conj(rhs_)
    solution = _tridiagonal_solve(rows, rhs_)
    if is_vector:
        return array.squeeze(solution, -1)
    return solution


def _swap_last_axes(x: Tensor) -> Tensor:
    rank = len(x.shape)
    return array.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


@op(kinds="fc", name="tridiagonal_matmul")
def _tridiagonal_matmul(diagonals: TensorLike, rhs: TensorLike) -> Tensor:
    above, main, below = (diagonals[..., row, :, None] for row in range(3))
    result = main * rhs
    result = result.at[..., :-1, :].add(above[..., :-1, :] * rhs[..., 1:, :])
    return result.at[..., 1:, :].add(below[..., 1:, :] * rhs[..., :-1, :])


def tridiagonal_matmul(
    diagonals: Any, rhs: TensorLike, diagonals_format: str = "compact", name: str | None = None
) -> Tensor:
    """Multiply tridiagonal matrices by matrices.

    Args:
      diagonals: As in `tridiagonal_solve`.
      rhs: [..., n, k].
      diagonals_format: As in `tridiagonal_solve`.
      name: Ignored.

    Returns:
      Tensor [..., n, k].

    Example:
      >>> diagonals = [[1.0, 1.0, 0.0], [4.0, 4.0, 4.0], [0.0, 1.0, 1.0]]
      >>> print(tf.linalg.tridiagonal_matmul(tf.constant(diagonals), tf.ones([3, 1]))[:, 0].numpy())
      [5. 6. 5.]
    """
    return _tridiagonal_matmul(to_compact(diagonals, diagonals_format, "tridiagonal_matmul"), rhs)


@op(kinds="fc", name="banded_triangular_solve")
def _solve_triangular(matrix: TensorLike, rhs: TensorLike, lower: bool, adjoint: bool) -> Tensor:
    check_system("banded_triangular_solve", matrix, rhs)
    lead = jnp.broadcast_shapes(matrix.shape[:-2], rhs.shape[:-2])
    return jax.scipy.linalg.solve_triangular(
        jnp.broadcast_to(matrix, (*lead, *matrix.shape[-2:])),
        jnp.broadcast_to(rhs, (*lead, *rhs.shape[-2:])),
        lower=lower,
        trans="C" if adjoint else "N",
    )


@record_in_graph
def banded_triangular_solve(
    bands: TensorLike,
    rhs: TensorLike,
    lower: bool = True,
    adjoint: bool = False,
    name: str | None = None,
) -> Tensor:
    """Solve linear systems with banded triangular matrices.

    Args:
      bands: [..., k, n], the diagonals from the upper right to the lower left: the main diagonal is
        first for lower matrices, last for upper ones. Unused elements are at the start of diagonals
        below the main diagonal, and at the end of those above.
      rhs: Right-hand sides [..., n, m].
      lower: Whether the matrices are lower triangular.
      adjoint: Whether to solve with the adjoint matrices.
      name: Ignored.

    Returns:
      A tensor of the shape of `rhs`.

    Example:
      >>> bands = [[2.0, 2.0], [0.0, 1.0]]  # the matrix [[2, 0], [1, 2]]
      >>> print(tf.linalg.banded_triangular_solve(bands, [[2.0], [5.0]])[:, 0].numpy())
      [1. 2.]
    """
    bands, rhs = convert_to_tensor(bands), convert_to_tensor(rhs)
    if len(bands.shape) < 2 or bands.shape[-2] == 0:
        raise InvalidValueError(
            f"banded_triangular_solve: bands must have shape [..., k, n] with at least one band, got {bands.shape}."
        )
    count, size = (int(s) for s in bands.shape[-2:])
    empty = array.zeros([*bands.shape.as_list()[:-2], size, size], bands.dtype)
    k = (-(count - 1), 0) if lower else (0, count - 1)
    if count == 1:
        bands, matrix_k = bands[..., 0, :], 0
        matrix = set_diag(empty, bands, k=matrix_k)
    else:
        matrix = set_diag(empty, bands, k=k, align="LEFT_RIGHT")
    solution = _solve_triangular(matrix, rhs, lower, adjoint)
    message = "Input matrix is not invertible. [Op:BandedTriangularSolve]"
    return check_invertible(solution, message, bands, rhs)


@op(kinds="fc", name="eigh_tridiagonal")
def _eigh(alpha: TensorLike, beta: TensorLike) -> tuple[Tensor, Tensor]:
    index = jnp.arange(alpha.shape[-1])
    matrix = jnp.zeros((*alpha.shape, alpha.shape[-1]), alpha.dtype)
    matrix = matrix.at[..., index, index].set(alpha)
    matrix = matrix.at[..., index[1:], index[:-1]].set(beta)
    matrix = matrix.at[..., index[:-1], index[1:]].set(jnp.conj(beta))
    return tuple(jnp.linalg.eigh(matrix))


@overload
def eigh_tridiagonal(
    alpha: TensorLike,
    beta: TensorLike,
    eigvals_only: Literal[True] = True,
    select: str = "a",
    select_range: Sequence[float] | None = None,
    tol: float | None = None,
    name: str | None = None,
) -> Tensor: ...
@overload
def eigh_tridiagonal(
    alpha: TensorLike,
    beta: TensorLike,
    eigvals_only: bool = True,
    select: str = "a",
    select_range: Sequence[float] | None = None,
    tol: float | None = None,
    name: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]: ...
def eigh_tridiagonal(
    alpha: TensorLike,
    beta: TensorLike,
    eigvals_only: bool = True,
    select: str = "a",
    select_range: Sequence[float] | None = None,
    tol: float | None = None,
    name: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the eigenvalues of a self-adjoint tridiagonal matrix, ascending, with a dense solver.

    Args:
      alpha: The main diagonal, [n].
      beta: The diagonal below it, [n - 1].
      eigvals_only: Whether to return no eigenvectors.
      select: 'a' for all, 'i' for indices from select_range[0] to select_range[1], 'v' for values
        above select_range[0] and up to select_range[1].
      select_range: See `select`.
      tol: Ignored; eigenvalues are as exact as the dtype allows.
      name: Ignored.

    Returns:
      Eigenvalues, or a pair of eigenvalues and eigenvectors (as columns).

    Raises:
      ValueError: If `select` is another value, or requires a range.

    Example:
      >>> print(tf.linalg.eigh_tridiagonal([0.0, 0.0], [1.0]).numpy().round(3))
      [-1.  1.]
    """
    if select not in ("a", "i", "v"):
        raise ValueError(f"eigh_tridiagonal: select must be 'a', 'i' or 'v', got {select!r}.")
    if select != "a" and select_range is None:
        raise ValueError(f"eigh_tridiagonal: select={select!r} needs select_range.")
    values, vectors = _eigh(alpha, beta)
    if select == "i":
        first, last = to_static_value(select_range, "select_range")
        values, vectors = values[first : last + 1], vectors[:, first : last + 1]
    elif select == "v":
        low, high = to_static_value(select_range, "select_range")
        value_array = values.require_value("the eigenvalues that select='v' chooses from")
        selected = np.flatnonzero((value_array > low) & (value_array <= high))
        values, vectors = array.gather(values, selected), array.gather(vectors, selected, axis=1)
    return values if eigvals_only else (values, vectors)
