"""Fashion-MNIST: 70,000 images of clothes (Xiao et al. 2017, arXiv:1708.07747)."""

from __future__ import annotations

import gzip

import numpy as np

from meshflow.keras.utils.files import get_file

__all__ = ["load_data"]

URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
# MD5 checksums that the authors of the data set published.
FILES = {
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
}


def read_idx(path: str) -> np.ndarray:
    """Read an array from a gzipped file in the IDX format.

    Raises:
      ValueError: If the file is damaged; the message names it.
    """
    with gzip.open(path, "rb") as file:
        content = file.read()
    rank = content[3]
    shape = np.frombuffer(content, ">i4", rank, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if values.size != int(np.prod(shape)):
        raise ValueError(
            f"{path}: expected {int(np.prod(shape))} values, found {values.size}. Delete the file and try again."
        )
    return values.reshape(shape)


def load_data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Download the data set once and return it.

    Returns:
      `(x_train, y_train), (x_test, y_test)`; uint8 images of shape [n, 28, 28], uint8 labels.
    """
    y, x, y_test, x_test = (
        read_idx(get_file(name, URL + name, cache_subdir="datasets/fashion-mnist", md5_hash=md5))
        for name, md5 in FILES.items()
    )
    return (x, y), (x_test, y_test)
