"""Functions of `compute_on_host` in files: their names and settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from meshflow.core.runtime.errors import DataLossError, UnimplementedError
from meshflow.core.values.unknown_sizes import HOST_FUNCTIONS, find_host_name
from meshflow.environment.types import Json
from meshflow.saved_model.manifest.json_structures import pack_structure, unpack_structure


def pack_function(function: Callable[..., Any]) -> dict[str, Json]:
    """Convert a function to JSON.

    Args:
      function: A function in `HOST_FUNCTIONS`, or a `functools.partial` of one.

    Raises:
      UnimplementedError: If it is another function.
    """
    name = find_host_name(function)
    if name is None:
        raise UnimplementedError(
            f"sizes depend on values by {function!r}, which has no name in files"
        )
    settings = function.args if isinstance(function, functools.partial) else ()
    return {"function": name, "settings": pack_structure(settings)}


def unpack_function(data: Json) -> Callable[..., Any]:
    """Convert JSON of `pack_function` back to a function.

    Raises:
      DataLossError: If no function has this name.
    """
    if data["function"] not in HOST_FUNCTIONS:
        raise DataLossError(
            f"a saved function calls {data['function']!r}, which is not a known host function."
        )
    return functools.partial(HOST_FUNCTIONS[data["function"]], *unpack_structure(data["settings"]))
