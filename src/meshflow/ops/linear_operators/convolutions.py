"""Linear operators of circular and linear convolutions, by Fourier transforms."""

from __future__ import annotations

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, complex64, complex128
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import array, debugging, linalg, math, signal
from meshflow.ops.linear_operators.linear_operator import (
    Hint,
    LinearOperator,
    OperatorTensor,
    broadcast_shapes,
    make_square_shape,
    take_adjoint,
    take_conjugate,
)

__all__ = [
    "LinearOperatorCirculant",
    "LinearOperatorCirculant2D",
    "LinearOperatorCirculant3D",
    "LinearOperatorToeplitz",
]

_TRANSFORMS = {1: signal.fft, 2: signal.fft2d, 3: signal.fft3d}
_INVERSE_TRANSFORMS = {1: signal.ifft, 2: signal.ifft2d, 3: signal.ifft3d}


def _get_complex_dtype(dtype: DType) -> DType:
    return complex128 if dtype.real_dtype.size == 8 else complex64


class LinearOperatorCirculant(LinearOperator):
    """Operator of a circulant matrix: the circular convolution with a kernel.

    Args:
      spectrum: Fourier transform of the kernel, of shape [..., N].
      input_output_dtype: Dtype of the matrix; the imaginary part is dropped for real dtypes.
      is_non_singular: Whether it is invertible.
      is_self_adjoint: Whether it equals its conjugate transpose; True for real spectra.
      is_positive_definite: Whether it is positive definite.
      is_square: True.
      name: Name of the operator.

    Example:
      >>> spectrum = tf.signal.fft(tf.constant([2.0, 1.0, 0.0], tf.complex64))
      >>> operator = tf.linalg.LinearOperatorCirculant(spectrum, tf.float32)
      >>> operator.to_dense().numpy().round(5).tolist()
      [[2.0, 0.0, 1.0], [1.0, 2.0, 0.0], [0.0, 1.0, 2.0]]
    """

    # Number of dimensions of the convolution.
    _block_depth = 1

    _original_spectrum = OperatorTensor()

    def __init__(
        self,
        spectrum: TensorLike,
        input_output_dtype: DTypeLike = complex64,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = True,
        name: str = "LinearOperatorCirculant",
    ) -> None:
        if not is_square:
            raise ValueError("A circulant operator is always square.")
        self._original_spectrum = spectrum
        if not self._original_spectrum.dtype.is_complex:
            is_self_adjoint = True
        dtype = as_dtype(input_output_dtype)
        self._complex_dtype = _get_complex_dtype(dtype)
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, True)
        parameters = {"spectrum": spectrum, "input_output_dtype": input_output_dtype}
        super().__init__(dtype, None, *hints, name, parameters)

    @property
    def _spectrum(self) -> Tensor:
        return math.cast(self._original_spectrum, self._complex_dtype)

    @property
    def spectrum(self) -> Tensor:
        """Return the Fourier transform of the kernel."""
        return self._spectrum

    @property
    def block_depth(self) -> int:
        """Return the number of dimensions of the convolution."""
        return self._block_depth

    @property
    def block_shape(self) -> TensorShape:
        """Return the shape of the kernel."""
        return self._original_spectrum.shape[-self._block_depth :]

    def block_shape_tensor(self) -> Tensor:
        """Return the shape of the kernel as a tensor."""
        return convert_to_tensor(self.block_shape.as_list(), dtype="int32")

    def assert_hermitian_spectrum(self, name: str = "assert_hermitian_spectrum") -> PyTree:
        """Check that the spectrum is Hermitian, so that the kernel is real.

        Raises:
          InvalidArgumentError: If the imaginary part of the kernel is not 0 up to rounding.
        """
        kernel = self.convolution_kernel()
        limit = (
            5
            * np.finfo(kernel.dtype.as_numpy_dtype).eps
            * float(self.block_shape.num_elements() or 1)
        )
        return debugging.assert_less_equal(
            math.abs(math.imag(kernel)),
            math.cast(limit, kernel.dtype.real_dtype),
            "Spectrum was not Hermitian",
        )

    def convolution_kernel(self, name: str = "convolution_kernel") -> Tensor:
        """Return the kernel."""
        return self._cast(_INVERSE_TRANSFORMS[self._block_depth](self._spectrum))

    def _cast(self, values: Tensor) -> Tensor:
        return math.cast(values if self.dtype.is_complex else math.real(values), self.dtype)

    def _get_values(self) -> Tensor:
        """Return the eigenvalues, of shape [..., N]."""
        return array.reshape(self._spectrum, self.shape[:-1])

    def _shape(self) -> TensorShape:
        batch = self._original_spectrum.shape[: -self._block_depth]
        return make_square_shape(batch + [self.block_shape.num_elements()])

    def _multiply_spectrum(self, x: Tensor, spectrum: Tensor, adjoint_arg: bool) -> Tensor:
        """Multiply the transforms of the columns by a spectrum."""
        x = take_adjoint(x, adjoint_arg)
        columns = math.cast(linalg.matrix_transpose(x), self._complex_dtype)
        blocks = array.reshape(columns, columns.shape[:-1] + self.block_shape)
        # The columns are a batch dimension in front of the block.
        spectrum = array.expand_dims(spectrum, -self._block_depth - 1)
        product = _TRANSFORMS[self._block_depth](blocks) * spectrum
        result = _INVERSE_TRANSFORMS[self._block_depth](product)
        batch = result.shape[: -self._block_depth]
        rows = array.reshape(result, batch + [self.range_dimension])
        return self._cast(linalg.matrix_transpose(rows))

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        spectrum = take_conjugate(self._spectrum, adjoint)
        return self._multiply_spectrum(x, spectrum, adjoint_arg)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        spectrum = take_conjugate(self._spectrum, adjoint)
        return self._multiply_spectrum(rhs, 1.0 / spectrum, adjoint_arg)

    def _diag_part(self) -> Tensor:
        mean = array.expand_dims(math.reduce_mean(self._get_values(), axis=-1), -1)
        return self._cast(array.repeat(mean, self.domain_dimension, axis=-1))

    def _determinant(self) -> Tensor:
        return self._cast(math.reduce_prod(self._get_values(), axis=-1))

    def _log_abs_determinant(self) -> Tensor:
        return math.cast(
            math.reduce_sum(math.log(math.abs(self._get_values())), axis=-1), self.dtype
        )

    def _eigvals(self) -> Tensor:
        return array.sort(math.cast(math.real(self._get_values()), self.dtype.real_dtype))

    def _get_singular_values(self) -> Tensor:
        return math.abs(self._get_values())


