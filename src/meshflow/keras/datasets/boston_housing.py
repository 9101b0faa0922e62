"""Boston housing: prices of 506 houses with 13 features each (Harrison and Rubinfeld 1978)."""

from __future__ import annotations

import numpy as np

from meshflow.files.old_pickles import read_arrays
from meshflow.keras.utils.files import get_file

__all__ = ["load_data"]

URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/boston_housing.npz"
SHA256 = "f553886a1f8d56431e820c5b82552d9d95cfcb96d1e678153f8839538947dff5"


def load_data(
    path: str = "boston_housing.npz", test_split: float = 0.2, seed: int = 113
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Download the data set once and return it.

    Args:
      path: Name of the file in the cache.
      test_split: Fraction of the houses for testing.
      seed: Seed of the order of the houses.

    Returns:
      `(x_train, y_train), (x_test, y_test)`; floats of shape [n, 13], and prices in 1,000 dollars.

    Raises:
      ValueError: If `test_split` is not in [0, 1).
    """
    if not 0 <= test_split < 1:
        raise ValueError(f"test_split must be at least 0 and less than 1, got {test_split}.")
    arrays = read_arrays(get_file(path, origin=URL, file_hash=SHA256))
    x, y = arrays["x"], arrays["y"]
    order = np.arange(len(x))
    np.random.RandomState(seed).shuffle(order)
    x, y = x[order], y[order]
    num_train = int(len(x) * (1 - test_split))
    return (x[:num_train], y[:num_train]), (x[num_train:], y[num_train:])
