"""Importing public names by TensorFlow's paths, wherever their files are.

`tf.optimizers` and `tf.config.experimental` are attributes that lead to modules with other names;
`from meshflow.optimizers import Adam` must find those, and never load a file a second time under another name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

__all__ = ["FOR_JAX", "install", "public_face"]

_PACKAGE = __name__.partition(".")[0]
# Parts that any JAX program may use: they are loaded without the rest.
FOR_JAX = ("kernels", "passes")
_ALONE = (*FOR_JAX, "_face", "_version", "cli", "version")


def public_face() -> Any:
    """The package that users import, which is above all others and has been loaded by whoever gets here."""
    return sys.modules[_PACKAGE]


class _Known(Loader):
    """Gives a module that is loaded already."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just given the module the spec of its second name.
        module.__spec__ = self._spec


class _PublicPaths(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        package = sys.modules.get(parent)
        # Also under a name that a program gave it: sys.modules["tensorflow"] = meshflow.
        if package is None or package.__name__.partition(".")[0] != _PACKAGE:
            return None
        own_name = package.__name__ == parent
        if own_name and fullname.split(".")[1] not in _ALONE:
            # Modules rely on what the package's names have made of each other, as operators of tensors.
            importlib.import_module(f"{_PACKAGE}._face")
            if fullname in sys.modules:
                # It was loaded on the way. The import system loads what has a spec once more, by that spec.
                module = sys.modules[fullname]
                spec = module.__spec__ = spec_from_loader(fullname, _Known(module))
                return spec
        if own_name and PathFinder.find_spec(fullname, path) is not None:
            return None
        found = getattr(package, name, None)
        if found is None and not own_name:
            try:
                found = importlib.import_module(f"{package.__name__}.{name}")
            except ModuleNotFoundError:
                return None
        return spec_from_loader(fullname, _Known(found)) if isinstance(found, ModuleType) else None


def install() -> None:
    """Makes `import meshflow.a.b` find what `meshflow.a.b` is."""
    if not any(isinstance(finder, _PublicPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PublicPaths())
