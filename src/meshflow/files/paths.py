"""Resolution of paths to the local disk or to a store of fsspec (`gs://`, `s3://`, ...)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

from meshflow.core.runtime import errors
from meshflow.environment.types import StrPath

# Extra of Meshflow that installs the driver of a scheme.
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
_DISK_FULL_CODES = frozenset({errno.ENOSPC, errno.EDQUOT})


def to_path_string(path: Any) -> str:
    """Convert a path to a string.

    Args:
      path: A string, bytes, an object with `__fspath__`, or a string tensor.

    Raises:
      DtypeMismatchError: The argument has another type; the error is a `TypeError`, too.
    """
    path = os.fspath(path) if hasattr(path, "__fspath__") else path
    path = path.numpy() if hasattr(path, "numpy") else path
    path = path.decode() if isinstance(path, bytes) else path
    if not isinstance(path, str):
        raise errors.DtypeMismatchError(
            f"A path must be one string (text, bytes or an os.PathLike object), got {path!r}."
        )
    return path.removeprefix("file://")


def is_remote(path: StrPath) -> bool:
    """Check whether a path has the scheme of a store."""
    return "://" in to_path_string(path)


def get_file_system(path: str) -> Any:
    """Return the fsspec file system of a path with a scheme; None for a local path.

    Args:
      path: Result of `to_path_string`.

    Raises:
      UnimplementedError: The driver of the scheme is not installed, or the scheme is unknown.
    """
    if "://" not in path:
        return None
    scheme = path.split("://", 1)[0]
    extra = _EXTRAS.get(scheme, "remote")
    try:
        import fsspec  # noqa: PLC0415 - optional: the scheme determines the extra

        # Other processes write to the store, so a cached listing may be outdated.
        return fsspec.core.url_to_fs(path, use_listings_cache=False)[0]
    except ImportError as error:
        raise errors.UnimplementedError(
            f"{path!r} is a remote path, and the driver of {scheme}:// is not installed "
            f"({error}): pip install 'meshflow-tf[{extra}]'."
        ) from None
    except ValueError as error:
        raise errors.UnimplementedError(
            f"{path!r} has a scheme without a known file system: {error}"
        ) from None


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Translate errors of the operating system and of stores to TensorFlow's errors, with the path."""
    try:
        yield
    except FileNotFoundError:
        raise errors.NotFoundError(f"{path}; No such file or directory") from None
    except FileExistsError:
        raise errors.AlreadyExistsError(f"{path}; File exists") from None
    except PermissionError:
        raise errors.PermissionDeniedError(f"{path}; Permission denied") from None
    except OSError as error:
        message = f"{path}; {error.strerror or error}"
        if error.errno in _DISK_FULL_CODES:
            raise errors.ResourceExhaustedError(message) from None
        raise errors.FailedPreconditionError(message) from None


@contextlib.contextmanager
def translate_full_disk_error(path: str) -> Iterator[None]:
    """Translate the error of a full disk to TensorFlow's error, with the path; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL_CODES:
            raise
        raise errors.ResourceExhaustedError(f"{path}; {error.strerror or error}") from None


def get_parent(path: str) -> str:
    """Return the parent folder of a path; empty for a bare name."""
    head, separator, _ = path.rstrip("/").rpartition("/")
    return head or separator


def make_absolute(path: str) -> str:
    """Make a path of `to_path_string` absolute, if it is local."""
    return path if is_remote(path) else os.path.abspath(path)
