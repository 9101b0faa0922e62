"""MNIST: 70,000 handwritten digits (LeCun et al.)."""

from __future__ import annotations

import numpy as np

from meshflow.keras.utils.files import get_file

__all__ = ["load_data"]

URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"


def load_data(
    path: str = "mnist.npz",
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Download the data set once and return it.

    Args:
      path: Name of the file in the cache.

    Returns:
      `(x_train, y_train), (x_test, y_test)`; uint8 images of shape [n, 28, 28], uint8 labels.
    """
    file = get_file(path, origin=URL, file_hash=SHA256)
    with np.load(file) as data:
        return (data["x_train"], data["y_train"]), (data["x_test"], data["y_test"])
