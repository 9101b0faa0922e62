"""`tf.io.gfile`: file functions for local files and, with the package fsspec, for remote ones."""

from meshflow.files import gfile as _gfile
from meshflow.files.gfile import *  # noqa: F403

__all__ = sorted(_gfile.__all__)
