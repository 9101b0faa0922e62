"""Files that belong to a SavedModel: they are copied into its folder, and found there wherever that is moved."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.tensor import Tensor
from meshflow.files import gfile

__all__ = ["Asset", "AssetFile", "file_of"]


class AssetFile(bytes):
    """The path of a file that belongs to a SavedModel, which is told from other strings by its type.

    Attributes:
      asset: the file.
    """

    asset: Asset


class Asset:
    """A file that is saved with an object that has it as an attribute.

    Args:
      path: the file; text, a path object, or a scalar string tensor.

    Raises:
      ValueError: for None.
      TypeError: for what is no path.

    Attributes:
      asset_path: the file's path, a scalar string tensor; of a loaded object that in its folder.

    Example:
      >>> import os, tempfile
      >>> import meshflow as tf
      >>> folder = tempfile.mkdtemp()
      >>> tf.io.write_file(os.path.join(folder, "names.txt"), "a\\nb\\n")
      >>> module = tf.Module()
      >>> module.names = tf.saved_model.Asset(os.path.join(folder, "names.txt"))
      >>> tf.saved_model.save(module, os.path.join(folder, "model"))
      >>> names = tf.saved_model.load(os.path.join(folder, "model")).names
      >>> tf.io.read_file(names.asset_path).numpy()
      b'a\\nb\\n'
    """

    def __init__(self, path: Any) -> None:
        if path is None:
            raise ValueError("tf.saved_model.Asset takes the path of a file, got None.")
        given = path.numpy() if isinstance(path, Tensor) else os.fspath(path)
        name = given.decode() if isinstance(given, bytes) else str(given)
        found = AssetFile(name.encode())
        found.asset = self
        held = np.empty((), object)
        held[()] = found
        self.asset_path = Tensor(held)

    @property
    def path(self) -> str:
        """The file's path as text."""
        return str(self.asset_path._value.item().decode())

    def content(self) -> bytes:
        """The file's bytes.

        Raises:
          NotFoundError: when there is no such file.
        """
        with gfile.GFile(self.path, "rb") as file:
            return bytes(file.read())


def file_of(folder: str, name: str) -> str:
    """The path of a file in a SavedModel.

    Args:
      folder: the SavedModel.
      name: the file's name.

    Raises:
      DataLossError: for a name that leads elsewhere.
    """
    if os.path.basename(name) != name or name in ("", ".", ".."):
        raise DataLossError(f"{folder}: {name!r} is no file of the model.")
    return gfile.join(folder, "assets", name)
