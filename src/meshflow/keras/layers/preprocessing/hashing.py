"""Layers that map categories to ids by hashes, without a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.dtypes import string
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, PyTree
from meshflow.keras import settings
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.layers.preprocessing.encoding import (
    check_sparse,
    compute_encoded_shape,
    encode_ids,
    map_ids,
    parse_output_mode,
)
from meshflow.keras.layers.preprocessing.preprocessing_layer import EncodingLayer, read_host_values
from meshflow.keras.literals import OutputMode
from meshflow.ops import array, hashing, math, strings
from meshflow.ops.deferred_host_values import find_recording

__all__ = ["HashedCrossing", "Hashing"]


class _HashLayer(EncodingLayer):
    """Base class of the hashing layers."""

    runs_on_host = True
    modes: tuple[str, ...] = ("int", "one_hot")

    def __init__(
        self,
        num_bins: int,
        output_mode: OutputMode,
        sparse: bool,
        **kwargs: Any,
    ) -> None:
        mode = parse_output_mode(output_mode, self.modes, type(self).__name__)
        check_sparse(sparse, mode)
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = "int64" if mode == "int" else settings.floatx()
        super().__init__(**kwargs)
        self.num_bins, self.output_mode, self.sparse = num_bins, mode, sparse

    def get_output_dtype(self) -> str:
        """Return the dtype of the outputs: with 'int' an integer dtype of the layer or int64."""
        dtype = self.compute_dtype or settings.floatx()
        return "int64" if self.output_mode == "int" and "int" not in dtype else dtype

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            **self._own_config(),
            "output_mode": self.output_mode,
            "sparse": self.sparse,
        }

    def _own_config(self) -> Config:
        """Return the part of the configuration before `output_mode`."""
        return {}


class Hashing(_HashLayer):
    """Hashing of strings or integers to ids below `num_bins`, by FarmHash or, with a salt, SipHash.

    Args:
      num_bins: Number of ids.
      mask_value: Value that is mapped to id 0, which then is used for no other value.
      salt: Key of SipHash, an integer or a pair of integers.
      output_mode: 'int', 'one_hot', 'multi_hot' or 'count'.
      sparse: Whether vectors are returned as a `tf.SparseTensor`.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape with 'int'; otherwise (batch, num_bins).

    Raises:
      ValueError: If `num_bins` is not positive, or the salt is invalid.

    Example:
      >>> tf.keras.layers.Hashing(3)([["A"], ["B"]]).numpy().tolist()
      [[1], [0]]
    """

    modes = ("int", "one_hot", "multi_hot", "count")

    def __init__(
        self,
        num_bins: int,
        mask_value: str | int | None = None,
        salt: int | Sequence[int] | None = None,
        output_mode: OutputMode = "int",
        sparse: bool = False,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        if num_bins is None or num_bins <= 0:
            raise ValueError(
                "The `num_bins` for `Hashing` cannot be `None` or non-positive values. "
                f"Received: num_bins={num_bins}."
            )
        super().__init__(num_bins, output_mode, sparse, **kwargs)
        self.mask_value = mask_value
        self.salt: Any = [salt, salt] if isinstance(salt, int) else salt
        pair = isinstance(self.salt, (tuple, list)) and len(self.salt) == 2
        if salt is not None and not pair:
            raise ValueError(
                "The `salt` argument for `Hashing` can only be a tuple of size 2 integers, or a single integer. "
                f"Received: salt={salt}."
            )

    def call(self, inputs: TensorLike | SparseTensor) -> Tensor | SparseTensor:
        """Hash and encode the inputs."""
        if find_recording(inputs) is not None:
            return self._record_call(inputs)
        ids = map_ids(self._find_ids, inputs)
        return encode_ids(
            ids, self.output_mode, self.num_bins, self.get_output_dtype(), sparse=self.sparse
        )

    def _find_ids(self, inputs: TensorLike) -> Tensor:
        values = read_host_values(inputs, "values to hash")
        if values.dtype.kind not in "Oiu":
            raise InvalidArgumentError(
                f"Hashing takes strings or integers, got {values.dtype}. [Op:StringToHashBucketFast]"
            )
        words = values
        if values.dtype != object:
            words = np.empty(values.shape, object)
            words.reshape(-1)[:] = [b"%d" % v for v in values.reshape(-1).tolist()]
        ids = np.asarray(self._hash_words(Tensor(words)).array)
        if self.mask_value is not None:
            mask: Any = self.mask_value
            mask = mask.encode() if isinstance(mask, str) else mask
            ids = np.where(values == mask, 0, ids)
        return Tensor(ids)

    def _hash_words(self, words: Tensor) -> Tensor:
        """Compute the ids of strings."""
        offset = 0 if self.mask_value is None or self.num_bins < 2 else 1
        bins = self.num_bins - offset
        if self.salt is None:
            ids = hashing.to_hash_bucket_fast(words, bins)
        else:
            ids = hashing.to_hash_bucket_strong(words, bins, self.salt)
        return ids + offset

    def _record_call(self, inputs: TensorLike) -> Tensor | SparseTensor:
        """Compute the outputs by ops, for a function that is being saved."""
        words = inputs if inputs.dtype is string else strings.as_string(inputs)
        ids = self._hash_words(words)
        if self.mask_value is not None:
            masked = math.equal(inputs, self.mask_value)
            ids = array.where(masked, array.zeros_like(ids), ids)
        return encode_ids(
            ids, self.output_mode, self.num_bins, self.get_output_dtype(), sparse=self.sparse
        )

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the encoded outputs."""
        return compute_encoded_shape(input_shape, self.output_mode, self.num_bins)

    def _own_config(self) -> Config:
        return {"salt": self.salt, "mask_value": self.mask_value}


