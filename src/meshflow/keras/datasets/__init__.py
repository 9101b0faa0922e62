"""`tf.keras.datasets`: small data sets of images."""

from meshflow.keras.datasets import cifar10, digits, fashion_mnist, mnist

__all__ = ["cifar10", "digits", "fashion_mnist", "mnist"]
