"""Hatch build hook that writes stubs, by which editors and type checkers find Meshflow's types in programs for TensorFlow.

Meshflow must be installed in the build environment, because its modules are listed by importing them.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Public packages of TensorFlow that contain all names again; version 1 creates its names when they are used.
_VERSIONS = {"compat.v1": "meshflow.compat.v1", "compat.v2": "meshflow"}


def list_modules(module: ModuleType, path: str = "") -> dict[str, ModuleType]:
    """Return a module and its public modules by their paths, for example "keras.layers"."""
    modules = {path: module}
    for name in () if path in _VERSIONS else module.__all__:
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            modules |= list_modules(value, f"{path}.{name}".lstrip("."))
    return modules


def _describe_module(module: ModuleType, path: str) -> str:
    """Return the stub of a module."""
    source = _VERSIONS.get(path, module.__name__)
    lines = [f"from {source} import *"]
    if path == "compat.v1":
        lines += ["from typing import Any", "def __getattr__(name: str) -> Any: ..."]
    # Modules and other names that are loaded on first use are not part of `import *`, and some not of `__all__`.
    for name in () if path in _VERSIONS else sorted({*dir(module), *module.__all__}):
        if not name.startswith("_"):
            is_module = name in module.__all__ and isinstance(getattr(module, name), ModuleType)
            lines.append(f"from {'.' if is_module else source} import {name} as {name}")
    return "\n".join(lines) + "\n"


def write_stubs(folder: Path) -> None:
    """Write the packages `tensorflow-stubs`, `keras-stubs` and `tf_keras-stubs` (PEP 561).

    Args:
      folder: An existing folder.
    """
    for path, module in list_modules(importlib.import_module("meshflow")).items():
        text = _describe_module(module, path)
        names = path.split(".") if path else []
        packages = [["tensorflow", *names]]
        if names[:1] == ["keras"]:
            packages += [["keras", *names[1:]], ["tf_keras", *names[1:]]]
        for first, *rest in packages:
            target = folder.joinpath(f"{first}-stubs", *rest)
            target.mkdir(parents=True, exist_ok=True)
            (target / "__init__.pyi").write_text(text)


class StubHook(BuildHookInterface[Any]):
    """Adds the stubs to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the stubs to a temporary folder, and include them."""
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        write_stubs(folder)
        build_data["force_include"] |= {str(path): path.name for path in folder.iterdir()}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the temporary folder."""
        self._folder.cleanup()
