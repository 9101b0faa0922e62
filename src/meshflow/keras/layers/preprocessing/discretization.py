"""`Discretization`: numbers as ids of bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import constant
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import settings
from meshflow.keras.layers.keyword_arguments import EncodingArguments
from meshflow.keras.layers.preprocessing.encoding import (
    check_sparse,
    compute_encoded_shape,
    encode_ids,
    map_ids,
    parse_output_mode,
)
from meshflow.keras.layers.preprocessing.preprocessing_layer import EncodingLayer, read_host_values
from meshflow.keras.literals import OutputMode
from meshflow.ops import array, math

__all__ = ["Discretization"]


class Discretization(EncodingLayer):
    """Mapping of numbers to the ids of the bins that contain them.

    Args:
      bin_boundaries: Boundaries of the bins in ascending order; n boundaries define n + 1 bins.
      num_bins: Number of bins that `adapt` creates, each with about the same number of values.
      epsilon: Allowed error of the quantiles; `adapt` stores about `1 / epsilon` of the values.
      output_mode: 'int', 'one_hot', 'multi_hot' or 'count'.
      sparse: Whether vectors are returned as a `tf.SparseTensor`.
      **kwargs: Arguments of `Layer`; `bins` is an earlier name of `num_bins` or `bin_boundaries`.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape with 'int'; otherwise (batch, bins).

    Raises:
      ValueError: If both `bin_boundaries` and `num_bins` are passed.

    Example:
      >>> layer = tf.keras.layers.Discretization([0.0, 1.0])
      >>> layer([-0.5, 0.0, 3.0]).numpy().tolist()
      [0, 1, 2]
    """

    _depends_on_batch_size = True

    def __init__(
        self,
        bin_boundaries: Sequence[float] | None = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: OutputMode = "int",
        sparse: bool = False,
        **kwargs: Unpack[EncodingArguments],
    ) -> None:
        if "bins" in kwargs:
            bins = kwargs.pop("bins")
            if isinstance(bins, int):
                num_bins = bins
            else:
                bin_boundaries = bins
        mode = parse_output_mode(
            output_mode, ("int", "one_hot", "multi_hot", "count"), "Discretization"
        )
        check_sparse(sparse, mode)
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = "int64" if mode == "int" else settings.floatx()
        super().__init__(**kwargs)
        if num_bins is not None and num_bins < 0:
            raise ValueError(
                f"`num_bins` must be greater than or equal to 0. You passed `num_bins={num_bins}`"
            )
        if num_bins is not None and bin_boundaries is not None:
            raise ValueError(
                "Both `num_bins` and `bin_boundaries` should not be set. You passed "
                f"`num_bins={num_bins}` and `bin_boundaries={bin_boundaries}`"
            )
        self.input_bin_boundaries = None if bin_boundaries is None else list(bin_boundaries)
        self.num_bins, self.epsilon = num_bins, epsilon
        self.output_mode, self.sparse = mode, sparse
        self.summary: Any = None

    def build(self, input_shape: ShapeLike) -> None:
        """Create the summary: sorted values, and the number of values that each represents."""
        if self.input_bin_boundaries is None:
            self.summary = self.add_weight(
                "summary", (2, None), "float32", _make_empty_summary, trainable=False
            )
        self.built = True

    @property
    def bin_boundaries(self) -> list[float]:
        """Return the boundaries of the bins; an empty list before `adapt`."""
        if self.input_bin_boundaries is not None:
            return sorted(self.input_bin_boundaries)
        if self.summary is None or not self.num_bins:
            return []
        with init_scope():
            summary = np.asarray(self.summary.numpy())
        return [float(end) for end in _compress_summary(summary, 1.0 / self.num_bins)[0, :-1]]

    def update_state(self, data: TensorLike) -> None:
        """Merge a batch into the summary.

        Raises:
          ValueError: If boundaries were passed to the constructor.
        """
        if self.input_bin_boundaries is not None:
            raise ValueError(
                "Cannot adapt a Discretization layer that has been initialized with `bin_boundaries`, use "
                f"`num_bins` instead. You passed `bin_boundaries={self.input_bin_boundaries}`."
            )
        if not self.built:
            raise RuntimeError("`build` must be called before `update_state`.")
        values = np.sort(read_host_values(data, "data to adapt to").reshape(-1).astype(np.float32))
        stride = int(np.float32(len(values)) / np.float32(1.0 / self.epsilon))
        samples = values[stride :: max(stride, 1)]
        summary = np.stack([samples, np.full_like(samples, max(stride, 1))])
        summary = np.concatenate([summary, self.summary.numpy()], axis=1)
        order = np.argsort(summary[0], kind="stable")
        self.summary.assign(_compress_summary(summary[:, order], self.epsilon))

    def reset_state(self) -> None:
        """Reset the learned state."""
        if self.summary is not None:
            self.summary.assign(_make_empty_summary())

    def call(self, inputs: TensorLike | SparseTensor) -> Tensor | SparseTensor:
        """Find the bins, and encode their ids."""
        ids = map_ids(self._find_bins, inputs)
        depth = len(self.bin_boundaries) + 1
        return encode_ids(ids, self.output_mode, depth, self.get_output_dtype(), sparse=self.sparse)

    def _find_bins(self, inputs: TensorLike) -> Tensor:
        boundaries = self.bin_boundaries
        values = math.cast(inputs, "float32")
        ids = array.zeros_like(values, "int32")
        if boundaries:
            flat = array.reshape(values, [-1])
            edges = constant(np.asarray(boundaries, np.float32))
            ids = array.reshape(array.searchsorted(edges, flat, side="right"), values.shape)
        return ids

    def get_output_dtype(self) -> str:
        """Return the dtype of the outputs: with 'int' an integer dtype of the layer or int64."""
        dtype = self.compute_dtype or settings.floatx()
        return "int64" if self.output_mode == "int" and "int" not in dtype else dtype

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the encoded outputs."""
        depth = self.num_bins if self.num_bins is not None else len(self.bin_boundaries) + 1
        return compute_encoded_shape(input_shape, self.output_mode, depth)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "bin_boundaries": self.input_bin_boundaries,
            "num_bins": self.num_bins,
            "epsilon": self.epsilon,
            "output_mode": self.output_mode,
            "sparse": self.sparse,
        }


def _make_empty_summary(shape: ShapeLike = None, dtype: DTypeLike | None = None) -> np.ndarray:
    return np.zeros((2, 0), np.float32)


def _compress_summary(summary: np.ndarray, share: float) -> np.ndarray:
    """Reduce a summary to fewer values, each of which represents a fraction `share` of the values."""
    if summary.shape[1] * share < 1:
        return summary
    quantiles = share + np.arange(0.0, 1.0, share)
    cumulative = summary[1].cumsum()
    fractions = cumulative / cumulative[-1]
    counts = np.diff(np.interp(quantiles, fractions, cumulative), prepend=0.0)
    return np.stack([np.interp(quantiles, fractions, summary[0]), counts]).astype(np.float32)
