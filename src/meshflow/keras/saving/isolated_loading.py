"""Loading of models of unknown origin: an isolated process parses the file, and returns JSON and arrays.

A result is the length of the JSON in eight bytes, the JSON, and the arrays in the safetensors format. Reading it uses
neither HDF5, ZIP nor protocol buffers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import IO

import numpy as np

from meshflow.core.runtime.errors import DataLossError
from meshflow.core.runtime.isolation import call_isolated
from meshflow.environment.json_documents import parse_json
from meshflow.environment.types import Config
from meshflow.files.copies import local_file_or_folder
from meshflow.files.listing import measure_folder
from meshflow.files.safetensors import parse_arrays, write_arrays
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.saving.model_files import describe_model
from meshflow.keras.error_context import prefix_errors
from meshflow.keras.safe_mode import safe_mode_scope

# Function that creates a model from its metadata and arrays, and optionally compiles it.
_Restore = Callable[[Config, Mapping[str, tuple[str, np.ndarray]], bool], Model]


def load_isolated(path: str, compile: bool, target: str, restore: _Restore) -> Model:
    """Load a model in an isolated process, and create it from the result in this process.

    Args:
      path: Path of a file, or of a folder on a local disk.
      compile: Whether to compile the model as it was.
      target: Name of the function that loads the model and calls `write_description`.
      restore: Function that creates the model.

    Raises:
      OSError: If the file does not exist.
      NotImplementedError: If the model has no configuration, only functions.
      DataLossError: If the process crashes, or returns something else.
    """
    with local_file_or_folder(path) as local_path:
        if not os.path.exists(local_path):
            raise OSError(f"No file or directory found at {path}")
        size = (
            measure_folder(local_path) if os.path.isdir(local_path) else os.path.getsize(local_path)
        )
        arguments = {"path": os.path.abspath(local_path), "compile": compile}
        content = call_isolated(target, arguments, path, size)
    length = int.from_bytes(content[:8], "little")
    if length > len(content) - 8:
        raise DataLossError(f"{path}: the isolated process returned a truncated description.")
    try:
        description = parse_json(content[8 : 8 + length])
        arrays = parse_arrays(content[8 + length :], path)
        meta, names = description["model"], description["names"]
        stored = {key: (str(names[key]), value) for key, value in arrays.items()}
        with prefix_errors(path), safe_mode_scope(True):
            return restore(meta, stored, compile)
    except (UnicodeDecodeError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DataLossError(f"{path}: the isolated process returned {error!r}.") from error
    except ValueError as error:
        if path in str(error):
            raise
        raise DataLossError(f"{path}: the isolated process returned: {error}") from error


def write_description(model: Model, file: IO[bytes]) -> None:
    """Write the input of `load_isolated`.

    Args:
      model: A model with a configuration.
      file: Binary file.
    """
    meta, arrays = describe_model(model)
    names = {key: name for key, (name, _) in arrays.items()}
    text = json.dumps({"model": meta, "names": names}).encode()
    file.write(len(text).to_bytes(8, "little") + text)
    write_arrays(file, {key: value for key, (_, value) in arrays.items()})
