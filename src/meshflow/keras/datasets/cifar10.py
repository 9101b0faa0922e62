"""CIFAR-10: 60,000 color photographs in 10 classes (Krizhevsky 2009)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from meshflow.files.old_pickles import read_pickle
from meshflow.keras.utils.files import get_file

__all__ = ["load_data"]

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"


def read_batch(path: Path, key: bytes = b"labels") -> tuple[np.ndarray, np.ndarray]:
    """Read the images and labels of one file.

    Args:
      path: The file.
      key: Key of the labels.
    """
    data = read_pickle(path, encoding="bytes")
    images = np.asarray(data[b"data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, np.asarray(data[key], np.uint8).reshape(-1, 1)


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Download the data set once and return it.

    Returns:
      `(x_train, y_train), (x_test, y_test)`; uint8 images of shape [n, 32, 32, 3], uint8 labels of
      shape [n, 1].
    """
    folder = Path(get_file("cifar-10-batches-py", origin=URL, untar=True, file_hash=SHA256))
    parts = [read_batch(folder / f"data_batch_{i}") for i in range(1, 6)]
    x, y = (np.concatenate(p) for p in zip(*parts, strict=True))
    return (x, y), read_batch(folder / "test_batch")
