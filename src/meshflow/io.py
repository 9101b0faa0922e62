"""`tf.io`: files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshflow.core.convert import convert_to_tensor
from meshflow.core.errors import NotFoundError
from meshflow.core.tensor import Tensor

__all__ = ["read_file", "write_file"]


def _path(filename: Any) -> Path:
    if isinstance(filename, Tensor):
        filename = filename.numpy()
    return Path(filename.decode() if isinstance(filename, bytes) else filename)


def read_file(filename: Any, name: str | None = None) -> Tensor:
    """A file's content as a string.

    Raises:
      NotFoundError: naming the file, when there is none.
    """
    try:
        return convert_to_tensor(_path(filename).read_bytes())
    except FileNotFoundError:
        raise NotFoundError(f"{_path(filename)}; No such file or directory") from None


def write_file(filename: Any, contents: Any, name: str | None = None) -> None:
    """Writes a string to a file, making its folder."""
    path = _path(filename)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(convert_to_tensor(contents).numpy())
