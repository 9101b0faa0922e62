"""Linear operators of matrices that consist of blocks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import add, mul

import numpy as np

from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import array
from meshflow.ops.linear_operators.combinations import infer_hint, infer_hints
from meshflow.ops.linear_operators.linear_operator import (
    Hint,
    LinearOperator,
    broadcast_batches,
    broadcast_shapes,
    take_adjoint,
)

__all__ = ["LinearOperatorBlockDiag", "LinearOperatorBlockLowerTriangular"]


class _BlockOperator(LinearOperator):
    """Base class of operators of blocks, which also accept a list with one matrix for each block."""

    def _get_blocks(self) -> list[LinearOperator]:
        """Return the blocks on the diagonal."""
        raise NotImplementedError

    def _is_blockwise(self, x: PyTree, rank: int = 2) -> bool:
        """Check whether `x` is a list of one array for each block, rather than of rows of one matrix."""
        return (
            isinstance(x, (list, tuple))
            and len(x) == len(self._get_blocks())
            and all(np.ndim(block) >= rank for block in x)
        )

    def _convert_blocks(self, x: Sequence[TensorLike], adjoint: bool) -> list[Tensor]:
        return [take_adjoint(self._convert(block), adjoint) for block in x]

    def matmul(
        self,
        x: PyTree,
        adjoint: bool = False,
        adjoint_arg: bool = False,
        name: str = "matmul",
    ) -> PyTree:
        """Multiply by a matrix, or a list with one matrix for each block."""
        if not self._is_blockwise(x):
            return super().matmul(x, adjoint, adjoint_arg)
        return self._multiply(self._convert_blocks(x, adjoint_arg), adjoint)

    def solve(
        self,
        rhs: PyTree,
        adjoint: bool = False,
        adjoint_arg: bool = False,
        name: str = "solve",
    ) -> PyTree:
        """Solve equations for a matrix, or a list with one matrix for each block."""
        if not self._is_blockwise(rhs):
            return super().solve(rhs, adjoint, adjoint_arg)
        return self._solve_blocks(self._convert_blocks(rhs, adjoint_arg), adjoint)

    def matvec(self, x: PyTree, adjoint: bool = False, name: str = "matvec") -> PyTree:
        """Multiply by vectors, or a list with one vector for each block."""
        if not self._is_blockwise(x, rank=1):
            return super().matvec(x, adjoint)
        columns = [array.expand_dims(self._convert(v), -1) for v in x]
        return [array.squeeze(y, axis=-1) for y in self._multiply(columns, adjoint)]

    def solvevec(self, rhs: PyTree, adjoint: bool = False, name: str = "solve") -> PyTree:
        """Solve equations for vectors, or a list with one vector for each block."""
        if not self._is_blockwise(rhs, rank=1):
            return super().solvevec(rhs, adjoint)
        columns = [array.expand_dims(self._convert(v), -1) for v in rhs]
        return [array.squeeze(y, axis=-1) for y in self._solve_blocks(columns, adjoint)]

    def _multiply(self, x: list[Tensor], adjoint: bool) -> list[Tensor]:
        raise NotImplementedError

    def _solve_blocks(self, rhs: list[Tensor], adjoint: bool) -> list[Tensor]:
        raise NotImplementedError

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        x = take_adjoint(x, adjoint_arg)
        sizes = [o.range_dimension if adjoint else o.domain_dimension for o in self._get_blocks()]
        return _concatenate(self._multiply(array.split(x, sizes, axis=-2), adjoint))

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        rhs = take_adjoint(rhs, adjoint_arg)
        sizes = [o.range_dimension for o in self._get_blocks()]
        return _concatenate(self._solve_blocks(array.split(rhs, sizes, axis=-2), adjoint))

    def _shape(self) -> TensorShape:
        blocks = self._get_blocks()
        rows = sum(o.range_dimension for o in blocks)
        columns = sum(o.domain_dimension for o in blocks)
        return self._get_batch_shape() + [rows, columns]

    def _get_batch_shape(self) -> TensorShape:
        return broadcast_shapes(o.batch_shape for o in self._get_blocks())

    def _diag_part(self) -> Tensor:
        if not all(o.is_square for o in self._get_blocks()):
            return super()._diag_part()
        parts = [array.expand_dims(o.diag_part(), -1) for o in self._get_blocks()]
        return _concatenate(parts)[..., 0]

    def _determinant(self) -> Tensor:
        return functools.reduce(mul, [o.determinant() for o in self._get_blocks()])

    def _log_abs_determinant(self) -> Tensor:
        return functools.reduce(add, [o.log_abs_determinant() for o in self._get_blocks()])


def _concatenate(parts: list[Tensor]) -> Tensor:
    """Concatenate matrices along the rows."""
    return array.concat(broadcast_batches(parts), -2)


class LinearOperatorBlockDiag(_BlockOperator):
    """Operator with other operators as the blocks of its diagonal.

    Args:
      operators: The blocks.
      is_non_singular: Whether it is invertible; by default True if all blocks are.
      is_self_adjoint: Whether it equals its conjugate transpose; as `is_non_singular`.
      is_positive_definite: Whether it is positive definite; as `is_non_singular`.
      is_square: Whether it is square.
      name: Name of the operator.

    Example:
      >>> blocks = [tf.linalg.LinearOperatorIdentity(1), tf.linalg.LinearOperatorDiag([2.0, 3.0])]
      >>> operator = tf.linalg.LinearOperatorBlockDiag(blocks)
      >>> operator.matvec([1.0, 1.0, 1.0]).numpy().tolist()
      [1.0, 2.0, 3.0]
    """

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = True,
        name: str | None = None,
    ) -> None:
        if not operators:
            raise ValueError("Expected a non-empty list of operators.")
        self._operators = list(operators)
        hints = infer_hints(operators, is_non_singular, is_self_adjoint, is_positive_definite)
        parameters = {"operators": operators}
        super().__init__(operators[0].dtype, None, *hints, is_square, name, parameters)

    @property
    def operators(self) -> list[LinearOperator]:
        """Return the blocks."""
        return list(self._operators)

    def _get_blocks(self) -> list[LinearOperator]:
        return self._operators

    def _multiply(self, x: list[Tensor], adjoint: bool) -> list[Tensor]:
        return [o.matmul(v, adjoint=adjoint) for o, v in zip(self._operators, x, strict=True)]

    def _solve_blocks(self, rhs: list[Tensor], adjoint: bool) -> list[Tensor]:
        return [o.solve(v, adjoint=adjoint) for o, v in zip(self._operators, rhs, strict=True)]

    def _inverse(self) -> LinearOperator:
        return LinearOperatorBlockDiag([o.inverse() for o in self._operators])

    def _adjoint(self) -> LinearOperator:
        blocks = [o.adjoint() for o in self._operators]
        return LinearOperatorBlockDiag(blocks, self.is_non_singular, is_square=self.is_square)

    def _cholesky(self) -> LinearOperator:
        return LinearOperatorBlockDiag([o.cholesky() for o in self._operators])


class LinearOperatorBlockLowerTriangular(_BlockOperator):
    """Operator of a block lower triangular matrix.

    Args:
      operators: Rows of blocks: one in the first, two in the second, and so on; the last block of each
        row is square.
      is_non_singular: Whether it is invertible; by default True if all diagonal blocks are.
      is_self_adjoint: Whether it equals its conjugate transpose.
      is_positive_definite: Whether it is positive definite.
      is_square: True.
      name: Name of the operator.

    Example:
      >>> one = tf.linalg.LinearOperatorIdentity(1)
      >>> operator = tf.linalg.LinearOperatorBlockLowerTriangular([[one], [one, one]])
      >>> operator.to_dense().numpy().tolist(), operator.solvevec([1.0, 3.0]).numpy().tolist()
      ([[1.0, 0.0], [1.0, 1.0]], [1.0, 2.0])
    """

    def __init__(
        self,
        operators: Sequence[Sequence[LinearOperator]],
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorBlockLowerTriangular",
    ) -> None:
        self._rows = [list(row) for row in operators]
        if not self._rows or any(len(row) != i + 1 for i, row in enumerate(self._rows)):
            raise ValueError("Row i of a block lower triangular operator has i + 1 blocks.")
        diagonal = [row[-1] for row in self._rows]
        if is_square is False or not all(block.is_square for block in diagonal):
            raise ValueError("Diagonal blocks of a block lower triangular operator are square.")
        is_non_singular = infer_hint(is_non_singular, diagonal, "is_non_singular")
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, True)
        super().__init__(diagonal[0].dtype, None, *hints, name, {"operators": operators})

    @property
    def operators(self) -> list[list[LinearOperator]]:
        """Return the rows of blocks."""
        return [list(row) for row in self._rows]

    def _get_blocks(self) -> list[LinearOperator]:
        return [row[-1] for row in self._rows]

    def _get_batch_shape(self) -> TensorShape:
        return broadcast_shapes(block.batch_shape for row in self._rows for block in row)

    def _list_terms(self, index: int, adjoint: bool) -> list[tuple[int, LinearOperator]]:
        """Return the blocks next to diagonal block `index`, with the indices of their operands."""
        if adjoint:
            return [(i, row[index]) for i, row in enumerate(self._rows) if i > index]
        return list(enumerate(self._rows[index][:-1]))

    def _multiply(self, x: list[Tensor], adjoint: bool) -> list[Tensor]:
        results = []
        for index, row in enumerate(self._rows):
            total = row[-1].matmul(x[index], adjoint=adjoint)
            for i, block in self._list_terms(index, adjoint):
                total = total + block.matmul(x[i], adjoint=adjoint)
            results.append(total)
        return results

    def _solve_blocks(self, rhs: list[Tensor], adjoint: bool) -> list[Tensor]:
        results: list[Tensor] = list(rhs)
        indices = range(len(self._rows))
        for index in reversed(indices) if adjoint else indices:
            rest = rhs[index]
            for i, block in self._list_terms(index, adjoint):
                rest = rest - block.matmul(results[i], adjoint=adjoint)
            results[index] = self._rows[index][-1].solve(rest, adjoint=adjoint)
        return results