class HashedCrossing(_HashLayer):
    """Hashing of each combination of categories from several tensors to an id below `num_bins`.

    Args:
      num_bins: Number of ids.
      output_mode: 'int' or 'one_hot'.
      sparse: Whether vectors are returned as a `tf.SparseTensor`.
      **kwargs: Arguments of `Layer`.

    Input shape:
      A list or tuple of tensors of the same shape, (batch,) or (batch, 1).

    Output shape:
      The same as the input shape with 'int'; with 'one_hot' (batch, num_bins).

    Example:
      >>> layer = tf.keras.layers.HashedCrossing(5)
      >>> layer((tf.constant(["A", "B"]), tf.constant([101, 101]))).numpy().tolist()
      [1, 4]
    """

    _accepts_list = True

    def __init__(
        self,
        num_bins: int,
        output_mode: OutputMode = "int",
        sparse: bool = False,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(num_bins, output_mode, sparse, **kwargs)

    def call(self, inputs: Sequence[Tensor]) -> Tensor | SparseTensor:
        """Hash and encode the combinations.

        Args:
          inputs: Two or more tensors of the same shape: [], [batch] or [batch, 1].

        Raises:
          ValueError: If the shapes differ or are not supported, or a dtype is neither integer nor
            string.
        """
        self._check_inputs(inputs)
        columns = [read_host_values(t, "values to cross").reshape(-1) for t in inputs]
        fingerprints = [_compute_fingerprints(c) for c in columns]
        ids = [
            hashing.cross_fingerprints(row) % self.num_bins
            for row in zip(*fingerprints, strict=True)
        ]
        shaped_ids = np.asarray(ids, np.int64).reshape(tuple(inputs[0].shape))
        return encode_ids(
            Tensor(shaped_ids),
            self.output_mode,
            self.num_bins,
            self.get_output_dtype(),
            sparse=self.sparse,
        )

    def _check_inputs(self, inputs: PyTree) -> None:
        if not isinstance(inputs, (list, tuple)):
            raise ValueError(
                f"`HashedCrossing` should be called on a list or tuple of inputs. Received: inputs={inputs}"
            )
        if len(inputs) < 2:
            raise ValueError(
                f"`HashedCrossing` should be called on at least two inputs. Received: inputs={inputs}"
            )
        if any(not (t.dtype.is_integer or t.dtype is string) for t in inputs):
            raise ValueError(
                f"`HashedCrossing` inputs should have an integer or string dtype. Received: inputs={inputs}"
            )
        shape = tuple(inputs[0].shape)
        if (
            len(shape) > 2
            or (len(shape) == 2 and shape[1] != 1)
            or any(tuple(t.shape) != shape for t in inputs)
        ):
            raise ValueError(
                "All `HashedCrossing` inputs should have one shape: `[]`, `[batch_size]` or `[batch_size, 1]`. "
                f"Received: inputs={inputs}"
            )

    def _get_input_shape(self, shapes: list[TensorShape]) -> Any:
        return shapes

    def compute_output_shape(self, input_shape: PyTree) -> TensorShape:
        """Compute the shape of the encoded outputs."""
        first = input_shape[0] if isinstance(input_shape, (list, tuple)) else input_shape
        return compute_encoded_shape(TensorShape(first), self.output_mode, self.num_bins)


def _compute_fingerprints(values: np.ndarray) -> list[int]:
    if values.dtype == object:
        return [hashing.fingerprint_word(v) for v in values]
    return [int(v) & 0xFFFFFFFFFFFFFFFF for v in values]
