"""`Discretization`: numbers as numbers of the ranges that they lie in."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import constant
from meshflow.keras import settings
from meshflow.keras.layers.preprocessing.adapting import EncodingLayer, host_values
from meshflow.keras.layers.preprocessing.encoding import (
    encoded,
    encoded_shape,
    mode_of,
    refuse_sparse,
)
from meshflow.ops import array, math

__all__ = ["Discretization"]


class Discretization(EncodingLayer):
    """The number of the range that each number lies in.

    Args:
      bin_boundaries: ends of the ranges, ascending; n of them make n + 1 ranges.
      num_bins: how many ranges `adapt` makes, with about equally many numbers in each.
      epsilon: how far the share of numbers below an end may be from what is wanted; `adapt` keeps about
        `1 / epsilon` numbers of all that it sees.
      output_mode: 'int', 'one_hot', 'multi_hot' or 'count'.
      sparse: not available.
      **kwargs: arguments of `Layer`; `bins` is the old name of `num_bins` or `bin_boundaries`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same with 'int'; otherwise (batch, bins).

    Raises:
      ValueError: when both boundaries and a number of ranges are given.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.Discretization([0.0, 1.0])
      >>> layer([-0.5, 0.0, 3.0]).numpy().tolist()
      [0, 1, 2]
    """

    _learns_by_batches = True

    def __init__(
        self,
        bin_boundaries: Any = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: str = "int",
        sparse: bool = False,
        **kwargs: Any,
    ) -> None:
        if "bins" in kwargs:
            bins = kwargs.pop("bins")
            num_bins, bin_boundaries = (bins, None) if isinstance(bins, int) else (None, bins)
        mode = mode_of(output_mode, ("int", "one_hot", "multi_hot", "count"), "Discretization")
        refuse_sparse(sparse, mode)
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

    def build(self, input_shape: Any) -> None:
        """Creates the weight that tells what was seen: numbers, ascending, and how many each stands for."""
        if self.input_bin_boundaries is None:
            self.summary = self.add_weight(
                "summary", (2, None), "float32", _nothing_seen, trainable=False
            )
        self.built = True

    @property
    def bin_boundaries(self) -> list[float]:
        """The ends of the ranges; none before `adapt`."""
        if self.input_bin_boundaries is not None:
            return sorted(self.input_bin_boundaries)
        if self.summary is None or not self.num_bins:
            return []
        with init_scope():
            seen = np.asarray(self.summary.numpy())
        return [float(end) for end in _compressed(seen, 1.0 / self.num_bins)[0, :-1]]

    def update_state(self, data: Any) -> None:
        """Looks at a batch.

        Raises:
          ValueError: when boundaries were given.
        """
        if self.input_bin_boundaries is not None:
            raise ValueError(
                "Cannot adapt a Discretization layer that has been initialized with `bin_boundaries`, use "
                f"`num_bins` instead. You passed `bin_boundaries={self.input_bin_boundaries}`."
            )
        if not self.built:
            raise RuntimeError("`build` must be called before `update_state`.")
        values = np.sort(host_values(data, "data to adapt to").reshape(-1).astype(np.float32))
        each = int(np.float32(len(values)) / np.float32(1.0 / self.epsilon))
        picked = values[each :: max(each, 1)]
        seen = np.stack([picked, np.full_like(picked, max(each, 1))])
        seen = np.concatenate([seen, self.summary.numpy()], axis=1)
        order = np.argsort(seen[0], kind="stable")
        self.summary.assign(_compressed(seen[:, order], self.epsilon))

    def reset_state(self) -> None:
        """Forgets what was learnt."""
        if self.summary is not None:
            self.summary.assign(_nothing_seen())

    def call(self, inputs: Any) -> Any:
        """The numbers of the ranges, encoded."""
        ends = self.bin_boundaries
        values = math.cast(inputs, "float32")
        numbers = array.zeros_like(values, "int32")
        if ends:
            flat = array.reshape(values, [-1])
            edges = constant(np.asarray(ends, np.float32))
            numbers = array.reshape(array.searchsorted(edges, flat, side="right"), values.shape)
        return encoded(numbers, self.output_mode, len(ends) + 1, self.output_dtype())

    def output_dtype(self) -> Any:
        """int64 unless the layer has another integer dtype; for vectors the compute dtype."""
        kind = self.compute_dtype or settings.floatx()
        return "int64" if self.output_mode == "int" and "int" not in kind else kind

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape, or that of the vectors."""
        depth = self.num_bins if self.num_bins is not None else len(self.bin_boundaries) + 1
        return encoded_shape(input_shape, self.output_mode, depth)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "bin_boundaries": self.input_bin_boundaries,
            "num_bins": self.num_bins,
            "epsilon": self.epsilon,
            "output_mode": self.output_mode,
            "sparse": self.sparse,
        }


def _nothing_seen(shape: Any = None, dtype: Any = None) -> np.ndarray:
    return np.zeros((2, 0), np.float32)


def _compressed(seen: np.ndarray, share: float) -> np.ndarray:
    """A summary of numbers in fewer ones, each of which ends a `share` of all that were seen."""
    if seen.shape[1] * share < 1:
        return seen
    ends = share + np.arange(0.0, 1.0, share)
    count = seen[1].cumsum()
    below = count / count[-1]
    reached = np.interp(ends, below, count)
    kept = [np.interp(ends, below, seen[0]), np.diff(reached, prepend=0.0)]
    return np.stack(kept).astype(np.float32)
