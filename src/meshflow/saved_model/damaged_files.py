"""Errors of damaged SavedModels, which name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meshflow.core.runtime.errors import DataLossError, UnimplementedError
from meshflow.environment.limits import FileTooLargeError

# Errors that values of wrong types, or with wrong references, cause in any function.
_DAMAGE_ERRORS = (
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)


@contextlib.contextmanager
def translate_damage(folder: str, file: str) -> Iterator[None]:
    """Translate errors that a damaged SavedModel causes in a `with` block.

    Args:
      folder: Folder of the SavedModel.
      file: Path of the file that describes its objects.

    Raises:
      DataLossError: Instead of an error that damage causes. It names the file, or another one in the folder.
    """
    try:
        yield
    except (FileTooLargeError, UnimplementedError):
        raise
    except DataLossError as error:
        raise error if folder in str(error) else DataLossError(f"{file}: {error}") from None
    except _DAMAGE_ERRORS as error:
        raise DataLossError(f"{file} is damaged: {error!r}.") from error
