"""Assets: files that are copied into the folder of a SavedModel and move with it."""

from __future__ import annotations

import os

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.contained_files import check_contained


class AssetFile(bytes):
    """Path of an asset. Its type distinguishes it from other strings.

    Attributes:
      asset: The asset.
    """

    asset: Asset


class Asset:
    r"""File that is saved together with the object that has it as an attribute.

    Args:
      path: Path of the file: text, a path object, or a scalar string tensor.

    Raises:
      ValueError: If the path is None.
      TypeError: If it is not a path.

    Attributes:
      asset_path: Path of the file as a scalar string tensor. For a loaded object, the path in the
        folder of the SavedModel.

    Example:
      >>> import os, tempfile
      >>> folder = tempfile.mkdtemp()
      >>> tf.io.write_file(os.path.join(folder, "names.txt"), "a\\nb\\n")
      >>> module = tf.Module()
      >>> module.names = tf.saved_model.Asset(os.path.join(folder, "names.txt"))
      >>> tf.saved_model.save(module, os.path.join(folder, "model"))
      >>> names = tf.saved_model.load(os.path.join(folder, "model")).names
      >>> tf.io.read_file(names.asset_path).numpy()
      b'a\\nb\\n'
    """

    # Folder of the SavedModel that contains the file, None for a file of the program.
    _folder: str | None = None

    def __init__(self, path: StrPath | Tensor | None) -> None:
        if path is None:
            raise ValueError("tf.saved_model.Asset takes the path of a file, got None.")
        raw = path.numpy() if isinstance(path, Tensor) else os.fspath(path)
        name = raw.decode() if isinstance(raw, bytes) else str(raw)
        file = AssetFile(name.encode())
        file.asset = self
        scalar = np.empty((), object)
        scalar[()] = file
        self.asset_path = Tensor(scalar)

    @property
    def path(self) -> str:
        """Return the path of the file as text."""
        return str(self.asset_path.array.item().decode())

    def read_content(self) -> bytes:
        """Read the content of the file.

        Raises:
          NotFoundError: If there is no such file.
          DataLossError: If the file of a loaded asset was replaced by a link or a pipe.
        """
        path = self.path if self._folder is None else check_contained(self.path, self._folder)
        with gfile.GFile(path, "rb") as file:
            return bytes(file.read())


def load_asset(folder: str, name: str) -> Asset:
    """Return an asset of a SavedModel.

    Args:
      folder: Folder of the SavedModel.
      name: Name of the file.

    Raises:
      DataLossError: If the name is a path to another folder, or the file is a link or a pipe.
    """
    if os.path.basename(name) != name or name in ("", ".", ".."):
        raise DataLossError(f"{folder}: {name!r} is no file of the model.")
    asset = Asset(check_contained(gfile.join(folder, "assets", name), folder))
    asset._folder = folder
    return asset