class LinearOperatorCirculant2D(LinearOperatorCirculant):
    """Operator of a circular convolution in two dimensions.

    The arguments are those of `LinearOperatorCirculant`, with a spectrum of shape [..., N0, N1].

    Example:
      >>> tf.linalg.LinearOperatorCirculant2D(tf.ones([2, 3], tf.complex64)).shape
      TensorShape([6, 6])
    """

    _block_depth = 2


class LinearOperatorCirculant3D(LinearOperatorCirculant):
    """Operator of a circular convolution in three dimensions.

    The arguments are those of `LinearOperatorCirculant`, with a spectrum of shape [..., N0, N1, N2].

    Example:
      >>> tf.linalg.LinearOperatorCirculant3D(tf.ones([2, 3, 2], tf.complex64)).shape
      TensorShape([12, 12])
    """

    _block_depth = 3


class LinearOperatorToeplitz(LinearOperator):
    """Operator of a Toeplitz matrix, with equal elements along each diagonal.

    Args:
      col: First column, of shape [..., N].
      row: First row, of shape [..., N].
      is_non_singular: Whether it is invertible.
      is_self_adjoint: Whether it equals its conjugate transpose.
      is_positive_definite: Whether it is positive definite.
      is_square: True.
      name: Name of the operator.

    Example:
      >>> operator = tf.linalg.LinearOperatorToeplitz([1.0, 2.0, 3.0], [1.0, 4.0, 5.0])
      >>> operator.to_dense().numpy().tolist()
      [[1.0, 4.0, 5.0], [2.0, 1.0, 4.0], [3.0, 2.0, 1.0]]
    """

    _col, _row = OperatorTensor(), OperatorTensor()

    def __init__(
        self,
        col: TensorLike,
        row: TensorLike,
        is_non_singular: Hint = None,
        is_self_adjoint: Hint = None,
        is_positive_definite: Hint = None,
        is_square: Hint = None,
        name: str = "LinearOperatorToeplitz",
    ) -> None:
        self._col, self._row = col, row
        if self._col.shape[-1] != self._row.shape[-1] or is_square is False:
            raise ValueError("Expected square matrices: `col` and `row` have one length.")
        hints = (is_non_singular, is_self_adjoint, is_positive_definite, True)
        super().__init__(self._col.dtype, None, *hints, name, {"col": col, "row": row})

    @property
    def col(self) -> Tensor:
        """Return the first column."""
        return self._col

    @property
    def row(self) -> Tensor:
        """Return the first row."""
        return self._row

    def _get_diagonals(self) -> Tensor:
        """Return the elements of all diagonals, from the lower left to the upper right corner."""
        col, row = (array.broadcast_to(v, self.shape[:-1]) for v in (self._col, self._row))
        return array.concat([array.reverse(col, [-1]), row[..., 1:]], -1)

    def _shape(self) -> TensorShape:
        return make_square_shape(broadcast_shapes([self._col.shape, self._row.shape]))

    def _to_dense(self) -> Tensor:
        size = self._col.shape[-1]
        indices = np.arange(size)[None, :] - np.arange(size)[:, None] + size - 1
        return array.gather(self._get_diagonals(), indices, axis=-1)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Tensor:
        x = take_adjoint(x, adjoint_arg)
        size = self._col.shape[-1]
        diagonals = self._get_diagonals()
        # A circulant matrix of twice the size contains the matrix in its corner.
        above, below = diagonals[..., size:], array.reverse(diagonals[..., :size], [-1])
        gap = array.zeros_like(below[..., :1])
        kernel = array.concat([below, gap, array.reverse(above, [-1])], -1)
        spectrum = signal.fft(math.cast(kernel, _get_complex_dtype(self.dtype)))
        circulant = LinearOperatorCirculant(spectrum, self.dtype)
        padding = [[0, 0]] * (len(x.shape) - 2) + [[0, size], [0, 0]]
        return circulant.matmul(array.pad(x, padding), adjoint=adjoint)[..., :size, :]

    def _diag_part(self) -> Tensor:
        return array.broadcast_to(self._col[..., :1], self.shape[:-1])
