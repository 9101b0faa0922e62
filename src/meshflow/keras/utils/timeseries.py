"""Datasets of windows of a time series."""

from __future__ import annotations

import numpy as np

from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import TensorLike
from meshflow.data import Dataset, structure
from meshflow.data.sources import IndexedDataset
from meshflow.environment.types import PyTree


def timeseries_dataset_from_array(
    data: TensorLike,
    targets: TensorLike | None,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
) -> Dataset:
    """Create a dataset of windows of consecutive time steps and their targets.

    Args:
      data: Array [step, ...]; windows of a memory-mapped array are read when they are needed.
      targets: Target for each first step of a window; None for windows without targets.
      sequence_length: Number of steps of a window.
      sequence_stride: Number of steps between the starts of windows.
      sampling_rate: Number of steps between the elements of a window.
      batch_size: Number of windows per batch; None for single windows.
      shuffle: Whether to shuffle the windows.
      seed: Seed of the order.
      start_index: First step.
      end_index: End of the steps, exclusive.

    Returns:
      A dataset of batches of windows [batch, sequence_length, ...], or of pairs with targets.

    Raises:
      ValueError: If a number is not positive or outside the data.

    Example:
      >>> import numpy as np
      >>> windows = tf.keras.utils.timeseries_dataset_from_array(
      ...     np.arange(6), np.arange(6) * 10, sequence_length=3, batch_size=2)
      >>> x, y = next(iter(windows))
      >>> x.numpy().tolist(), y.numpy().tolist()
      ([[0, 1, 2], [1, 2, 3]], [0, 10])
    """
    data = structure.to_array(structure.copy_arrays(data))
    steps = len(data)
    for name, value in (("sampling_rate", sampling_rate), ("sequence_stride", sequence_stride)):
        if not 0 < value < steps:
            raise ValueError(
                f"`{name}` must be higher than 0 and lower than the number of steps {steps}, got {value}."
            )
    if start_index and not 0 <= start_index < steps:
        raise ValueError(f"`start_index` must be in [0, {steps}), got {start_index}.")
    if end_index and not (start_index or 0) < end_index < steps:
        raise ValueError(
            f"`end_index` must be higher than `start_index` ({start_index or 0}) and lower than {steps}, got "
            f"{end_index}."
        )
    start, end = start_index or 0, end_index or steps
    count = end - start - (sequence_length - 1) * sampling_rate
    if targets is not None:
        targets = structure.to_array(structure.copy_arrays(targets))
        count = min(count, len(targets))
        targets = targets[start:end]
    data = data[start:end]
    starts = np.arange(0, count, sequence_stride)
    if shuffle:
        seed = int(np.random.randint(1_000_000)) if seed is None else seed
        np.random.RandomState(seed).shuffle(starts)
    offsets = np.arange(sequence_length) * sampling_rate
    spec: PyTree = TensorSpec([sequence_length, *data.shape[1:]], data.dtype)

    def gather(index: np.ndarray) -> list[np.ndarray]:
        first = starts[index]
        windows = np.asarray(data[first[:, None] + offsets])
        return [windows] if targets is None else [windows, np.asarray(targets[first])]

    if targets is not None:
        spec = (spec, TensorSpec(targets.shape[1:], structure.infer_dtype(targets)))
    dataset: Dataset = IndexedDataset(len(starts), gather, spec)
    if shuffle:
        dataset = dataset.shuffle(1024 if batch_size is None else batch_size * 8, seed=seed)
    return dataset.prefetch(-1) if batch_size is None else dataset.batch(batch_size).prefetch(-1)
