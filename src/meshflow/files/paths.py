"""Where a path leads: to this machine's disk, or to a store that fsspec reaches (`gs://`, `s3://`, ...)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

from meshflow.core.runtime import errors

# The extra that brings a scheme's driver, where Meshflow names one.
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def text(path: Any) -> str:
    """A path as a string.

    Args:
      path: a string, bytes, an object with `__fspath__`, or a string tensor.

    Raises:
      DtypeMismatchError: for anything else; a `TypeError`, too.
    """
    path = os.fspath(path) if hasattr(path, "__fspath__") else path
    path = path.numpy() if hasattr(path, "numpy") else path
    path = path.decode() if isinstance(path, bytes) else path
    if not isinstance(path, str):
        raise errors.DtypeMismatchError(
            f"A path must be one string (text, bytes or an os.PathLike object), got {path!r}."
        )
    return path.removeprefix("file://")


def is_remote(path: Any) -> bool:
    """Whether a path leads to a store, by its scheme."""
    return "://" in text(path)


def remote(path: str) -> Any:
    """The fsspec file system of a path with a scheme; None for a local path.

    Args:
      path: what `text` gave.

    Raises:
      UnimplementedError: naming the extra whose package is missing.
    """
    if "://" not in path:
        return None
    scheme = path.split("://", 1)[0]
    extra = _EXTRAS.get(scheme, "remote")
    try:
        import fsspec  # noqa: PLC0415 - optional: the extra depends on the path

        # Other processes write there too: a remembered listing may be old.
        return fsspec.core.url_to_fs(path, use_listings_cache=False)[0]
    except ImportError as error:
        raise errors.UnimplementedError(
            f"{path!r} is not a local path, and what reads {scheme}:// is not installed "
            f"({error}): pip install 'meshflow-tf[{extra}]'."
        ) from None
    except ValueError as error:
        raise errors.UnimplementedError(
            f"{path!r} has a scheme that no file system is known for: {error}"
        ) from None


@contextlib.contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Turns the operating system's errors, and those of stores, into TensorFlow's, with the path's name."""
    try:
        yield
    except FileNotFoundError:
        raise errors.NotFoundError(f"{path}; No such file or directory") from None
    except FileExistsError:
        raise errors.AlreadyExistsError(f"{path}; File exists") from None
    except PermissionError:
        raise errors.PermissionDeniedError(f"{path}; Permission denied") from None
    except OSError as error:
        said = f"{path}; {error.strerror or error}"
        if error.errno in _FULL:
            raise errors.ResourceExhaustedError(said) from None
        raise errors.FailedPreconditionError(said) from None


@contextlib.contextmanager
def full_disk_named(path: str) -> Iterator[None]:
    """Turns the error of a full disk into TensorFlow's, with the path's name; others pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise errors.ResourceExhaustedError(f"{path}; {error.strerror or error}") from None


def parent(path: str) -> str:
    """The folder that a path lies in; empty for a name alone."""
    head, separator, _ = path.rstrip("/").rpartition("/")
    return head or separator


def absolute(path: str) -> str:
    """A path that means the same in every working folder.

    Args:
      path: what `text` gave.
    """
    return path if is_remote(path) else os.path.abspath(path)
