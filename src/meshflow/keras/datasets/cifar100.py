"""CIFAR-100: 60,000 color photographs in 100 classes (Krizhevsky 2009)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from meshflow.keras.datasets.cifar10 import read_batch
from meshflow.keras.utils.files import get_file

__all__ = ["load_data"]

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
SHA256 = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"


def load_data(
    label_mode: str = "fine",
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Download the data set once and return it.

    Args:
      label_mode: 'fine' for 100 classes, 'coarse' for 20 superclasses.

    Returns:
      `(x_train, y_train), (x_test, y_test)`; uint8 images of shape [n, 32, 32, 3], labels of shape
      [n, 1].

    Raises:
      ValueError: For another mode.
    """
    if label_mode not in ("fine", "coarse"):
        raise ValueError(
            f'`label_mode` must be one of `"fine"`, `"coarse"`. Received: label_mode={label_mode}.'
        )
    folder = Path(get_file("cifar-100-python", origin=URL, untar=True, file_hash=SHA256))
    key = f"{label_mode}_labels".encode()
    return read_batch(folder / "train", key), read_batch(folder / "test", key)
