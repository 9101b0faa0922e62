"""`tf.io.write_graph`: files with graphs."""

from __future__ import annotations

import os
from typing import Any

from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import to_path_string


def write_graph(graph_or_graph_def: Any, logdir: StrPath, name: str, as_text: bool = True) -> str:
    """Write a graph to a file, and return its path.

    Args:
      graph_or_graph_def: A graph, or its `GraphDef`.
      logdir: Folder, which is created if necessary.
      name: Name of the file.
      as_text: Whether to write text instead of bytes.
    """
    definition = graph_or_graph_def
    if hasattr(definition, "as_graph_def"):
        definition = definition.as_graph_def()
    folder = to_path_string(logdir)
    gfile.makedirs(folder)
    path = os.path.join(folder, name)
    with gfile.GFile(path, "w" if as_text else "wb") as file:
        file.write(str(definition) if as_text else definition.SerializeToString())
    return path
