"""`tf.keras.datasets`: small image, text and regression data sets."""

from meshflow.keras.datasets import (
    boston_housing,
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    imdb,
    mnist,
    reuters,
)

__all__ = [
    "boston_housing",
    "cifar10",
    "cifar100",
    "digits",
    "fashion_mnist",
    "imdb",
    "mnist",
    "reuters",
]
