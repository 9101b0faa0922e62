"""`tf.io.gfile`: files and folders, local ones and, with the package fsspec, remote ones."""

from meshflow.files import gfile as _gfile
from meshflow.files.gfile import *  # noqa: F403

__all__ = sorted(_gfile.__all__)
