"""One output of all batches of `predict`, joined while later batches are computed."""

from __future__ import annotations

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.device_to_host import to_host
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, ragged, sparse_elements

# Bytes of a batch's output from which it is copied early: the device reuses its memory then, instead of using
# fresh pages for each batch.
EARLY_BYTES = 1 << 18


def _read(part: TensorLike) -> np.ndarray:
    """Return the value of a batch's output, which is only read."""
    return np.atleast_1d(to_host(part.array) if type(part) is Tensor else np.asarray(part))


def _remove_padding(part: SparseTensor) -> SparseTensor:
    """Remove the elements outside of the shape, which steps add to sparse batches of varying numbers of elements."""
    indices, shape = np.asarray(part.indices), np.asarray(part.dense_shape)
    is_inside = np.all(indices < shape, axis=1)
    return SparseTensor(indices[is_inside], np.asarray(part.values)[is_inside], shape)


class JoinedOutputs:
    """One output of all batches.

    Args:
      num_batches: Number of batches, or None if it is unknown.

    Example:
      >>> outputs = JoinedOutputs(2)
      >>> outputs.append(np.zeros([2, 3])), outputs.append(np.ones([1, 3]))
      (None, None)
      >>> outputs.join().tolist()
      [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """

    def __init__(self, num_batches: int | None) -> None:
        self._num_batches = num_batches
        self._parts: list[TensorLike] = []
        # The rows of earlier batches, with space for those of the others.
        self._joined: np.ndarray | None = None
        self._num_rows = 0

    def append(self, part: TensorLike) -> None:
        """Add the output of the next batch."""
        self._parts.append(part)
        # The last batch is still being computed.
        if len(self._parts) == 2 and self._copy(self._parts[0]):
            del self._parts[0]

    def _copy(self, part: TensorLike) -> bool:
        """Copy a batch's output, if its size and those of all outputs are known."""
        if type(part) is not Tensor or part.shape.rank == 0 or not self._num_batches:
            return False
        count, *sizes = part.array.shape
        if self._joined is None:
            if part.array.nbytes < EARLY_BYTES:
                return False
            try:
                self._joined = np.empty([self._num_batches * count, *sizes], part.array.dtype)
            except MemoryError:
                # The number of batches may be more than there are.
                return False
        joined, end = self._joined, self._num_rows + count
        if end > len(joined) or joined.shape[1:] != (*sizes,) or joined.dtype != part.array.dtype:
            return False
        rows = joined[self._num_rows : end]
        value = _read(part)
        if rows.dtype.isbuiltin != 1:
            # NumPy assigns elements of other dtypes, such as bfloat16, one by one.
            rows, value = rows.view(f"u{rows.itemsize}"), value.view(f"u{rows.itemsize}")
        rows[...] = value
        self._num_rows = end
        return True

    def join(self) -> np.ndarray | Tensor | SparseTensor:
        """Return the rows of all batches: a NumPy array, or a ragged or sparse tensor."""
        if self._parts and isinstance(self._parts[0], SparseTensor):
            return sparse_elements.concat(0, [_remove_padding(part) for part in self._parts])
        if self._parts and isinstance(self._parts[0], ragged.RaggedTensor):
            return array.concat(self._parts, 0)
        while self._parts and self._joined is not None and self._copy(self._parts[0]):
            del self._parts[0]
        if self._joined is None:
            return np.concatenate([_read(part) for part in self._parts])
        if self._parts:
            return np.concatenate([self._joined[: self._num_rows], *map(_read, self._parts)])
        if self._num_rows < len(self._joined):
            # No other array uses the memory.
            self._joined.resize((self._num_rows, *self._joined.shape[1:]), refcheck=False)
        return self._joined
