"""State that the layers of users write to `.keras` files by their own methods: arrays and asset files."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.saving.archives import Archive
from meshflow.keras.engine.saving.group_paths import KERAS_2_STYLE, PathStyle, iterate_objects
from meshflow.keras.registry import is_overridden


def find_stores(model: Layer, style: PathStyle) -> dict[str, Any]:
    """Return the layers that write and read arrays by their own methods, by the paths of their groups.

    Args:
      model: A model or layer.
      style: Rules for the paths.
    """
    return {
        f"{path}/vars".lstrip("/"): layer
        for path, layer in iterate_objects(model, style)
        if is_overridden(layer, "save_own_variables") or is_overridden(layer, "load_own_variables")
    }


def write_assets(model: Layer, archive: zipfile.ZipFile) -> None:
    """Write the files of the layers with their own `save_assets`.

    Args:
      model: A model or layer.
      archive: A `.keras` file that is open for writing.
    """
    layer: Any
    for path, layer in iterate_objects(model, KERAS_2_STYLE):
        if not is_overridden(layer, "save_assets"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            prefix = _get_assets_prefix(path)
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file():
                    archive.write(file, prefix + file.relative_to(folder).as_posix())


def read_assets(model: Layer, archive: Archive) -> None:
    """Call the layers' own `load_assets` with folders of the files that `save_assets` wrote.

    Args:
      model: The model.
      archive: A `.keras` file.
    """
    layer: Any
    for path, layer in iterate_objects(model, KERAS_2_STYLE):
        if not is_overridden(layer, "load_assets"):
            continue
        prefix = _get_assets_prefix(path)
        with tempfile.TemporaryDirectory() as folder:
            for name in archive.list_members(prefix):
                target = os.path.join(folder, name.removeprefix(prefix))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                Path(target).write_bytes(archive.read(name).getvalue())
            layer.load_assets(folder)


def _get_assets_prefix(path: str) -> str:
    """Return the folder in the archive for the assets of a layer; the path of the model itself is empty."""
    return f"assets/{path}/" if path else "assets/"
