"""Handwritten digits that scikit-learn includes, so no network is needed."""

from __future__ import annotations

import numpy as np

from meshflow.environment import optional_packages

__all__ = ["load_data"]


def load_data(
    test_split: float = 0.2, seed: int = 0
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return 1,797 images of handwritten digits, 8x8 pixels.

    Args:
      test_split: Fraction of the images for testing.
      seed: Seed of the split.

    Returns:
      `(x_train, y_train), (x_test, y_test)`; uint8 images of shape [n, 8, 8] with values 0 to 255,
      int64 labels of shape [n].

    Raises:
      ImportError: If scikit-learn is missing; the message names the extra to install.

    Example:
      >>> (x_train, y_train), (x_test, y_test) = tf.keras.datasets.digits.load_data(test_split=0.25)
      >>> x_train.shape, x_test.shape
      ((1348, 8, 8), (449, 8, 8))
    """
    sets = optional_packages.import_extra(
        "sklearn.datasets", "demo", "The digits data set is part of scikit-learn"
    )
    images, labels = sets.load_digits(return_X_y=True)
    images = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(seed).permutation(len(images))
    images, labels = images[order], labels[order].astype(np.int64)
    num_train = round(len(images) * (1 - test_split))
    return (images[:num_train], labels[:num_train]), (images[num_train:], labels[num_train:])
