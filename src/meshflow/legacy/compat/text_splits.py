"""`tf.compat.v1.strings.split` and `tf.compat.v1.string_split`, which return sparse tensors by default."""

from __future__ import annotations

import re

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.tensor import TensorLike
from meshflow.legacy.compat.public_package import tf
from meshflow.ops.ragged import RaggedTensor
from meshflow.ops.strings import split_each, to_bytes


def _convert_result(rows: RaggedTensor, result_type: str) -> RaggedTensor | SparseTensor:
    if result_type not in ("SparseTensor", "RaggedTensor"):
        raise ValueError(
            f"result_type must be 'RaggedTensor' or 'SparseTensor', got {result_type!r}."
        )
    return rows.to_sparse() if result_type == "SparseTensor" else rows


def split(
    input: TensorLike = None,
    sep: TensorLike | None = None,
    maxsplit: int = -1,
    result_type: str = "SparseTensor",
    source: TensorLike = None,
    name: str | None = None,
) -> RaggedTensor | SparseTensor:
    """Split strings, a vector or a tensor of higher rank.

    Args:
      input: The strings.
      sep: Separator; by default any white space.
      maxsplit: Maximum number of splits; -1 for all.
      result_type: 'SparseTensor' or 'RaggedTensor'.
      source: Another name of `input`.
      name: Ignored.

    Example:
      >>> tf.compat.v1.strings.split(["a b", "c"]).dense_shape.numpy().tolist()
      [2, 2]
    """
    strings = tf.convert_to_tensor(source) if input is None else input
    if not isinstance(strings, tf.RaggedTensor):
        strings = tf.convert_to_tensor(strings, tf.string)
        strings = strings if len(strings.shape) else strings[tf.newaxis]
    return _convert_result(tf.strings.split(strings, sep, maxsplit), result_type)


def string_split(
    source: TensorLike,
    sep: TensorLike | None = None,
    skip_empty: bool = True,
    delimiter: TensorLike | None = None,
    result_type: str = "SparseTensor",
    name: str | None = None,
) -> RaggedTensor | SparseTensor:
    """Split strings at each of several characters.

    Args:
      source: A vector of strings.
      sep: The characters, by default a space. The empty string splits into bytes.
      skip_empty: Whether to leave out empty strings.
      delimiter: Another name of `sep`.
      result_type: 'SparseTensor' or 'RaggedTensor'.
      name: Ignored.

    Raises:
      ValueError: If the characters are no scalar.

    Example:
      >>> tf.compat.v1.string_split(["a|b c", "d"], "| ").values.numpy().tolist()
      [b'a', b'b', b'c', b'd']
    """
    if sep is None:
        sep = " " if delimiter is None else delimiter
    separators = to_bytes(sep)

    def split_one(text: bytes) -> list[bytes]:
        if separators:
            parts = re.split(b"[" + re.escape(separators) + b"]", text)
        else:
            parts = [bytes([c]) for c in text]
        return [part for part in parts if part or not skip_empty]

    return _convert_result(split_each(source, "string_split", split_one), result_type)
